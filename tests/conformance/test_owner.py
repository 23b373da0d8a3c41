"""A queue that an endpoint seems to own: a stream that starts warns, and so does the doctor."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from servers import only

from sqlq_spark.admin import checks, owner
from sqlq_spark.database import schema, transaction
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT, Bench

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

SAGA = '{"NServiceBus.SagaId":"7","NServiceBus.SagaType":"Shop.Saga"}'
TIMEOUT_OF_SAGA = '{"NServiceBus.SagaId":"7","NServiceBus.IsSagaTimeoutMessage":"True"}'
CONTROL = '{"NServiceBus.ControlMessage":"True"}'
DELAYED = '{"NServiceBus.Version":"9.2.9","NServiceBus.OriginatingEndpoint":"orders"}'
PLACED = "Shop.Placed"


def look(bench: Bench, connection: Connection | None = None) -> str:
    """Find the signs of an owner, as one text."""
    connection = connection or bench.desk
    with transaction(connection, timeout=TIMEOUT):
        return "; ".join(owner.find_signs(connection, bench.queue))


def starting(bench: Bench, caplog: pytest.LogCaptureFixture, **raw: str) -> str:
    """Start a stream, and return what it logs."""
    caplog.clear()
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    checks.at_start(bench.desk, bench.source(**raw))
    return caplog.text


def subscriptions(bench: Bench) -> QueueAddress:
    """Create the table of subscriptions."""
    table = QueueAddress("SubscriptionRouting", bench.dotnet.schema)
    bench.dotnet.create_subscriptions(table)
    return table


def delayed(bench: Bench) -> QueueAddress:
    """Create the queue's table of delayed messages."""
    table = schema.delayed_of(bench.queue)
    bench.dotnet.create_delayed(table)
    return table


@pytest.mark.parametrize(
    ("headers", "sign"),
    [
        (SAGA, "messages for a saga among the first messages: 2"),
        (TIMEOUT_OF_SAGA, "saga timeouts among the first messages: 2"),
        (CONTROL, "control messages among the first messages: 2"),
    ],
)
def test_messages_that_only_their_endpoint_can_handle_are_signs(
    bare: Bench, headers: str, sign: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream warns, unless the option silences it; a row that is no JSON does not matter."""
    bare.dotnet.send(bare.queue, headers='{"NServiceBus.SagaId')
    bare.dotnet.send(bare.queue, headers='{"x":"\\"NServiceBus.SagaId\\":"}')
    assert "shared_queue" not in starting(bare, caplog)
    assert look(bare) == ""
    for _ in range(2):
        bare.dotnet.send(bare.queue, headers=headers)

    warned = starting(bare, caplog)

    assert look(bare) == sign
    assert sign in warned
    assert "warnIfShared=false" in warned
    assert sign not in starting(bare, caplog, warnIfShared="false")


@pytest.mark.parametrize("more", ['"NServiceBus.ProcessingEnded":"x"', '"NServiceBus.FailedQ":"x"'])
def test_copies_in_an_audit_or_error_queue_are_no_signs(bare: Bench, more: str) -> None:
    """They have the headers of the messages that were handled or failed elsewhere."""
    bare.dotnet.send(bare.queue, headers=f"{TIMEOUT_OF_SAGA[:-1]},{more}}}")

    assert look(bare) == ""


def test_only_the_first_messages_are_read(bare: Bench) -> None:
    """A deep queue costs no more."""
    bare.dotnet.send_many(bare.queue, [b"x"] * 100)
    bare.dotnet.send(bare.queue, headers=SAGA)

    assert look(bare) == ""


def test_another_endpoint_that_is_subscribed_with_the_queue_is_a_sign(bare: Bench) -> None:
    """Other queues, addresses that cannot be read, and the queue's own name are no signs."""
    table, mine = subscriptions(bare), bare.desk.canonical(bare.queue)
    bare.dotnet.subscribe(table, "orders", PLACED, mine)
    bare.dotnet.subscribe(table, "Errors", PLACED, bare.desk.canonical(bare.errors))
    bare.dotnet.subscribe(table, "Odd", PLACED, '"orders')
    assert look(bare) == ""

    bare.dotnet.subscribe(table, "Shop.Sales", PLACED, mine)
    bare.dotnet.subscribe(table, "Shop.Sales", "Shop.Paid", mine)

    assert look(bare) == "subscribed endpoints: 'Shop.Sales'"


def test_a_subscription_beside_a_delayed_table_is_a_sign(bare: Bench) -> None:
    """So has an endpoint's own queue, made by its installer, without a single message."""
    bare.dotnet.subscribe(subscriptions(bare), "orders", PLACED, bare.desk.canonical(bare.queue))
    delayed(bare)

    assert look(bare) == "subscribed endpoints: 'orders'"


def test_delayed_messages_that_an_endpoint_stored_are_a_sign(bare: Bench) -> None:
    """Those of the sink, and those that wait for a retry, are none."""
    table = delayed(bare)
    bare.dotnet.store(table, '{"NServiceBus.OriginatingEndpoint":"Lake"}', delay=60)
    bare.dotnet.store(table, f'{DELAYED[:-1]},"NServiceBus.Retries":"1"}}', delay=60)
    assert look(bare) == ""

    bare.dotnet.store(table, DELAYED, delay=60)

    assert look(bare) == f"delayed messages of an endpoint in {bare.desk.printed(table)}: 1"


def test_a_login_without_rights_on_other_tables_sees_fewer_signs(bare: Bench) -> None:
    """It may read the queue only; that is no error, and the transaction goes on."""
    table = subscriptions(bare)
    bare.dotnet.subscribe(table, "Shop.Sales", PLACED, bare.desk.canonical(bare.queue))
    bare.dotnet.store(delayed(bare), DELAYED, delay=60)
    bare.dotnet.send(bare.queue, headers=SAGA)
    login = bare.dotnet.dba.login()
    try:
        bare.dotnet.dba.grant(login, "SELECT", bare.queue)
        connection = bare.open(url=login.url)
        found = look(bare, connection), look(bare, connection)
        connection.close()
    finally:
        bare.dotnet.dba.drop_login(login)

    assert found == ("messages for a saga among the first messages: 1",) * 2
    assert len(look(bare).split("; ")) == 3


def test_the_doctor_looks_for_owners_of_queues_that_streams_read(bench: Bench) -> None:
    """An endpoint's own queue has its endpoint for an owner, and that is no finding."""
    bench.dotnet.send(bench.queue, headers=SAGA)
    bench.dotnet.send(bench.errors, headers=SAGA)
    queues = [bench.queue, bench.errors]
    bench.new_stream()

    found = checks.everything(bench.desk, queues, timeout=TIMEOUT)
    silent = checks.everything(bench.desk, queues, timeout=TIMEOUT, warn_if_shared=False)

    where = [(each.where, each.severity) for each in found if each.name == "shared_queue"]
    assert where == [(bench.printed, "warning")]
    assert [each for each in silent if each.name == "shared_queue"] == []


@only("postgresql", "the statements of its catalogue")
def test_a_look_for_an_owner_costs_a_few_statements(bench: Bench) -> None:
    """It is done once in a run."""
    bench.watched = True
    connection = bench.open("watched")
    bench.said.clear()

    look(bench, connection)

    reads = ["columns", "savepoint", "check_owner", "release", "columns", "columns"]
    assert bench.said == ["begin", "timeouts", *reads, "commit"]
