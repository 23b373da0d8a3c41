"""docs/load.md: which statements wait for a task, and which tasks wait for; its settings."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from recorded_connection import RecordedConnection

from sqlq_spark import database as dialects

from .page import blocks, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from .shop import Shop

    Session = psycopg.Connection[tuple[Any, ...]]

PAGE = "docs/load.md"
QUEUE = '"Shop.Orders"'
# the page's name of a statement → one of its kind
STATEMENTS = {
    "TRUNCATE": "TRUNCATE {q}",
    "DROP TABLE": "DROP TABLE {q}",
    "ALTER TABLE … ADD COLUMN": "ALTER TABLE {q} ADD COLUMN extra int",
    "ALTER TABLE … ADD CHECK": "ALTER TABLE {q} ADD CHECK (seq > 0) NOT VALID",
    "ALTER TABLE … OWNER TO": "ALTER TABLE {q} OWNER TO CURRENT_USER",
    "ALTER TABLE … ENABLE ROW LEVEL SECURITY": "ALTER TABLE {q} ENABLE ROW LEVEL SECURITY",
    "VACUUM FULL": "VACUUM FULL {q}",
    "CLUSTER": 'CLUSTER {q} USING "Shop.Orders_seq_key"',
    "REINDEX": "REINDEX TABLE {q}",
    "CREATE INDEX": "CREATE INDEX ON {q} (expires)",
    "CREATE TRIGGER": "CREATE TRIGGER same BEFORE UPDATE ON {q} FOR EACH ROW "
    "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE": "CREATE RULE kept AS ON UPDATE TO {q} DO NOTHING",
    "CREATE POLICY": "CREATE POLICY rows ON {q}",
    "LOCK TABLE": "LOCK TABLE {q}",
    "CREATE INDEX CONCURRENTLY": "CREATE INDEX CONCURRENTLY ON {q} (expires)",
    "REINDEX CONCURRENTLY": "REINDEX TABLE CONCURRENTLY {q}",
    "ALTER TABLE … SET (…)": "ALTER TABLE {q} SET (vacuum_truncate = off)",
    "ALTER TABLE … SET STATISTICS": "ALTER TABLE {q} ALTER seq SET STATISTICS 10",
    "CREATE STATISTICS": "CREATE STATISTICS spread ON id, seq FROM {q}",
    "CREATE PUBLICATION": "CREATE PUBLICATION sent FOR TABLE {q}",
    "COMMENT": "COMMENT ON TABLE {q} IS 'orders'",
    "GRANT": "GRANT SELECT ON {q} TO PUBLIC",
    "VACUUM": "VACUUM {q}",
    "ANALYZE": "ANALYZE {q}",
}
OUTSIDE = ("VACUUM", "CREATE INDEX CONCURRENTLY", "REINDEX CONCURRENTLY")  # of a transaction
INSERTED = f"INSERT INTO {QUEUE} (id, headers) VALUES (gen_random_uuid(), '{{}}')"


@contextmanager
def session(shop: Shop, *, autocommit: bool = True) -> Iterator[Session]:
    """Give a session that gives up after a short wait for a lock; what it did is undone."""
    with closing(psycopg.connect(shop.url, autocommit=autocommit)) as made:
        made.execute("SET lock_timeout = '100ms'")
        yield made


def waits(dba: Session, text: str) -> bool:
    """Whether a statement waits for a lock."""
    try:
        dba.execute(text.encode())
    except psycopg.errors.LockNotAvailable:
        return True
    return False


def waits_for_tasks(shop: Shop, name: str) -> bool:
    """Whether a DBA's statement waits, now."""
    with session(shop, autocommit=name.startswith(OUTSIDE)) as dba:
        return waits(dba, STATEMENTS[name].format(q=QUEUE))


def stops_others(shop: Shop, name: str) -> bool:
    """Whether a sender waits for the locks that a statement holds until its transaction ends."""
    with session(shop) as sender, session(shop, autocommit=False) as dba:
        dba.execute(STATEMENTS[name].format(q=QUEUE).encode())
        return waits(sender, INSERTED)


def test_the_statements_of_the_page_wait_for_a_task_as_it_says(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is tried by a DBA just before a receive commits."""
    shop.fill(QUEUE, 3)
    page = table(PAGE, "waits")
    listed = {
        row_id: re.findall("`([^`]+)`", row[0])
        for row_id, row in zip(page.ids, page.rows, strict=True)
    }
    waited: dict[str, bool] = {}
    postgresql = dialects.of(shop.url)
    connect = postgresql.connect

    class Watched(RecordedConnection):
        """Tries all statements when the messages of a task are deleted."""

        def around(self, statement: str, call: Callable[[], Any]) -> Any:
            if statement == "save_receipt" and not waited:
                waited.update({name: waits_for_tasks(shop, name) for name in STATEMENTS})
            return call()

    monkeypatch.setattr(postgresql, "connect", lambda *a, **k: Watched(connect(*a, **k)))
    with closing(shop.stream()) as stream:
        received = stream.batch()

    assert sum(each.num_rows for each in received) == 3
    assert waited == {name: row_id != "free" for row_id, names in listed.items() for name in names}
    monkeypatch.undo()
    tried = {
        row_id: {stops_others(shop, name) for name in names if not name.startswith(OUTSIDE)}
        for row_id, names in listed.items()
    }
    assert tried == {"blocks": {True}, "waits": set(), "free": {False}}


def test_the_settings_of_the_page_are_taken(shop: Shop) -> None:
    """The limit of a wait holds in the session; the table keeps what the page sets."""
    shop.run(*blocks(PAGE, "waits"), *blocks(PAGE, "vacuum"))

    assert shop.sql("SHOW lock_timeout") == [("2s",)]
    [[options]] = shop.sql(f"SELECT reloptions FROM pg_class WHERE oid = '{QUEUE}'::regclass")
    assert "vacuum_truncate=off" in options
