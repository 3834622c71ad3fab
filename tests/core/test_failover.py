"""A log that goes on elsewhere: everything durable does, at any confirmed point of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from onelog.clock import ManualClock
from onelog.core.access import SELF
from onelog.core.transactions.in_place import Stamp
from onelog.message import NewMessage
from onelog.record.forms import Form, kafka
from onelog.record.forms.neutral import Neutral
from tests.core.leasing import Reader
from tests.core.membership.test_coordinator import commit as commit_position
from tests.core.membership.test_coordinator import join, position
from tests.core.paying import Payer
from tests.core.replicas import Follower, Master, ends_of_records
from tests.core.transacting import Producers
from tests.core.transactions.test_prepared_batches import Job
from tests.core.transactions.test_staged import ALL, SEVERAL, Session
from tests.core.world import World


@dataclass
class Story:
    """What happened at a master, and what has to be so wherever its log goes on."""

    master: Master
    facts: list[tuple[int, Callable[[Follower], None]]] = field(default_factory=list)
    """From which end of the log on something is so, and how to see that."""

    def so(self, check: Callable[[Follower], None]) -> None:
        self.master.confirm()
        self.facts.append((int(self.master.store.log_end), check))


def batch(number: int, value: bytes, producer_id: int) -> tuple[NewMessage, Stamp]:
    data = bytearray(kafka.from_neutral([Neutral(b"k", value, (), 1)]))
    data[43:57] = producer_id.to_bytes(8, "big") + bytes(2) + number.to_bytes(4, "big")
    message = NewMessage(
        "kafka", 0, kafka.with_crc(bytes(data)), sys_flag=Form.KAFKA.sys_flag, inner_count=1
    )
    return message, Stamp(producer_id, 0, number, 1)


def publish_batch(world: World, number: int, value: bytes, producer_id: int) -> int:
    told: list[Any] = []
    message, stamp = batch(number, value, producer_id)
    world.broker.publish.send(
        SELF, message, lambda _, at, error: told.append((at, error)), stamp=stamp
    )
    world.end_tick()
    ((appended, error),) = told
    assert error is None
    return int(appended.queue_offset)


def times(world: World, topic: str, body: bytes) -> int:
    return sum(world.bodies(topic, queue_id).count(body) for queue_id in range(4))


def tell(story: Story) -> None:
    """Some of everything that is durable."""
    master = story.master
    for name in ("orders", "payments", "jobs", "kafka"):
        master.topic(name)
        story.so(partial(_has_topic, name=name))
    for body in (b"1", b"2", b"3"):
        master.send(body=body)
        story.so(partial(_is_once, body=body))
    master.commit("watchers", "orders", 0, 2)
    master.core.offsets.flush()
    story.so(lambda world: _is(world.broker.cursors.query(SELF, "watchers", "orders", 0), 2))
    _tell_of_time(story)
    _tell_of_leases(story)
    _tell_of_transactions(story)
    _tell_of_kafka(story)


def _is(found: object, expected: object) -> None:
    assert found == expected


def _is_once(world: World, body: bytes) -> None:
    assert times(world, "orders", body) == 1


def _is_known(world: World, number: int, producer_id: int, at: int) -> None:
    """Whether a batch that is sent again is where it was, and not stored twice."""
    assert publish_batch(world, number, b"%d" % number, producer_id) == at


def _has_topic(world: World, name: str) -> None:
    assert world.core.topics.get(name) is not None


def _tell_of_time(story: Story) -> None:
    master = story.master
    now_ms = master.clock.now_ms()
    for body, wait_ms in ((b"soon", 2_000), (b"later", 60_000)):
        master.send(body=body, TIMER_DELIVER_MS=str(now_ms + wait_ms))
        story.so(partial(_is_once, body=body))
    master.send(body=b"after a second", DELAY="1")
    story.so(lambda world: _is(times(world, "orders", b"after a second"), 1))
    master.send(body=b"after ten", DELAY="3")
    story.so(lambda world: _is(times(world, "orders", b"after ten"), 1))
    for _ in range(30):
        master.advance(100)
        master.end_tick()
        master.confirm()
    assert times(master, "orders", b"soon") == times(master, "orders", b"after a second") == 1


def _tell_of_leases(story: Story) -> None:
    master = story.master
    for body in (b"job 1", b"job 2", b"job 3"):
        master.send("jobs", body=body)
    reader = Reader(master, topic="jobs")
    first, second, _ = reader.pop(queue_id=0)
    story.so(lambda world: _is(b"job 2" in come_back(world), True))
    reader.ack(first)
    story.so(lambda world: _is(b"job 1" in come_back(world), False))
    reader.change(second, 100_000)
    master.confirm()


def come_back(world: Follower) -> list[bytes]:
    """What can be leased after so long that everything that was out is back; then again."""
    return [each.body for each in Reader(world, topic="jobs").pop(queue_id=-1)]


def _tell_of_transactions(story: Story) -> None:
    master = story.master
    producers = Producers(master)
    half = producers.begin(b"paid")
    producers.begin(b"lost")
    story.so(lambda world: _is(times(world, "orders", b"lost"), 0))
    producers.commit(half)
    story.so(lambda world: _is(times(world, "orders", b"paid"), 1))
    session = Session(master)
    session.begin()
    session.stage(*SEVERAL)
    session.commit()
    story.so(lambda world: _is([times(world, *each) for each in _bodies()], [1] * len(ALL)))
    job = Job(master)
    parts = [job.stage(0, b"p1", b"p2"), job.stage(0, b"p3", b"p4", queue_id=1)]
    story.so(lambda world: _is(times(world, "orders", b"p1"), times(world, "orders", b"p4")))
    job.commit(0, *parts)
    job.settle()
    story.so(lambda world: _is([times(world, "orders", b"p%d" % n) for n in (1, 4)], [1, 1]))


def _bodies() -> list[tuple[str, bytes]]:
    return [(topic, body) for topic, _, body in SEVERAL]


def _tell_of_kafka(story: Story) -> None:
    master = story.master
    producer_id = master.broker.publish.new_producer_id(SELF)
    for number in range(2):
        at = publish_batch(master, number, b"%d" % number, producer_id)
        story.so(partial(_is_known, number=number, producer_id=producer_id, at=at))
    payer = Payer(master, "payer")
    payer.send("payments", 3, b"x")
    payer.end(commit=True)
    end = int(master.store.next_offset("payments", 3))
    story.so(lambda world: _is(world.broker.cursors.settled(SELF, "payments", 3, 0, end)[0], end))
    payer.send("payments", 3, b"y")
    story.so(lambda world: _is(world.broker.cursors.settled(SELF, "payments", 3, 0, end)[0], end))
    member = join(master)
    commit_position(master, member, 7)
    story.so(lambda world: _is(position(world).offset, 7))


def test_everything_goes_on_at_any_confirmed_point_of_the_log(tmp_path: Path) -> None:
    master = Master.at(tmp_path / "master", quick=True)
    story = Story(master)
    tell(story)
    assert len(story.facts) > 20
    whole = master.append_ends
    for number, end in enumerate(ends_of_records(master.store)):
        folder = tmp_path / f"follower-{number}"
        follower = Follower.at(folder, clock=ManualClock(master.clock.now_ms()))
        follower.receive(master.store, end)
        assert follower.store.confirmed == end
        follower.promote()
        follower.pass_time(130_000)
        seen = sorted(times(follower, *each) for each in _bodies())
        assert seen in ([0] * len(ALL), [1] * len(ALL)), "a transaction is seen in part"
        for body in (b"soon", b"later", b"after a second", b"after ten", b"paid"):
            # What falls due is written before the record of that: cut between the two, it is twice.
            assert times(follower, "orders", body) <= (1 if end in whole else 2)
        for since, check in story.facts:
            if since <= end and end in whole:
                check(follower)
        if end >= story.facts[0][0]:
            assert times(follower, "orders", b"new") == 0
            follower.send(body=b"new")
            assert times(follower, "orders", b"new") == 1
        follower.close()
    master.close()
