"""The third database's endpoint: that of PostgreSQL, with addresses and urls of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from conformance.shapes import POSTGRESQL, Shapes
from conformance.transport import PostgreSQL, Row

if TYPE_CHECKING:
    import psycopg
    from conftest import Place

NO_ADDRESS = {
    "a/b/c": "it has 3 parts",
    '"unclosed': "is not closed",
    "": "the table is empty",
    "\0": "NUL",
    "x" * 300: "300 UTF-8 bytes",
    'orders"; DROP TABLE orders; --': "double those inside",
}


@dataclass(frozen=True)
class Third(PostgreSQL):
    """An endpoint that writes `schema/table`."""

    dialect: ClassVar[str] = "third"
    shapes: ClassVar[Shapes] = replace(
        POSTGRESQL, no_address=NO_ADDRESS, missing_schema='"no such schema"/orders'
    )

    @classmethod
    def at(cls, place: Place) -> Self:
        url = place.url.replace("postgresql://", "slashed://", 1)
        return cls(url, place.schema, place.state, place.connection)

    def connect(self, zone: str | None, patience: float) -> psycopg.Connection[Row]:
        url = self.url.replace("slashed://", "postgresql://", 1)
        return PostgreSQL(url, self.schema, self.state, self.connection).connect(zone, patience)

    def spellings(self, table: str) -> list[str]:
        return [f"{self.schema}/{table}", f'"{self.schema}"/{table}']

    def in_list(self, table: str) -> str:
        return f"{self.quote(self.schema)}/{self.quote(table)}"
