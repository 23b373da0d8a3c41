"""
Options of a read and of a write: text from Spark becomes frozen values.

`DatabaseOptions.parse` in connection.py refuses unknown names, typos among them. fields.py reads
each option alone. `__post_init__` of source.py and of sink.py checks what concerns several options.
"""

from sqlq_spark.options.sink import SinkOptions
from sqlq_spark.options.source import SourceOptions

__all__ = ["SinkOptions", "SourceOptions"]
