"""Messages that consumers had in hand when RocketMQ's broker stopped: its checkpoints, as leases.

When RocketMQ hands messages out by POP, it moves the group's position behind them and writes a
checkpoint; each acknowledgement is a message, too. All of them wait among the timed messages until
the time of the hand-over is up, and then in rmq_sys_REVIVE_LOG_<cluster>, whose reader sends what
was not acknowledged again. Whoever takes the store over has to do that instead.

    tag ck     {c: group, t: topic, q: queue id, so: first offset, d: [offset - so], n: how many,
                bm: bits of those acknowledged, pt: when they were popped, it: for how long}
    tag ack    {c, t, q, so, pt: of the checkpoint, ao: offset}
    tag bAck   {c, t, q, so, pt: of the checkpoint, aol: [offsets]}

Invariant: what was handed out and not acknowledged is leased, until the same time and under the
same handle, so that receipts which clients have stay good; the group's position is before it.
"""

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from onelog.core.assembly import Assembly
from onelog.core.cursors.offsets import Offsets, cursor_key
from onelog.core.durable.tables import Change
from onelog.core.queues.journal import TABLE
from onelog.core.queues.lease_ledger import LeaseLedger
from onelog.core.schedule.records import REAL_TOPIC
from onelog.core.schedule.timers import Timers
from onelog.errors import OnelogError
from onelog.message import Message, property_value
from onelog.names import TIMER_TOPIC
from onelog.rocketmq.names import REVIVE_GROUP, REVIVE_PREFIX
from onelog.rocketmq.pop import RETRIED
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

_NEEDLE = f"{REAL_TOPIC}\x01{REVIVE_PREFIX}".encode()
_READ_COUNT = 1_000
_BITS = 32

LeaseKey = tuple[str, str, int]
Key = tuple[str, str, int, int, int]
"""Group, topic, queue id, first offset and pop time: what an acknowledgement names."""


class _Checkpoint:
    """One hand-over: what of it was not acknowledged, and where it ends."""

    def __init__(self, said: dict[str, Any]) -> None:
        first = int(said["so"])
        apart = said.get("d") or range(int(said["n"]))
        offsets = [first + int(each) for each in apart]
        bits = int(said.get("bm", 0)) & ((1 << _BITS) - 1)
        self.end = max(offsets, default=first - 1) + 1
        self.left = {each for bit, each in enumerate(offsets) if not bits >> bit & 1}
        self.given_ms = int(said["pt"])
        self.due_ms = self.given_ms + int(said["it"])


def take_over(core: Assembly) -> None:
    """Lease what RocketMQ had handed out. The positions go first: losing the leases repeats."""
    store, offsets = core.store, core.offsets
    checkpoints = _read(store, core.timers, offsets)
    positions: list[Change] = []
    leases: list[Change] = []
    count = 0
    for (group, topic, queue_id), found in checkpoints.items():
        queue = _leased(
            LeaseLedger(group, topic, queue_id, core.leases.policies), found, store, offsets
        )
        count += len(queue.out)
        if queue.out:
            at = {str(queue_id): queue.cursor}
            positions.append((Offsets.name, cursor_key(group, topic), at))
            leases.append((TABLE, queue.key, queue.state()))
    core.tables.write(positions)
    core.lease_tables.write(leases)
    if count:
        log.info("%d messages that RocketMQ had handed out by POP are leased here now", count)


def _leased(
    queue: LeaseLedger, found: list[_Checkpoint], store: MessageStore, offsets: Offsets
) -> LeaseLedger:
    """The queue with a lease for each message that was not acknowledged and is still there."""
    topic, queue_id = queue.topic, queue.queue_id
    begin, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    position = offsets.get(queue.group, topic, queue_id) or 0
    following = min(end, max(position, *(each.end for each in found)))
    # The later hand-over of a message counts: it had come back, or got another time.
    for each in sorted(found, key=lambda checkpoint: checkpoint.given_ms):
        there = sorted(offset for offset in each.left if begin <= offset < end)
        terms = (each.given_ms, each.due_ms, RETRIED, None, there)
        queue.apply({"n": following, "o": [terms]})
    queue.settle()
    return queue


def _read(
    store: MessageStore, timers: Timers, offsets: Offsets
) -> dict[LeaseKey, list[_Checkpoint]]:
    """The checkpoints that nobody has looked after, with what was acknowledged of each."""
    checkpoints: dict[Key, _Checkpoint] = {}
    acknowledged: list[tuple[Key, list[int]]] = []
    for message in _messages(store, timers, offsets):
        try:
            said = msgspec.json.decode(bytes(message.body))
            key = (said["c"], said["t"], int(said["q"]), int(said["so"]), int(said["pt"]))
            tag = property_value(message.properties, "TAGS")
            if tag == "ck":
                checkpoints[key] = _Checkpoint(said)
            elif tag in ("ack", "bAck"):
                acknowledged.append((key, said["aol"] if tag == "bAck" else [said["ao"]]))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            log.warning(
                "a record of RocketMQ's POP at %d in the log is unreadable: %r",
                message.log_offset,
                error,
            )
    for key, done in acknowledged:
        if key in checkpoints:
            checkpoints[key].left.difference_update(done)
    found: dict[LeaseKey, list[_Checkpoint]] = {}
    for (group, topic, queue_id, _, _), checkpoint in checkpoints.items():
        found.setdefault((group, topic, queue_id), []).append(checkpoint)
    return found


def _messages(store: MessageStore, timers: Timers, offsets: Offsets) -> Iterator[Message]:
    """What RocketMQ's reader has not read, and what it would have got later."""
    for topic, queues in list(store.queue_table.by_topic.items()):
        if topic.startswith(REVIVE_PREFIX):
            for queue_id in list(queues):
                last_read = offsets.get(REVIVE_GROUP, topic, queue_id)
                at = store.min_offset(topic, queue_id) if last_read is None else last_read + 1
                yield from _unread(store, topic, queue_id, at)
    queue = store.queue_table.find(TIMER_TOPIC, 0)
    if queue is None:
        return
    for columns in timers.wheel.pending_messages():
        for offset in columns.offsets.tolist():
            lease_key, size, _ = queue.entry(offset)
            if bytes(store.read_record(lease_key, size)).find(_NEEDLE) >= 0:
                yield timers.queue.message(offset)


def _unread(store: MessageStore, topic: str, queue_id: int, at: int) -> Iterator[Message]:
    try:
        while found := store.messages(topic, queue_id, at, _READ_COUNT):
            yield from found
            at = int(found[-1].queue_offset) + 1
    except OnelogError as error:
        log.warning("queue %d of %s cannot be read from %d on: %s", queue_id, topic, at, error)
