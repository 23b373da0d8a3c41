"""Options without Spark: their meaning, typos and other mistakes, and what gives the password."""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest
import stamina

from sqlq_spark import errors
from sqlq_spark.cli.options import Shared
from sqlq_spark.database import tokens
from sqlq_spark.database.postgresql import drivers
from sqlq_spark.database.postgresql.url import Target
from sqlq_spark.database.sessions import ATTEMPTS, Session, StateSession, ask_credential
from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import (
    BadInput,
    BadOption,
    MisplacedOption,
    MissingOption,
    OptionOfOtherSource,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions, Trusted
from sqlq_spark.options.names import names_of, other_password_variables
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from pathlib import Path


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


def test_the_largest_message_is_what_the_database_can_be_sent() -> None:
    """On SQL Server the message is base64 in one text of at most 2**30 - 1 characters."""
    for url, size in ((URL, "1000m"), (SQLSERVER_URL, "512m")):
        options = parse(url=url, queue="orders", maxMessageBytes=size)
        assert options.max_message_bytes == names_of(url).largest_message

    assert SQLSERVER.largest_message * 4 / 3 < 2**30 * 3 / 4


CALLBACKS: list[tuple[dict[str, str], list[int | None]]] = [
    ({"queues": 'Shop.Orders.east1, "public"."Shop.Orders", Shop'}, [1, 1, None]),
    ({"queues": 'Shop, "sales"."Shop.east1", "sales"."Shop"'}, [None, 1, None]),
    ({"queues": "Shop, Shopping, ShopX.east1, .Shop"}, [None] * 4),
    ({"queues": "Shop, Shop.east1", "maxConcurrency": "8"}, [None, None]),
    ({"queue": "Shop.east1"}, [None]),
]


def test_an_instances_callbacks_are_read_by_one_task() -> None:
    """Such a queue has another one's name, a dot and more. A number in the options wins."""
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
    # The user may have given a url in CREATE TABLE, which Spark does not pass on.
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
    *(
        (
            SourceOptions,
            {"url": url, "maxMessageBytes": size},
            BadOption,
            f"option maxMessageBytes is '{size}': expected bytes, .* and at most {most}, as",
        )
        for url, size, most in (
            (URL, "1001m", "1000m"),
            (URL, "0", "1000m"),
            (SQLSERVER_URL, "513m", "512m"),
        )
    ),
    (SourceOptions, {"minConcurrency": "0"}, BadOption, "a whole number of at least 1"),
    (SinkOptions, {"topics": "Shop.Placed"}, BadOption, "expected no queue beside it"),
    (SinkOptions, {"queue": "", "topics": "A;B"}, BadOption, "expected types' full names, as Shop"),
    *(
        (SinkOptions, {"queue": "", "topics": topics}, BadOption, "commas separate, without blanks")
        for topics in (
            "Shop.OrderPlaced, Shop",
            "Shop.OrderPlaced,\n  Shop.IEvent",
            "Shop.Order Placed",
            " Shop.OrderPlaced",
            "Shop.A`1[[B, C]] ,Shop.IEvent",
            "Shop.A`1[[B, C]], Shop",
        )
    ),
    (SourceOptions, {"url": "mysql://user:hush@host/shop"}, BadOption, "option url is "),
    (SourceOptions, {"url": "user:hush@host"}, BadOption, "option url is "),
]


def test_an_option_that_cannot_be_meant_is_refused_with_what_is_expected() -> None:
    """The error says why, before anything connects, and shows no password."""
    for kind, raw, error, sentence in REFUSED:
        given = {"url": URL, "queue": "orders"} | raw
        with pytest.raises(error, match=sentence) as refused:
            kind.parse({name: text for name, text in given.items() if text})
        assert "hush" not in str(refused.value)


OF_WRITES = {"intent", "timeToBeReceived"}


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
    """
    A typo in a name or a value is refused.

    Names that are less alike may be of Spark's sources.
    """
    kind = SinkOptions if option in OF_WRITES else SourceOptions

    with pytest.raises(BadInput, match=re.escape(f"option {option} {sentence}")):
        kind.parse({"url": URL, "queue": "orders", "header": "json"} | {option: value})


def test_the_options_of_a_table_are_refused_by_their_names() -> None:
    """Spark adds `provider` and `owner`. The error has no value, because one may be a password."""
    given = {"url": URL, "password": "hush", "queue": "orders", "owner": "lake"}
    table = {f"option.{name}": given[name] for name in ("url", "password", "queue")}
    with pytest.raises(errors.OptionsOfTable, match="options password, queue, url:") as refused:
        DefaultSource(given | table | {"provider": "sqlqueue"}).schema()

    assert "hush" not in str(refused.value)
    assert DefaultSource(given).schema()["body"].dataType.simpleString() == "binary"


@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
@pytest.mark.parametrize(("server", "schema"), [("postgresql", "public"), ("sqlserver", "dbo")])
def test_options_travel_to_executors(kind: Kind, server: str, schema: str) -> None:
    """A copy is equal, and its repr hides the password. Options that Spark adds are accepted."""
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
    """A function that gives the password wins, and the options never show it."""
    assert Shared(url=URL).database().url == URL
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush&;1")
    for url, added in COMPLETED.items():
        found = Shared(url=url).database()
        assert found.url == url + added
        assert "hush" not in repr(found)
    asking = Shared(url=URL, credentials="shop_login:given").database()
    assert (asking.url, asking.credentials) == (URL, "shop_login:given")


def test_what_is_of_another_database_is_known() -> None:
    """The scheme of a url decides about PGPASSWORD, and the notation about an address."""
    assert names_of("POSTGRES://host/shop") is POSTGRESQL
    others = [other_password_variables(url) for url in (URL, SQLSERVER_URL, "")]
    assert others == [set(), {"PGPASSWORD"}, {"PGPASSWORD"}]
    assert POSTGRESQL.is_of_other_database("orders@machine")
    assert SQLSERVER.is_of_other_database('"sales"."orders"')
    assert not POSTGRESQL.is_of_other_database('"a@b"')
    assert not SQLSERVER.is_of_other_database("Shop.Orders@[sales]")


RECEIVE = {"statement": "receive", "reason": "…"}
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
    """No other fault is tried again."""
    session = StateSession(parse(queue="q"), "test")
    monkeypatch.setattr(session, "open", lambda: None)
    with stamina.set_testing(testing=True, attempts=ATTEMPTS, cap=True):  # no pauses
        for kind, facts, times in FAULTS:
            work = Mock(side_effect=kind.from_facts(RECEIVE | facts))
            with pytest.raises(kind):
                session.run_with_retries(work)

            assert work.call_count == times


# ----- what gives the password ------------------------------------------------------------------

LOGIN = "postgresql://bo@db.example/shop"
RDS = "postgresql://bo@shop.c1.eu-central-1.rds.amazonaws.com:5433/shop"
SECRET = "s3cret"  # noqa: S105 - looked for in errors

MODULE = f"""
class Silent:
    __repr__ = lambda self: "{SECRET}"
nothing = lambda url: None
empty = lambda url: ""
half = lambda url: "{SECRET}\\ud800"
nul = lambda url: "{SECRET}\\0"
other = lambda url: Silent()
given = lambda url: "p&a=s s/" + url.partition("@")[2]
text = "{SECRET}"
def fails(url):
    raise ValueError("{SECRET}")
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make modules with functions of many kinds, and forget other tests' clients and regions."""
    (tmp_path / "shop_login.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken_login.py").write_text(f'raise ValueError("{SECRET}")', encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_login", raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "PGUSER", "PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    drivers.aws_client.cache_clear()
    tokens.azure_credential.cache_clear()


BESIDE = "expected no password beside it"
PASSWORDS: list[tuple[dict[str, str], str]] = [
    # it may be a password, which someone took for the option's value
    *(
        ({"credentials": text}, "is '…': expected azure, aws or package.module:function")
        for text in (SECRET, f"{SECRET}!:f", "login:", ":f", "a b:c", "a.:b", " ")
    ),
    # one of the two would be ignored
    ({"url": "postgresql://bo:s3cret@db/shop"}, BESIDE),
    ({"url": "postgresql://db/shop?p%61ssword=s3cret"}, BESIDE),
    ({"password": SECRET}, BESIDE),
    ({"url": "sqlserver://bo:s3cret@db/shop", "credentials": "login:f"}, BESIDE),
    # RDS has no tokens for SQL Server
    ({"url": "sqlserver://db/shop"}, "azure or package.module:function, because SQL Server"),
]


def test_a_password_in_it_or_beside_it_is_refused() -> None:
    """The error does not show the password."""
    for raw, expected in PASSWORDS:
        with pytest.raises(BadOption, match=expected) as caught:
            DatabaseOptions.parse({"url": LOGIN, "credentials": "aws"} | raw)

        assert SECRET not in str(caught.value)


WRONG = {
    "shop_login:nothing": "but found NoneType",
    "shop_login:empty": "but found an empty text",
    "shop_login:other": "but found Silent",
    "shop_login:half": "but found a text that cannot be sent",
    "shop_login:nul": "but found a text that cannot be sent",
    "shop_login:text": "a function, but found a text",
    "shop_login:missing": "has no attribute 'missing'",
    "shop_login:fails": "but it gave no password: ValueError in shop_login.py, line 12",
    "not_there:f": "No module named 'not_there'",
    "broken_login:f": "ValueError in broken_login.py, line 1",
}


def test_what_gives_no_password_is_an_error_without_its_text() -> None:
    """The error says what was found instead, or the class and the line of what was raised."""
    for text, said in WRONG.items():
        with pytest.raises((BadOption, errors.CredentialsFailed), match=said) as caught:
            ask_credential(LOGIN, text)

        assert text in str(caught.value)
        assert isinstance(caught.value, errors.CredentialsFailed) == text.endswith("fails")
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("given", [{}, {"credentials": "shop_login:given"}])
def test_a_function_gets_the_url_as_the_user_wrote_it(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its password is a part of the url that connects, and of no name of the server."""
    written = f"{LOGIN}?sslmode=require"
    connect = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(drivers, "open_session", connect)

    with pytest.raises(InterruptedError):
        Session(DatabaseOptions.parse({"url": written, **given}), "test").open()

    url, server, *_ = connect.call_args.args
    password = {"password": ["p&a=s s/db.example/shop?sslmode=require"]} if given else {}
    assert parse_qs(urlsplit(url).query) == {"sslmode": ["require"], **password}
    assert "p&a" not in server


def test_a_token_of_aws_is_for_one_host_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and user are read as libpq reads them. A missing package is named with its extra."""
    for url, expected in {
        "postgresql://b%40o:x@db/shop": ("db", "5432", "b@o"),
        "postgresql://a@[2001:db8::1]:8/shop?user=bo": ("2001:db8::1", "8", "bo"),
        "postgresql://bo@a,b:5433/shop": ("a,b", ",5433", "bo"),
    }.items():
        target = Target.parse(url, {})
        assert (target.hosts, target.port, target.given["user"]) == expected
    for url, said in {
        "postgresql://bo@a,b/shop": "expected one host in the url",
        "postgresql:///shop?user=bo": "expected one host in the url",
        "postgresql://a.eu-central-1.rds.amazonaws.com/shop": "expected the user in the url",
    }.items():
        with pytest.raises(BadOption, match=said):
            ask_credential(url, "aws")
    for service, module in (("aws", "boto3"), ("azure", "azure.identity")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(errors.MissingPackage, match=rf"pip install '[.]\[{service}\]'"):
            ask_credential(RDS, service)


def test_a_kept_connection_is_not_that_of_another_function() -> None:
    """A login without the option does not get it either."""
    given: list[dict[str, str]] = [{}, {"credentials": "aws"}, {"credentials": "login:f"}]
    options = [DatabaseOptions.parse({"url": LOGIN, **each}) for each in given]

    assert len({StateSession(each, "test", keep_connection=True)._key for each in options}) == 3  # noqa: SLF001


def test_a_pattern_fits_part_by_part() -> None:
    """In allowedDestinations `*` is any text, `?` one character, and a bracket a character."""
    listed = QueueAddress("Shop.*", "sales"), QueueAddress("[a]?", "sales", "other")
    trusted = Trusted(allowed=listed)

    assert trusted.allows(None, "sales", "Shop.Orders", here=True)
    assert not trusted.allows("other", "sales", "Shop.Orders", here=False)
    assert not trusted.allows(None, "other", "Shop.Orders", here=True)
    assert trusted.allows("other", "sales", "[a]b", here=False)
    assert not trusted.allows("other", "sales", "ab", here=False)
