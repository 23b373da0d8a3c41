"""Sessions of PostgreSQL: the server's texts, the errors that they become, and TCP's limits."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from proxy import Recorder, without_tls
from psycopg.conninfo import conninfo_to_dict
from waiting import until

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.postgresql.connection import connect
from sqlq_spark.database.postgresql.drivers import _with_parameters
from sqlq_spark.database.postgresql.errors import NEEDED_RIGHTS, connection_error
from sqlq_spark.database.postgresql.rows import STATEMENTS, write_values
from sqlq_spark.database.postgresql.url import redact
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from conftest import Place


SAID = {
    errors.ConnectionLost: [
        "server closed the connection unexpectedly",
        "terminating connection due to administrator command",
        "the database system is in recovery mode",
    ],
    errors.ServerShort: [
        "sorry, too many clients already",
        'too many connections for role "bo"',
        "remaining connection slots are reserved for roles",
        "no more connections allowed (max_client_conn)",
    ],
    errors.NotReachable: ['connection to server at "db" failed: Connection refused'],
    errors.PasswordMissing: ["fe_sendauth: no password supplied"],
    errors.LoginRefused: ['password authentication failed for user "bo"'],
    errors.DatabaseNotFound: ['database "shop" does not exist'],
    errors.ServerNotVerified: [
        "SSL error: certificate verify failed",
        'server certificate for "a" does not match host name "b"',
        "server does not support SSL, but SSL was required",
    ],
    errors.CertificateRefused: [
        "SSL error: tlsv13 alert certificate required",
        "connection requires a valid client certificate",
        'could not read certificate file "a.pem": No such file',
    ],
}


def test_only_a_server_that_is_there_is_worth_another_try() -> None:
    """A connection that is lost while it is made is tried again. A wrong url fails at once."""
    for kind, texts in SAID.items():
        assert {type(connection_error("postgresql://db/shop", each)) for each in texts} == {kind}


def test_a_statement_that_changes_a_table_has_its_grant() -> None:
    """The error of a missing right would otherwise say that SELECT is enough."""
    changes = r"(?:DELETE FROM|INSERT INTO)\s+\{(?:queue|delayed|errors|subscriptions)\}"
    assert {name for name, text in STATEMENTS.items() if re.search(changes, text)} <= {
        *NEEDED_RIGHTS
    }


def test_a_url_that_cannot_be_read_is_not_shown() -> None:
    """The library would quote what may be of the password."""
    for rest in (
        *("bo:s3cret/x@db/shop", "bo:x?s3cret@db/shop", "bo:s3cret x@db/shop"),
        *("bo:s3cret%zz@db/shop", "bo:s3cret@db:port/shop", "bo@db/shop?password=x&s3cret"),
        "bo:s3cret\n@db/shop",
    ):
        with pytest.raises(errors.BadOption, match="its parts percent-encoded") as error:
            connect(f"postgresql://{rest}", application="test", timeout=1, state="sqlqueue")

        assert "s3cret" not in str(error.value)


PLACES = {
    "postgresql://bo:a%2Fb#c:d@db:5432/shop?a=b@c": "postgresql://db:5432/shop",
    "postgresql://bo@[::1]:5432,h2:1/shop": "postgresql://[::1]:5432,h2:1/shop",
    "postgresql:///shop?host=%2Frun&user=bo": "postgresql://local socket/shop",
    "postgresql://": "postgresql://local socket",
}


def test_an_error_shows_where_a_url_leads() -> None:
    """The error leaves out the login and the parameters."""
    assert {url: redact(url) for url in PLACES} == PLACES


def opened(place: Place, url: str | None = None) -> closing[Any]:
    """A session of ours."""
    return closing(connect(url or place.url, application="mine", timeout=30, state=place.state))


def recorded_connect(place: Place) -> Recorder:
    """Connect once through a recorder."""
    recorder = Recorder(place.url)
    url = without_tls(place.url, recorder)
    with recorder.listening, opened(place, url):
        return recorder


def test_each_connect_reads_a_row_for_each_column_of_the_database(place: Place) -> None:
    """It opens two sessions. One reads all columns once, and all types three times."""
    columns = ", ".join(f"c{number} int" for number in range(100))
    before = recorded_connect(place)
    place.sql(f'CREATE TABLE "{place.schema}".wide ({columns})')

    after = recorded_connect(place)

    read = re.findall(r"FROM\s+pg_catalog\.(\w+)", " ".join(after.queries))
    assert read == ["pg_attribute", "pg_type", "pg_type", "pg_type"]
    assert after.sessions == 2
    assert 100 <= after.rows - before.rows < 200


def test_what_a_trigger_raises_is_not_the_queues(place: Place) -> None:
    """A server without room is tried again; a table that only the trigger misses is named."""
    at = f'"{place.schema}".'
    place.sql(f"""
        CREATE TABLE {at}orders (body bytea, expires timestamp);
        CREATE FUNCTION {at}noted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            IF TG_OP = 'INSERT' THEN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END IF;
            INSERT INTO notes VALUES (1); RETURN NULL; END$$;
        CREATE TRIGGER noted BEFORE INSERT OR DELETE ON {at}orders
            FOR EACH STATEMENT EXECUTE FUNCTION {at}noted()""")
    queue, missing = (QueueAddress(name, place.schema) for name in ("orders", "nowhere"))
    with opened(place) as found:
        with pytest.raises(errors.ServerShort, match="53100"), transaction(found, timeout=30):
            found.load(queue, pa.table({"body": [b"x"]}))
        with pytest.raises(errors.StatementRefused, match='"notes" does not exist'):
            found.run("purge", tables={"queue": queue})
        with pytest.raises(errors.QueueNotFound):
            found.run("purge", tables={"queue": missing})


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_was_cancelled_did_not_time_out(place: Place, *, cancelled: bool) -> None:
    """The time that it took decides, because the server's words depend on its language."""
    waiting = "application_name = 'mine' AND wait_event_type = 'Lock'"
    cancel = f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {waiting}"
    kind = errors.Cancelled if cancelled else errors.TimedOut
    with opened(place) as first, opened(place) as second, transaction(first, timeout=30):
        first.run("install_lock", state_name="r")
        if cancelled:
            ThreadPoolExecutor().submit(until, lambda: place.sql(cancel))
        limit = 20 if cancelled else 0.2
        with pytest.raises(kind) as caught, transaction(second, timeout=limit):
            second.run("install_lock", state_name="r")

    said = "was cancelled by Ctrl-C" if cancelled else "took longer than 0.2 s"
    assert str(caught.value).startswith(f"install_lock {said}")


# ----- TCP: a client or a server that is gone ends the session within queryTimeout ---------------

LIMITS = ("tcp_user_timeout", "keepalives_idle", "keepalives_interval")
TIMEOUTS = partial(write_values, "begin")  # our statement that begins each transaction


def test_the_server_drops_a_client_that_is_gone(place: Place) -> None:
    """Each transaction sets the limits, also for the largest queryTimeout, until its end."""
    names = ("tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval")
    with psycopg.connect(place.url) as session:

        def shown() -> list[Any]:
            return [session.execute(f"SHOW {name}").fetchone() for name in names]

        before = shown()
        session.execute(TIMEOUTS({"milliseconds": 86_400_000, "application": "test"}))
        assert shown() == [("86400000",), ("28800",), ("8640",)]
        session.commit()
        assert shown() == before


def test_the_server_undoes_the_transaction_of_a_client_that_reads_nothing(place: Place) -> None:
    """statement_timeout does not end a statement that waits to write to its client."""
    with closing(psycopg.connect(place.url)) as session:
        session.execute(TIMEOUTS({"milliseconds": 1000, "application": "test"}))
        text = "COPY (SELECT repeat('x', 1000000) FROM generate_series(1, 1000)) TO STDOUT"
        session.pgconn.send_query(text.encode())

        pid = session.info.backend_pid
        until(lambda: not place.sql("SELECT 1 FROM pg_locks WHERE pid = %s", pid))


def test_the_client_drops_a_server_that_is_gone() -> None:
    """It does so as fast as the server drops a client, unless the url has other limits."""
    given = "tcp_user_timeout=7000&keepalives_idle=5&keepalives_interval=2"
    for own, expected in (("", ["30000", "10", "3"]), (given, ["7000", "5", "2"])):
        found = conninfo_to_dict(_with_parameters(f"postgresql://db/shop?{own}", {}, 30))
        assert [found[name] for name in LIMITS] == expected
