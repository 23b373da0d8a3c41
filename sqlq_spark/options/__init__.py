"""
Options of a read and of a write. Spark passes texts, which become frozen values.

`DatabaseOptions.parse` in connection.py refuses names that look misspelt. It also refuses options
of a write on a read, and options of a read on a write. All other names belong to Spark and are
ignored. The readers in fields.py read the text of one option. `__post_init__` in source.py and in
sink.py checks rules about several options.
"""

from sqlq_spark.options.sink import SinkOptions
from sqlq_spark.options.source import SourceOptions

__all__ = ["SinkOptions", "SourceOptions"]
