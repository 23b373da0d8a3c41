"""
Options of a read and of a write: text from Spark becomes frozen values.

`DatabaseOptions.parse` in connection.py refuses names that look misspelt, and options of the other
side; other names are left to Spark. fields.py reads each option alone. `__post_init__` of source.py
and of sink.py checks what concerns several options.
"""

from sqlq_spark.options.sink import SinkOptions
from sqlq_spark.options.source import SourceOptions

__all__ = ["SinkOptions", "SourceOptions"]
