"""Messages as gRPC clients get them.

What RocketMQ keeps in properties are fields here. What is left are the user's own properties.
"""

from functools import lru_cache
from hashlib import md5
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


@lru_cache(4096)
def _address(host: bytes) -> tuple[str, int]:
    return decode_host(host)


def split_namespace(name: str) -> tuple[str, str]:
    """The namespace of a name, and the rest of it; retry and dead-letter topics are left alone."""
    namespace, separator, rest = name.partition("%")
    return (namespace, rest) if separator and namespace and rest else ("", name)


def fill_topic(resource: Any, name: str) -> None:
    """Name a topic."""
    namespace, resource.name = split_namespace(name)
    if namespace:
        resource.resource_namespace = namespace


def fill(into: Any, message: Message, topic: str, attempt: int) -> dict[str, str]:
    """Fill a Message from a record; the record's properties, for whoever needs more of them."""
    fill_topic(into.topic, topic)
    packed = message.sys_flag & SysFlag.COMPRESSED
    into.body = raw = unpacked_body(message) if packed else bytes(message.body)
    properties = decode_properties(message.properties)
    own = into.user_properties
    for name, value in properties.items():
        if name not in HIDDEN:
            own[name] = value
    system = into.system_properties
    get = properties.get
    if (tag := get(TAGS)) is not None:
        system.tag = tag
    if (keys := get(KEYS)) is not None:
        system.keys.extend(keys.split())
    system.message_id = get(UNIQUE_KEY) or message.message_id
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = md5(raw, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = Encoding.IDENTITY
    system.message_type = MessageType[message_types.of_properties(properties)]
    seconds, rest_ms = divmod(message.born_ms, 1000)
    born = system.born_timestamp
    born.seconds, born.nanos = seconds, rest_ms * 1_000_000
    seconds, rest_ms = divmod(message.store_ms, 1000)
    stored = system.store_timestamp
    stored.seconds, stored.nanos = seconds, rest_ms * 1_000_000
    host, port = _address(bytes(message.store_host))
    system.store_host = f"{host}:{port}"
    system.born_host = get(BORN_HOST) or _address(bytes(message.born_host))[0]
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = attempt
    _fill_rest(system, properties)
    return properties


def _fill_rest(system: Any, properties: dict[str, str]) -> None:
    get = properties.get
    if (deliver_ms := get(DELIVER_MS, "")).isdecimal():
        system.delivery_timestamp.FromMilliseconds(int(deliver_ms))
    if (name := get(MESSAGE_GROUP)) is not None:
        system.message_group = name
    if (context := get(TRACE_CONTEXT)) is not None:
        system.trace_context = context
    if (lite := get(LITE_TOPIC)) is not None:
        system.lite_topic = lite
    if (priority := get(PRIORITY, "")).isdecimal():
        system.priority = int(priority)
    dead_topic, dead_id = get(DEAD_TOPIC), get(DEAD_ID)
    if dead_topic is not None and dead_id is not None:
        system.dead_letter_queue.topic = dead_topic
        system.dead_letter_queue.message_id = dead_id


def as_message(message: Message) -> Any:
    """A message on its own."""
    into = messages.Message()
    fill(into, message, message.topic, message.reconsume_times + 1)
    return into
