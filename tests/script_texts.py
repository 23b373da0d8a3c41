"""
What `sqlqueue script` prints for each database, with all that it can print.

    python tests/script_texts.py postgresql > docs/script-postgresql.sql
    python tests/script_texts.py sqlserver > tests/golden/script-sqlserver.sql
"""

from __future__ import annotations

import sys

from sqlq_spark.admin.script import Roles, endpoint, of_domain, write_script
from sqlq_spark.options.names import names_of
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.dialects import DIALECTS

OPTIONS = (
    "--domain orders --instance web1 --error error --audit audit --delayed --body-string "
    "--subscription-table SubscriptionRouting --operator clerk --producer endpoints "
    "--login spark_orders --database shop"
)


def golden(dialect: str) -> str:
    """The script of a domain: an endpoint with an instance, and tables of all kinds."""
    url = f"{DIALECTS[dialect].schemes[0]}://host/shop"
    state, reader, sender = of_domain("orders")
    words = OPTIONS + " --dialect sqlserver" * (dialect == "sqlserver")
    shop = endpoint(
        url, "Shop.Orders", instances=["web1"], error="error", audit="audit", delayed=True
    )
    return write_script(
        shop,
        state=state,
        subscriptions=QueueAddress("SubscriptionRouting", names_of(url).default_schema),
        roles=Roles(reader=reader, sender=sender, operator="clerk", producer="endpoints"),
        login="spark_orders",
        body_string=True,
        delayed=True,
        database="shop",
        command=f"sqlqueue script Shop.Orders {words}",
        dialect=dialect,
    )


if __name__ == "__main__":
    sys.stdout.write(golden(sys.argv[1]))
