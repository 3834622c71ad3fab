"""Records of every form that a log can hold, drawn at random, and what is in them.

What is in them is said by the code that reads one record after the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onelog.message import (
    Message,
    NewMessage,
    SysFlag,
    decode_properties,
    encode_host,
    encode_properties,
)
from onelog.record.compression import Compression, compress, unpacked_body
from onelog.record.decode import decode_records
from onelog.record.dispatch import is_dispatched
from onelog.record.encode import encode
from onelog.record.forms import FORM_MASK, amqp, rocketmq
from onelog.record.inner_batch import encode_batch, unwrapped
from onelog.record.layout import topic_field
from onelog.spark.columns.schema import spark_schema

QUICK = settings(max_examples=40, deadline=None)
"""For properties over whole records, of which one example is many."""
IPV4, IPV6 = encode_host("10.1.2.3", 10911), encode_host("2001:db8::7", 65535)
HOSTS = st.sampled_from([IPV4, IPV6])
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OFFSETS = st.integers(-(1 << 62), 1 << 62)
TIMES = st.integers(1_600_000_000_000, 1_900_000_000_000) | INT64
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "XKEYS", "KEY", "", "größe"]) | st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=6
)
VALUES = st.sampled_from(
    ["", "a", "k1 k2", " k", "k\u00a0l", "k\tl", "Zürich", "v\x01w"]
) | st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), max_size=12)
WELL_FORMED = st.dictionaries(NAMES, VALUES, max_size=5).map(encode_properties)
REPEATED = st.lists(st.tuples(NAMES, VALUES), max_size=6).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
PROPERTIES = st.one_of(
    WELL_FORMED,
    WELL_FORMED.map(lambda text: text[:-1]),
    REPEATED,
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"\x01", b"\x02", b"TAGS", b"KEYS", b"x", b"\xff"]), max_size=8).map(
        b"".join
    ),
)
TOPICS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20) | st.sampled_from(
    ["orders", "t" * 127, "t" * 128, "long-" + "t" * 200]
)
NO_FLAGS_MEANT = ~int(
    SysFlag.COMPRESSED | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.ROLLED_BACK | FORM_MASK
)


@st.composite
def plain_messages(draw: st.DrawFn) -> NewMessage:
    """One message in a record, as nearly all are; no flag is set that gives a body a form."""
    return NewMessage(
        draw(TOPICS),
        draw(st.integers(0, 65535)),
        draw(st.binary(max_size=120)),
        draw(PROPERTIES),
        flag=draw(INT32),
        sys_flag=draw(INT32) & NO_FLAGS_MEANT,
        born_ms=draw(TIMES),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
        reconsume_times=draw(st.integers(0, 9)),
        prepared_offset=draw(INT64),
    )


@st.composite
def any_messages(draw: st.DrawFn, *, transactions: bool = True) -> NewMessage:
    """Also compressed, in batches, and of transactions."""
    message = draw(plain_messages())
    flags = message.sys_flag & ~0x700
    body = bytes(message.body)
    if transactions and draw(st.booleans()):
        flags |= draw(
            st.sampled_from([0, 0, SysFlag.PREPARED, SysFlag.COMMITTED, SysFlag.ROLLED_BACK])
        )
    if draw(st.booleans()):
        parts = st.tuples(INT32, st.binary(max_size=30), PROPERTIES)
        body = encode_batch(draw(st.lists(parts, max_size=4)))
        flags |= SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    elif draw(st.booleans()):
        flags |= SysFlag.INNER_BATCH
    if draw(st.booleans()):
        form = draw(st.sampled_from(Compression))
        body = compress(body, form)
        flags |= form.sys_flag
    return message._replace(body=body, sys_flag=int(flags))


def encoded(
    message: NewMessage,
    queue_offset: int = 0,
    log_offset: int = 0,
    store_ms: int = 1_700_000_000_123,
) -> bytes:
    """A record, also with properties that the store would not write as they are."""
    head, body, _, _ = encode(
        message._replace(properties=b""), queue_offset, log_offset, store_ms, False
    )
    magic, topic = topic_field(message.topic)
    tail = topic + len(message.properties).to_bytes(2, "big") + message.properties
    size = len(head) + len(body) + len(tail)
    return Struct(">II").pack(size, magic) + head[8:] + bytes(body) + tail


@st.composite
def records(draw: st.DrawFn, messages: st.SearchStrategy[NewMessage]) -> bytes:
    """Records one after the other."""
    parts = [
        encoded(message, draw(OFFSETS), draw(st.integers(0, 1 << 62)), draw(TIMES))
        for message in draw(st.lists(messages, max_size=8))
    ]
    return b"".join(parts)


def to_arrow(schema: StructType) -> pa.Schema:
    """What Spark wants batches with this schema to look like."""
    return to_arrow_schema(schema, timezone="UTC")


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The same for columns of messages."""
    return to_arrow(spark_schema(names))


def rows_one_by_one(data: bytes, broker: str = "b") -> list[dict[str, object]]:
    """The rows of records, read message by message."""
    return list(_rows(unwrapped(list(_dispatched(data))), broker))


def _dispatched(data: bytes) -> Iterator[Message]:
    return (each for each in decode_records(data) if is_dispatched(each.sys_flag))


def _rows(messages: list[Message], broker: str) -> Iterator[dict[str, object]]:
    for message in messages:
        yield {
            "topic": message.topic,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "key": text_of(key_of(message.properties)),
            "key_bytes": key_of(message.properties),
            "tags": message.tags or None,
            "body": body_of(unpacked_body(message), message.properties),
            "properties": decode_properties(message.properties),
            "headers": headers_of(message.properties),
            "born_time": _microseconds(message.born_ms),
            "store_time": _microseconds(message.store_ms),
            "message_id": message.unique_key or message.message_id,
            "flag": message.flag,
            "broker": broker,
            "log_offset": message.log_offset,
        }


def first_value(properties: bytes, name: str) -> bytes | None:
    """The first value of a property; None if that is empty."""
    entries = (each.partition(b"\x01") for each in properties.split(b"\x02"))
    values = (value for key, sign, value in entries if sign and key == name.encode())
    return next(values, None) or None


def key_of(properties: bytes) -> bytes | None:
    packed = first_value(properties, rocketmq.KEY)
    if packed is not None:
        return rocketmq.unpacked(packed.decode("utf-8", "surrogateescape"))
    return first_value(properties, "KEYS")


def text_of(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def body_of(body: bytes, properties: bytes) -> bytes | None:
    is_null = not body and first_value(properties, rocketmq.BODY) == b"null"
    return None if is_null else body


def headers_of(properties: bytes) -> list[dict[str, object]]:
    """As Kafka's consumers get them, with values of AMQP's that can be read, and without the id."""
    found = rocketmq.to_neutral(b"", properties, 0).headers
    kept = amqp.readable([each for each in found if each[0] != "UNIQ_KEY"])
    return [
        {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for name, value in kept
    ]


def _microseconds(ms: int) -> int | None:
    return ms * 1000 if abs(ms * 1000) < 1 << 63 else None


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    """The rows of batches: maps as dicts, times in microseconds."""
    found: list[dict[str, object]] = []
    for batch in batches:
        batch.validate(full=True)
        columns = {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            is_time = pa.types.is_timestamp(field.type)
            columns[field.name] = (column.cast(pa.int64()) if is_time else column).to_pylist()
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            if isinstance(pairs := row.get("properties"), list):
                row["properties"] = dict(pairs)
                assert len(row["properties"]) == len(pairs), "a name is in the map twice"
            found.append(row)
    return found
