"""Starts the job error_triage under spark-submit; it is in sqlq_spark/jobs/error_triage.py."""

from sqlq_spark.jobs.error_triage import main

if __name__ == "__main__":
    main()
