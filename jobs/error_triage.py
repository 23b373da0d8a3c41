"""Starts the job of the module sqlq_spark.jobs.error_triage, for spark-submit."""

from sqlq_spark.jobs.error_triage import main

if __name__ == "__main__":
    main()
