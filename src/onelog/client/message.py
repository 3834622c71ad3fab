"""Messages as users of the SDK meet them: what is sent, what is received, and the receipt.

`Message` refuses at construction what no broker would take. `ReceivedMessage` is made once per
message on the consumers' hot path, so it only wraps the record as it came from the broker and
works out the rest when somebody asks. Invariant: all three are values; nothing in them changes.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from onelog.errors import EmptyMessageError, InvalidTopicError, MessageError
from onelog.message import TRANSACTION_MASK, decode_properties, property_value
from onelog.message import Message as Record
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from onelog.record.compression import unpacked_body
from onelog.rocketmq.names import TOPIC_CHARACTERS_MAX
from onelog.rocketmq.properties import RESERVED

DELAY_MS_MAX = 2**53

RESERVED_PROPERTIES = RESERVED | frozenset(
    """
    CHECK_IMMUNITY_TIME_IN_SECONDS INNER_BASE INNER_MULTI_DISPATCH INNER_NUM INNER_TAGS_CODE
    TRANSACTION_CHECK_TIMES TRAN_PREPARED_RES_OFFSET __SHARDINGKEY __transactionId__
    """.split()
)
"""What RocketMQ itself keeps in properties (MessageConst). Users have fields for some of
them; the others are not theirs to set."""

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")
_SEPARATORS = re.compile("[\x01\x02]")


class Queue(NamedTuple):
    """One queue of a topic, on one broker (or master with its slaves)."""

    topic: str
    broker: str
    queue_id: int


class SendStatus(Enum):
    """What the broker could promise about a message that it took."""

    OK = "ok"
    FLUSH_TIMEOUT = "flush timeout"
    """It is stored, but the disk did not confirm it in time."""
    SLAVE_TIMEOUT = "slave timeout"
    """It is stored, but no slave confirmed it in time."""
    SLAVE_UNAVAILABLE = "slave unavailable"
    """It is stored, but there is no slave that could have a copy."""


class Receipt(NamedTuple):
    """Where a message went."""

    message_id: str
    """The unique id that the producer gave it; of a batch, those of its messages between commas."""
    offset_id: str
    """The broker's own id, which names the place in its log."""
    queue: Queue
    offset: int
    """The message's number in its queue; of a batch, that of its first message."""
    status: SendStatus = SendStatus.OK
    recall_handle: str | None = None
    """With it a timed message can be called back before its time."""
    transaction_id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. `delay`, `deliver_at` and `delay_level` exclude one another."""

    topic: str
    body: bytes
    tags: str | None = field(default=None, kw_only=True)
    keys: Sequence[str] = field(default=(), kw_only=True)
    """For finding the message again; a text is one key."""
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    flag: int = field(default=0, kw_only=True)
    delay: timedelta | None = field(default=None, kw_only=True)
    deliver_at: datetime | None = field(default=None, kw_only=True)
    """A time with a time zone."""
    delay_level: int = field(default=0, kw_only=True)
    """RocketMQ's levels: 1 is a second, 18 two hours; 0 is no delay."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if type(self.body) is not bytes:
            raise TypeError(
                f"the body must be bytes, not {type(self.body).__name__}: encode it first"
            )
        if not self.body:
            raise EmptyMessageError(f"the message to {self.topic!r} has an empty body")
        if self.keys:
            keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)
            object.__setattr__(self, "keys", keys)
            _check_keys(keys)
        elif self.keys != ():
            object.__setattr__(self, "keys", ())
        if self.tags is not None:
            _check_text("tags", self.tags)
        if self.properties:
            object.__setattr__(self, "properties", dict(self.properties))
            _check_properties(self.properties)
        if self.flag and not -(2**31) <= self.flag < 2**31:
            raise MessageError(f"the flag is a 32-bit number, and {self.flag} is not")
        if self.delay is not None or self.deliver_at is not None or self.delay_level:
            _check_delay(self)


class ReceivedMessage:
    """A message from a broker."""

    __slots__ = ("_body", "_properties", "broker", "raw")

    _body: bytes
    _properties: dict[str, str]

    def __init__(self, raw: Record, broker: str) -> None:
        self.raw = raw
        """The record as the broker sent it."""
        self.broker = broker
        """The name of the broker that it came from."""

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage {self.message_id} of {self.topic} from "
            f"{self.broker}/{self.raw.queue_id} at {self.raw.queue_offset}>"
        )

    @property
    def topic(self) -> str:
        """The topic it was sent to, also if it comes by way of a retry topic."""
        topic = self.raw.topic
        if topic.startswith(RETRY_PREFIX):
            return property_value(self.raw.properties, "RETRY_TOPIC") or topic
        return topic

    @property
    def body(self) -> bytes:
        """The body as its sender had it; `CompressionError` if it cannot be unpacked."""
        try:
            return self._body
        except AttributeError:
            self._body = body = unpacked_body(self.raw)
            return body

    @property
    def tags(self) -> str | None:
        """The tags, usually one."""
        return property_value(self.raw.properties, "TAGS")

    @property
    def keys(self) -> list[str]:
        """The keys."""
        return (property_value(self.raw.properties, "KEYS") or "").split()

    @property
    def all_properties(self) -> dict[str, str]:
        """All properties, with those that clients and brokers keep for themselves."""
        try:
            return self._properties
        except AttributeError:
            self._properties = properties = decode_properties(self.raw.properties)
            return properties

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the sender gave it."""
        return {
            name: value
            for name, value in self.all_properties.items()
            if name not in RESERVED_PROPERTIES
        }

    @property
    def flag(self) -> int:
        """The number that the sender gave it."""
        return self.raw.flag

    @property
    def message_id(self) -> str:
        """The unique id that its producer gave it, else the offset id."""
        return property_value(self.raw.properties, "UNIQ_KEY") or self.raw.message_id

    @property
    def offset_id(self) -> str:
        """The broker's own id, which names the place in its log."""
        return self.raw.message_id

    @property
    def queue(self) -> Queue:
        """The queue it came from; of a message that is retried, one of the retry topic."""
        return Queue(self.raw.topic, self.broker, self.raw.queue_id)

    @property
    def offset(self) -> int:
        """Its number in that queue."""
        return self.raw.queue_offset

    @property
    def born_ms(self) -> int:
        """When it was sent, by the producer's clock: milliseconds since the epoch."""
        return self.raw.born_ms

    @property
    def store_ms(self) -> int:
        """When it was stored, by the broker's clock: milliseconds since the epoch."""
        return self.raw.store_ms

    @property
    def born_time(self) -> datetime:
        """When it was sent, by the producer's clock."""
        return _time(self.raw.born_ms)

    @property
    def store_time(self) -> datetime:
        """When it was stored, by the broker's clock."""
        return _time(self.raw.store_ms)

    @property
    def delivery_attempt(self) -> int:
        """1 for a message that is delivered for the first time."""
        return self.raw.reconsume_times + 1

    @property
    def transaction_id(self) -> str | None:
        """The transaction that it was sent in, if any."""
        given = property_value(self.raw.properties, "__transactionId__")
        if given is None and self.raw.sys_flag & TRANSACTION_MASK:
            return property_value(self.raw.properties, "UNIQ_KEY")
        return given


@functools.lru_cache(maxsize=4096)
def check_topic(topic: str) -> None:
    """Refuse a name that RocketMQ's own clients refuse."""
    if not isinstance(topic, str):
        raise TypeError(f"the topic must be a text, not {type(topic).__name__}")
    if not topic:
        raise InvalidTopicError("the topic name is empty")
    if not _TOPIC.fullmatch(topic):
        raise InvalidTopicError(
            f"topic name {topic!r} may only have letters, digits and the characters % | _ -"
        )
    if len(topic) > TOPIC_CHARACTERS_MAX and not topic.startswith(
        (RETRY_PREFIX, DEAD_LETTER_PREFIX)
    ):
        raise InvalidTopicError(
            f"topic name {topic[:40]!r}... has {len(topic)} characters; "
            f"the limit is {TOPIC_CHARACTERS_MAX}"
        )


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a text, not {type(text).__name__}")
    if not text:
        raise MessageError(f"{what} may be left out, but not be an empty text")
    if _SEPARATORS.search(text):
        raise MessageError(f"{what} has a character 0x01 or 0x02, which separate properties")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageError(f"{what} is not valid text: {text!r}") from None


def _check_keys(keys: tuple[str, ...]) -> None:
    for key in keys:
        _check_text("a key", key)
        if len(key.split()) != 1 or key != key.strip():
            raise MessageError(f"key {key!r} has a space in it, and spaces separate keys")


def _check_properties(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        _check_text("the name of a property", name)
        _check_text(f"property {name!r}", value)
        if name in RESERVED_PROPERTIES:
            raise MessageError(f"property {name!r} is reserved: RocketMQ keeps its own value there")


def _check_delay(message: Message) -> None:
    delay, at, level = message.delay, message.deliver_at, message.delay_level
    if (delay is not None) + (at is not None) + bool(level) > 1:
        raise MessageError("delay, deliver_at and delay_level exclude one another: give one")
    if level < 0:
        raise MessageError(f"a delay level is a number from 1 on, and {level} is not")
    if delay is not None and not 0 <= delay / timedelta(milliseconds=1) < DELAY_MS_MAX:
        raise MessageError(f"a delay cannot be {delay}")
    if at is not None and at.tzinfo is None:
        raise MessageError(
            f"deliver_at has no time zone: write {at!r}.astimezone(), if it is local time"
        )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
