"""
Makes typed columns of JSON bodies, by schemas in Spark's DDL.

A body fits its schema if it is one JSON object, each field has the type of its column, and each
column that is NOT NULL has a value. A field without a column is ignored. A leading byte order mark
is skipped. A message whose body does not fit goes to the error queue.

`from_json` alone ignores text that follows the object. So a body is parsed as a field of another
object, and it is counted how many elements it has as the inside of an array. Only a text that is
exactly one JSON value passes both tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from sqlq_spark.jobs.settings import BadSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

# The stream's column with the name of the schema that the body does not fit; null if it fits.
UNFIT_BODY = "unfitBody"
EXCEPTION = "sqlq_spark.UnfitBody"
# The fields of the object in which a body is parsed.
BODY = "body"
CORRUPT = "corrupt"
# A number with an exponent that is too large for a double. For a DECIMAL column, Spark would write
# out all its digits before it checks the precision. That took 30 s for 1e3000000, and did not end
# for 1e100000000.
HUGE = "([0-9.][eE])([+-]?[0-9]{4})"
# SQL expressions: the body as text without a byte order mark, and whether it is UTF-8.
TEXT = "ltrim('\ufeff', CAST(body AS STRING))"
UTF8 = "is_valid_utf8(CAST(body AS STRING))"
# SQL expression: whether the body between brackets begins with a JSON array of one element.
ONE_VALUE = f"{UTF8} AND json_array_length(concat('[', {TEXT}, ']')) = 1"


class Schema(NamedTuple):
    """The columns of a body."""

    types: tuple[str, ...]  # the message types with this schema; if empty, all messages have it
    columns: StructType
    names: dict[str, str]  # field → the table's column
    name: str  # the stream's column that holds the parsed bodies


def add_columns(frame: DataFrame, schemas: Sequence[Schema]) -> DataFrame:
    """
    Add a column of parsed bodies for each schema, and the column UNFIT_BODY.

    UNFIT_BODY has the name of the schema that the body does not fit, or null. A parsed body is null
    if the schema is not for the message's type, or if the body is not one JSON value.
    """
    parsed, unfit = [], [F.expr("CAST(NULL AS STRING)")]
    for each in schemas:
        applies = F.col("messageType").isin(list(each.types)) if each.types else F.lit(True)  # noqa: FBT003
        rules = [f"{each.name}.{BODY} IS NOT NULL", f"{each.name}.{CORRUPT} IS NULL"]
        rules += [
            f"NOT coalesce({is_missing}, false)"
            for _, is_missing in find_required(each.columns, f"{each.name}.{BODY}")
        ]
        body = F.when(applies & F.expr(ONE_VALUE), parse_safely(each.columns))
        parsed.append(body.alias(each.name))
        unfit.append(F.when(applies & ~F.expr(" AND ".join(rules)), each.name))
    return frame.select("*", *parsed).select("*", F.coalesce(*unfit).alias(UNFIT_BODY))


def reason(schema: Schema) -> Column:
    """
    Return why a body does not fit a schema.

    The reason names the fields of a wrong type or, if there are none, the missing fields. It is
    null if UNFIT_BODY does not name this schema.
    """
    body = F.col(schema.name)[BODY]
    wrong = [
        F.when(
            parse_safely(StructType([each]))[CORRUPT].isNotNull(),
            f"{each.name} is not {each.dataType.simpleString()}",
        )
        for each in schema.columns
    ]
    absent = [
        F.when(F.expr(is_missing), f"{name} is missing or null")
        for name, is_missing in find_required(schema.columns, f"{schema.name}.{BODY}")
    ]
    kinds, nulls = (F.nullif(F.concat_ws(", ", *each), F.lit("")) for each in (wrong, absent))
    return F.when(
        F.col(UNFIT_BODY) == schema.name,
        F.when(F.expr("coalesce(octet_length(body), 0) = 0"), "the body is empty")
        .when(~F.expr(UTF8), "the body is not UTF-8")
        .when(
            body.isNull() & F.expr(TEXT).rlike(HUGE) & F.expr(ONE_VALUE),
            "a number in the body has an exponent of four digits or more",
        )
        .when(body.isNull(), "the body is not one JSON object")
        .otherwise(F.concat_ws(": ", F.lit("the body does not fit"), F.coalesce(kinds, nulls))),
    )


def parse_safely(columns: StructType) -> Column:
    """
    Parse a body as `from_json` does, but without a DECIMAL of a HUGE number, which takes too long.

    A body with HUGE numbers is first parsed with other text in their place, which is no number. If
    the body still fits its schema, no HUGE number is a value of a DECIMAL: all are parts of texts.
    Then it is safe to parse the unchanged body.
    """
    text = F.expr(TEXT)
    if "decimal(" not in columns.simpleString():
        return from_json(columns, text)
    without = from_json(columns, F.regexp_replace(text, HUGE, "$1x$2"))
    return (
        F.when(~text.rlike(HUGE), from_json(columns, text))
        .when(without[CORRUPT].isNull(), from_json(columns, text))
        .otherwise(without)
    )


def from_json(columns: StructType, text: Column) -> Column:
    """
    Parse a body as a field of another object.

    In the result the field `body` is the struct, and `corrupt` is null if all was parsed.
    """
    around = StructType([StructField(BODY, columns), StructField(CORRUPT, StringType())])
    wrapped = F.concat(F.lit(f'{{"{BODY}":'), text, F.lit("}"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
    return F.from_json(wrapped, around, options)


def find_required(kind: DataType, value: str, path: str = "") -> list[tuple[str, str]]:
    """
    Find the fields that are NOT NULL, also in structs, arrays and maps.

    `from_json` makes all fields nullable, so this package must check them.

    Args:
        kind: the type of the value.
        value: an SQL expression of this type.
        path: the names of the fields around the value, joined by dots.

    Returns:
        The path of each NOT NULL field, and an SQL condition that is true if the field is null.
    """
    if isinstance(kind, StructType):
        found = []
        for each in kind:
            name = f"{path}.{each.name}" if path else each.name
            inner = f"{value}.`{each.name.replace('`', '``')}`"
            if not each.nullable:
                found.append((name, f"{value} IS NOT NULL AND {inner} IS NULL"))
            found += find_required(each.dataType, inner, name)
        return found
    if isinstance(kind, MapType):
        return find_required(ArrayType(kind.valueType), f"map_values({value})", path)
    if isinstance(kind, ArrayType):
        item = f"item{path.count('[]')}"
        inside = find_required(kind.elementType, item, f"{path}[]")
        return [(name, f"exists({value}, {item} -> {test})") for name, test in inside]
    return []


def parse(spark: SparkSession, ddl: Mapping[str, str], taken: Iterable[str]) -> list[Schema]:
    """
    Parse the schemas of a job. Message types with the same DDL share a schema.

    Args:
        spark: the session, which must be active.
        ddl: full name of a message type, or "" for all messages → DDL.
        taken: names of the table's other columns. If one is `id`, a body's field `id` becomes the
            column `body_id`.

    Raises:
        BadSettings: the DDL is not valid, or names a column twice.
    """
    schemas, others = list[Schema](), {each.lower() for each in taken}
    for given in sorted(set(ddl.values())):
        types = tuple(sorted(each for each in ddl if ddl[each] == given and each))
        setting = f"setting {types[0]} in [schemas]" if types else "setting schema"
        columns = parse_ddl(spark, setting, given)
        names = {each: f"body_{each}" if each.lower() in others else each for each in columns.names}
        if len({each.lower() for each in names.values()}) < len(columns):
            listed = ", ".join(names.values())
            raise BadSettings(
                reason=f"{setting} has a column twice: {listed}. Names are not case-sensitive"
            )
        schemas.append(Schema(types, columns, names, f"typedBody{len(schemas)}"))
    return schemas


def parse_ddl(spark: SparkSession, setting: str, given: str) -> StructType:
    try:
        columns = StructType.fromDDL(given)
        if isinstance(columns, StructType) and columns.fields:
            rows = spark.range(1).select(from_json(columns, F.lit("{}")))
            rows.schema  # noqa: B018 - Spark checks the types
            return columns
        reason = "it has no columns"
    except PySparkException as error:
        reason = " ".join(str(error).split())[:300]
    raise BadSettings(
        reason=f"{setting} is {given!r}: expected DDL, for example number INT ({reason})"
    )
