"""A compacted topic in a world that tests move by hand, and what its readers see."""

from typing import NamedTuple

from onelog.core.access import SELF
from onelog.core.catalog.topics import CLEANUP_POLICY
from onelog.core.cursors.fetch import Cursor, Limits
from onelog.core.transactions.in_place import UNNUMBERED, Stamp
from onelog.errors import OnelogError
from onelog.gateways.kafka import batches
from onelog.gateways.kafka.batches import Budget
from onelog.message import Appended, NewMessage
from onelog.record.decode import decode_messages
from onelog.record.forms import Form, kafka
from onelog.record.forms.kafka import Attribute, Codec
from onelog.record.forms.neutral import Neutral
from onelog.store.reader import FetchStatus
from tests.core.world import World

TOPIC = "prices"
SOON = {
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}
"""So that a test need not wait for long."""
MINUTE = 60_000
Pair = tuple[bytes | None, bytes | None]


class Seen(NamedTuple):
    """A message as a reader sees it."""

    offset: int
    key: bytes | None
    value: bytes | None


def make(world: World, policy: str = "compact", queues: int = 1, **settings: str) -> None:
    """The topic; settings as `retention_ms="5"`."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    world.topic(TOPIC, queues, attributes={CLEANUP_POLICY: policy, **SOON, **given})


def send(
    world: World,
    *pairs: Pair,
    codec: Codec = Codec.NONE,
    stamp: Stamp | None = None,
    topic: str = TOPIC,
) -> int:
    """One batch of a Kafka producer; its offset."""
    now_ms = world.clock.now_ms()
    body = kafka.from_neutral([Neutral(*pair, (), now_ms) for pair in pairs], codec=codec)
    if stamp is not None:
        fields = list(kafka.HEAD.unpack_from(body))
        fields[5] |= Attribute.TRANSACTIONAL if stamp.transactional else 0
        fields[9:12] = stamp.producer_id, stamp.epoch, stamp.first
        body = kafka.with_crc(kafka.HEAD.pack(*fields) + body[kafka.HEAD.size :])
    message = NewMessage(
        topic, 0, body, sys_flag=Form.KAFKA.sys_flag, born_ms=now_ms, inner_count=len(pairs)
    )
    world.broker.publish.send(SELF, message, world.on_stored, stamp=stamp or UNNUMBERED)
    world.end_tick()
    told = world.told.pop()
    assert told.error is None
    assert isinstance(told.appended, Appended)
    return told.appended.queue_offset


def compact(world: World) -> None:
    """Let the time pass after which messages may be compacted, and the job do it."""
    world.advance(2 * MINUTE)


def seen(world: World, begin: int | None = None, *, committed: bool = True) -> list[Seen]:
    """What a Kafka consumer gets that reads from an offset, or the beginning, to the end."""
    store = world.store
    offset = int(store.min_offset(TOPIC, 0)) if begin is None else begin
    limits = Limits(1 << 30, 1 << 16, 1 << 16, 1, True, True, committed)
    found: list[Seen] = []
    while offset < store.max_offset(TOPIC, 0):
        ((result,),) = world.fetch([Cursor(None, TOPIC, 0, offset)], limits, 0)
        assert not isinstance(result, OnelogError), result
        assert result.min_offset == store.min_offset(TOPIC, 0)
        if result.status is not FetchStatus.FOUND:
            assert result.status in (
                FetchStatus.NO_MATCHED_MESSAGE,
                FetchStatus.OFFSET_OVERFLOW_ONE,
            )
            if result.next_offset <= offset:
                break
            offset = result.next_offset
            continue
        data = b"".join(
            batches.pieces_of(
                TOPIC, 0, offset, result.slices, world.broker.cursors.messages_in, Budget(1_000_000)
            )[0]
        )
        _, aborted = world.broker.cursors.settled(SELF, TOPIC, 0, offset, result.next_offset)
        at = 0
        while at < len(data):
            batch = kafka.read_head(data, at)
            whole = data[at : at + batch.size]
            assert kafka.crc_of(whole) == batch.crc
            is_aborted = batch.attributes & Attribute.TRANSACTIONAL and any(
                each.producer_id == batch.producer_id
                and each.first_offset <= batch.base_offset <= each.last_offset
                for each in aborted
            )
            for delta, message in () if is_aborted and committed else kafka.records(whole):
                if batch.base_offset + delta >= offset:
                    found.append(Seen(batch.base_offset + delta, message.key, message.body))
            at += batch.size
        assert result.next_offset > offset
        offset = result.next_offset
    assert [each.offset for each in found] == sorted({each.offset for each in found})
    return found


def pulled_by_rocketmq(world: World) -> list[tuple[int, bytes]]:
    """Offsets and bodies that a RocketMQ consumer gets."""
    world.core.groups.require("readers")
    found: list[tuple[int, bytes]] = []
    offset = int(world.store.min_offset(TOPIC, 0))
    while offset < world.store.max_offset(TOPIC, 0):
        result = world.pull(offset, TOPIC)
        for part in result.slices:
            found += [(each.queue_offset, bytes(each.body)) for each in decode_messages(part)]
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return found


def latest(pairs: list[Seen]) -> dict[bytes | None, bytes]:
    """The value of each key, as whoever reads the topic into a table has it."""
    table: dict[bytes | None, bytes] = {}
    for _, key, value in pairs:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table
