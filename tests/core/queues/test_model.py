"""Declared queues against a model that a child could follow: lists of bodies, and who has what.

Whatever is published, delivered, acknowledged, given back, rejected, purged, and however often the
broker ends in between, cleanly or not: every queue has what the model has, in its order, and its
counts are the model's. After a kill, acknowledgements that nobody waited for may be lost; then the
message comes again, as redelivered, and nothing else is different.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onelog.core.access import SELF
from onelog.core.queues.deliveries import POSITION, TIMES
from tests.core.queues.yard import Taker, Yard, body_of

NAMES = ("log", "memory", "quorum", "short", "levels")
DURABLE = ("log", "quorum", "short", "levels")
ARGUMENTS = {
    "quorum": {
        "x-queue-type": "quorum",
        "x-delivery-limit": 3,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "log",
    },
    "short": {"x-max-length": 4},
    "levels": {"x-max-priority": 2},
}
NAME = st.sampled_from(NAMES)


@dataclass
class Item:
    """A message, as the model knows it."""

    body: bytes
    order: int
    level: int = 0
    times: int = 0
    place: int = -1
    is_known: bool = True
    """Whether it is certain that its acknowledgement, if it had one, is recorded."""


@dataclass
class Model:
    """One queue."""

    ready: list[Item] = field(default_factory=list)
    out: dict[int, Item] = field(default_factory=dict)
    unsure: list[Item] = field(default_factory=list)
    """Acknowledged, and perhaps not recorded."""

    def sort(self) -> None:
        self.ready.sort(key=lambda item: (-item.level, item.order))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.yard = Yard(Path(self.folder.name) / "store")
        self.models = {name: Model() for name in NAMES}
        self.number = 0
        for name in NAMES:
            self.declare(name)

    def declare(self, name: str) -> None:
        self.yard.queue(name, durable=name in DURABLE, arguments=ARGUMENTS.get(name, {}))

    def new(self, name: str, body: bytes, level: int = 0) -> None:
        self.number += 1
        self.models[name].ready.append(Item(body, self.number, level))
        self.models[name].sort()

    def trim(self) -> None:
        ready = self.models["short"].ready
        del ready[: max(0, len(ready) - 4)]

    # -- what happens --------------------------------------------------------------------------

    @rule(name=NAME, count=st.integers(1, 5), priority=st.integers(0, 3))
    def publish(self, name: str, count: int, priority: int) -> None:
        for _ in range(count):
            body = b"%d" % self.number
            self.yard.put(body, key=name, priority=priority)
            self.new(name, body, min(priority, 2) if name == "levels" else 0)
        self.yard.settle()
        self.trim()

    @rule(name=NAME, count=st.integers(1, 4))
    def get(self, name: str, count: int) -> None:
        model = self.models[name]
        for _ in range(count):
            found = self.yard.get(name)
            if not model.ready:
                assert found is None
                return
            assert found is not None
            self.was_given(name, [found])

    @rule(name=NAME, prefetch=st.integers(1, 7))
    def consume_for_a_while(self, name: str, prefetch: int) -> None:
        taker = Taker()
        consumer = self.yard.works.consume(
            SELF, "/", name, taker.deliver, taker.cancel, prefetch=prefetch
        )
        self.yard.settle()
        expected = min(prefetch, len(self.models[name].ready))
        assert len(taker.got) == consumer.unacked == expected
        self.was_given(name, taker.got)
        self.yard.works.cancel(consumer)
        self.yard.settle()

    def was_given(self, name: str, found: list) -> None:  # type: ignore[type-arg]
        model = self.models[name]
        for delivery in found:
            item = model.ready.pop(0)
            assert body_of(delivery) == item.body
            assert bool(delivery[TIMES]) == bool(item.times)
            assert item.place in (-1, delivery[POSITION])
            item.place = delivery[POSITION]
            model.out[item.place] = item

    def chosen(self, name: str, numbers: list[int]) -> list[Item]:
        out = list(self.models[name].out.values())
        found = {number % len(out): None for number in numbers} if out else {}
        return [out[number] for number in found]

    @rule(name=NAME, numbers=st.lists(st.integers(0, 50), max_size=6), waits=st.booleans())
    def ack(self, name: str, numbers: list[int], waits: bool) -> None:
        items = self.chosen(name, numbers)
        queue = self.yard.find(name)
        queue.ack([item.place for item in items])
        for item in items:
            del self.models[name].out[item.place]
        if waits:
            told: list[object] = []
            queue.when_recorded(told.append)
            self.yard.settle()
            assert told == [None]
            if name in DURABLE:
                self.all_recorded()
        elif name in DURABLE:
            self.models[name].unsure += items

    def all_recorded(self) -> None:
        for model in self.models.values():
            model.unsure.clear()

    @rule(name=NAME, numbers=st.lists(st.integers(0, 50), max_size=6))
    def requeue(self, name: str, numbers: list[int]) -> None:
        items = self.chosen(name, numbers)
        self.yard.find(name).requeue([item.place for item in items])
        model = self.models[name]
        for item in items:
            del model.out[item.place]
            item.times += 1
            if name == "quorum" and item.times > 3:
                self.new("log", item.body)
            else:
                model.ready.append(item)
        model.sort()
        self.yard.settle()
        self.trim()

    @rule(name=NAME, numbers=st.lists(st.integers(0, 50), max_size=6))
    def reject(self, name: str, numbers: list[int]) -> None:
        items = self.chosen(name, numbers)
        self.yard.find(name).reject([item.place for item in items])
        model = self.models[name]
        for item in items:
            del model.out[item.place]
            if name == "quorum":
                self.new("log", item.body)
            elif name in DURABLE:
                model.unsure.append(item)
        self.yard.settle()

    @rule(name=NAME)
    def purge(self, name: str) -> None:
        model = self.models[name]
        assert self.yard.works.purge(SELF, "/", name) == len(model.ready)
        if name in DURABLE:
            model.unsure += model.ready
        model.ready.clear()

    @rule()
    def time_passes(self) -> None:
        self.yard.record()
        self.all_recorded()

    @rule()
    def snapshot(self) -> None:
        self.yard.record()
        self.all_recorded()
        self.yard.core.lease_tables.snapshot(wait=True)

    @rule()
    def restart(self) -> None:
        self.yard.restart()
        self.all_recorded()
        self.came_back()

    @precondition(lambda self: not any(model.unsure for model in self.models.values()))
    @rule()
    def kill(self) -> None:
        self.yard.record()
        self.yard.crash()
        self.came_back()

    @rule()
    def kill_before_all_is_recorded(self) -> None:
        self.yard.crash()
        for name in DURABLE:
            # What may come again is what was acknowledged; then it does not count as new.
            model, queue = self.models[name], self.yard.find(name)
            known = {item.body for item in (*model.ready, *model.out.values())}
            again = [body_of(each) for each in queue.browse(0, 10_000)]
            unsure = [item for item in model.unsure if item.body in set(again) - known]
            for item in unsure:
                model.out[-item.order] = item
            model.unsure.clear()
        self.came_back(is_certain=False)

    def came_back(self, *, is_certain: bool = True) -> None:
        """The broker is another one: what was out is ready, and queues in memory are gone."""
        self.models["memory"] = Model()
        self.declare("memory")
        for name in DURABLE:
            model = self.models[name]
            for item in model.out.values():
                item.times = max(1, item.times)
            if not is_certain:
                # Whether it was delivered, or how often, may not have been recorded either.
                seen = {body_of(e): e[TIMES] for e in self.yard.find(name).browse(0, 10_000)}
                for item in (*model.ready, *model.out.values()):
                    item.times = self.times_of(name, item, seen)
            model.ready += model.out.values()
            model.out.clear()
            model.sort()
        self.trim()
        self.yard.settle()

    def times_of(self, name: str, item: Item, seen: dict[bytes, int]) -> int:
        ledgers = self.yard.find(name).ledgers
        for ledger in ledgers:
            for offset, times in {**dict.fromkeys(ledger.returned, 0), **ledger.times}.items():
                found = ledger.source.read(offset, 1, 1, True).found
                if found and body_of(found[0]) == item.body:
                    return max(1, times)
        return 0

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def counts_are_right(self) -> None:
        for name, model in self.models.items():
            queue = self.yard.find(name)
            assert queue.ready == len(model.ready), name
            assert queue.unacked == len(model.out), name
            assert queue.ready_bytes == sum(len(item.body) for item in model.ready), name
            assert queue.unacked_bytes == sum(len(item.body) for item in model.out.values()), name

    @invariant()
    def order_is_right(self) -> None:
        for name, model in self.models.items():
            found = [body_of(each) for each in self.yard.find(name).browse(0, 10_000)]
            assert found == [item.body for item in model.ready], name

    def teardown(self) -> None:
        self.yard.close()
        self.folder.cleanup()


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
