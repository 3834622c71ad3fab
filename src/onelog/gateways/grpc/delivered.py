"""Messages as gRPC clients get them.

What RocketMQ keeps in properties are fields here. What is left are the user's own properties.
"""

from functools import lru_cache
from typing import Any

from onelog.message import (
    KEYS,
    TAGS,
    UNIQUE_KEY,
    Message,
    SysFlag,
    decode_host,
    decode_properties,
)
from onelog.record.compression import unpacked_body
from onelog.rocketmq import message_types
from onelog.rocketmq.properties import (
    BORN_HOST,
    DEAD_ID,
    DEAD_TOPIC,
    DELIVER_MS,
    HIDDEN,
    LITE_TOPIC,
    MESSAGE_GROUP,
    PRIORITY,
    TRACE_CONTEXT,
)
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import DigestType, Encoding, MessageType
from onelog.wire.grpc.fields import field, number, text, time

try:  # Of Python itself: OpenSSL takes longer to begin than to go over a small body.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    from hashlib import md5

_COMPRESSED = int(SysFlag.COMPRESSED)
_DIGEST = b"\x22\x24" + number(b"\x08", DigestType.MD5) + b"\x12\x20"
"""Before the 32 letters of the body's digest."""
_KINDS = {
    kind: number(b"\x28", Encoding.IDENTITY) + number(b"\x30", MessageType[kind])
    for kind in message_types.TYPES
}
_RARE = frozenset((DELIVER_MS, MESSAGE_GROUP, TRACE_CONTEXT, LITE_TOPIC, PRIORITY, DEAD_TOPIC))


@lru_cache(4096)
def _address(host: bytes) -> tuple[str, int]:
    return decode_host(host)


@lru_cache(4096)
def _born_at(host: str) -> bytes:
    return text(b"\x42", host)


@lru_cache(4096)
def _stored_at(host: bytes) -> bytes:
    return text(b"\x52", "{}:{}".format(*_address(host)))


def split_namespace(name: str) -> tuple[str, str]:
    """The namespace of a name, and the rest of it; retry and dead-letter topics are left alone."""
    namespace, separator, rest = name.partition("%")
    return (namespace, rest) if separator and namespace and rest else ("", name)


@lru_cache(1024)
def _topic(name: str) -> bytes:
    namespace, rest = split_namespace(name)
    return field(b"\x0a", text(b"\x0a", namespace) + text(b"\x12", rest))


def encoded_position(queue_id: int, offset: int) -> bytes:
    """Where a message is, as `encoded` takes it."""
    return number(b"\x68", queue_id) + number(b"\x70", offset)


def encoded(
    message: Message, properties: dict[str, str], topic: str, attempt: int, rest: bytes
) -> bytes:
    """A Message, from a record and its properties; `rest` goes to its system properties."""
    packed = message.sys_flag & _COMPRESSED
    body = unpacked_body(message) if packed else bytes(message.body)
    get = properties.get
    system = [
        text(b"\x1a", get(UNIQUE_KEY) or message.message_id),
        _DIGEST,
        md5(body, usedforsecurity=False).hexdigest().upper().encode(),
        _KINDS[message_types.of_properties(properties)],
        time(b"\x3a", message.born_ms),
        _born_at(get(BORN_HOST) or _address(bytes(message.born_host))[0]),
        time(b"\x4a", message.store_ms),
        _stored_at(bytes(message.store_host)),
        number(b"\x80\x01", attempt),
        rest,
    ]
    if (tag := get(TAGS)) is not None:
        system.append(text(b"\x0a", tag))
    if (keys := get(KEYS)) is not None:
        system += [text(b"\x12", each) for each in keys.split()]
    if not _RARE.isdisjoint(properties):
        system += _rare(properties)
    own = [
        field(b"\x12", text(b"\x0a", name) + text(b"\x12", value))
        for name, value in properties.items()
        if name not in HIDDEN
    ]
    return b"".join((_topic(topic), *own, field(b"\x1a", b"".join(system)), field(b"\x22", body)))


def _rare(properties: dict[str, str]) -> list[bytes]:
    get = properties.get
    found = [
        text(key, value)
        for key, name in (
            (b"\x8a\x01", MESSAGE_GROUP),
            (b"\x92\x01", TRACE_CONTEXT),
            (b"\xaa\x01", LITE_TOPIC),
        )
        if (value := get(name)) is not None
    ]
    if (deliver_ms := get(DELIVER_MS, "")).isdecimal():
        found.append(time(b"\x5a", int(deliver_ms)))
    if (priority := get(PRIORITY, "")).isdecimal():
        found.append(number(b"\xb0\x01", int(priority)))
    dead_topic, dead_id = get(DEAD_TOPIC), get(DEAD_ID)
    if dead_topic is not None and dead_id is not None:
        found.append(field(b"\xa2\x01", text(b"\x0a", dead_topic) + text(b"\x12", dead_id)))
    return found


def as_message(message: Message, topic: str) -> Any:
    """A message on its own, as one of that topic."""
    where = encoded_position(message.queue_id, message.queue_offset)
    properties = decode_properties(message.properties)
    attempt = message.reconsume_times + 1
    return messages.Message.FromString(encoded(message, properties, topic, attempt, where))
