"""
Starts the job that receives from queues into a Delta table, for spark-submit.

The job itself is the module sqlq_spark.jobs.queue_to_delta.
"""

from sqlq_spark.jobs.queue_to_delta import main

if __name__ == "__main__":
    main()
