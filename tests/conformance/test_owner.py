"""A queue that an endpoint seems to own: a stream that starts warns, and so does the doctor."""

from __future__ import annotations

import logging

import pytest

from sqlq_spark.admin import checks, problems
from sqlq_spark.database import transaction

from .conftest import TIMEOUT, Bench

SAGA = '{"NServiceBus.SagaId":"7","NServiceBus.SagaType":"Shop.Saga"}'
TIMEOUT_OF_SAGA = '{"NServiceBus.SagaId":"7","NServiceBus.IsSagaTimeoutMessage":"True"}'
CONTROL = '{"NServiceBus.ControlMessage":"True"}'


def look(bench: Bench) -> str:
    """What is found about an owner."""
    with transaction(bench.desk, timeout=TIMEOUT):
        return "".join(each.found for each in problems.of_owner(bench.desk, bench.queue))


def starting(bench: Bench, caplog: pytest.LogCaptureFixture, **raw: str) -> str:
    """Start a stream, and return what it logs."""
    caplog.clear()
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    checks.at_start(bench.desk, bench.source(**raw))
    return caplog.text


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

    assert sign in look(bare)
    assert sign in warned
    assert "warnIfShared=false" in warned
    assert sign not in starting(bare, caplog, warnIfShared="false")


@pytest.mark.parametrize("more", ['"NServiceBus.ProcessingEnded":"x"', '"NServiceBus.FailedQ":"x"'])
def test_copies_in_an_audit_or_error_queue_are_no_signs(bare: Bench, more: str) -> None:
    """They have the headers of the messages that were handled or failed elsewhere."""
    bare.dotnet.send(bare.queue, headers=f"{TIMEOUT_OF_SAGA[:-1]},{more}}}")

    assert look(bare) == ""
