"""Starts the job maintenance under spark-submit; it is in sqlq_spark/jobs/maintenance.py."""

from sqlq_spark.jobs.maintenance import main

if __name__ == "__main__":
    main()
