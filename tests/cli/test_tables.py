"""`sqlqueue create`, `install` and `script`: the tables of an endpoint, or their script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .database import address, executed, tables

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run

OWN = ["shop", "shop.web1", "shop.web2", "shop.Retries"]
SHARED = ["error", "audit"]
SHAPE = (
    "SELECT table_name::text, column_name || data_type || is_nullable || (column_default IS NULL)"
    "  FROM information_schema.columns WHERE table_schema IN (%s, %s) "
    "UNION ALL SELECT tablename::text, indexdef FROM pg_indexes WHERE schemaname IN (%s, %s) "
    "UNION ALL SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace::regnamespace::text IN (%s, %s) ORDER BY 1, 2"
)


@pytest.fixture
def endpoint(place: Place) -> list[str]:
    """Give the words of an endpoint with all its queues."""
    shared = ["--error", address(place, "error"), "--audit", address(place, "audit")]
    own = ["--instance", "web1", "--instance", "web2", "--qualifier", "Retries"]
    return [address(place, "shop"), *own, *shared]


def test_create_makes_all_queues_of_an_endpoint(
    run: Run, place: Place, endpoint: list[str]
) -> None:
    """It prints each with its canonical address, and can be run again."""
    for _ in range(2):
        made = run("create", *endpoint)

        assert made.code == 0
        queues = ", ".join(address(place, table) for table in OWN + SHARED)
        assert made.out.startswith("in postgresql://")
        assert made.out.endswith(f": {queues}\n")
    assert tables(place) == {*OWN, *SHARED}


def test_a_second_queue_needs_its_option(run: Run, place: Place) -> None:
    """Nothing is created."""
    made = run("create", address(place, "error"), address(place, "audit"))

    assert made.code == 2
    assert "extra argument" in made.err
    assert tables(place) == set()


def test_create_creates_nothing_if_one_name_is_wrong(
    run: Run, place: Place, endpoint: list[str]
) -> None:
    """All names are checked first."""
    made = run("create", *endpoint, "--instance", "x" * 60)

    assert made.code == 2
    assert "option --instance is" in made.err
    assert tables(place) == set()


def test_create_refuses_a_name_that_leaves_no_room_for_the_delayed_table(
    run: Run, place: Place
) -> None:
    """Both limits are named, and a table that is there already stays as it is."""
    queues = [address(place, "x" * size) for size in (56, 55, 48)]

    long = run("create", queues[0])
    delayed = [run("create", queue, "--delayed") for queue in queues[1:]]

    assert (long.code, [each.code for each in delayed]) == (2, [2, 2])
    assert "56 UTF-8 bytes where 55 are the most" in long.err
    for each in delayed:
        assert "at most 55 UTF-8 bytes, or of 47 with --delayed" in each.err
    assert tables(place) == set()
    assert run("create", queues[1]).code == 0


def test_create_adds_the_body_as_text_to_all_queues(
    run: Run, place: Place, endpoint: list[str]
) -> None:
    """Also to queues that exist without it; --delayed adds the table of delayed messages."""
    shop = address(place, "shop")
    run("create", shop)
    place.sql(f"INSERT INTO {shop} VALUES (gen_random_uuid(), NULL, '{{}}', '\\xff')")

    made = run("create", *endpoint, "--body-string", "--delayed")

    assert made.code == 0
    assert made.out.endswith(f", {address(place, 'shop.Delayed')}\n")
    assert tables(place) == {*OWN, *SHARED, "shop.Delayed"}
    texts = "SELECT count(*) FROM pg_attribute WHERE attname = 'bodystring' AND attrelid::regclass"
    where = f"{texts}::text LIKE '{place.schema}.%%'"
    assert place.sql(where + " AND attgenerated = 's'") == [(len(OWN + SHARED),)]
    assert place.sql(f"SELECT bodystring FROM {shop}") == [("\\377",)]


def test_the_script_makes_what_create_and_install_make(
    run: Run, place: Place, endpoint: list[str], state: tuple[str, str]
) -> None:
    """The stream receives from the endpoint's own queues and inserts into the shared ones."""
    options = ("--body-string", "--delayed")
    schemas = (place.schema, place.state) * 3
    assert run("create", *endpoint, *options).code == 0
    for _ in range(2):
        assert run("install", *state).code == 0
    created = place.sql(SHAPE, *schemas)
    place.sql(f"DROP SCHEMA {place.state}, {place.schema} CASCADE")
    place.sql(f"CREATE SCHEMA {place.schema}")
    reader, sender = f"{place.schema}_r", f"{place.schema}_s"
    words = ("script", *endpoint, *state, "--reader", reader, "--sender", sender)
    script = run(*words, *options)
    rights = (
        "SELECT table_name::text, string_agg(privilege_type, ' ' ORDER BY privilege_type)"
        "  FROM information_schema.role_table_grants"
        " WHERE table_schema = %s AND grantee = %s GROUP BY 1"
    )

    with executed(place, script.out, reader, sender):
        assert script.code == 0
        assert place.sql(SHAPE, *schemas) == created
        receives = dict.fromkeys(OWN, "DELETE SELECT") | {"shop": "DELETE INSERT SELECT"}
        inserts = dict.fromkeys([*OWN, "shop.Delayed"], "INSERT")
        shared = dict.fromkeys(SHARED, "INSERT")
        moves = {"shop.Delayed": "DELETE SELECT"}
        assert dict(place.sql(rights, place.schema, reader)) == receives | shared | moves
        assert dict(place.sql(rights, place.schema, sender)) == inserts
    assert "Delayed" not in run(*words).out


def test_script_connects_to_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no url."""
    monkeypatch.delenv("SQLQUEUE_URL")

    script = run("script", "Shop.Orders")

    assert script.code == 0
    assert 'GRANT SELECT, DELETE, UPDATE (seq) ON "public"."Shop.Orders"' in script.out
    assert "SubscriptionRouting" not in script.out


def test_a_domain_has_a_schema_and_roles_of_its_own(place: Place, run: Run) -> None:
    """One option names them; other options override its names."""
    plain = run("script", "Q", "--domain", "billing").out
    other = run("script", "Q", "--domain", "billing", "--reader", "clerk").out

    for word in ('"sqlqueue_billing".stream', '"billing_reader"', '"billing_sender"'):
        assert word in plain
    assert '"sqlqueue".' not in plain
    assert '"clerk"' in other
    assert '"billing_reader"' not in other
    name = place.state.removeprefix("state_")
    try:
        made = run("install", "--domain", name)
        assert made.code == 0
        assert f"in schema sqlqueue_{name} of" in made.out
    finally:
        place.sql(f'DROP SCHEMA IF EXISTS "sqlqueue_{name}" CASCADE')
