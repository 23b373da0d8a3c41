"""Schemas in the settings of queue_to_delta: what is refused before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import module

from sqlq_spark.jobs.queue_to_delta import application
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SinkOptions

if TYPE_CHECKING:
    from pathlib import Path


def settings(**more: Any) -> Any:
    """Settings of the job."""
    given = {"url": "postgresql:///s", "queues": "q", "table": "t", "checkpoint": "c"}
    return module("queue_to_delta").Settings(**given, **more)


ERROR = {"error_queue": "error"}
SPLIT = {"split": True, **ERROR}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"schema": "a INT"}, "setting error_queue is missing: messages whose body does not fit"),
        ({"schema": "a INT", **SPLIT}, "setting schema is for one table: with split use [schemas]"),
        ({"schemas": {"A": "a INT"}, **ERROR}, "settings names and schemas need split = true"),
        ({"schema": "/none.ddl", **ERROR}, "setting schema is '/none.ddl': expected a file to"),
        ({"schemas": {"A": "none.ddl"}, **SPLIT}, "setting A in [schemas] is 'none.ddl': expected"),
        (
            {"schemas": {"A": "a INT"}, "names": {"A": "both", "B": "both"}, **SPLIT},
            "setting names gives B and A the table both: expected the same schema for both",
        ),
        (
            {"schemas": {"A": "a INT"}, "names": {"A": "other"}, **SPLIT},
            "setting names gives A and other types the table other: expected the same schema",
        ),
        ({"format": "iceberg", "table": "/lake/t"}, "setting table is '/lake/t': expected a name"),
    ],
)
def test_settings_that_do_not_go_together(given: dict[str, Any], expected: str) -> None:
    """Each is named, with what is expected."""
    kind = module("queue_to_delta").Settings
    rest = {"url": "postgresql:///s", "queues": "q", "table": "t", "checkpoint": "c"}

    with pytest.raises(BadSettings) as error:
        kind(**(rest | given))

    assert str(error.value).startswith(expected)


def test_a_schema_is_read_from_a_file(tmp_path: Path) -> None:
    """Once, at the start; a byte order mark and blanks around it do not matter."""
    file = tmp_path / "order.ddl"
    file.write_text("\ufeff\nnumber INT\n", encoding="utf-8")

    made = settings(schema=str(file), **ERROR)
    file.unlink()

    assert made.ddl == {"": "number INT"}


def test_failures_go_to_the_error_queue_under_a_name() -> None:
    """With the state tables of the read, and its destinations."""
    source = {"stateSchema": "mine", "allowedDestinations": "a*", "maxMessagesPerTrigger": "5"}

    made = settings(schema="a INT", source=source, **ERROR)
    found = SinkOptions.parse(made.failures("name", 7))

    assert (found.state_schema, found.delivery) == ("mine", "exactlyOnce")
    assert [each.table for each in (found.address, *found.allowed) if each] == ["error", "a*"]
    assert found.txn_version == 7


def test_another_schema_is_another_write() -> None:
    """And so is none."""
    names = [
        application("q", "t", settings(**each))
        for each in ({}, {"schema": "a INT", **ERROR}, {"schema": "b INT", **ERROR})
    ]

    assert len(set(names)) == 3
