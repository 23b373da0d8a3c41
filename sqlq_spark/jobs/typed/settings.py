"""The schemas in the settings of a job: read from files, checked, and parsed by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import StructType

from sqlq_spark.jobs import type_tables
from sqlq_spark.jobs.frame.settings import BadSettings
from sqlq_spark.jobs.typed.schema import Schema, from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from sqlq_spark.jobs.queue_to_delta import Settings

SUFFIX = ".ddl"  # of a file


def check(settings: Settings) -> None:
    """
    Read the files of schemas, and check what depends on other settings.

    Raises:
        BadSettings.
    """
    found = {
        each: read_ddl(f"{each} in [schemas]", text) for each, text in settings.schemas.items()
    }
    object.__setattr__(settings, "schemas", found)  # frozen
    if settings.schema is not None:
        object.__setattr__(settings, "schema", read_ddl("schema", settings.schema))
    if settings.schema is not None and settings.split:
        raise BadSettings(reason="setting schema is for one table: with split use [schemas]")
    if settings.schemas and not settings.split:
        raise BadSettings(reason="setting schemas needs split = true; without split use schema")
    if settings.ddl and settings.error_queue is None:
        raise BadSettings(
            reason="setting error_queue is missing: messages whose body does not fit the schema go "
            "there"
        )
    if settings.schema_prefix and not settings.ddl:
        raise BadSettings(reason="setting schema_prefix needs schema or [schemas]")
    _check_tables(settings)


def _check_tables(settings: Settings) -> None:
    """All types of a table must have one schema."""
    tables: dict[str, str] = {}
    for message_type, table in sorted(settings.named.items()):
        other = tables.setdefault(table.lower(), message_type)
        pair = settings.schemas.get(message_type), settings.schemas.get(other)
        if pair[0] != pair[1]:
            raise BadSettings(
                reason=f"setting names gives {message_type} and {other} the table {table}: "
                "expected the same schema for both"
            )
        if table.lower() == type_tables.OTHER and pair[0]:
            raise BadSettings(
                reason=f"setting names gives {message_type} the table {table}, which has no schema"
            )


def read_ddl(name: str, given: str) -> str:
    """
    The DDL of a setting: its text, or the content of the file that it names.

    Raises:
        BadSettings: the file cannot be read, or there is no DDL.
    """
    text = given
    if given.rstrip().endswith(SUFFIX):
        try:
            text = Path(given.strip()).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise BadSettings(
                reason=f"setting {name} is {given!r}: expected a file to read ({reason})"
            ) from None
    if not text.strip():
        raise BadSettings(reason=f"setting {name} is empty: expected DDL, for example number INT")
    return text.strip()


def parse(
    spark: SparkSession, ddl: Mapping[str, str], prefix: str, taken: Iterable[str]
) -> list[Schema]:
    """
    Parse the schemas of a job; types with the same text share a schema.

    Args:
        spark: the session, which must be active.
        ddl: full name of a message type, or "" for all messages → DDL.
        prefix: of the names of the table's columns.
        taken: names of the table's other columns.

    Raises:
        BadSettings: the DDL is not valid, or names a column that the table has already.
    """
    schemas: list[Schema] = []
    for given in sorted(set(ddl.values())):
        types = tuple(sorted(each for each in ddl if ddl[each] == given))
        name = "schema" if types == ("",) else f"{types[0]} in [schemas]"
        columns = _columns(spark, name, given)
        _check_names(name, [f"{prefix}{each}" for each in columns.names], taken)
        schemas.append(
            Schema(
                types=() if types == ("",) else types,
                columns=columns,
                prefix=prefix,
                at=len(schemas),
            )
        )
    return schemas


def _columns(spark: SparkSession, name: str, given: str) -> StructType:
    try:
        columns = StructType.fromDDL(given)
        if isinstance(columns, StructType) and columns.fields:
            frame = spark.range(1).select(F.lit(b"{}").alias("body"))
            frame.select(from_json(columns)).schema  # noqa: B018 - Spark checks the types
            return columns
        reason = "it has no columns"
    except PySparkException as error:
        reason = " ".join(line.strip() for line in str(error).splitlines() if line.strip())[:300]
    raise BadSettings(
        reason=f"setting {name} is {given!r}: expected DDL, for example number INT ({reason})"
    )


def _check_names(name: str, columns: Sequence[str], taken: Iterable[str]) -> None:
    others = {each.lower() for each in taken}
    for each in columns:
        if each.lower() in others:
            raise BadSettings(
                reason=f"setting {name} has the column {each}, which the table has already. Names "
                "are not case-sensitive. Set schema_prefix, for example to body_"
            )
        if [other.lower() for other in columns].count(each.lower()) > 1:
            raise BadSettings(reason=f"setting {name} has the column {each} twice")
