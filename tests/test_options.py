"""Options without Spark: what they mean for each database, and what cannot be meant."""

from __future__ import annotations

import os
import pickle
from typing import Any
from unittest.mock import Mock

import pytest
import stamina

from sqlq_spark import errors
from sqlq_spark.cli.options import Shared
from sqlq_spark.database.sessions import ATTEMPTS, StateSession
from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import BadOption, MisplacedOption, MissingOption, OptionOfOtherSource
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import names_of, other_password_variables
from sqlq_spark.wire.address import POSTGRESQL, SQLSERVER, QueueAddress

URL, SQLSERVER_URL = "postgresql://host/shop", "sqlserver://db:1433/shop"
Kind = type[SourceOptions | SinkOptions]


def parse(**raw: str) -> SourceOptions:
    """Read options for a database that nothing connects to."""
    return SourceOptions.parse({"url": URL, **raw})


QUEUES = {
    " Shop.Orders ,\n\tbilling ": ('"public"."Shop.Orders"', '"public"."billing"'),
    '"sales"."a, b", c': ('"sales"."a, b"', '"public"."c"'),
    '"a""", """,b"': ('"public"."a"""', '"public".""",b"'),
    'say "a, b"!, c': ('"public"."say ""a, b""!"', '"public"."c"'),
    '" a "': ('"public"." a "',),
}


def test_queues_are_separated_by_commas_outside_quotes() -> None:
    """Blanks around a name are not part of it; a comma belongs to a name that stands alone."""
    assert {each: parse(queues=each).names for each in QUEUES} == QUEUES
    assert parse(queue="orders, billing").address == QueueAddress("orders, billing")
    other = parse(url=SQLSERVER_URL, queues='[a, b]@[sales], o"r"')
    assert other.names == ("a, b@[sales]", 'o"r"@[dbo]')


CALLBACKS: list[tuple[dict[str, str], list[int | None]]] = [
    ({"queues": 'Shop.Orders.east1, "public"."Shop.Orders", Shop'}, [1, 1, None]),
    ({"queues": 'Shop, "sales"."Shop.east1", "sales"."Shop"'}, [None, 1, None]),
    ({"queues": "Shop, Shopping, ShopX.east1, .Shop"}, [None] * 4),
    ({"queues": "Shop, Shop.east1", "maxConcurrency": "8"}, [None, None]),
    ({"queue": "Shop.east1"}, [None]),
]


def test_an_instances_callbacks_are_read_by_one_task() -> None:
    """A queue named as another of its schema, a dot and more; unless the user says how many."""
    for raw, most in CALLBACKS:
        options = parse(**raw)
        assert [options.most_tasks(each) for each in options.addresses] == most


TXN = {"url": SQLSERVER_URL, "txnAppId": "a", "txnVersion": "1"}
REFUSED: list[tuple[Any, dict[str, str], type[Exception], str]] = [
    # SQL Server compares without blanks at the end, and no driver sends half a surrogate pair
    (SinkOptions, {**TXN, "txnAppId": "a "}, BadOption, "option txnAppId is .* without blanks"),
    (SinkOptions, {**TXN, "txnAppId": "\ta"}, BadOption, "option txnAppId is .* without blanks"),
    (SinkOptions, {**TXN, "stateSchema": "x\udcff"}, BadOption, "option stateSchema is "),
    (SinkOptions, {**TXN, "messageType": "\udcff"}, BadOption, "option messageType is "),
    (SourceOptions, {"queue": ""}, MissingOption, "option queue is missing: give a queue's name"),
    # who wrote the url in CREATE TABLE has given one, but Spark passed none on
    (SourceOptions, {"url": ""}, MissingOption, r"option url is missing: .*WITH \(url '…'\)"),
    (SourceOptions, {"MESSAGETYPE": "x"}, MisplacedOption, "option messageType has no .* a read"),
    (SinkOptions, {"headersFormat": "map"}, MisplacedOption, "headersFormat has no .* a write"),
    (DatabaseOptions, {}, MisplacedOption, "option queue has no effect"),
    # a job ported from Kafka or JDBC would run without its limits
    (SourceOptions, {"kafka.group.id": "1"}, OptionOfOtherSource, "kafka.group.id is of another"),
    (SinkOptions, {"dbtable": "1"}, OptionOfOtherSource, "option dbtable is of another source"),
    *(
        (SourceOptions, {"queue": "", "queues": queues}, BadOption, f"option queues is .*{why}")
        for queues, why in {
            "a,,b": r"expected names of queues, separated by commas \(a name is missing",
            " ": "expected names of queues",
            '"a, b': "a double quote is not closed",
            '5" disk, b': "put a name that holds one in double quotes",
            "a, " + "x" * 56: "the table has 56 UTF-8 bytes where 55 are",
            'a, "public"."a"': 'each queue once, but "public"."a" is twice',
        }.items()
    ),
    (SourceOptions, {"queues": "a, b"}, BadOption, 'nothing beside the one queue "public"."or'),
    (SourceOptions, {"errorQueue": '"public"."orders"'}, BadOption, "another queue than the one"),
    (
        SourceOptions,
        {"minConcurrency": "5", "maxConcurrency": "4"},
        BadOption,
        "option minConcurrency is '5': expected at most 4",
    ),
    (SourceOptions, {"minConcurrency": "0"}, BadOption, "a whole number of at least 1"),
    (SourceOptions, {"url": "mysql://user:hush@host/shop"}, BadOption, "option url is "),
    (SourceOptions, {"url": "user:hush@host"}, BadOption, "option url is "),
]


def test_an_option_that_cannot_be_meant_is_refused_with_what_is_expected() -> None:
    """It says why, and where the option belongs, before anything connects; no password is shown."""
    for kind, raw, error, sentence in REFUSED:
        given = {"url": URL, "queue": "orders"} | raw
        with pytest.raises(error, match=sentence) as refused:
            kind.parse({name: text for name, text in given.items() if text})
        assert "hush" not in str(refused.value)


def test_the_options_of_a_table_are_refused_by_their_names() -> None:
    """Spark adds `provider` and `owner`; no value is in the error, for one may be a password."""
    given = {"url": URL, "password": "hush", "queue": "orders"}
    table = given | {f"option.{name}": text for name, text in given.items()}
    with pytest.raises(errors.OptionsOfTable) as refused:
        DefaultSource({**table, "provider": "sqlqueue", "owner": "lake"}).schema()

    assert "the options password, queue, url:" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "body binary" in DefaultSource({**given, "owner": "lake"}).schema()


# ----- what they become ------------------------------------------------------------------------


def test_min_concurrency_raises_what_was_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of few cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    assert parse(queue="a").concurrency == 4
    assert parse(queue="a", minConcurrency="9").concurrency == 9
    assert parse(queue="a", minConcurrency="3", maxConcurrency="3").concurrency == 3


@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
@pytest.mark.parametrize(("server", "schema"), [("postgresql", "public"), ("sqlserver", "dbo")])
def test_options_travel_to_executors(kind: Kind, server: str, schema: str) -> None:
    """Pickled options are equal; their repr hides the password. What Spark adds is accepted."""
    raw = {"password": "hush", "allowedDestinations": "orders, Shop.*", "queue": "Shop"}
    sparks = {"path": "Shop", "paths": "[]", "checkpointLocation": "/c", "mergeSchema": "x"}
    options = kind.parse({"url": f"{server}://host/shop", **raw, **sparks})

    copy = pickle.loads(pickle.dumps(options))  # noqa: S301 - our own

    assert (copy, hash(copy), vars(copy)) == (options, hash(options), vars(options))
    assert "hush" not in repr(copy)
    assert copy.allowed == (QueueAddress("orders", schema), QueueAddress("Shop.*", schema))


ENCODED = "password=hush%26%3B1"
COMPLETED = {
    URL: f"?{ENCODED}",
    SQLSERVER_URL: f"?{ENCODED}",
    # a port and an @ behind it only look like a password
    "postgresql://[::1]:5432/shop?application_name=a@b": f"&{ENCODED}",
    "postgresql://h:5432/a?passfile=/x:y@z": f"&{ENCODED}",
    # a password in the url wins
    "postgresql://user:own@localhost/shop": "",
    "postgresql://localhost/shop?user=a&password=own": "",
    "sqlserver://user:own@localhost:1433/shop": "",
}


def test_a_password_of_the_environment_is_added_to_a_url_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of either database; the options never show it."""
    assert Shared(url=URL).database().url == URL
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush&;1")
    for url, added in COMPLETED.items():
        found = Shared(url=url).database()
        assert found.url == url + added
        assert "hush" not in repr(found)


def test_what_is_of_another_database_is_known() -> None:
    """By the url's scheme, in any case, PGPASSWORD; by its notation, an address."""
    assert names_of("POSTGRES://host/shop") is POSTGRESQL
    others = [other_password_variables(url) for url in (URL, SQLSERVER_URL, "")]
    assert others == [set(), {"PGPASSWORD"}, {"PGPASSWORD"}]
    assert POSTGRESQL.is_of_other_database("orders@machine")
    assert SQLSERVER.is_of_other_database('"sales"."orders"')
    assert not POSTGRESQL.is_of_other_database('"a@b"')
    assert not SQLSERVER.is_of_other_database("Shop.Orders@[sales]")


FAULTS: list[tuple[type[errors.DatabaseFailure], dict[str, Any], int]] = [
    (errors.LockTimedOut, {"seconds": 30}, ATTEMPTS),
    (errors.LogFull, {"code": "9002"}, ATTEMPTS),
    (errors.Deadlock, {}, ATTEMPTS),
    (errors.ServerShort, {"code": "1105"}, ATTEMPTS),
    (errors.ConnectionLost, {}, ATTEMPTS),
    (errors.TimedOut, {"seconds": 30}, 1),
    (errors.StatementRefused, {"code": "2628"}, 1),
    (errors.StatementFailed, {"code": "824"}, 1),
]


def test_a_fault_that_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is."""
    session = StateSession(parse(queue="q"), "test")
    monkeypatch.setattr(session, "open", lambda: None)
    with stamina.set_testing(testing=True, attempts=ATTEMPTS, cap=True):  # no pauses
        for kind, facts, times in FAULTS:
            work = Mock(side_effect=kind(statement="receive", reason="…", **facts))
            with pytest.raises(kind):
                session.run_with_retries(work)

            assert work.call_count == times
