"""
The books of a walk: which messages there are, where each has to be in the end, and where it is.

A message is known by its body, a number that is given once. What is due and what is found are bags
of (body, place); the one without the other is what was lost, and the other way round what was
repeated, or came where it should not.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql

from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.names import names_of
from sqlq_spark.send.sender import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FAILED_Q, FORWARD_DESTINATION, dumps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.transport import PostgreSQL

QUEUES = ("orders", "error", "billing", "shipping")
HEARING = ("billing", "shipping")  # subscribed to TOPIC
TOPIC = "Shop.Billed"
DELAYED = "orders.Delayed"  # where messages wait
STATE = ("receipt", "receipt_page", "staging", "staging_page", "stream", "dispatch_log")
LIFE = 10**8  # milliseconds
TIMEOUT = 60.0
HEADERS = '{"NServiceBus.MessageId":"%s","Shop.Note":"%s"}'

FATES = {"expired": None, "poison": "error", "large": "error"}  # where; the others are sold
NOTES = {"heavy": 1500, "large": 15_000}  # half of the characters of a header

_POST = """
INSERT INTO {} (Id, Expires, Headers, Body)
SELECT gen_random_uuid(), (now() AT TIME ZONE 'UTC') - make_interval(secs => late), headers, body
  FROM unnest(%s::float8[], %s::text[], %s::bytea[]) AS message (late, headers, body)
"""
_DELAY = """
INSERT INTO {} (Headers, Body, Due)
SELECT headers, body, timestamptz(now() AT TIME ZONE 'UTC') - interval '1 hour'
  FROM unnest(%s::text[], %s::bytea[]) AS message (headers, body)
"""
# what a consumer of the queue holds: the lowest good ones of some
_HOLD = "SELECT FROM {} WHERE Body = ANY (%s) FOR UPDATE"
_TAKE = "DELETE FROM {} WHERE Body = ANY (%s) RETURNING Body"
_LEFT = """
SELECT application_name, state, (SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid)
  FROM pg_stat_activity AS a
 WHERE starts_with(application_name, %(mark)s)
   AND (NOT starts_with(application_name, %(own)s)
        OR state <> 'idle'
        OR EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid))
"""


@dataclass(frozen=True)
class Shop:
    """Where the queues are."""

    url: str
    schema: str
    state: str
    mark: str  # how the names of our sessions begin

    def address(self, table: str) -> QueueAddress:
        """A queue of ours."""
        return QueueAddress(table, self.schema)

    def printed(self, table: str) -> str:
        """Its name for an option."""
        return names_of(self.url).print_address(self.address(table))

    def raw(self) -> dict[str, str]:
        """What all options have in common."""
        return {"url": self.url, "stateSchema": self.state, "queryTimeout": f"{TIMEOUT:g}s"}

    def source(self) -> SourceOptions:
        """Options of the stream."""
        limits = {"maxMessagesPerTrigger": "10", "maxConcurrency": "2", "maxMessageBytes": "20k"}
        queues = {"queue": self.printed("orders"), "errorQueue": self.printed("error")}
        moves = {"delayedDelivery": "true"}
        return SourceOptions.parse({**self.raw(), **queues, **limits, **moves})

    def sink(self, **raw: str) -> SinkOptions:
        """Options of a writer; its rows name their queues, are published, or wait in our table."""
        tables = {
            "subscriptionTable": self.printed("SubscriptionRouting"),
            "delayedQueue": self.printed(DELAYED),
        }
        return SinkOptions.parse({**self.raw(), **tables, **raw})


@dataclass
class Count:
    """What a walk came to."""

    messages: int = 0
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether all is as it was promised."""
        return not (self.lost or self.repeated or self.wrong)

    def add(self, other: Count) -> None:
        """Count both."""
        self.messages += other.messages
        self.lost += other.lost
        self.repeated += other.repeated
        self.wrong += other.wrong


class Books:
    """Of one trip after the other."""

    def __init__(self, dotnet: PostgreSQL, shop: Shop, own: str) -> None:
        self.dotnet = dotnet
        self.shop = shop
        self.own = own  # how the names of this process's sessions begin
        self.patience = 20.0  # seconds that the server may take to notice the dead
        self.numbers = count()
        self.rivals = [psycopg.connect(dotnet.url) for _ in range(2)]
        self.open()

    def open(self) -> None:
        """Begin with empty queues."""
        self.due: Counter[tuple[str, str]] = Counter()
        self.found: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.bodies = 0
        self.held: list[bytes] = []
        for table in (*QUEUES, DELAYED):
            self.dotnet.dba.empty(self.shop.address(table))
        for table in STATE:
            self.dotnet.dba.forget(table)

    def close(self) -> None:
        """End the sessions of others."""
        for rival in self.rivals:
            rival.close()

    def _sql(self, text: str, table: str = "orders") -> sql.Composed:
        return sql.SQL(text).format(sql.Identifier(self.shop.schema, table))

    # ------------------------------------------------------------ messages

    def message(self, place: str | None, copies: int = 1) -> bytes:
        """Give a new message's body, which has to be in a place in the end."""
        body = str(next(self.numbers))
        self.bodies += 1
        if place is not None:
            self.due[body, place] += copies
        return body.encode()

    def post(self, fates: Sequence[str]) -> list[bytes]:
        """Send messages of some fates into the queue: good, heavy, expired, poison, large."""
        late, headers, bodies = [], [], []
        for fate in fates:
            body = self.message(FATES.get(fate, "sold"))
            note = secrets.token_hex(NOTES[fate]) if fate in NOTES else "x" * 40
            text = HEADERS % (body.decode(), note)
            late.append(60.0 if fate == "expired" else -float(LIFE))
            headers.append("[]" if fate == "poison" else text)
            bodies.append(body)
        self.dotnet.connection.execute(self._sql(_POST), (late, headers, bodies))
        return bodies

    def delay(self, destinations: dict[str, str]) -> None:
        """Let a message be due for each of some addresses, to be in a place in the end."""
        bodies = [self.message(place) for place in destinations.values()]
        headers = [dumps({FORWARD_DESTINATION: address}) for address in destinations]
        self.dotnet.connection.execute(self._sql(_DELAY, DELAYED), (headers, bodies))

    def fail(self, messages: int) -> None:
        """Let messages lie in the error queue that failed in another, to be there in the end."""
        bodies = [self.message("sold") for _ in range(messages)]
        headers = [dumps({FAILED_Q: self.shop.printed("billing")})] * messages
        late = [0.0] * messages
        self.dotnet.connection.execute(self._sql(_POST, "error"), (late, headers, bodies))

    def chunk(self, bodies: Sequence[bytes], headers: Sequence[str]) -> pa.Table:
        """Give a chunk to both queues; the first lives for ever."""
        queues = [self.shop.printed(("billing", "shipping")[at % 2]) for at in range(len(bodies))]
        lives = [None, *[LIFE] * len(bodies)][: len(bodies)]
        return pa.table([queues, headers, bodies, lives], schema=CHUNK_ROW)

    def to_send(self, messages: int) -> pa.Table:
        """Give a chunk of new messages; the last of them is delayed."""
        places = ["sold"] * (messages - 1) + ["waiting"]
        delays = [LIFE if place == "waiting" else None for place in places]
        plain = self.chunk([self.message(place) for place in places], ["{}"] * messages)
        return plain.append_column(CHUNK_DELAYS["delay"], pa.array(delays, pa.int64()))

    def to_set_aside(self, messages: int) -> pa.Table:
        """Give a chunk of new messages: one without a queue, and the others for a missing one."""
        plain = self.chunk([self.message("error") for _ in range(messages)], ["{}"] * messages)
        queues = pa.array([None, *[self.shop.printed("nowhere")] * (messages - 1)], pa.string())
        return plain.set_column(0, CHUNK_ROW.field("queue"), queues)

    def to_publish(self, messages: int) -> pa.Table:
        """Give a chunk of new messages for all queues that hear, one for one, and one delayed."""
        sent = self.to_send(2)
        bodies = [self.message("sold", len(HEARING)) for _ in range(messages)]
        heard = self.chunk(bodies, ["{}"] * messages).drop_columns("queue")
        lists = [[TOPIC, "Shop.IEvent"]] * messages
        published = pa.concat_tables([sent, heard], promote_options="default")
        return published.append_column(
            CHUNK_TOPICS, pa.array([None, None, *lists], CHUNK_TOPICS.type)
        )

    def twice(self, chunks: Sequence[pa.Table]) -> None:
        """Expect chunks a second time: at least once is what was asked for."""
        for chunk in chunks:
            for row in chunk.to_pylist():
                copies = len(HEARING) if row.get("topics") else 1
                place = "sold" if row.get("delay") is None else "waiting"
                self.due[row["body"].decode(), place] += copies

    def dropped(self, bodies: Sequence[bytes]) -> None:
        """Expect messages nowhere."""
        for body in bodies:
            del self.due[body.decode(), "sold"]

    # ------------------------------------------------------------ others

    def hold(self, taken: bytes, held: bytes) -> None:
        """Let another consumer receive a message, and a second one that it gives up later."""
        self.due[taken.decode(), "sold"] = 0
        self.due[taken.decode(), "rival"] = 1
        self.rivals[0].execute(self._sql(_TAKE), [[taken]])
        self.rivals[1].execute(self._sql(_HOLD), [[held]])
        self.held = [taken]

    def let_go(self) -> None:
        """Commit the one, undo the other."""
        self.rivals[0].commit()
        self.rivals[1].rollback()
        self.found.update((body.decode(), "rival") for body in self.held)
        self.held = []

    def waiting(self) -> bool:
        """Whether messages are left in the queue."""
        return bool(self.dotnet.rows(self.shop.address("orders")))

    def state(self, table: str) -> int:
        """How many rows a state table has."""
        found: int = self.dotnet.state_rows(table, "count(*)")[0][0]
        return found

    def a_week_passes(self) -> None:
        """Age what was staged."""
        self.dotnet.dba.age("staging", "created", hours=8 * 24)

    # ------------------------------------------------------------ the count

    def total(self, *expected: int) -> None:
        """Expect the streams to say so many were delivered, expired, diverted, forwarded."""
        columns = "sum(messages), sum(expired), sum(diverted), sum(forwarded)"
        found = self.dotnet.state_rows("stream", columns)[0]
        if tuple(map(int, found)) != expected:
            self.wrong.append(f"acknowledged {found}, not {expected}")

    def count(self) -> Count:
        """Compare what is due with what there is."""
        places = {"billing": "sold", "shipping": "sold"}
        for table in QUEUES:
            for row in self.dotnet.rows(self.shop.address(table)):
                self.found[(row.body or b"").decode(), places.get(table, table)] += 1
        for (body,) in self.dotnet.connection.execute(self._sql("SELECT Body FROM {}", DELAYED)):
            self.found[body.decode(), "waiting"] += 1
        for table in STATE[:4]:
            if rows := self.state(table):
                self.wrong.append(f"{rows} rows left in {table}")
        self.wrong += self.left()
        lost, repeated = self.due - self.found, self.found - self.due
        return Count(
            self.bodies,
            [str(each) for each in lost.elements()],
            [str(each) for each in repeated.elements()],
            self.wrong,
        )

    def left(self) -> list[str]:
        """What our sessions hold when the server has had time to end those of the dead."""
        until = time.monotonic() + self.patience
        names: dict[str, Any] = {"mark": self.shop.mark, "own": self.own}
        while found := self.dotnet.connection.execute(_LEFT.encode(), names).fetchall():
            if time.monotonic() > until:
                return [f"session {row}" for row in found]
            time.sleep(0.002)
        return []
