"""Starts the job of the module sqlq_spark.jobs.audit_to_delta, for spark-submit."""

from sqlq_spark.jobs.audit_to_delta import main

if __name__ == "__main__":
    main()
