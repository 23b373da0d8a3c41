"""A stream and a sink whose password the server changes while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rotation import rotation
from servers import only
from waiting import until

from spark.stand import numbered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery
    from rotation import Rotation

    from spark.stand import SparkQueue

pytestmark = [pytest.mark.spark, only("postgresql", "the option credentials")]

ROUND = 50  # messages


@pytest.fixture
def rotating(queue: SparkQueue, tmp_path: Path) -> Iterator[Rotation]:
    """Give a login with a password that changes."""
    with rotation(queue.place, tmp_path) as made:
        yield made


def given(queue: SparkQueue, rotating: Rotation) -> dict[str, str]:
    """Options of a read or a write without a password."""
    return queue.options | rotating.options


def change_late(rotating: Rotation) -> None:
    """Change the password and end all sessions; give it only when two logins were refused."""
    before = len(rotating.calls)
    rotating.change()
    rotating.end_sessions()
    until(lambda: len(rotating.calls) >= before + 2)
    rotating.publish()


def fail_for_a_moment(rotating: Rotation) -> None:
    """End all sessions while the function raises an error, until it was asked twice."""
    before = len(rotating.calls)
    rotating.withdraw()
    rotating.end_sessions()
    until(lambda: len(rotating.calls) >= before + 2)
    rotating.publish()


def change(rotating: Rotation) -> None:
    """Change the password, and end all sessions as a restart of the server does."""
    rotating.change()
    rotating.publish()
    rotating.end_sessions()


def test_a_stream_and_a_sink_go_on_while_their_password_changes(
    queue: SparkQueue, rotating: Rotation
) -> None:
    """Each message arrives once, the query never stops, and no password is stored or shown."""
    out = queue.another("out")
    stream = queue.spark.readStream.format("sqlqueue").options(**given(queue, rotating)).load()
    writer = stream.drop("queue").writeStream.format("sqlqueue").options(**given(out, rotating))

    query = writer.option("checkpointLocation", str(queue.folder / "checkpoint")).start()
    try:
        changes = (None, change, change_late, fail_for_a_moment, change, change)
        for number, disturb in enumerate(changes):
            queue.fill(number * ROUND, (number + 1) * ROUND)
            if disturb is not None:
                disturb(rotating)
            until(lambda: running(query) and out.count() >= (number + 1) * ROUND)  # noqa: B023
    finally:
        query.stop()

    assert sorted(out.ids()) == sorted(numbered(0, len(changes) * ROUND))
    assert queue.count() == 0
    assert query.exception() is None
    assert len(rotating.passwords) == 5
    assert {call.partition(" ")[2] for call in rotating.calls} == {rotating.url}
    assert len({call.partition(" ")[0] for call in rotating.calls}) >= 2  # processes
    assert rotating.shown_in(everything(query, queue.folder / "checkpoint")) == []


def running(query: StreamingQuery) -> bool:
    """Whether a query runs; raises why it does not."""
    failure = query.exception()
    if failure is not None:
        raise failure
    return query.isActive


def everything(query: StreamingQuery, checkpoint: Path) -> str:
    """What a query stores and shows."""
    files = (each for each in checkpoint.rglob("*") if each.is_file())
    stored = [each.read_text(encoding="utf-8", errors="replace") for each in files]
    return "\n".join([*stored, *(each.json for each in query.recentProgress)])
