"""Rows of Spark as messages: Arrow batches in, batches of messages out.

    body, value       binary or string; the message (one of the two must be there)
    topic             string; else the option `topic`
    key               string or binary; the message's key, and rows of one key stay in order
    keys              array of strings: more keys to find the message by
    tags              string
    properties        map of strings
    flag              int
    queue, partition  int; the queue, counted through all brokers; with `broker`, that broker's own

Other columns of the source (`SOURCE_ONLY`) are passed over, so that one topic can be copied to
another; any other name is refused. Rows without key and queue go to one queue after the other, a
part at a time.

Invariant: rows of one key, or of one queue, keep their order within a partition.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

from onelog.client.message import RESERVED_PROPERTIES, Queue
from onelog.client.unique_id import unique_id
from onelog.errors import MessageError
from onelog.message import PROPERTIES_BYTES_MAX, java_hash

SINK_COLUMNS = frozenset(
    "body value topic key keys tags properties flag queue partition broker".split()
)
SOURCE_ONLY = frozenset("offset born_time store_time message_id log_offset _error".split())

_HEAD = Struct(">iiiii")
_LENGTH = Struct(">H")
_ROW_BYTES = 22
"""What a message takes in a batch beside its body and properties."""


def check_columns(names: Iterable[str]) -> None:
    """`MessageError` unless rows of these columns can be written."""
    found = set(names)
    if not found & {"body", "value"}:
        raise MessageError(
            f"no column is the message: rename one to `body` (there are {', '.join(sorted(found))})"
        )
    for one, other in (("body", "value"), ("queue", "partition")):
        if {one, other} <= found:
            raise MessageError(f"columns `{one}` and `{other}` mean the same: drop one of them")
    if unknown := found - SINK_COLUMNS - SOURCE_ONLY:
        raise MessageError(
            f"column {', '.join(sorted(unknown))} means nothing to a topic: put it into `body` "
            f"(to_json(struct(*))) or `properties`, or drop it; known are "
            f"{', '.join(sorted(SINK_COLUMNS))}"
        )


class RowEncoder:
    """Makes messages of rows, for the queues that topics have."""

    def __init__(self, topic: str | None, body_bytes_max: int) -> None:
        self._topic = topic
        self._body_bytes_max = body_bytes_max

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[str, object, bytes]]:
        """For each row: its topic, what decides its queue (None: anything), and its message.

        What decides is a key as text, a number, or a pair of broker and number.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        count = batch.num_rows
        bodies = _values(columns.get("body", columns.get("value")), count)
        topics = _values(columns.get("topic"), count, self._topic)
        all_properties = self._properties(columns, count)
        flags = _values(columns.get("flag"), count, 0)
        targets = _targets(columns, count)
        for number in range(count):
            body, topic = bodies[number], topics[number] or self._topic
            if isinstance(body, str):
                body = body.encode()
            self._check(topic, body, number)
            assert topic is not None
            properties = all_properties[number]
            flag = flags[number] or 0
            size = _ROW_BYTES + len(body) + len(properties)
            message = b"".join(
                (
                    _HEAD.pack(size, 0, 0, flag, len(body)),
                    body,
                    _LENGTH.pack(len(properties)),
                    properties,
                )
            )
            yield topic, targets[number], message

    def _check(self, topic: str | None, body: bytes | None, number: int) -> None:
        if not topic:
            raise MessageError(
                f"row {number} names no topic: fill the column `topic`, or set the option `topic`"
            )
        if not body:
            raise MessageError(
                f"row {number} for topic {topic!r} has no body: filter such rows out (a topic has "
                "no empty messages)"
            )
        if len(body) > self._body_bytes_max:
            raise MessageError(
                f"row {number} for topic {topic!r} has a body of {len(body)} bytes; the limit is "
                f"{self._body_bytes_max}"
            )

    def _properties(self, columns: Mapping[str, pa.Array], count: int) -> list[bytes]:
        """The encoded properties of every row, with a fresh unique id."""
        extra = [columns[name] for name in ("key", "keys", "tags", "properties") if name in columns]
        if not extra:
            return [f"UNIQ_KEY\x01{unique_id()}\x02WAIT\x01true\x02".encode() for _ in range(count)]
        keys = _values(columns.get("key"), count)
        more = _values(columns.get("keys"), count)
        tags = _values(columns.get("tags"), count)
        maps = _values(columns.get("properties"), count)
        return [
            _encode(_keys(key, others), tag, named)
            for key, others, tag, named in zip(keys, more, tags, maps, strict=True)
        ]


def _values(column: pa.Array | None, count: int, missing: Any = None) -> Sequence[Any]:
    return [missing] * count if column is None else column.to_pylist()


def _targets(columns: Mapping[str, pa.Array], count: int) -> list[object]:
    queues = _values(columns.get("queue", columns.get("partition")), count)
    if "broker" in columns:
        brokers = columns["broker"].to_pylist()
        pairs = zip(brokers, queues, strict=True)
        named = [None if q is None else q if b is None else (b, q) for b, q in pairs]
    else:
        named = list(queues)
    if "key" not in columns:
        return named
    keys = map(_text, columns["key"].to_pylist())
    return [key if queue is None else queue for key, queue in zip(keys, named, strict=True)]


def _text(key: str | bytes | None) -> str | None:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def _keys(key: str | bytes | None, others: Sequence[str] | str | None) -> str:
    first = _text(key)
    listed = others.split() if isinstance(others, str) else list(others or ())
    return " ".join(filter(None, [first, *(each for each in listed if each != first)]))


def _encode(
    keys: str, tags: str | None, named: Mapping[str, str] | Sequence[tuple[str, str]] | None
) -> bytes:
    text = f"UNIQ_KEY\x01{unique_id()}\x02WAIT\x01true\x02"
    if keys:
        text += f"KEYS\x01{keys}\x02"
    if tags:
        text += f"TAGS\x01{tags}\x02"
    expected = 2 + bool(keys) + bool(tags)
    for name, value in dict(named or ()).items():
        # What the system of a message that is copied wrote into it does not belong to the copy.
        if value and name not in RESERVED_PROPERTIES:
            text += f"{name}\x01{value}\x02"
            expected += 1
    if text.count("\x01") != expected or text.count("\x02") != expected:
        raise MessageError("keys, tags and properties cannot have the characters 0x01 and 0x02")
    encoded = text.encode()
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise MessageError(
            f"properties of {len(encoded)} bytes; the limit is {PROPERTIES_BYTES_MAX}"
        )
    return encoded


class QueueChoice:
    """Which queue of a topic a row goes to."""

    def __init__(self, queues: Sequence[Queue], begin: int) -> None:
        assert queues
        self._queues = tuple(queues)
        self._named = {(each.broker, each.queue_id): each for each in queues}
        self._turn = itertools.count(begin)
        self._current = self.next()

    def next(self) -> Queue:
        """Another queue for the rows that may go anywhere."""
        self._current = self._queues[next(self._turn) % len(self._queues)]
        return self._current

    def of(self, target: object) -> Queue:
        """The queue for what decides it; see `RowEncoder.rows`."""
        if target is None:
            return self._current
        if isinstance(target, str):
            # As `Lane.of_key`: so producers and Spark put a key into the same queue.
            return self._queues[abs(java_hash(target)) % len(self._queues)]
        if isinstance(target, tuple):
            found = self._named.get(target)
        else:
            number = target if isinstance(target, int) else -1
            found = self._queues[number] if 0 <= number < len(self._queues) else None
        if found is None:
            raise MessageError(
                f"a row wants queue {target} of topic {self._queues[0].topic!r}, which has "
                f"{len(self._queues)}: drop the column `queue` to have queues chosen"
            )
        return found


class Parts:
    """Collects messages by queue, until there is enough of one queue for a request."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._messages: dict[Queue, list[bytes]] = {}
        self._sizes: dict[Queue, int] = {}

    def add(self, queue: Queue, message: bytes) -> bytes | None:
        """Take a message; gives a part of that queue when it is full."""
        messages = self._messages.get(queue)
        if messages is None:
            messages = self._messages[queue] = []
            self._sizes[queue] = 0
        messages.append(message)
        self._sizes[queue] += len(message)
        return self._take(queue) if self._sizes[queue] >= self._part_bytes else None

    def rest(self) -> Iterator[tuple[Queue, bytes]]:
        """What is left, at the end."""
        for queue in list(self._messages):
            yield queue, self._take(queue)

    def _take(self, queue: Queue) -> bytes:
        del self._sizes[queue]
        return b"".join(self._messages.pop(queue))
