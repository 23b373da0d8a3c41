"""Starts the job audit_to_delta under spark-submit; it is in sqlq_spark/jobs/audit_to_delta.py."""

from sqlq_spark.jobs.audit_to_delta import main

if __name__ == "__main__":
    main()
