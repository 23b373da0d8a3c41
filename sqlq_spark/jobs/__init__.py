"""
Jobs that run as they are: each module has `main`, an entry point of the wheel.

A job runs by spark-submit (`jobs/<name>.py`), by its command (`sqlqueue-<name>`), and on Databricks
as the task of a wheel. It works with a session of Spark's own JVM and with Spark Connect.
"""
