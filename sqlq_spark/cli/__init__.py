"""The command line."""

from sqlq_spark.cli.lazy import LATER, import_later

for name in LATER:
    import_later(name)
