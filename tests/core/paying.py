"""Producers with transactions in place, in a world of tests."""

import struct
from random import Random
from typing import Any

from onelog.core.access import SELF
from onelog.core.transactions.in_place import Stamp
from onelog.errors import OnelogError
from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from tests.core.world import World


class Payer:
    """One of them; each of its transactions has an epoch of its own."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.id, self.epoch = world.broker.transactions.in_place.begin(SELF, name, 600_000)
        self.numbers: dict[tuple[str, int], int] = {}
        self.sent: list[tuple[tuple[str, int], bytes]] = []
        """What it has sent in its open transaction."""

    def send(self, topic: str, queue_id: int, *values: bytes) -> None:
        """A batch."""
        queue = topic, queue_id
        self.world.broker.transactions.in_place.add_queues(
            SELF, self.name, self.id, self.epoch, [queue]
        )
        number = self.numbers.get(queue, 0)
        batch = bytearray(kafka.from_neutral([Neutral(b"k", value, (), 1) for value in values]))
        batch[22] = kafka.Attribute.TRANSACTIONAL
        struct.pack_into(">qhi", batch, 43, self.id, self.epoch, number)
        message = NewMessage(
            topic,
            queue_id,
            kafka.with_crc(bytes(batch)),
            sys_flag=Form.KAFKA.sys_flag,
            inner_count=len(values),
        )
        stamp = Stamp(self.id, self.epoch, number, len(values), True)
        self.world.broker.publish.send(SELF, message, _stored, stamp=stamp)
        self.world.end_tick()
        self.numbers[queue] = number + len(values)
        self.sent += [(queue, value) for value in values]

    def end(self, commit: bool) -> list[tuple[tuple[str, int], bytes]]:
        """What was in the transaction."""

        def ended(producer: tuple[int, int], error: OnelogError | None) -> None:
            assert error is None
            self.id, self.epoch = producer

        in_place = self.world.broker.transactions.in_place
        in_place.end(SELF, self.name, self.id, self.epoch, commit, ended, renews=True)
        self.numbers.clear()
        sent, self.sent = self.sent, []
        return sent


def _stored(token: Any, appended: Any, error: OnelogError | None) -> None:
    assert error is None


class Bazaar:
    """Some payers who do anything, and what is committed of it."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = Random(seed)
        world.topic("orders", 2)
        world.topic("plain", 1)
        self.payers = [Payer(world, f"payer-{each}") for each in range(3)]
        self.fates: dict[bytes, bool | None] = {}
        """Which values are committed; None: nobody knows yet."""
        self.queues: dict[tuple[str, int], list[bytes]] = {("orders", 0): [], ("orders", 1): []}

    def step(self) -> None:
        """Somebody does something."""
        random, queue_id = self.random, self.random.randrange(2)
        payer = random.choice(self.payers)
        value = b"%d" % len(self.fates)
        kind = random.random()
        if kind < 0.5:
            values = [value + b".%d" % each for each in range(random.randint(1, 3))]
            payer.send("orders", queue_id, *values)
            self.fates.update(dict.fromkeys(values))
            self.queues["orders", queue_id] += values
        elif kind < 0.7:
            self.world.send("orders", queue_id, value)
            self.fates[value] = True
            self.queues["orders", queue_id].append(value)
        elif kind < 0.95 and payer.sent:
            commit = random.random() < 0.5
            for _, each in payer.end(commit):
                self.fates[each] = commit
        else:
            self.world.core.batch_producers.keep()

    def committed(self, queue_id: int) -> list[bytes]:
        """What a reader sees of a queue: all that is committed before the first that is open."""
        found = []
        for value in self.queues["orders", queue_id]:
            fate = self.fates[value]
            if fate is None:
                break
            if fate:
                found.append(value)
        return found
