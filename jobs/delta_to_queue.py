"""Starts the job delta_to_queue under spark-submit; it is in sqlq_spark/jobs/delta_to_queue.py."""

from sqlq_spark.jobs.delta_to_queue import main

if __name__ == "__main__":
    main()
