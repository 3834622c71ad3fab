"""Rows of Spark as messages: Arrow batches in, batches of messages out, without an object per row.

    body, value       binary or string; the message (one of the two must be there). A null is kept
                      apart from an empty one: Kafka's consumers get it as a tombstone
    topic             string; else the option `topic`
    key               string or binary; the message's key, and rows of one key stay in order; an
                      empty text is none
    key_bytes         binary; the key where `key` is null
    keys              array of strings: more keys to find the message by
    tags              string
    properties        map of strings
    headers           array of structs of key (string) and value (binary), in order, also with
                      repeats; properties of the same names are left out then
    flag              int
    queue, partition  int; the queue, counted through all brokers; with `broker`, that broker's own

Other columns of the source (`SOURCE_ONLY`) are passed over, so that one topic can be copied to
another; any other name is refused. Rows without key and queue go to one queue after the other, a
part at a time (`queues` tells which).

Invariant: messages are in the order of their rows.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onelog.client.message import RESERVED_PROPERTIES
from onelog.client.producer.unique_id import unique_id
from onelog.clock import SystemClock
from onelog.errors import MessageError
from onelog.message import PROPERTIES_BYTES_MAX, TAGS
from onelog.record.columns import Bytes, Ints, Mask
from onelog.record.forms import rocketmq

SINK_COLUMNS = frozenset(
    "body value topic key key_bytes keys tags properties headers flag queue partition "
    "broker".split()
)
SOURCE_ONLY = frozenset("offset born_time store_time message_id log_offset _error".split())

MESSAGE, QUEUE, BROKER, KEY = "message", "queue", "broker", "key"
"""The columns of rows that are encoded: the message, and what decides its queue."""

_HEAD = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_bytes", ">i4")]
)
_LENGTH_BYTES = 2
_ID_NAME, _ID_END = b"UNIQ_KEY\x01", b"\x02WAIT\x01true\x02"
_NOTHING = pa.scalar(b"", pa.binary())
_NULL_BODY = pa.scalar(f"{rocketmq.BODY}\x01{rocketmq.NULL}\x02".encode(), pa.binary())
_ROOM_BYTES = 128
"""Of properties, for what brokers add to them."""
_CLOCK = SystemClock()
ID_BYTES = 32
IDS_PER_MS = 1 << 16
"""What the counter can tell apart."""

_HEX = np.frombuffer("".join(f"{number:02X}" for number in range(256)).encode(), np.uint8)
_DIGITS = _HEX.reshape(256, 2)
_RANDOM = slice(12, 20)


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


class MessageIds:
    """The ids that one task gives, many at once; `client.producer.unique_id` draws them.

    Four random bytes in them are the task's, not the process's. The time and the counter behind
    them are as in every other id, so no two ids of a task are the same.
    """

    def __init__(self, now_ms: Callable[[], int] = _CLOCK.now_ms) -> None:
        self._now_ms = now_ms
        self._random = os.urandom(4).hex().upper()
        self._ms = -1
        self._next = 0

    def take(self, count: int) -> Bytes:
        """So many new ids, one in each row."""
        found = np.empty((count, ID_BYTES), np.uint8)
        self._turn()
        done = 0
        while done < count:
            if self._next == IDS_PER_MS:
                self._wait_for_later()
            some = min(count - done, IDS_PER_MS - self._next)
            rows = found[done : done + some]
            stem = unique_id(self._ms)[:-4]
            own = stem[: _RANDOM.start] + self._random + stem[_RANDOM.stop :]
            rows[:, :-4] = np.frombuffer(own.encode(), np.uint8)
            numbers = np.arange(self._next, self._next + some)
            rows[:, -4:-2] = _DIGITS[numbers >> 8]
            rows[:, -2:] = _DIGITS[numbers & 0xFF]
            done += some
            self._next += some
        return found

    def _turn(self) -> None:
        """In a later millisecond, count from the beginning."""
        now = self._now_ms()
        if now > self._ms:
            self._ms, self._next = now, 0

    def _wait_for_later(self) -> None:
        while self._next:
            time.sleep(0.0005)
            self._turn()


class RowEncoder:
    """Makes messages of rows."""

    def __init__(self, topic: str | None, body_bytes_max: int) -> None:
        self._topic = topic
        self._body_bytes_max = body_bytes_max
        self._ids = MessageIds()

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """For each topic its rows: the `message`, and of `queue`, `broker`, `key` what there is."""
        if not batch.num_rows:
            return
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        topics = self._topics(columns)
        given = columns["body"] if "body" in columns else columns["value"]
        self._check(topics)
        key = _key(columns)
        found = {MESSAGE: self._messages(columns, given, key, topics)}
        if key is not None:
            found[KEY] = _words(key)
        if BROKER in columns:
            found[BROKER] = columns[BROKER]
        if queue := {"queue", "partition"} & columns.keys():
            found[QUEUE] = columns[queue.pop()].cast(pa.int64())
        rows = pa.record_batch(found)
        if topics is None:
            assert self._topic is not None
            yield self._topic, rows
            return
        for topic in topics.unique().to_pylist():
            yield topic, rows.filter(pc.equal(topics, topic))

    def _topics(self, columns: Mapping[str, pa.Array]) -> pa.Array | None:
        """The topic of each row, null where there is none; None if all have the option's."""
        default = pa.scalar(self._topic or None, pa.string())
        if "topic" in columns:
            given = columns["topic"].cast(pa.string())
            return pc.if_else(pc.equal(pc.fill_null(given, ""), ""), default, given)
        return None if self._topic else pa.nulls(1, pa.string())

    def _check(self, topics: pa.Array | None) -> None:
        if topics is not None and topics.null_count:
            number = pc.index(topics.is_null(), True).as_py()
            raise MessageError(
                f"row {number} names no topic: fill the column `topic`, or set the option `topic`"
            )

    def _check_sizes(self, bodies: Ints, whole: Ints, topics: pa.Array | None) -> None:
        """A message has to fit alone into what is sent, with its properties."""
        wrong: Mask = whole > self._body_bytes_max
        if wrong.any():
            number = int(np.argmax(wrong))
            topic = self._topic if topics is None else topics[number].as_py()
            raise MessageError(
                f"row {number} for topic {topic!r} has a body of {bodies[number]} bytes, and "
                f"{whole[number]} with its properties; the limit is {self._body_bytes_max} "
                "(option maxBodyBytes, and store.body_bytes_max of the brokers)"
            )

    def _messages(
        self,
        columns: Mapping[str, pa.Array],
        given: pa.Array,
        key: pa.Array | None,
        topics: pa.Array | None,
    ) -> pa.Array:
        """Each message as it stands in a batch."""
        bodies = _bodies(given)
        count = len(bodies)
        own = list(_own_properties(columns, key))
        if given.null_count:
            own.append(pc.if_else(given.is_null(), _NULL_BODY, _NOTHING))
        id_bytes = len(_ID_NAME) + ID_BYTES + len(_ID_END)
        sizes = sum((_sizes(each) for each in own), np.full(count, id_bytes, np.int64))
        if (most := int(sizes.max())) > PROPERTIES_BYTES_MAX - _ROOM_BYTES:
            raise MessageError(
                f"properties of {most} bytes; the limit is {PROPERTIES_BYTES_MAX}, of which "
                f"brokers need {_ROOM_BYTES}"
            )
        body_sizes = _sizes(bodies)
        self._check_sizes(body_sizes, _HEAD.itemsize + body_sizes + _LENGTH_BYTES + sizes, topics)
        head = np.zeros(count, _HEAD)
        head["size"] = _HEAD.itemsize + body_sizes + _LENGTH_BYTES + sizes
        head["body_bytes"] = body_sizes
        if "flag" in columns:
            head["flag"] = pc.fill_null(columns["flag"].cast(pa.int32()), 0).to_numpy()
        middle = np.empty((count, _LENGTH_BYTES + id_bytes), np.uint8)
        middle[:, :_LENGTH_BYTES] = sizes.astype(">u2").view(np.uint8).reshape(count, -1)
        parts = ((_ID_NAME, None), (b"", self._ids.take(count)), (_ID_END, None))
        at = _LENGTH_BYTES
        for text, ids in parts:
            some: Bytes = np.frombuffer(text, np.uint8) if ids is None else ids
            middle[:, at : at + some.shape[-1]] = some
            at += some.shape[-1]
        heads = _fixed(head.view(np.uint8).reshape(count, -1))
        return pc.binary_join_element_wise(heads, bodies, _fixed(middle), *own, _NOTHING)


def _own_properties(columns: Mapping[str, pa.Array], key: pa.Array | None) -> Iterator[pa.Array]:
    """What each message has besides its id, encoded, as columns whose bytes follow each other."""
    text, packed = (None, None) if key is None else _texts_of_keys(key)
    keys = _all_keys(text, columns["keys"]) if "keys" in columns else text
    if keys is not None:
        yield _property(b"KEYS", keys)
    if packed is not None:
        yield _property(rocketmq.KEY.encode(), packed)
    if "tags" in columns:
        yield _property(b"TAGS", columns["tags"])
    headers = columns.get("headers")
    if headers is not None:
        yield _encoded_headers(headers, columns.get("tags"))
    if "properties" in columns:
        yield _encoded_maps(columns["properties"], headers, has_key=key is not None)


def _key(columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """The keys, as bytes; null for none."""
    found = columns.get(KEY)
    if found is not None:
        if _is_bytes(found.type):
            found = found.cast(pa.binary())
        else:
            text = found.cast(pa.string())
            text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
            found = text.cast(pa.binary())
    if "key_bytes" in columns:
        more = columns["key_bytes"].cast(pa.binary())
        found = more if found is None else pc.coalesce(found, more)
    return found


def _texts_of_keys(key: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Keys that properties can have as they are; and the others as texts that say what they are."""
    bounds, text = content(pc.fill_null(key, _NOTHING))
    is_odd = np.isin(text[bounds[0] : bounds[-1]], (1, 2)).any()
    is_odd |= pc.any(pc.equal(key, _NOTHING), min_count=0).as_py()
    try:
        if not is_odd:
            return key.cast(pa.string()), None
    except pa.ArrowInvalid:
        pass
    raw = key.to_pylist()
    texts = [None if each is None else rocketmq.plain_text(each) for each in raw]
    packed = [
        None if each is None or text is not None else rocketmq.packed(each)
        for each, text in zip(raw, texts, strict=True)
    ]
    return pa.array(texts, pa.string()), pa.array(packed, pa.string())


def _encoded_headers(headers: pa.Array, tags: pa.Array | None) -> pa.Array:
    """The headers of each row as properties; see `forms.rocketmq`."""
    kind = headers.type
    if not _is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise MessageError(
            f"the column `headers` has to be an array of structs of key and value, not {kind}"
        )
    if [field.name for field in kind.value_type] != ["key", "value"]:
        raise MessageError("headers are structs of `key` and `value`: rename their fields")
    if not pc.any(pc.greater(pc.list_value_length(headers), 0), min_count=0).as_py():
        return pa.nulls(len(headers), pa.binary()).fill_null(b"")
    labels = [None] * len(headers) if tags is None else tags.to_pylist()
    rows = zip(headers.to_pylist(), labels, strict=True)
    return pa.array([_encoded(row or [], bool(label)) for row, label in rows], pa.binary())


def _encoded(headers: list[dict[str, Any] | None], has_tags: bool) -> bytes:
    pieces: list[str] = []
    seen: set[str] = set()
    for number, each in enumerate(headers):
        if each is None or each["key"] is None:
            raise MessageError("a header needs a key: filter such ones out")
        name, value = str(each["key"]), each["value"]
        raw = value.encode() if isinstance(value, str) else value
        text = None if raw is None else rocketmq.plain_text(raw)
        if name == TAGS and has_tags:
            continue  # The column has it.
        is_own = name in RESERVED_PROPERTIES and name != TAGS
        if text is None or name in seen or is_own or not rocketmq.is_plain_name(name):
            quoted = f"{rocketmq.HEADER}{number}.{quote(name, safe='')}"
            pieces.append(f"{quoted}\x01{rocketmq.packed(raw)}")
        else:
            pieces.append(f"{name}\x01{text}")
            seen.add(name)
    return "".join(f"{piece}\x02" for piece in pieces).encode()


def _property(name: bytes, values: pa.Array) -> pa.Array:
    """`name 0x01 value 0x02`, or nothing where there is no value."""
    found = _as_bytes(values)
    _refuse_separators(found)
    encoded = pc.binary_join_element_wise(
        pa.scalar(name + b"\x01"), found, pa.scalar(b"\x02"), _NOTHING
    )
    return pc.if_else(pa.array(_sizes(found) > 0), encoded, _NOTHING)


def _encoded_maps(maps: pa.Array, headers: pa.Array | None, *, has_key: bool) -> pa.Array:
    """The properties of each row, one after the other, but those that other columns have."""
    if not pa.types.is_map(maps.type):
        raise MessageError(f"the column `properties` has to be a map of strings, not {maps.type}")
    bounds: Ints = maps.offsets.to_numpy().astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    names = _as_bytes(maps.keys.slice(first, last - first))
    values = _as_bytes(maps.items.slice(first, last - first))
    # What the system of a message that is copied wrote into it does not belong to the copy.
    left = {*RESERVED_PROPERTIES, rocketmq.BODY, *([rocketmq.KEY] if has_key else [])}
    reserved = pc.is_in(names, pa.array([each.encode() for each in sorted(left)]))
    kept: Mask = (_sizes(values) > 0) & ~reserved.to_numpy(zero_copy_only=False)
    if headers is not None:
        kept &= ~_are_headers(names, np.diff(bounds), headers)
    encoded = pc.if_else(
        pa.array(kept),
        pc.binary_join_element_wise(
            names, pa.scalar(b"\x01"), values, pa.scalar(b"\x02"), _NOTHING
        ),
        _NOTHING,
    )
    for column in (names, values):
        _refuse_separators(column.filter(pa.array(kept)))
    ends = np.concatenate([[0], np.cumsum(_sizes(encoded))]).astype(np.int32)
    rows = ends[bounds - first]
    content = encoded.buffers()[2]
    assert encoded.offset == 0
    return pa.Array.from_buffers(
        pa.binary(), len(maps), [None, pa.py_buffer(np.ascontiguousarray(rows)), content]
    )


def _are_headers(names: pa.Array, counts: Ints, headers: pa.Array) -> Mask:
    """Which properties say what the headers of their rows say."""
    packed = rocketmq.HEADER.encode()
    found: list[bool] = []
    at, all_names = 0, names.to_pylist()
    for count, row in zip(counts.tolist(), headers.to_pylist(), strict=True):
        own = None if row is None else {each["key"].encode() for each in row}
        some = all_names[at : at + count]
        found += [own is not None and (n in own or n.startswith(packed)) for n in some]
        at += count
    return np.array(found, np.bool_)


def _all_keys(key: pa.Array | None, others: pa.Array) -> pa.Array:
    """The key and the others, between blanks; lists of keys are rare, and taken row by row."""
    firsts = [None] * len(others) if key is None else key.to_pylist()
    found = []
    for first, more in zip(firsts, others.to_pylist(), strict=True):
        listed = more.split() if isinstance(more, str) else list(more or ())
        found.append(" ".join(filter(None, [first, *(each for each in listed if each != first)])))
    return pa.array(found, pa.string())


def _refuse_separators(values: pa.Array) -> None:
    bounds, text = content(values)
    if np.isin(text[bounds[0] : bounds[-1]], (1, 2)).any():
        raise MessageError("keys, tags and properties cannot have the characters 0x01 and 0x02")


def _bodies(column: pa.Array) -> pa.Array:
    kind = column.type
    if not _is_bytes(kind) and kind not in (pa.string(), pa.large_string()):
        raise MessageError(f"a message is binary or a string, not {kind}: cast the column")
    return _as_bytes(column)


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _words(key: pa.Array) -> pa.Array:
    """Keys as text, by which queues are chosen; what is no UTF-8 in them is replaced."""
    try:
        return key.cast(pa.string())
    except pa.ArrowInvalid:
        raw = key.to_pylist()
        return pa.array([None if r is None else r.decode("utf-8", "replace") for r in raw])


def _as_bytes(column: pa.Array) -> pa.Array:
    """Text, or anything as text, as bytes; null is the same as empty."""
    if not _is_bytes(column.type):
        column = column.cast(pa.string())
    return pc.fill_null(column.cast(pa.binary()), _NOTHING)


def content(column: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Where the elements of a column start and end, and the bytes that this is about."""
    _, bounds, text = column.buffers()
    last = column.offset + len(column)
    found = np.frombuffer(bounds, np.int32)[column.offset : last + 1]
    return found, np.frombuffer(text or b"", np.uint8)


def _sizes(column: pa.Array) -> Ints:
    found: Ints = pc.binary_length(column).to_numpy().astype(np.int64)
    return found


def _fixed(rows: Bytes) -> pa.Array:
    """The rows of a table of bytes as an array."""
    count, width = rows.shape
    bounds = np.arange(0, count * width + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, *map(pa.py_buffer, (bounds, rows))])
