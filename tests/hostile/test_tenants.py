"""What tenants may do at all: each its own work, so that an attack's failure means something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from .conftest import Tenants


def test_a_tenant_uses_its_own_queue_and_no_other(tenants: Tenants) -> None:
    """It sends to and reads its own queue; another tenant's is refused by the server."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    put = "INSERT INTO {} (id, headers, body) VALUES (gen_random_uuid(), '{{}}', '')"
    shop.sql(put.format(shop.queue))

    assert shop.sql(f"SELECT count(*) FROM {shop.queue}") == [(1,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mallory.sql(f"SELECT count(*) FROM {shop.queue}")
