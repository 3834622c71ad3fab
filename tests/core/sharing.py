"""Members of a share group, in a world that tests move by hand."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onelog.core.access import SELF
from onelog.core.queues.lease_ledger import Outcome
from onelog.core.queues.lending import Leased
from onelog.core.queues.sharing import ShareLimits, Taking
from onelog.core.transactions.in_place import UNNUMBERED, Stamp
from onelog.errors import OnelogError
from onelog.message import NewMessage
from onelog.record.decode import decode_messages
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from tests.core.world import World

GROUP, TOPIC = "sharers", "orders"
EARLIEST = ShareLimits(from_start=True)


def put_batch(world: World, count: int, queue_id: int = 0, stamp: Stamp | None = None) -> None:
    """Store a batch of Kafka's of so many messages."""
    body = bytearray(kafka.from_neutral([Neutral(None, b"%d" % each) for each in range(count)]))
    if stamp is not None:
        body[22] |= kafka.Attribute.TRANSACTIONAL
        struct.pack_into(">qhi", body, 43, stamp.producer_id, stamp.epoch, stamp.first)
    message = NewMessage(
        TOPIC,
        queue_id,
        kafka.with_crc(bytes(body)),
        sys_flag=Form.KAFKA.sys_flag,
        inner_count=count,
    )
    world.broker.publish.send(SELF, message, world.on_stored, stamp=stamp or UNNUMBERED)
    world.end_tick()


@dataclass
class Sharer:
    """A member."""

    world: World
    name: str = "ann"
    terms: ShareLimits = EARLIEST
    topic: str = TOPIC

    def ask(
        self,
        count: int = 100,
        wait_ms: int = 0,
        *,
        whole: bool = False,
        bytes_max: int = 1 << 20,
        queues: Sequence[int] = (0,),
    ) -> list[Leased]:
        """What a request is answered with; for one that is held, what it will be."""
        answers: list[Leased] = []

        def on_leased(token: Any, leased: Leased | OnelogError) -> None:
            if isinstance(leased, OnelogError):
                raise leased
            answers.append(leased)

        places = [(self.topic, each) for each in queues]
        taking = Taking(GROUP, self.name, places, count, bytes_max, whole)
        self.world.broker.queues.sharing.take(
            SELF, taking, self.terms, wait_ms, on_leased, self.name
        )
        return answers

    def take(self, count: int = 100, **how: Any) -> dict[int, int]:
        """The messages of queue 0 that it has then, and how often each was handed out."""
        answers = self.ask(count, **how)
        self.world.end_tick()
        return {offset: times for answer in answers for offset, times in counted(answer).items()}

    def settle(self, outcome: Outcome, *offsets: int) -> None:
        """What became of messages, and the end of the tick."""
        outcomes = [(range(each, each + 1), outcome) for each in offsets]
        sharing = self.world.broker.queues.sharing
        sharing.settle(SELF, GROUP, self.name, (self.topic, 0), outcomes, self.terms)
        self.world.end_tick()

    def accept(self, *offsets: int) -> None:
        self.settle(Outcome.DONE, *offsets)

    def give_back(self, *offsets: int) -> None:
        self.settle(Outcome.RETURNED, *offsets)

    def keep(self, *offsets: int) -> None:
        self.settle(Outcome.KEPT, *offsets)

    def leave(self) -> None:
        self.world.broker.queues.sharing.release(SELF, GROUP, self.name)
        self.world.end_tick()

    @property
    def position(self) -> int | None:
        found = self.world.broker.queues.sharing.position(SELF, GROUP, (self.topic, 0))
        return None if found is None else found[0]


def counted(leased: Leased) -> dict[int, int]:
    """Which messages were handed out, and how often; all of them are in the records."""
    found: dict[int, int] = {}
    for part in leased.parts:
        starts: list[int] = []
        held: set[int] = set()
        for record in part.records:
            for message in decode_messages(record):
                starts.append(message.queue_offset)
                held.update(range(message.queue_offset, message.queue_offset + message.inner_count))
        assert starts == sorted(set(starts)), "each record is there once, in its order"
        assert held.issuperset(part.offsets)
        assert list(part.offsets) == sorted(set(part.offsets))
        found |= {each: times + 1 for each, times in zip(part.offsets, part.times, strict=True)}
    return found


def sharing(world: World, queues: int = 1) -> Sharer:
    """A topic, and a member of a group that shares it."""
    world.topic(TOPIC, queues)
    return Sharer(world)
