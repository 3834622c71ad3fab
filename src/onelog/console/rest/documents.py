"""Messages as JSON has them, and as each protocol sees them."""

import base64
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from onelog.client.connection.address import host_text
from onelog.errors import CompressionError
from onelog.message import Message, decode_properties
from onelog.record.compression import unpacked_body
from onelog.record.forms import rocketmq

SHORT_BYTES = 1_024
LONG_BYTES = 1 << 20

Encoding = Literal["text", "base64"]


class MessageDocument(Struct):
    """A message. A body that is no text is in base64; a long one may be cut."""

    id: str
    unique_key: str | None
    topic: str
    queue: int
    offset: int
    log_offset: int
    tags: str | None
    keys: list[str]
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    size: int
    properties: dict[str, str]
    body: str
    body_encoding: Encoding
    body_bytes: int
    body_is_cut: bool
    trouble: str | None = None
    """Why the body is shown as it was sent."""


class Header(Struct):
    """A header of a Kafka record."""

    name: str
    value: str | None
    encoding: Encoding


class KafkaView(Struct):
    """The message as a Kafka consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    key_encoding: Encoding
    value_bytes: int | None
    headers: list[Header]


class RocketmqView(Struct):
    """The message as a RocketMQ consumer gets it."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    keys: str | None
    tags: str | None
    reconsume_times: int
    properties: dict[str, str]


class Views(Struct):
    """The same message as each protocol sees it."""

    rocketmq: RocketmqView
    kafka: KafkaView


class OutgoingMessage(Struct, forbid_unknown_fields=True):
    """A message to send."""

    body: Annotated[str, Meta(max_length=4 << 20)]
    body_encoding: Encoding = "text"
    tags: Annotated[str, Meta(max_length=255)] = ""
    keys: list[Annotated[str, Meta(max_length=255)]] = []
    properties: dict[str, str] = {}
    queue: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    deliver_at_ms: Annotated[int, Meta(ge=0, le=1 << 52)] | None = None
    """Delivered then, and not before."""


def shown(data: bytes | None) -> tuple[str | None, Encoding]:
    """Bytes as text if they are that, else in base64."""
    if data is None:
        return None, "text"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def document(message: Message, body_max: int = SHORT_BYTES) -> MessageDocument:
    """A message, with so much of its body."""
    trouble = None
    try:
        body = unpacked_body(message)
    except CompressionError as error:
        body, trouble = bytes(message.body), str(error)
    is_cut = len(body) > body_max
    text, encoding = shown(_cut(body, body_max) if is_cut else bytes(body))
    return MessageDocument(
        id=message.message_id,
        unique_key=_clean(message.unique_key),
        topic=message.topic,
        queue=message.queue_id,
        offset=message.queue_offset,
        log_offset=message.log_offset,
        tags=_clean(message.tags),
        keys=[_clean(each) or "" for each in message.keys],
        born_ms=message.born_ms,
        born_host=host_text(message.born_host),
        store_ms=message.store_ms,
        store_host=host_text(message.store_host),
        reconsume_times=message.reconsume_times,
        flag=message.flag,
        sys_flag=message.sys_flag,
        size=message.size,
        properties=_properties(message),
        body=text or "",
        body_encoding=encoding,
        body_bytes=len(body),
        body_is_cut=is_cut,
        trouble=trouble,
    )


def views(message: Message) -> Views:
    """The message as each protocol sees it."""
    neutral = rocketmq.to_neutral(_body(message), message.properties, message.born_ms)
    key, key_encoding = shown(neutral.key)
    headers = [Header(name, *shown(value)) for name, value in neutral.headers]
    return Views(
        RocketmqView(
            message.topic, message.queue_id, message.queue_offset, message.message_id,
            _clean(" ".join(message.keys)) or None, _clean(message.tags), message.reconsume_times,
            _properties(message),
        ),
        KafkaView(
            message.topic, message.queue_id, message.queue_offset, neutral.time_ms, key,
            key_encoding, None if neutral.body is None else len(neutral.body), headers,
        ),
    )  # fmt: skip


def _body(message: Message) -> bytes:
    try:
        return bytes(unpacked_body(message))
    except CompressionError:
        return bytes(message.body)


def _properties(message: Message) -> dict[str, str]:
    return {
        _clean(name) or "": _clean(value) or ""
        for name, value in decode_properties(message.properties).items()
    }


def _clean(text: Any) -> Any:
    """Text that JSON can have: what was no UTF-8 is replaced."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _cut(body: bytes | memoryview, size: int) -> bytes:
    """The beginning, not in the middle of a character."""
    cut = bytes(body[:size])
    for back in range(min(4, len(cut))):
        try:
            cut[: len(cut) - back].decode()
        except UnicodeDecodeError:
            continue
        return cut[: len(cut) - back]
    return cut
