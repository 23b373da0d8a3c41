"""Bad input: one clear sentence reaches the user, and no message is touched."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from sqlq_spark.errors import BadInput
from sqlq_spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

NOWHERE = {"url": "postgresql://nobody@nowhere.invalid/x", "queue": "orders", "header": "json"}
WRITE = {"delivery", "intent", "timeToBeReceived"}


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("peekDelay", "10ms", "is '10ms': expected a time of at least 100ms, as 1s"),
        ("maxMessagesPerTrigger", "1e5", "is '1e5': expected a whole number of at least 1"),
        ("maxBytesPerTrigger", "0", "is '0': expected bytes, at least 1, as 67108864 or 64m"),
        ("queryTimeout", "0s", "is '0s': expected a time from 1s to 1d, as 30s"),
        ("transactionMode", "scope", "is 'scope': expected receiveOnly or none"),
        ("purgeOnStartup", "yes", "is 'yes': expected true or false"),
        ("errorQueue", " ", "is ' ': expected a queue's name"),
        ("queue", "🚀" * 14, f"is '{'🚀' * 14}': expected"),
        ("intent", "Shout", "is 'Shout': expected Send, Publish or Reply"),
        ("timeToBeReceived", "-00:00:01", "is '-00:00:01': expected hh:mm:ss, at most 24.20:31:23"),
        ("maxmessagespertriger", "5", "is not known: did you mean maxMessagesPerTrigger?"),
        ("url", "host=db password=hush", "is '…': expected postgresql://user@host:5432/database"),
    ],
)
def test_the_error_of_a_bad_option_says_what_is_expected(
    option: str, value: str, sentence: str
) -> None:
    """Names that are less alike are not refused: Spark's own sources know them."""
    kind = SinkOptions if option in WRITE else SourceOptions

    with pytest.raises(BadInput, match=re.escape(f"option {option} {sentence}")):
        kind.parse(NOWHERE | {option: value})


def test_spark_reports_a_bad_option_at_once(spark: SparkSession) -> None:
    """`load` reads the options, and so does a write before it runs; no server is needed."""
    frame = spark.createDataFrame([("",)], "body string").write.format("sqlqueue").mode("append")

    spark.readStream.format("sqlqueue").options(**NOWHERE).load()
    with pytest.raises(PySparkException, match="option peekDelay is 'soon': expected a time"):
        spark.readStream.format("sqlqueue").options(**NOWHERE, peekDelay="soon").load()
    with pytest.raises(PySparkException, match=r"deliverry is not known: did you mean delivery\?"):
        frame.options(**NOWHERE, deliverry="x").save()
