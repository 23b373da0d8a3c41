"""Starts the job of the module sqlq_spark.jobs.maintenance, for spark-submit."""

from sqlq_spark.jobs.maintenance import main

if __name__ == "__main__":
    main()
