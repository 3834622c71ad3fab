"""The message, as every layer speaks of it: properties, flags, hosts, ids.

A message is a topic, a body and a string of properties; tags, keys and the unique id are
properties. Properties travel and rest as one UTF-8 string, `name 0x01 value 0x02` repeated, and
stay encoded wherever nobody needs to look inside.

`NewMessage` is what is appended, `Message` what is read back. Both are tuples: they are made once
per message on the hot path, and a tuple is the cheapest value Python has.
"""

import functools
import ipaddress
from collections.abc import Sequence
from enum import IntFlag
from operator import itemgetter
from typing import NamedTuple, NewType

Buffer = bytes | bytearray | memoryview
"""What can be written to a socket or a file without being copied first."""

LogOffset = NewType("LogOffset", int)
"""A byte position in the commit log."""
QueueOffset = NewType("QueueOffset", int)
"""A message's index in its queue."""

PROPERTIES_BYTES_MAX = 32_767
QUEUE_ID_MAX = 65_535
INNER_COUNT_MAX = 1_000_000

TAGS = "TAGS"
KEYS = "KEYS"
UNIQUE_KEY = "UNIQ_KEY"
DELAY_LEVEL = "DELAY"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_COUNT = "INNER_NUM"
RECORD_CRC = "__CRC32#"


class SysFlag(IntFlag):
    """The bits of a record's sysFlag (RocketMQ: MessageSysFlag)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMITTED = 0x8
    ROLLED_BACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


TRANSACTION_MASK = 0xC
"""The two bits that tell none, prepared, committed and rolled back apart."""


def encode_host(host: str, port: int) -> bytes:
    """An address as records keep it: 4 or 16 bytes of IP, then the port as int32."""
    return ipaddress.ip_address(host).packed + port.to_bytes(4, "big")


def decode_host(host: bytes | memoryview) -> tuple[str, int]:
    """The inverse of `encode_host`."""
    raw = bytes(host)
    return str(ipaddress.ip_address(raw[:-4])), int.from_bytes(raw[-4:], "big")


LOOPBACK = encode_host("127.0.0.1", 0)


class NewMessage(NamedTuple):
    """A message on its way into the log. `properties` is the encoded string.

    `inner_count` above 1 makes it an inner batch: one record whose body holds that many messages,
    and as many queue offsets. `extra_queues` names further topics whose queue gets an entry for
    the same record (see `record.dispatch`).
    """

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = LOOPBACK
    store_host: bytes = LOOPBACK
    reconsume_times: int = 0
    prepared_offset: int = 0
    inner_count: int = 1
    extra_queues: tuple[str, ...] = ()


class Appended(NamedTuple):
    """Where a message went."""

    log_offset: LogOffset
    queue_offset: QueueOffset
    size: int


Part = tuple[int, bytes, bytes]
"""Flag, body and properties of one message of a run."""


class NewRun(NamedTuple):
    """Messages on their way into one queue, side by side, that differ in their `parts` only.

    Each gets the `shared` properties after its own. `source` is what the parts were cut from: what
    is not to be found there no part has.
    """

    topic: str
    queue_id: int
    parts: Sequence[Part]
    source: bytes
    shared: bytes = b""
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = LOOPBACK
    store_host: bytes = LOOPBACK
    reconsume_times: int = 0

    @classmethod
    def of(cls, message: NewMessage) -> "NewRun":
        """A run of one message, which must be plain: one queue, and no inner batch."""
        body = bytes(message.body)
        return cls(
            message.topic,
            message.queue_id,
            [(message.flag, body, message.properties)],
            body + message.properties,
            b"",
            message.sys_flag,
            message.born_ms,
            message.born_host,
            message.store_host,
            message.reconsume_times,
        )

    def fits(self, body_bytes_max: int, properties_bytes_max: int) -> bool:
        """Whether no body and no properties are larger; False if that is a matter of one byte."""
        more = len(self.shared) + 1
        if len(self.source) + more <= min(body_bytes_max, properties_bytes_max):
            return True
        bodies, properties = (map(len, map(itemgetter(at), self.parts)) for at in (1, 2))
        return max(bodies) <= body_bytes_max and max(properties) + more <= properties_bytes_max

    def messages(self) -> list[NewMessage]:
        """The same, message by message."""
        shared = self.shared
        ended = b"\x02" + shared
        return [
            NewMessage(
                self.topic,
                self.queue_id,
                body,
                properties + (ended if properties and properties[-1] != 2 else shared),
                flag,
                self.sys_flag,
                self.born_ms,
                self.born_host,
                self.store_host,
                self.reconsume_times,
            )
            for flag, body, properties in self.parts
        ]


class AppendedRun(NamedTuple):
    """Where a run went: its first record, its first offset in the queue, its bytes in the log."""

    log_offset: int
    queue_offset: int
    size: int
    log_offsets: Sequence[int]


class Message(NamedTuple):
    """A message read back from the log; `body` is a view of the log's own bytes."""

    topic: str
    queue_id: int
    queue_offset: QueueOffset
    log_offset: LogOffset
    body: memoryview
    properties: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    size: int

    @property
    def message_id(self) -> str:
        """The offset message id: store host and log offset, in hex, as RocketMQ prints it."""
        return message_id(self.store_host, self.log_offset)

    @property
    def tags(self) -> str | None:
        return property_value(self.properties, TAGS)

    @property
    def keys(self) -> list[str]:
        """The tokens of the KEYS property."""
        return (property_value(self.properties, KEYS) or "").split()

    @property
    def inner_count(self) -> int:
        """How many messages the record holds, and has offsets for: of an inner batch many."""
        if not self.sys_flag & 0x80:
            return 1
        stated = property_value(self.properties, INNER_COUNT) or ""
        is_number = stated.isascii() and stated.isdigit()
        return min(max(1, int(stated)), INNER_COUNT_MAX) if is_number else 1

    @property
    def unique_key(self) -> str | None:
        """The id that the producer gave the message."""
        return property_value(self.properties, UNIQUE_KEY)


def encode_properties(properties: dict[str, str]) -> bytes:
    """`name 0x01 value 0x02` for each property, in UTF-8."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def decode_properties(properties: bytes | memoryview) -> dict[str, str]:
    """The properties as a dict; entries without a value are dropped, as RocketMQ drops them."""
    entries = bytes(properties).decode("utf-8", "replace").split("\x02")
    pairs = [entry.partition("\x01") for entry in entries]
    return {name: value for name, _, value in pairs if value}


def property_value(properties: bytes, name: str) -> str | None:
    """One property's value, without decoding the others."""
    value = property_bytes(properties, name.encode() + b"\x01")
    return None if value is None else value.decode("utf-8", "replace")


def property_bytes(properties: bytes, needle: bytes) -> bytes | None:
    """The value, still encoded, of the property whose name and 0x01 are the needle."""
    # `partition` is twice as fast as `find` in CPython 3.11, and this is done for every message.
    before, found, rest = properties.partition(needle)
    while found and before and before[-1] != 2:
        skipped, found, rest = rest.partition(needle)
        before += needle + skipped
    return rest.partition(b"\x02")[0] if found else None


def java_hash(text: str) -> int:
    """`String.hashCode`: 31 * h + c over UTF-16 units, wrapped to a signed 32-bit integer."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = 31 * value + unit & 0xFFFFFFFF
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(encoded), 2):
            value = 31 * value + (encoded[at] << 8 | encoded[at + 1]) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@functools.lru_cache(maxsize=4096)
def tags_code(tags: str | bytes) -> int:
    """What a consume queue keeps of the tags: their hash, 0 when there are none."""
    return java_hash(tags if isinstance(tags, str) else tags.decode("utf-8", "replace"))


def message_id(store_host: bytes, log_offset: int) -> str:
    """The offset message id: host and log offset in upper-case hex."""
    return (store_host + log_offset.to_bytes(8, "big")).hex().upper()


def parse_message_id(text: str) -> tuple[bytes, LogOffset]:
    """The store host and log offset in an offset message id; `ValueError` if it is none."""
    raw = bytes.fromhex(text)
    if len(raw) not in (16, 28):
        raise ValueError(f"message id {text!r} has {len(text)} characters; an id has 32 or 56")
    return raw[:-8], LogOffset(int.from_bytes(raw[-8:], "big"))
