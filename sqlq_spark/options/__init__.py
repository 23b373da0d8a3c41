"""
The options of a read and of a write. Spark passes them as texts, which become frozen values here.

fields.py has the readers, which turn the text of one option into a value. `DatabaseOptions.parse`
in connection.py refuses names that look misspelt, options of a write on a read, and options of a
read on a write. It ignores all other names, because they belong to Spark. source.py and sink.py
check the rules about several options, in `__post_init__`.
"""

from sqlq_spark.options.sink import SinkOptions
from sqlq_spark.options.source import SourceOptions

__all__ = ["SinkOptions", "SourceOptions"]
