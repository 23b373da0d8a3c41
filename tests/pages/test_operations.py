"""docs/operations.md: each runbook is followed on a real instance of its failure."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from sqlq_spark import errors
from sqlq_spark.errors import QueueNotFound, StateNotInstalled, StreamNotFound, StreamTakenOver
from sqlq_spark.wire.rows import Origin

from .page import blocks, table
from .shop import bodies

if TYPE_CHECKING:
    from .page import Block
    from .shop import Shop

PAGE = "docs/operations.md"
STREAM = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c11"
MESSAGE = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c12"


def runbook(group: str) -> list[Block]:
    """The blocks of a runbook, in their order."""
    return blocks(PAGE, group)


def test_the_errors_that_the_table_names_are_ours() -> None:
    """No name is missing in errors.py."""
    rows = table(PAGE, "failures").rows
    named = {word for row in rows for word in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", row[1])}

    assert len(named) >= 10
    assert [each for each in named if not hasattr(errors, each)] == []


def test_the_first_commands_of_the_page_answer(shop: Shop) -> None:
    """On a queue without problems doctor ends with 0."""
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        stream.batch()

    first, kept = runbook("look-first")
    shop.run(first)
    assert stream.id in shop.printed

    shop.run(kept)
    assert "<svg" in (shop.folder / "report.html").read_text(encoding="utf-8")


def test_checkpoint_lost(shop: Shop) -> None:
    """The messages of its receipts are shown, returned or dropped, and the stream is deleted."""
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as lost:
        lost.batch()
    shop.words = {STREAM: lost.id}
    listed, asked, returned, dropped, deleted = runbook("checkpoint-lost")

    shop.run(listed, asked)
    assert lost.id in shop.printed
    assert [row[:4] for row in shop.rows] == [(lost.id, 1, 0, 3)]

    shop.run(returned)
    assert "3 messages returned" in shop.printed
    assert shop.count('"Shop.Orders"') == 3

    with closing(shop.stream()) as again:
        assert len(again.bodies()) == 3
    shop.words = {STREAM: again.id}
    shop.run(dropped, deleted)
    assert "3 messages dropped" in shop.printed
    assert shop.count("sqlqueue.receipt") == 0
    assert shop.sql("SELECT stream FROM sqlqueue.stream") == [(lost.id,)]


def test_files_of_the_checkpoint_lost(shop: Shop) -> None:
    """The query of a stream, the last batch that it acknowledged, and what a new stream gets."""
    origin = Origin(query_id="8d2e", query_batch=4)
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        stream.batch(origin)
        stream.loop.acknowledge(stream.offset)
    shop.run(*runbook("files-lost"))
    assert shop.rows == [("8d2e", 4, 1)]

    shop.fill('"Shop.Orders"', 2)
    with closing(shop.stream()) as again, pytest.raises(errors.CheckpointIncomplete):
        again.batch(origin)
    with closing(shop.stream(failOnDataLoss="false")) as again:
        assert bodies(again.batch(origin)) == []
        assert len(bodies(again.batch(replace(origin, query_batch=5)))) == 2


def test_receipts_left(shop: Shop) -> None:
    """A start on the checkpoint hands out what they hold, and the next batch deletes them."""
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        first = stream.bodies()
    shop.run(*runbook("receipts-left"))
    assert stream.id in shop.printed

    with closing(stream.again()) as restarted:
        again = bodies(restarted.received())
        after = restarted.batch()

    assert (again, after) == (first, [])
    shop.run(*runbook("receipts-left"))
    assert "no receipts" in shop.printed


def test_poison(shop: Shop) -> None:
    """It is found where it waits; from the error queue it comes back fixed."""
    found, fixed = runbook("poison")
    shop.sql(
        f"INSERT INTO \"Shop.Orders\" (id, headers, body) VALUES ('{MESSAGE}', '[oops', 'x'), "
        "(gen_random_uuid(), '', 'good'), (gen_random_uuid(), '{}', 'good')"
    )
    shop.run(found)
    assert [(str(row[1]), row[2]) for row in shop.rows] == [(MESSAGE, "[oops")]

    with closing(shop.stream(errorQueue="error")) as stream:
        assert stream.bodies() == [b"good", b"good"]
        shop.run(fixed)
        assert stream.bodies() == [b"x"]
    assert shop.count("error") == 0


def test_messages_that_failed(shop: Shop) -> None:
    """Those of one exception are back in their queue, the others stay."""
    for exception in ("System.InvalidOperationException", "System.TimeoutException"):
        source = '\\"public\\".\\"Shop.Orders\\"'
        shop.fill("error", 2, FailedQ=source, **{"ExceptionInfo.ExceptionType": exception})

    shop.run(*runbook("failed"))

    assert "2 messages returned" in shop.printed
    assert (shop.count('"Shop.Orders"'), shop.count("error")) == (2, 2)


def test_backlog_grows(shop: Shop) -> None:
    """Expired messages are counted, and go at once."""
    shop.fill('"Shop.Orders"', 3)
    shop.sql("UPDATE \"Shop.Orders\" SET expires = '2020-01-01' WHERE seq <= 2")
    shop.sql('CREATE INDEX ON "Shop.Orders" (expires) WHERE expires IS NOT NULL')

    looked, purged = runbook("backlog")
    shop.run(looked, purged)

    assert "2 expired messages deleted" in shop.printed
    assert shop.count('"Shop.Orders"') == 1


def test_seq_nearly_used_up(shop: Shop) -> None:
    """Doctor prints the statements of the page, and finds nothing after them."""
    shop.sql("SELECT setval('public.\"Shop.Orders_seq_seq\"', 2000000000)")
    found, fixed, well = runbook("seq")

    said = shop.sqlqueue("doctor", "Shop.Orders", code=1)
    for line in fixed.text.strip().splitlines():
        assert " ".join(line.rstrip(";").split()) in " ".join(said.split())
    shop.run(fixed, well)
    shop.sql("SELECT setval('public.\"Shop.Orders_seq_seq\"', 3000000000)")
    shop.fill('"Shop.Orders"', 1)

    assert found.text.startswith("sqlqueue doctor Shop.Orders")
    with closing(shop.stream()) as stream:
        assert len(stream.bodies()) == 1


def test_snapshot_pinned(shop: Shop) -> None:
    """The session that pins is shown, and ended."""
    shown, ended = runbook("snapshot")
    with shop.other() as other:
        other.execute("SET application_name = 'left open'")
        other.execute('SELECT pg_current_xact_id(), count(*) FROM "Shop.Orders"')
        shop.run(shown)
        [pid] = [row[0] for row in shop.rows if row[2] == "left open"]
        shop.words = {"4711": str(pid)}
        shop.run(ended)

        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


def test_disk_full_commands(shop: Shop) -> None:
    """The sizes are listed, and expired messages are deleted."""
    shop.fill('"Shop.Orders"', 100)
    shop.sql("UPDATE \"Shop.Orders\" SET expires = '2020-01-01'")

    sizes, purged, vacuumed = runbook("disk-full")
    shop.run(sizes)
    named = [row[0] for row in shop.rows]
    shop.run(purged, vacuumed)

    assert '"Shop.Orders"' in named
    assert shop.sql("SELECT pg_relation_size('\"Shop.Orders\"')") == [(0,)]


def test_stream_taken_over(shop: Shop) -> None:
    """The later driver is shown; when it is stopped the earlier one's restart claims the stream."""
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream(maxMessagesPerTrigger="1")) as first:
        first.batch()
        second = type(first)(first.options, first.offset)
        with closing(second):
            second.batch()
            with pytest.raises(StreamTakenOver):
                first.batch()
            shop.run(*runbook("taken-over"))
            shown = shop.rows
    with closing(second.again()) as restarted:
        assert len(restarted.bodies()) == 1

    assert {(row[0], row[1]) for row in shown} == {(first.id, second.loop.claim.driver)}


def test_a_dropped_queue(shop: Shop) -> None:
    """The stream raises, keeps what it received, and goes on when the queue is there again."""
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        first = stream.bodies()
        shop.sql('DROP TABLE "Shop.Orders"')
        with pytest.raises(QueueNotFound):
            stream.loop.latest(shop.stream().offset)

    shop.run(*runbook("dropped-queue"))
    shop.fill('"Shop.Orders"', 2)
    with closing(stream.again()) as restarted:
        again = bodies(restarted.received())
        after = restarted.bodies()

    assert again == first
    assert len(after) == 2


# ---------------------------------------------------------------- rows of the table


def test_the_state_tables_are_dropped(shop: Shop) -> None:
    """The query raises that; with new state tables it raises that its stream is not known."""
    shop.fill('"Shop.Orders"', 3)
    with closing(shop.stream()) as stream:
        stream.batch()
    shop.sql("DROP SCHEMA sqlqueue CASCADE")

    with closing(stream.again()) as restarted, pytest.raises(StateNotInstalled):
        restarted.batch()
    shop.sqlqueue("install")
    with closing(stream.again()) as restarted, pytest.raises(StreamNotFound):
        restarted.batch()


def test_the_seqs_come_to_an_end(shop: Shop) -> None:
    """The last one is given out, and then every INSERT fails, whoever it is from."""
    shop.sql("SELECT setval('public.\"Shop.Orders_seq_seq\"', 2147483646)")
    shop.fill('"Shop.Orders"', 1)

    with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
        shop.fill('"Shop.Orders"', 1)
