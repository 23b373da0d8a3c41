"""What libpq says when there is no connection, and the error that it becomes."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.postgresql.connection import connect
from sqlq_spark.database.postgresql.errors import RIGHTS, connection_error
from sqlq_spark.database.postgresql.rows import STATEMENTS
from sqlq_spark.database.postgresql.url import redact
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from conftest import Place


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("server closed the connection unexpectedly", errors.ConnectionLost),
        ("terminating connection due to administrator command", errors.ConnectionLost),
        ("the database system is starting up", errors.ConnectionLost),
        ("the database system is in recovery mode", errors.ConnectionLost),
        ("the database system is not yet accepting connections", errors.ConnectionLost),
        ("sorry, too many clients already", errors.ServerShort),
        ('too many connections for role "bo"', errors.ServerShort),
        ("remaining connection slots are reserved for roles", errors.ServerShort),
        ("no more connections allowed (max_client_conn)", errors.ServerShort),
        ('connection to server at "db" failed: Connection refused', errors.NotReachable),
        ('could not translate host name "db" to address', errors.NotReachable),
        ('password authentication failed for user "bo"', errors.LoginRefused),
        ('database "shop" does not exist', errors.DatabaseNotFound),
        ("SSL error: certificate verify failed", errors.ServerNotVerified),
        ('server certificate for "a" does not match host name "b"', errors.ServerNotVerified),
        ("server does not support SSL, but SSL was required", errors.ServerNotVerified),
        ('root certificate file "/root.crt" does not exist', errors.ServerNotVerified),
        ("SSL error: tlsv13 alert certificate required", errors.CertificateRefused),
        ("SSL error: tlsv1 alert unknown ca", errors.CertificateRefused),
        ("connection requires a valid client certificate", errors.CertificateRefused),
        ('certificate authentication failed for user "bo"', errors.CertificateRefused),
        ('could not read certificate file "a.pem": No such file', errors.CertificateRefused),
        ('certificate present, but not private key file "a.key"', errors.CertificateRefused),
    ],
)
def test_only_a_server_that_is_there_is_worth_another_try(
    said: str, kind: type[errors.DatabaseFailure]
) -> None:
    """A connection lost while it was made is tried again; a wrong url fails at once."""
    assert type(connection_error("postgresql://db/shop", said)) is kind


CHANGES_A_TABLE = r"(?:DELETE FROM|INSERT INTO)\s+\{(?:queue|delayed|errors|subscriptions)\}"


@pytest.mark.parametrize(
    "name", [name for name, text in STATEMENTS.items() if re.search(CHANGES_A_TABLE, text)]
)
def test_a_statement_that_changes_a_table_has_its_grant(name: str) -> None:
    """The error of a missing right would otherwise say that SELECT is enough."""
    assert name in RIGHTS


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bo:s3cret/x@db/shop",
        "postgresql://bo:x?s3cret@db/shop",
        "postgresql://bo:s3cret x@db/shop",
        "postgresql://bo:s3cret%zz@db/shop",
        "postgresql://bo:s3cret@db:port/shop",
        "postgresql://bo@db/shop?password=x&s3cret",
        "postgresql://bo:s3cret\n@db/shop",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    """The library would quote what may be of the password."""
    with pytest.raises(errors.BadOption) as error:
        connect(url, application="test", timeout=1, state="sqlqueue")

    assert "s3cret" not in str(error.value)
    assert "its parts percent-encoded" in str(error.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://bo:a%2Fb#c:d@db:5432/shop?a=b@c", "postgresql://db:5432/shop"),
        ("postgres://db", "postgres://db"),
        ("postgresql://bo@[::1]:5432,h2:1/shop", "postgresql://[::1]:5432,h2:1/shop"),
        ("postgresql:///shop?host=%2Frun&user=bo", "postgresql://local socket/shop"),
        ("postgresql://", "postgresql://local socket"),
    ],
)
def test_an_error_shows_where_a_url_leads(url: str, place: str) -> None:
    """Without login and parameters."""
    assert redact(url) == place


def test_a_server_without_room_is_worth_another_try(place: Place) -> None:
    """As one without a connection; the trigger raises what the server would raise."""
    queue = QueueAddress("short", place.schema)
    place.sql(f"""
        CREATE TABLE {place.schema}.short (body bytea);
        CREATE FUNCTION {place.schema}.raise() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END$$;
        CREATE TRIGGER t BEFORE INSERT ON {place.schema}.short
            EXECUTE FUNCTION {place.schema}.raise()""")
    with closing(connect(place.url, application="test", timeout=30, state=place.state)) as found:
        with pytest.raises(errors.ServerShort, match="53100"), transaction(found, timeout=30):
            found.load(queue, pa.table({"body": [b"x"]}))
        assert found.rows("clock")  # the session can be used again


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_was_cancelled_did_not_time_out(place: Place, *, cancelled: bool) -> None:
    """The time that it took decides, because the server's words depend on its language."""
    ended = threading.Event()

    def strike() -> None:
        waiting = "application_name = 'struck' AND wait_event_type = 'Lock'"
        while not ended.is_set():
            place.sql(f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {waiting}")
            time.sleep(0.02)

    first, second = (
        connect(place.url, application="struck", timeout=30, state=place.state) for _ in range(2)
    )
    striker = threading.Thread(target=strike)
    with transaction(first, timeout=30):
        first.rows("install_lock", state_name="r")
        if cancelled:
            striker.start()
        with (
            pytest.raises(errors.Cancelled if cancelled else errors.TimedOut) as caught,
            transaction(second, timeout=20 if cancelled else 0.2),
        ):
            second.rows("install_lock", state_name="r")
    ended.set()
    if cancelled:
        striker.join()
    first.close()
    second.close()

    text = "install_lock was cancelled by Ctrl-C"
    if not cancelled:
        text = "install_lock took longer than 0.2 s"
    assert str(caught.value).startswith(text)


def test_what_a_trigger_misses_is_not_the_queue(place: Place) -> None:
    """Its function runs with our search path; the server's words name what it does not find."""
    queue = QueueAddress("orders", place.schema)
    at = f'"{place.schema}".'
    place.sql(f"CREATE TABLE {at}orders (id uuid, expires timestamp, headers text, body bytea)")
    place.sql(
        f"CREATE FUNCTION {at}noted() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO notes VALUES (1); RETURN NULL; END'"
    )
    place.sql(f"CREATE TRIGGER noted AFTER DELETE ON {at}orders EXECUTE FUNCTION {at}noted()")
    missing = QueueAddress("nowhere", place.schema)

    with closing(
        connect(place.url, application="test", timeout=10, state=place.state)
    ) as connection:
        with pytest.raises(errors.StatementRefused, match='"notes" does not exist'):
            connection.rows("purge", tables={"queue": queue})
        with pytest.raises(errors.QueueNotFound):
            connection.rows("purge", tables={"queue": missing})
