"""
Ids and seqs that someone chose: they stop no stream that moves poison into a shared error queue.

Whoever may insert into a table chooses its ids and seqs. So one can write rows at the next seqs, or
keep a transaction open that has an id or a seq. `INSERT` alone is enough for that.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conformance.conftest import Bench, create_bench

from sqlq_spark.database import collisions, schema
from sqlq_spark.database.collisions import ATTEMPTS, MOST_SKIPPED
from sqlq_spark.errors import RowsHeld, StatementFailed
from sqlq_spark.receive.due import Moved, Mover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from sqlq_spark.options import SourceOptions

POISON = "INSERT INTO {} (id, headers, body) SELECT gen_random_uuid(), '[]', 'poison'"
PLANT = "INSERT INTO {} (id, headers, body, seq) SELECT gen_random_uuid(), '{{}}', 'planted', n"
LARGEST = 2_147_483_647  # the highest seq of the transport's type


@pytest.fixture
def bench(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Give a queue, an error queue and state tables. Waits for locked rows are short."""
    monkeypatch.setattr(collisions, "HELD_WAIT", 0.02)
    made = create_bench(place.dotnet)
    schema.install(made.connection)
    yield made
    made.close()


def plant(bench: Bench, seqs: str, table: str = "error") -> None:
    """Insert rows with chosen seqs: `generate_series(2, 9) AS n`."""
    bench.dotnet.execute(f"{PLANT.format(bench.address(table))} FROM {seqs}")


def put_poison(bench: Bench, messages: int = 1) -> None:
    """Send poison, and one good message behind it."""
    text = f"{POISON.format(bench.queue_address)} FROM generate_series(1, {messages})"
    bench.dotnet.execute(text)
    bench.dotnet.send(bench.queue, "{}", b"good")


def given(bench: Bench, table: str = "error") -> int:
    """Return the last number that the table's sequence has given."""
    name = f'"{bench.dotnet.schema}"."{table}_seq_seq"'
    text = f"SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM {name}"
    return int(bench.dotnet.execute(text)[0][0])


def drain(bench: Bench) -> list[bytes]:
    """Run a stream with an error queue until nothing waits."""
    return bench.drain(bench.stream_driver(errorQueue=bench.address("error")))


def moved(bench: Bench, table: str = "error") -> list[int]:
    """Return the seqs of rows that were not planted."""
    text = f"SELECT seq FROM {bench.address(table)} WHERE body <> 'planted' ORDER BY seq"
    return [seq for (seq,) in bench.dotnet.execute(text)]


@contextmanager
def open_transaction(place: Place, text: str) -> Iterator[None]:
    """Run a statement of another session, which does not commit before the end of the block."""
    with psycopg.connect(place.url) as session:
        session.execute(text.encode())
        yield
        session.rollback()


# ----- seqs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seqs", "first"),
    [
        ("generate_series(1, 1000) AS n", 1001),
        ("generate_series(1, 1000, 3) AS n", 1001),  # no gap has room for all of the poison
        ("(VALUES (1), (2), (1000)) AS t (n)", 3),
        ("(VALUES (4), (2000000000)) AS t (n)", 5),
    ],
)
def test_rows_at_the_next_seqs_stop_no_stream(bench: Bench, seqs: str, first: int) -> None:
    """The sequence goes past them, but not up to a row that is far above."""
    plant(bench, seqs)
    put_poison(bench, 5)

    assert drain(bench) == [b"good"]
    found = moved(bench)
    assert len(found) == 5
    assert first <= found[0] < first + 10
    assert given(bench) == found[-1]


def test_a_transaction_skips_no_more_than_100_000_seqs(bench: Bench) -> None:
    """The next one goes on where that one ended; the poison stays until then."""
    plant(bench, f"generate_series(1, {MOST_SKIPPED + 100}) AS n")
    put_poison(bench)

    with pytest.raises(StatementFailed, match="takes no poison"):
        drain(bench)
    assert MOST_SKIPPED < given(bench) <= MOST_SKIPPED + ATTEMPTS
    assert drain(bench) == [b"good"]
    assert moved(bench) == [MOST_SKIPPED + 101]


def test_no_seq_beyond_80_percent_of_the_type_is_skipped(bench: Bench) -> None:
    """Otherwise one login could use up all seqs of a table that many teams send to."""
    near = LARGEST // 5 * 4 - 10
    bench.dotnet.execute(f"SELECT setval('{bench.address('error')[:-1]}_seq_seq\"', {near})")
    plant(bench, f"generate_series({near + 1}, {near + 50}) AS n")
    put_poison(bench)

    with pytest.raises(StatementFailed):
        drain(bench)

    assert near + 10 <= given(bench) <= near + 10 + ATTEMPTS


def test_a_login_that_may_only_insert_gets_past_a_few_seqs(bench: Bench) -> None:
    """Each attempt uses up one taken seq. If there are more, the error says what is wrong."""
    with bench.login_with_rights("SELECT, DELETE, UPDATE (seq)") as (login, connection):
        bench.dotnet.dba.grant(login, "INSERT", bench.error_queue)
        for planted, is_moved in ((ATTEMPTS - 1, True), (ATTEMPTS, False)):
            first = given(bench) + 1
            plant(bench, f"generate_series({first}, {first + planted - 1}) AS n")
            put_poison(bench)
            task = bench.task(None, error_address=bench.error_queue)
            if is_moved:
                assert bench.receive(task, connection).num_rows == 1
            else:
                with pytest.raises(StatementFailed):
                    bench.receive(task, connection)
    assert len(moved(bench)) == 1


def test_seqs_of_an_open_transaction_stop_no_stream(place: Place, bench: Bench) -> None:
    """The next attempts use other seqs. A stream fails only if very many are held."""
    put_poison(bench)
    held = f"{PLANT.format(bench.address('error'))} FROM generate_series(1, {ATTEMPTS - 1}) AS n"
    with open_transaction(place, held):
        assert drain(bench) == [b"good"]
    assert moved(bench) == [ATTEMPTS]

    put_poison(bench)
    text = f"FROM generate_series({ATTEMPTS + 1}, {ATTEMPTS + 30}) AS n"
    with (
        open_transaction(place, f"{PLANT.format(bench.address('error'))} {text}"),
        pytest.raises(RowsHeld, match=f"in {ATTEMPTS} attempts other sessions held") as caught,
    ):
        drain(bench)
    assert caught.value.queue == bench.address("error")
    assert drain(bench) == [b"good"]


# ----- ids -------------------------------------------------------------------------------------


def test_an_open_transaction_with_the_id_stops_no_stream(place: Place, bench: Bench) -> None:
    """The poison gets a new id, and so does a message that is too large."""
    large = bench.dotnet.send(bench.queue, "{}", b"x" * 5000)
    row = bench.dotnet.send(bench.queue, "[]", b"poison")
    bench.dotnet.send(bench.queue, "{}", b"good")
    ids = f"FROM unnest('{{{large},{row}}}'::uuid[]) WITH ORDINALITY AS u (id, n)"
    text = f"INSERT INTO {bench.address('error')} (id, headers, body, seq)"
    text = f"{text} SELECT id, '{{}}', '', 900 + n {ids}"
    loop = bench.stream_driver(errorQueue=bench.address("error"), maxMessageBytes="1000")

    with open_transaction(place, text):
        assert bench.drain(loop) == [b"good"]

    found = bench.dotnet.rows(bench.error_queue)
    assert sorted(len(each.body or b"") for each in found) == [6, 5000]
    assert {each.id for each in found}.isdisjoint({large, row})


def test_a_failure_of_a_forward_gets_past_seqs_too(bench: Bench) -> None:
    """It goes to the error queue in the same way."""
    plant(bench, "generate_series(1, 20) AS n")
    headers = '{"NServiceBus.SqlServer.ForwardDestination":"absent"}'
    bench.dotnet.send(bench.queue, headers, b"late")

    assert drain(bench) == []
    assert moved(bench) == [21]


# ----- due messages ----------------------------------------------------------------------------


@pytest.fixture
def mover(bench: Bench) -> Mover:
    """Give the mover of a queue in which one delayed message is due."""
    bench.dotnet.create_delayed(bench.delayed_table)
    bench.dotnet.store(bench.delayed_table, body=b"due", delay=-1)
    options: SourceOptions = bench.source_options()
    return Mover(options.address, options)


def test_rows_at_the_next_seqs_stop_no_mover(bench: Bench, mover: Mover) -> None:
    """Many logins may insert into the queue of a mover, as into an error queue."""
    plant(bench, "generate_series(1, 500) AS n", "orders")

    assert mover.move(bench.connection) == Moved(1, None)
    assert moved(bench, "orders") == [501]


def test_an_open_transaction_stops_no_mover(place: Place, bench: Bench, mover: Mover) -> None:
    """The transaction holds the id of a due message, or a few of the next seqs."""
    ((row,),) = bench.dotnet.execute(
        f"SELECT id FROM {bench.connection.printed(bench.delayed_table)}"
    )
    queue = bench.queue_address
    ids: Any = f"INSERT INTO {queue} (id, headers, body, seq) SELECT '{row}', '{{}}', '', 900"
    with open_transaction(place, ids):
        assert mover.move(bench.connection) == Moved(1, None)

    bench.dotnet.store(bench.delayed_table, body=b"due", delay=-1)
    first = given(bench, "orders") + 1
    seqs = f"FROM generate_series({first}, {first + 1}) AS n"
    with open_transaction(place, f"{PLANT.format(queue)} {seqs}"):
        assert mover.move(bench.connection) == Moved(1, None)
    assert bench.waiting_bodies() == [b"due", b"due"]
