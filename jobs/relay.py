"""Starts the job relay under spark-submit; it is in sqlq_spark/jobs/relay.py."""

from sqlq_spark.jobs.relay import main

if __name__ == "__main__":
    main()
