"""Starts the job of the module sqlq_spark.jobs.relay, for spark-submit."""

from sqlq_spark.jobs.relay import main

if __name__ == "__main__":
    main()
