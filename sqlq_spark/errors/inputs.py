"""Errors in what the user gives: options, addresses, DataFrames. Nothing was changed."""

from __future__ import annotations

from sqlq_spark.errors.root import SqlQueueError


class BadInput(SqlQueueError):
    """An input cannot be used. Nothing was changed."""


class BadOption(BadInput):
    """An option has a value that cannot be used."""

    template = "option {0} is {1!r}: expected {2}"

    def __init__(self, option: str, found: str, expected: str) -> None:
        super().__init__(option, found, expected)


class UnknownOption(BadInput):
    """An option is not known, but its name is similar to a known one."""

    template = "option {0} is not known: did you mean {1}?"

    def __init__(self, option: str, near: str) -> None:
        super().__init__(option, near)


class MisplacedOption(BadInput):
    """An option of a write was set on a read, or the other way round. It would have no effect."""

    template = "option {0} has no effect on a {1}: set it on {2}"

    def __init__(self, option: str, given: str, home: str) -> None:
        super().__init__(option, given, home)


class OptionOfOtherSource(BadInput):
    """An option of Spark's Kafka, JDBC or Pub/Sub source or sink. It would have no effect."""

    template = "option {0} is of another source, and has no effect here: {1}"

    def __init__(self, option: str, instead: str) -> None:
        super().__init__(option, instead)


class MissingOption(BadInput):
    """An option without a default was not set."""

    template = "option {0} is missing: give {1}"

    def __init__(self, option: str, example: str) -> None:
        super().__init__(option, example)


class OptionsOfTable(BadInput):
    """CREATE TABLE has OPTIONS, which Spark stores, passwords too, and never passes on."""

    template = (
        "a table in a catalog cannot have the options {0}: Spark stores them, and passes them to "
        "no read or write. Use CREATE TEMPORARY VIEW. Or name the columns and give no OPTIONS, as "
        "in CREATE TABLE t (seq BIGINT, body BINARY) USING sqlqueue, and write WITH (url '…', …) "
        "after the name of the table in each statement"
    )

    def __init__(self, options: str) -> None:
        super().__init__(options)


class BadAddress(BadInput):
    """A queue's name or address cannot be read."""

    template = "queue address {0!r} cannot be used: {1}"

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)


class BadFrame(BadInput):
    """The columns of a DataFrame do not fit."""

    template = "the DataFrame cannot be {1}: {0}"

    def __init__(self, reason: str, done: str = "sent") -> None:
        super().__init__(reason, done)


class BadMessage(BadInput):
    """One row of a DataFrame cannot become a message. Nothing of its batch was sent."""

    template = "row {1} of partition {0} cannot be sent: {2}"

    def __init__(self, partition: int, row: int, reason: str) -> None:
        super().__init__(partition, row, reason)
