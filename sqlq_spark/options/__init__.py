"""Options of a read and of a write: text from Spark becomes frozen values."""

from sqlq_spark.options.sink import SinkOptions
from sqlq_spark.options.source import SourceOptions

__all__ = ["SinkOptions", "SourceOptions"]
