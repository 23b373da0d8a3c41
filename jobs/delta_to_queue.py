"""Starts the job of the module sqlq_spark.jobs.delta_to_queue, for spark-submit."""

from sqlq_spark.jobs.delta_to_queue import main

if __name__ == "__main__":
    main()
