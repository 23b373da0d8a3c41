"""SQL Server's url, and which driver connects."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark import errors
from sqlq_spark.database import tokens
from sqlq_spark.database.sessions import ask_credential
from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.drivers import Driver
from sqlq_spark.database.sqlserver.url import Target, in_braces
from sqlq_spark.options.names import with_login

SECRET = "hush-#1"  # noqa: S105 - of no one
QUOTED = "hush-%231"


def test_a_url_is_read() -> None:
    """User, password and database may have percent signs. The defaults are the strict ones."""
    found = Target.parse(f"sqlserver://bo%40x:{QUOTED}@db.example:14330/my%20shop?driver=pyodbc")

    assert found == Target(
        host="db.example",
        port=14330,
        database="my shop",
        user="bo@x",
        password=SECRET,
        encrypt="yes",
        trust_server_certificate="no",
        driver="pyodbc",
    )
    assert found.server == "sqlserver://db.example:14330/my shop"
    assert Target.parse("sqlserver://db").port == 1433
    assert SECRET not in repr(found)
    # options are put behind what the url says itself, and win
    given = Target.parse(with_login("sqlserver://a:b@db/shop?encrypt=strict", "bo", SECRET))
    assert (given.user, given.password, given.encrypt) == ("bo", SECRET, "strict")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("encryptt=yes", "option …=… (in url) is not known: did you mean encrypt?"),
        ("trustservercert=1", "did you mean trustServerCertificate?"),
        ("app=x", "expected only the parameters encrypt, trustServerCertificate"),
        ("encrypt=maybe", "option url, parameter encrypt is '…': expected one of yes, no"),
        ("authentication=Magic", "expected one of SqlPassword, Integrated, ActiveDirectoryDefault"),
        ("encrypt=yes&Encrypt=no", "option url is 'encrypt twice': expected each parameter once"),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_by_its_name(query: str, told: str) -> None:
    """A misspelt encrypt would be silently no encryption."""
    with pytest.raises(errors.BadInput) as found:
        Target.parse(f"sqlserver://bo:{QUOTED}@db/shop?{query}")

    assert told in str(found.value)
    assert "hush" not in str(found.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlserver://bo:hush@db:port/shop",
        "sqlserver://bo:hu/sh@db/shop",
        "sqlserver://bo:hush#@db/shop",
        "sqlserver://bo:hush@/shop",
        "sqlserver://db;user=bo;password=hush",
        "sqlserver://bo:hush%00@db/shop",
        "sqlserver://db/shop?password=hush%0a",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    """Its password may stand anywhere in it."""
    with pytest.raises(errors.BadOption) as found:
        Target.parse(url)

    assert "hush" not in str(found.value)
    assert "hu/sh" not in str(found.value)


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f"), max_size=30))
def test_no_value_can_end_its_braces(text: str) -> None:
    """The drivers read `}}` as a brace, and `}` as the end."""
    inside = in_braces(text)[1:-1]

    assert inside.replace("}}", "") == inside.replace("}}", "").replace("}", "")
    assert inside.replace("}}", "}") == text


def test_the_connection_string_says_encryption_and_no_way_around_it() -> None:
    """Values are in braces, so that a password cannot add a keyword."""
    target = Target.parse("sqlserver://bo:x%7D%3BEncrypt%3Dno@db/shop")

    assert target.connection_string(Driver="ODBC Driver 18 for SQL Server") == (
        "Driver={ODBC Driver 18 for SQL Server};Server={tcp:db,1433};Database={shop};UID={bo};"
        "PWD={x}};Encrypt=no};Encrypt={yes};TrustServerCertificate={no};ConnectRetryCount={0}"
    )
    kerberos = Target.parse("sqlserver://bo:pw@db?authentication=integrated").connection_string()
    assert "Trusted_Connection={yes}" in kerberos
    assert not re.search("UID|PWD", kerberos)


# ---------------------------------------------------------------- the option `credentials`

CREDENTIAL = "eyJ0eXAi"


def test_a_credential_is_the_users_password_or_a_token() -> None:
    """No user goes to the server beside a token, because the driver would refuse both."""
    with_user = Target.parse("sqlserver://bo@db/shop?encrypt=no").with_credential(CREDENTIAL)
    alone = Target.parse("sqlserver://db/shop").with_credential(CREDENTIAL)

    assert (with_user.password, with_user.token) == (CREDENTIAL, "")
    assert (alone.password, alone.token) == ("", CREDENTIAL)
    assert not re.search("UID|PWD|Authentication|eyJ", alone.connection_string())
    assert CREDENTIAL not in repr([with_user, alone])
    assert Target.parse("sqlserver://db").with_credential(None) == Target(host="db")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        # a token would be readable on the network, and is good for every database of its owner
        ("db?encrypt=no", "parameter encrypt is 'no': expected yes or strict beside a token"),
        ("db?authentication=ActiveDirectoryMsi", "'ActiveDirectoryMsi': expected none beside"),
        ("bo@db?authentication=Integrated", "'Integrated': expected none beside the option cred"),
    ],
)
def test_a_credential_that_would_be_read_or_ignored_is_refused(place: str, told: str) -> None:
    """The error does not have it."""
    with pytest.raises(errors.BadOption, match=told) as caught:
        Target.parse(f"sqlserver://{place}").with_credential(CREDENTIAL)

    assert CREDENTIAL not in str(caught.value)


def test_azure_gives_a_token_for_sql_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user beside it would be ignored, so it is refused."""
    credential = Mock()
    credential.get_token.return_value = SimpleNamespace(token=CREDENTIAL)
    monkeypatch.setattr(tokens, "azure_credential", lambda: credential)

    assert ask_credential("sqlserver://db/shop", "azure") == CREDENTIAL
    credential.get_token.assert_called_once_with("https://database.windows.net/.default")
    for url in ("sqlserver://bo@db/shop", "sqlserver://db/shop?user=bo"):
        with pytest.raises(errors.BadOption, match="credentials is 'azure': expected no user"):
            ask_credential(url, "azure")


# ---------------------------------------------------------------- the drivers


def test_the_next_driver_is_tried_where_one_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If none can be loaded, the error says what is missing for each."""
    made = Driver(open=lambda *_: "connected", errors=(ValueError,))
    monkeypatch.setattr(drivers, "import_driver", Mock(side_effect=drivers.NotHere("no libodbc")))
    with pytest.raises(errors.MissingDriver, match="pyodbc: no libodbc; mssql-python: no libodbc"):
        drivers.open_session(Target(host="db"), "test", 1)

    monkeypatch.setattr(drivers, "mssql_python", lambda: made)
    assert drivers.open_session(Target(host="db"), "test", 1) == (made, "connected")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "pyodbc mssql-python"),
        ("authentication=ActiveDirectoryDefault", "mssql-python"),
        ("driver=mssql-python", "mssql-python"),
        ("driver=pyodbc&authentication=ActiveDirectoryDefault", "pyodbc"),
        ("driver=ODBC Driver 17 for SQL Server", "pyodbc"),
    ],
)
def test_the_driver_that_reports_numbers_comes_first(query: str, names: str) -> None:
    """mssql-python reports a sentence in any language, but pyodbc lacks one kind of login."""
    found = drivers.candidates(Target.parse(f"sqlserver://db?{query}"))

    assert [name for name, _ in found] == names.split()
    with pytest.raises(errors.BadOption, match="expected mssql-python, pyodbc or ODBC Driver 18"):
        list(drivers.candidates(Target(host="db", driver="jdbc")))


def test_pyodbc_binds_no_legacy_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database with a UTF-8 collation refuses ntext, pyodbc's default type for a long text."""
    name = drivers.ODBC[0]
    sizes: list[Any] = []
    module = SimpleNamespace(
        drivers=lambda: [name], Error=ValueError, SQL_WVARCHAR=-9, SQL_VARBINARY=-3
    )
    monkeypatch.setattr(drivers, "import_driver", lambda _: module)
    cursor = SimpleNamespace(setinputsizes=sizes.append)

    drivers.pyodbc((name,)).set_types(cursor, ("text", 1, b"bytes", 1.5, True))

    assert sizes == [[(-9, 0, 0), None, (-3, 0, 0), None, None]]
