"""
Messages in columns: what lies in a receipt, what Spark gets, and the ids.

A row of a queue stays as it was found, in Arrow, from the database into the receipt;
only what Spark asked for is made of it, and only after the commit.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.headers import CORRELATION_ID, REPLY_TO_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

log = logging.getLogger("sqlq_spark")

# a row of a queue, as found, and as a receipt keeps it
QUEUE_ROW = pa.schema(
    [
        pa.field("id", pa.binary(16)),
        pa.field("expires", pa.timestamp("us")),
        pa.field("headers", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("seq", pa.int64()),
    ]
)

# what a read with includeBodyString has besides; a receipt made without it has none
BODY_STRING = pa.field("bodystring", pa.string())

# columns of a read that are headers; the columns of this name are empty in today's tables
HEADER_COLUMNS = {"correlationId": CORRELATION_ID, "replyToAddress": REPLY_TO_ADDRESS}

# of expiries; between them Python has a time for each
FIRST, LAST = (
    pa.scalar(text, pa.string()).cast(pa.timestamp("us")) for text in ("0001-01-02", "9999-12-31")
)

LEGACY_LENGTH = 255  # bytes of such a column, where a table has them

BATCH_BYTES = 8 << 20  # of one record batch on its way to Spark
BATCH_ROWS = 10_000

TEXTS = frozenset({str, type(None)})  # what the values of headers may be

# a letter or a dot in hex, which no peer writes: a header's name may be written with it
NAMED_IN_HEX = r"\\u00(?:2[Ee]|[4-7])"


def by_seq(rows: pa.Table) -> pa.Table:
    """The rows in the order of `seq`; sorted only where they are not."""
    seqs = rows["seq"].to_numpy()
    if np.all(seqs[1:] > seqs[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(seqs)))


def record_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Slices of at most BATCH_ROWS rows and about BATCH_BYTES bytes, at least one row each."""
    each = max(1, rows.nbytes // max(1, rows.num_rows))
    for chunk in rows.to_batches(max_chunksize=max(1, min(BATCH_ROWS, BATCH_BYTES // each))):
        if chunk.num_rows:
            yield chunk


def dated(rows: pa.Table) -> pa.Table:
    """
    Rows of QUEUE_ROW, an expiry beyond Python's calendar null.

    An infinite one, which the driver gives as some other, could not be shown, nor loaded again.
    """
    expires = rows["expires"]
    known = pc.and_(pc.greater(expires, FIRST), pc.less(expires, LAST))
    place = rows.schema.get_field_index("expires")
    return rows.set_column(place, "expires", pc.if_else(known, expires, None))


def undecodable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """
    Which texts are no UTF-8, as booleans; a database of SQL_ASCII holds any bytes.

    Measured: 0.04 us for headers of 700 bytes.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        found = [text is not None and not is_utf8(text) for text in octets(texts)]
        return pa.chunked_array([pa.array(found, pa.bool_())])
    return pa.chunked_array([pa.repeat(pa.scalar(value=False), len(texts))])


def octets(texts: pa.ChunkedArray) -> list[bytes | None]:
    """Texts that may be no UTF-8, as bytes."""
    found: list[bytes | None] = texts.cast(pa.binary()).to_pylist()
    return found


def is_utf8(text: bytes) -> bool:
    """Whether a text can be decoded."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def readable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts that may be no UTF-8, U+FFFD in the place of what is none."""
    found = [None if text is None else text.decode(errors="replace") for text in octets(texts)]
    return pa.chunked_array([pa.array(found, pa.string())])


def with_texts(rows: pa.Table, unread: pa.ChunkedArray) -> pa.Table:
    """Rows of a queue with all texts readable; `unread` of their headers."""
    if pc.any(unread).as_py():
        at = rows.schema.get_field_index("headers")
        rows = rows.set_column(at, rows.schema.field(at), readable(rows["headers"]))
    at = rows.schema.get_field_index(BODY_STRING.name)
    if at >= 0 and pc.any(undecodable(rows[BODY_STRING.name])).as_py():
        rows = rows.set_column(at, BODY_STRING, readable(rows[BODY_STRING.name]))
    return rows


class Headers:
    """The headers of some rows, parsed: each a flat JSON object string → string or null."""

    def __init__(self, texts: pa.Array) -> None:
        """Read header texts; `''` is `{}`."""
        self._found = [opened(text) for text in texts.to_pylist()]
        self._values: pa.Array | None = None

    def check(self) -> pa.Array:
        """Look at every value: a row with one that is no text is poison from then on."""
        if self._values is None:
            try:
                self._values = self._flat_values()
            except (pa.ArrowException, TypeError):
                self._found = [
                    None if each is None or not flat(each) else each for each in self._found
                ]
                self._values = self._flat_values()
        return self._values

    def _flat_values(self) -> pa.Array:
        values = [value for each in self._found if each for value in each.values()]
        return pa.array(values, pa.string())

    def rows(self) -> list[dict[str, str | None]]:
        """The headers of each row; none for poison."""
        self.check()
        return [each or {} for each in self._found]

    def poison(self) -> pa.Array:
        """Which rows are poison, as booleans."""
        self.check()
        return pa.array([each is None for each in self._found], pa.bool_())

    def map(self, kind: pa.MapType) -> pa.MapArray:
        """The headers as a map column; null for poison."""
        values = self.check().cast(kind.item_type)
        filled = self.rows()
        offsets = np.zeros(len(filled) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, filled), np.int32, len(filled)), out=offsets[1:])
        keys = pa.array([key for each in filled for key in each], kind.key_type)
        offset_array = pa.array(offsets)
        return pa.MapArray.from_arrays(offset_array, keys, values, type=kind, mask=self.poison())

    def text(self, name: str) -> pa.Array:
        """One header of every row; null where it is absent, or the row is poison."""
        self.check()
        return pa.array([each.get(name) if each else None for each in self._found], pa.string())


def opened(text: str | None) -> dict[str, str | None] | None:
    """One header text as a dict, its values not yet looked at; None for what is no object."""
    if not text:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if type(found) is dict else None


def flat(headers: dict[str, str | None]) -> bool:
    """Whether all values are texts or null."""
    return TEXTS.issuperset(map(type, headers.values()))


def quick_text(texts: list[str | None], name: str) -> pa.Array:
    """
    One header of every row, found as our peers write it, without parsing; null where it is absent.

    In a JSON text a quote inside a string is escaped, so `"name":"` after no backslash is a key.
    Where the value has an escape, or the name is there twice or in another form, the row is parsed.
    A name with a letter in hex (`NAMED_IN_HEX`) is not found.
    Measured: 0.4 us a message; parsing takes 2.
    """
    key, on = f'"{name}":"', len(name) + 3

    def value(text: str) -> str | None:
        at = text.find(name)  # one pass over a text without it
        if at < 0:
            return None
        end = text.find('"', at + on)
        found = text[at + on : end]
        plain = end >= 0 and text.startswith(key, at - 1) and "\\" not in text[at - 2] + found
        return found if plain and text.find(name, end) < 0 else parsed(text)

    def parsed(text: str) -> str | None:
        found = (opened(text) or {}).get(name)
        return found if isinstance(found, str) else None

    return pa.array([value(text) if text else None for text in texts], pa.string())


def received(rows: pa.RecordBatch, schema: pa.Schema, *, queue: str) -> pa.RecordBatch:
    """
    Rows of a queue as Spark asked for them.

    Args:
        rows: of QUEUE_ROW.
        schema: any of the columns of a read, with the types that Spark derived for them.
        queue: the address they came from.

    Headers are parsed only where a column needs them all, or a name may be written in hex.
    """
    headers = texts = None
    found = rows.column("headers")
    if any(pa.types.is_map(field.type) or field.name == "corruptHeaders" for field in schema):
        headers = Headers(found)
    elif HEADER_COLUMNS.keys() & {*schema.names}:
        if pc.any(pc.match_substring_regex(found, NAMED_IN_HEX)).as_py():
            headers = Headers(found)
        else:
            texts = found.to_pylist()
    columns = [column(field, rows, headers, texts, queue) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def column(
    field: pa.Field,
    rows: pa.RecordBatch,
    headers: Headers | None,
    texts: list[str | None] | None,
    queue: str,
) -> pa.Array:
    """One column of a read; `headers` where they were parsed, `texts` where they need not be."""
    name, kind = field.name, field.type
    if name == "id":
        return id_texts(rows.column("id"))
    if name in HEADER_COLUMNS:
        header = HEADER_COLUMNS[name]
        return headers.text(header) if headers else quick_text(texts or [], header)
    if headers and name == "corruptHeaders":
        # not None: of a slice without poison Arrow up to 21 then makes an array that is not valid
        nothing = pa.nulls(rows.num_rows, kind)
        return pc.if_else(headers.poison(), rows.column("headers"), nothing)
    if headers and pa.types.is_map(kind):
        return headers.map(kind)
    if name == "queue":
        return pa.repeat(pa.scalar(queue, kind), rows.num_rows)
    at = rows.schema.get_field_index(name.lower())  # bodyString may be absent, see BODY_STRING
    return pa.nulls(rows.num_rows, kind) if at < 0 else rows.column(at).cast(kind)


def with_legacy_columns(rows: pa.Table) -> pa.Table:
    """
    Rows to send with what peers of version 1 read from columns; null where it does not fit there.

    Args:
        rows: with `headers`.
    """
    texts = rows["headers"].to_pylist()
    for name, header in HEADER_COLUMNS.items():
        found = quick_text(texts, header)
        # a varchar: beyond ASCII the server would put question marks
        short = pc.less_equal(pc.binary_length(found), LEGACY_LENGTH)
        fits = pc.and_(short, pc.string_is_ascii(found))
        rows = rows.append_column(name.lower(), pc.if_else(fits, found, None))
    return rows


# ---------------------------------------------------------------- ids


def random_ids(
    how_many: int, *, seed: bytes | None = None, first: int = 0
) -> npt.NDArray[np.uint8]:
    """
    Fresh version 4 UUIDs.

    Args:
        how_many: >= 0.
        seed: 16 bytes; ids `first` onwards of the sequence that they stand for. None: of chance.
        first: even.

    Returns:
        uint8 of shape (how_many, 16), in network order. Measured: 4.6 million/s, `uuid4` 380k/s.
    """
    if seed is None:
        ids = np.frombuffer(os.urandom(16 * how_many), np.uint8).reshape(how_many, 16).copy()
    else:  # a step of Philox is 32 bytes: two ids
        steps = np.random.Philox(key=int.from_bytes(seed)).advance(first // 2)
        ids = steps.random_raw(2 * how_many).view(np.uint8).reshape(how_many, 16)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x40
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids


def rising_ids(how_many: int, now: float) -> npt.NDArray[np.uint8]:
    """
    Fresh version 7 UUIDs, ascending: a unique index takes them at its end.

    Args:
        how_many: >= 0.
        now: seconds since 1970.

    Returns:
        uint8 of shape (how_many, 16), in network order.
    """
    ids = random_ids(how_many)
    ids[:, :6] = np.frombuffer(int(now * 1000).to_bytes(6), np.uint8)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x70
    halves = ids.view(">u8")
    return ids[np.lexsort((halves[:, 1], halves[:, 0]))]


HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
DASHES = (8, 13, 18, 23)
DIGITS = np.array([at for at in range(36) if at not in DASHES])


def id_texts(ids: pa.Array | npt.NDArray[np.uint8]) -> pa.Array:
    """UUIDs of 16 bytes as their texts of 36 characters; null stays null."""
    if isinstance(ids, pa.Array):
        if ids.null_count:
            return pa.array(
                [None if each is None else uuid_text(each) for each in ids.to_pylist()], pa.string()
            )
        ids = np.frombuffer(ids.buffers()[1], np.uint8)[16 * ids.offset :][: 16 * len(ids)].reshape(
            -1, 16
        )
    texts = np.full((len(ids), 36), ord("-"), np.uint8)
    texts[:, DIGITS] = HEX[ids].reshape(-1, 32)
    offsets = np.arange(0, 36 * len(ids) + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(texts))


def uuid_text(value: bytes) -> str:
    """One UUID as text."""
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What Spark calls the micro-batch; kept in the receipt so that a sink can settle it."""

    query_id: str | None = None
    query_batch: int | None = None


NO_STREAM = Origin()
