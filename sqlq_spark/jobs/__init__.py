"""
Ready-made jobs. The `main` of each module is an entry point of the wheel.

Run a job with spark-submit (`jobs/<name>.py`), with its command (`sqlqueue-<name>`), or on
Databricks as a Python wheel task. Jobs work with classic Spark sessions and with Spark Connect.
"""
