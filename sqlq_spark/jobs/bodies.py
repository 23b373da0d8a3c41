"""
Typed columns from JSON bodies, by schemas in Spark's DDL.

A body fits its schema if it is one JSON object, each field has the type of its column, and each
column that is NOT NULL has a value. A field without a column is ignored. A leading byte order mark
is skipped. For a body that does not fit, `failures` makes a message for the error queue.

`from_json` alone ignores what follows the object. So a body is parsed inside another object, and
its values are counted inside an array. Only one JSON value is valid in both places.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from sqlq_spark.functions import fail
from sqlq_spark.jobs.settings import BadSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, SparkSession

    Test = Callable[[Column], Column]

UNFIT = "unfitBody"  # a column of the stream: the number of the schema that a body does not fit
EXCEPTION = "sqlq_spark.UnfitBody"
BODY, CORRUPT = "body", "corrupt"  # fields of the object around a body
SHOWN = 20  # fields that a reason names
# An exponent that no double has. For a DECIMAL Spark writes out such a number before it checks the
# precision: 30 s for 1e3000000, and for 1e100000000 more than anyone waited.
HUGE = "([0-9.][eE])([+-]?[0-9]{4})"


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a body."""

    types: tuple[str, ...]  # the message types that have it; none: all messages
    columns: StructType
    prefix: str = ""  # of the names of the table's columns
    at: int = 0  # its number

    @property
    def name(self) -> str:
        """The column of the stream that holds its parsed bodies."""
        return f"typedBody{self.at}"

    @property
    def applies(self) -> Column:
        return F.col("messageType").isin(list(self.types)) if self.types else F.lit(True)  # noqa: FBT003

    def parsed(self) -> Column:
        """The body in its object; null for a message of another type, or if it is not one value."""
        return F.when(self.applies & is_one_value(), parse_safely(self.columns))

    def missing(self) -> list[tuple[str, Column]]:
        """The fields that are NOT NULL, and whether one is missing in the parsed body."""
        body = F.col(self.name)[BODY]
        return [(name, is_missing(body)) for name, is_missing in required(self.columns)]

    def unfit(self) -> Column:
        """Whether the schema applies, and the parsed body does not fit it; never null."""
        parsed, false = F.col(self.name), F.lit(False)  # noqa: FBT003
        fits = parsed[BODY].isNotNull() & parsed[CORRUPT].isNull()
        for _, is_missing in self.missing():
            fits &= ~F.coalesce(is_missing, false)
        return F.coalesce(self.applies & ~F.coalesce(fits, false), false)

    def into_columns(self) -> list[Column]:
        body = F.col(self.name)[BODY]
        return [body[each.name].alias(f"{self.prefix}{each.name}") for each in self.columns]

    def reason(self) -> Column:
        """Why a body does not fit: the fields of another type, or else those that are missing."""
        body = F.col(self.name)[BODY]
        wrong = [
            F.when(
                parse_safely(StructType([each]))[CORRUPT].isNotNull(),
                F.lit(f"{each.name} is not {each.dataType.simpleString()}"),
            )
            for each in self.columns
        ]
        missing = [
            F.when(is_missing, F.lit(f"{name} is missing or null"))
            for name, is_missing in self.missing()
        ]
        kinds, nulls = (F.array_compact(F.array(*each)) for each in (wrong, missing or wrong))
        names = F.when(F.size(kinds) > 0, kinds).otherwise(nulls)
        fields = F.array_join(F.slice(names, 1, SHOWN), ", ")
        return (
            F.when(F.coalesce(F.octet_length("body"), F.lit(0)) == 0, F.lit("the body is empty"))
            .when(~F.is_valid_utf8(F.col("body").cast("string")), F.lit("the body is not UTF-8"))
            .when(
                body.isNull() & text().rlike(HUGE) & is_one_value(),
                F.lit("a number in the body has an exponent of four digits or more"),
            )
            .when(body.isNull(), F.lit("the body is not one JSON object"))
            .when(fields == "", F.lit("the body does not fit"))
            .otherwise(F.concat_ws(": ", F.lit("the body does not fit"), fields))
        )


def text() -> Column:
    """The body as text, without a byte order mark."""
    return F.ltrim(F.col("body").cast("string"), F.lit("\ufeff"))


def is_one_value() -> Column:
    """Whether the body is UTF-8, and at most one JSON value if nothing follows its first value."""
    values = F.json_array_length(F.concat(F.lit("["), text(), F.lit("]")))
    return F.is_valid_utf8(F.col("body").cast("string")) & (values == 1)


def parse_safely(columns: StructType) -> Column:
    """
    As from_json, but no number of a DECIMAL keeps Spark busy.

    Without HUGE numbers a body is parsed first. If it fits, they are in texts only, none of which
    is for a DECIMAL. So the body as it was is parsed then.
    """
    if "decimal(" not in columns.simpleString():
        return from_json(columns)
    without = from_json(columns, F.regexp_replace(text(), HUGE, "$1x$2"))
    return (
        F.when(~text().rlike(HUGE), from_json(columns))
        .when(without[CORRUPT].isNull(), from_json(columns))
        .otherwise(without)
    )


def from_json(columns: StructType, body: Column | None = None) -> Column:
    """The body in an object: the struct `body`, and `corrupt`, which is null if all was parsed."""
    around = StructType([StructField(BODY, columns), StructField(CORRUPT, StringType())])
    wrapped = F.concat(F.lit(f'{{"{BODY}":'), text() if body is None else body, F.lit("}"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
    return F.from_json(wrapped, around, options)


# ---------------------------------------------------------------- NOT NULL


def required(kind: DataType, path: str = "") -> list[tuple[str, Test]]:
    """
    The fields that are NOT NULL, also in structs, arrays and maps: path, and a test for null.

    `from_json` makes all fields nullable.
    """
    if isinstance(kind, StructType):
        return [found for each in kind for found in _required_field(each, path)]
    if isinstance(kind, ArrayType):
        return [(name, _any(test)) for name, test in required(kind.elementType, f"{path}[]")]
    if isinstance(kind, MapType):
        inner = required(kind.valueType, f"{path}[]")
        return [(name, _within(F.map_values, _any(test))) for name, test in inner]
    return []


def _required_field(field: StructField, path: str) -> list[tuple[str, Test]]:
    name = f"{path}.{field.name}" if path else field.name
    found = [
        (each, _within(lambda body: body[field.name], test))
        for each, test in required(field.dataType, name)
    ]
    if not field.nullable:
        found.insert(0, (name, lambda body: body.isNotNull() & body[field.name].isNull()))
    return found


def _any(test: Test) -> Test:
    return lambda found: F.exists(found, test)


def _within(part: Test, test: Test) -> Test:
    return lambda found: test(part(found))


# ---------------------------------------------------------------- the schemas of a job


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
    others = {each.lower() for each in taken}
    for given in sorted(set(ddl.values())):
        types = tuple(sorted(each for each in ddl if ddl[each] == given and each))
        name = f"{types[0]} in [schemas]" if types else "schema"
        columns = _parse_ddl(spark, name, given)
        names = [f"{prefix}{each}" for each in columns.names]
        counted = Counter(each.lower() for each in names)
        for each in names:
            if each.lower() in others:
                raise BadSettings(
                    reason=f"setting {name} has the column {each}, which the table has already. "
                    "Names are not case-sensitive. Set schema_prefix, for example to body_"
                )
            if counted[each.lower()] > 1:
                raise BadSettings(reason=f"setting {name} has the column {each} twice")
        schemas.append(Schema(types=types, columns=columns, prefix=prefix, at=len(schemas)))
    return schemas


def _parse_ddl(spark: SparkSession, name: str, given: str) -> StructType:
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


# ---------------------------------------------------------------- rows


def add_columns(frame: DataFrame, schemas: Sequence[Schema]) -> DataFrame:
    """Add the parsed bodies and UNFIT to the rows of a stream."""
    if not schemas:
        return frame
    parsed = frame.select("*", *(each.parsed().alias(each.name) for each in schemas))
    unfit = [F.when(each.unfit(), F.lit(each.at)) for each in schemas]
    return parsed.select("*", F.coalesce(*unfit).alias(UNFIT))


def failures(frame: DataFrame, schemas: Sequence[Schema], *, json: bool) -> DataFrame | None:
    """The messages whose bodies do not fit, for the error queue; None if there are none."""
    found = frame.agg(F.collect_set(UNFIT)).collect()[0][0] if schemas else []
    frames = [
        frame.where(F.col(UNFIT) == at).select(*fail(EXCEPTION, schemas[at].reason(), json=json))
        for at in sorted(found)
    ]
    return reduce(DataFrame.unionByName, frames) if frames else None
