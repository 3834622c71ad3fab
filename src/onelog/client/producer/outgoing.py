"""What a message becomes before it is sent: its properties, its batch, its compressed body.

Properties are one text, `name 0x01 value 0x02` repeated; the unique id is the first of them.
Invariant: what leaves here is within RocketMQ's limits, or the error says which one it breaks.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from onelog.client.message import Message, Queue
from onelog.errors import MessageError, MessageTooLargeError, PropertiesTooLargeError
from onelog.message import PROPERTIES_BYTES_MAX
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from onelog.record.compression import Compression, compress
from onelog.record.inner_batch import BATCHED_BYTES, encode_batch

_SURELY_SMALL = PROPERTIES_BYTES_MAX // 4
"""So many characters are within the limit however many bytes each takes."""


class Destination(TypedDict, total=False):
    """Which queue a message goes to, and how long that may take: see `AsyncProducer.send`."""

    order_key: str | None
    queue: Queue | None
    timeout: timedelta | float | None


def properties_of(message: Message, message_id: str, extra: Mapping[str, str] | None = None) -> str:
    text = f"UNIQ_KEY\x01{message_id}\x02"
    if message.tags is not None:
        text += f"TAGS\x01{message.tags}\x02"
    if message.keys:
        text += f"KEYS\x01{' '.join(message.keys)}\x02"
    if message.delay_level:
        text += f"DELAY\x01{message.delay_level}\x02"
    if message.delay is not None:
        text += f"TIMER_DELAY_MS\x01{round(message.delay.total_seconds() * 1000)}\x02"
    if message.deliver_at is not None:
        text += f"TIMER_DELIVER_MS\x01{round(message.deliver_at.timestamp() * 1000)}\x02"
    if message.properties:
        text += "".join([f"{name}\x01{value}\x02" for name, value in message.properties.items()])
    if extra:
        text += "".join([f"{name}\x01{value}\x02" for name, value in extra.items()])
    if len(text) > _SURELY_SMALL and (size := len(text.encode())) > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLargeError(
            f"the properties of the message to {message.topic!r}, tags and keys included, have "
            f"{size} bytes; the limit is {PROPERTIES_BYTES_MAX}"
        )
    return text


def check_body(topic: str, size: int, bytes_max: int) -> None:
    """`MessageTooLargeError` for a body over the limit."""
    if size > bytes_max:
        raise MessageTooLargeError(
            f"the body of the message to {topic!r} has {size} bytes; the limit is {bytes_max} "
            f"(option body_bytes_max, and the broker has one too)"
        )


def check_batch(messages: Sequence[Message]) -> str:
    """The topic of a batch; `MessageError` for what cannot be sent as one."""
    if not messages:
        raise MessageError("a batch needs at least one message")
    topics = {message.topic for message in messages}
    if len(topics) > 1:
        raise MessageError(
            f"the messages of a batch go to one topic, and these go to {', '.join(sorted(topics))}"
        )
    topic = messages[0].topic
    if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        raise MessageError(f"no batches to {topic!r}: retries and dead letters go one by one")
    for number, message in enumerate(messages):
        if message.delay is not None or message.deliver_at is not None or message.delay_level:
            raise MessageError(
                f"message {number} of the batch is to be delivered later, which only single "
                f"messages can"
            )
    return topic


def batch_body(
    messages: Sequence[Message],
    message_ids: Sequence[str],
    extra: Mapping[str, str] | None,
    bytes_max: int,
) -> bytes:
    """The body of a batch; `MessageTooLargeError` if it is over the limit."""
    size = sum(len(message.body) + BATCHED_BYTES for message in messages)
    if size <= bytes_max:
        body = encode_batch(
            (message.flag, message.body, properties_of(message, message_id, extra).encode())
            for message, message_id in zip(messages, message_ids, strict=True)
        )
        size = len(body)
        if size <= bytes_max:
            return body
    raise MessageTooLargeError(
        f"the batch of {len(messages)} messages to {messages[0].topic!r} has {size} bytes; the "
        f"limit is {bytes_max}: send it in parts"
    )


def packed(body: bytes, form: Compression) -> tuple[bytes, int]:
    """The body as it travels, and the bits of its sysFlag; as it came if nothing is gained."""
    smaller = compress(body, form)
    return (smaller, form.sys_flag) if len(smaller) < len(body) else (body, 0)
