"""Which queues a record belongs to, and at which offsets: the same answer live and on replay.

A record goes to the queue it names. If it carries INNER_MULTI_DISPATCH, a comma-separated list of
topics, it goes to a queue of each of these too, at the offsets in INNER_MULTI_QUEUE_OFFSET: queue
0 of a light queue (`%LMQ%...`), else the queue with the record's own id. Half and rolled-back
messages of transactions go nowhere. An inner batch takes as many offsets as it has messages. A
record with INNER_TOPIC_DELETED goes nowhere, and takes all that its topic has out of the queues.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from onelog.errors import ConfigError, MessageError
from onelog.message import (
    DELAY_LEVEL,
    INNER_COUNT,
    INNER_COUNT_MAX,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    TAGS,
    TRANSACTION_MASK,
    Message,
    NewMessage,
    SysFlag,
    encode_properties,
    property_bytes,
    property_value,
    tags_code,
)
from onelog.names import (
    COMPACTED_TOPIC,
    LIGHT_QUEUE_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
)

LAST_OFFSET = "INNER_LAST_OFFSET"
"""Of a batch that is left of a compacted queue: the last offset there that it stands for."""
TOPIC_DELETED = "INNER_TOPIC_DELETED"
EXTRA_QUEUES_MAX = 1_000
TAGS_NEEDLE = TAGS.encode() + b"\x01"
_NEVER_SHARED = (RETRY_PREFIX, SYSTEM_PREFIX, SCHEDULE_TOPIC)
"""Topics whose records are copies: what they say of extra queues was meant for the original."""
_COMMA = "\x03"
"""In the place of a comma in the name of an extra queue; no name has a control character."""
_MULTI_DISPATCH_NEEDLE = MULTI_DISPATCH.encode() + b"\x01"
_DELETED_NEEDLE = TOPIC_DELETED.encode() + b"\x01"
# Operations on an enum's members are calls; these are done for every message.
_COMMITTED = int(SysFlag.COMMITTED)
_INNER_BATCH = int(SysFlag.INNER_BATCH)
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Target(NamedTuple):
    """A place in a queue that a record is entered at."""

    topic: str
    queue_id: int
    queue_offset: int
    entries: int


def parse_delay_levels(levels: str) -> tuple[int, ...]:
    """The milliseconds of each delay level, from "1s 5s 10s ..."."""
    parsed = []
    for level in levels.split():
        match = re.fullmatch(r"(\d+)([smhd])", level)
        if not match:
            raise ConfigError(f"delay level {level!r} is not a number followed by s, m, h or d")
        parsed.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(parsed)


class TagsCodes:
    """What a queue entry says beside the place of the record.

    The hash of the tags; in the queues of delayed messages, when the message is due; in those of
    what is left of compacted queues, the offset up to which it stands for them.
    """

    def __init__(self, delay_levels: str) -> None:
        self._delays_ms = parse_delay_levels(delay_levels)

    def of(self, topic: str, properties: bytes, store_ms: int) -> int:
        """The tags code of a message."""
        if topic == SCHEDULE_TOPIC:
            level = property_value(properties, DELAY_LEVEL) or ""
            if level.isascii() and level.isdigit() and int(level) > 0 and self._delays_ms:
                return store_ms + self._delays_ms[min(int(level), len(self._delays_ms)) - 1]
        if topic == COMPACTED_TOPIC:
            last = property_value(properties, LAST_OFFSET) or ""
            return int(last) if last.isascii() and last.isdigit() and len(last) < 19 else 0
        # The usual case of `property_bytes`, without its call.
        before, found, rest = properties.partition(TAGS_NEEDLE)
        if not found:
            return 0
        if before and before[-1] != 2:
            tags = property_bytes(properties, TAGS_NEEDLE)
            return tags_code(tags) if tags else 0
        return tags_code(rest.partition(b"\x02")[0])


def deletion_of(topic: str) -> NewMessage:
    """The record that says that a topic was deleted here: what went before it is in no queue.

    Rolled back, so that nobody, RocketMQ included, enters it into a queue or the index.
    """
    properties = encode_properties({TOPIC_DELETED: "true"})
    return NewMessage(topic, 0, b"", properties, sys_flag=int(SysFlag.ROLLED_BACK))


def is_deletion(sys_flag: int, properties: bytes) -> bool:
    """Whether a record is one that `deletion_of` made."""
    return (
        sys_flag & TRANSACTION_MASK == SysFlag.ROLLED_BACK
        and property_bytes(properties, _DELETED_NEEDLE) is not None
    )


def is_dispatched(sys_flag: int) -> bool:
    """Whether a record enters any queue: half and rolled-back messages do not."""
    return sys_flag & TRANSACTION_MASK in (0, _COMMITTED)


def queue_id_of(topic: str, record_queue_id: int) -> int:
    """The queue of an extra topic that a record is entered in."""
    return 0 if topic.startswith(LIGHT_QUEUE_PREFIX) else record_queue_id


@functools.lru_cache(maxsize=1_024)
def _extra_targets(
    extra: tuple[str, ...], record_queue_id: int
) -> tuple[list[tuple[str, int]], str]:
    """The extra queues of a record, and the property that names them; fan-outs repeat them."""
    targets = [(topic, queue_id_of(topic, record_queue_id)) for topic in extra]
    return targets, ",".join(topic.replace(",", _COMMA) for topic in extra)


def with_dispatch_properties(
    message: NewMessage, reserve: Callable[[str, int, int], int]
) -> NewMessage:
    """A message that is an inner batch or goes to extra queues, with the properties that say so.

    `reserve(topic, queue_id, count)` gives the first queue offset in an extra queue.
    """
    count, extra = message.inner_count, message.extra_queues
    if not 1 <= count <= INNER_COUNT_MAX:
        raise MessageError(f"an inner batch of {count} messages; the limit is {INNER_COUNT_MAX}")
    if len(extra) > EXTRA_QUEUES_MAX:
        raise MessageError(f"{len(extra)} extra queues; the limit is {EXTRA_QUEUES_MAX}")
    added = {}
    flags = message.sys_flag
    if count > 1:
        flags |= SysFlag.INNER_BATCH
        added[INNER_COUNT] = str(count)
    if extra:
        if message.topic.startswith(_NEVER_SHARED):
            raise MessageError(f"messages of topic {message.topic!r} have no extra queues")
        targets, added[MULTI_DISPATCH] = _extra_targets(extra, message.queue_id)
        offsets = [reserve(topic, queue_id, count) for topic, queue_id in targets]
        added[MULTI_QUEUE_OFFSET] = ",".join(map(str, offsets))
    properties = message.properties
    if properties and properties[-1] != 2:
        properties += b"\x02"
    return message._replace(properties=properties + encode_properties(added), sys_flag=int(flags))


def is_plain(sys_flag: int, properties: bytes) -> bool:
    """Whether a record has just one place in the one queue that it names."""
    return not sys_flag & (TRANSACTION_MASK | _INNER_BATCH) and (
        property_bytes(properties, _MULTI_DISPATCH_NEEDLE) is None
    )


def targets(message: Message) -> Iterator[Target]:
    """Every queue position that a stored record occupies."""
    if not is_dispatched(message.sys_flag):
        return
    count = message.inner_count
    yield Target(message.topic, message.queue_id, message.queue_offset, count)
    if message.topic.startswith(_NEVER_SHARED):
        return
    names = property_value(message.properties, MULTI_DISPATCH)
    offsets = property_value(message.properties, MULTI_QUEUE_OFFSET)
    if not names or not offsets:
        return
    for topic, offset in zip(names.split(","), offsets.split(","), strict=False):
        if topic and offset.isascii() and offset.isdigit():
            topic = topic.replace(_COMMA, ",")
            yield Target(topic, queue_id_of(topic, message.queue_id), int(offset), count)
