"""In order: one at a time, again and again until it succeeds, and by one member at a time."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Unpack

import pytest

from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push import orderly as module
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.consumer.push.orderly import OrderedFetching, QueueLocks
from onelog.client.message import Queue, ReceivedMessage
from onelog.client.options import ConsumerOptions
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.watching import bodies
from tests.waiting import eventually

QUEUES = 3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUSPEND_SECONDS", 0.05)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", QUEUES)
        yield running


class Ordered:
    """A listener that remembers the order in each queue, and notices two at a time."""

    def __init__(self) -> None:
        self.heard: dict[int, list[int]] = defaultdict(list)
        self.tries: list[tuple[int, int]] = []
        self.running: set[int] = set()
        self.failing: dict[int, int] = {}
        """Numbers, and how often each of them fails."""
        self.pause_seconds = 0.0

    async def __call__(self, message: ReceivedMessage) -> None:
        queue, number = message.queue.queue_id, int(message.body)
        assert queue not in self.running
        self.running.add(queue)
        try:
            await asyncio.sleep(self.pause_seconds)
            self.tries.append((number, message.delivery_attempt))
            if self.failing.get(number, 0) > 0:
                self.failing[number] -= 1
                raise ValueError("not yet")
            self.heard[queue].append(number)
        finally:
            self.running.discard(queue)

    @property
    def count(self) -> int:
        return sum(map(len, self.heard.values()))


@contextlib.asynccontextmanager
async def consuming(
    cluster: LiveCluster, listener: Ordered, **options: Unpack[ConsumerOptions]
) -> AsyncIterator[AsyncPushConsumer]:
    options["nameserver"], options["orderly"] = cluster.addresses, True
    options.setdefault("start", "first")
    async with AsyncPushConsumer("billing", **options) as consumer:
        consumer.subscribe("orders", listener=listener)
        await consumer.start()
        yield consumer


async def send(cluster: LiveCluster, count: int) -> None:
    for number in range(count):
        await cluster.send("orders", b"%d" % number, number % QUEUES)


def in_order(heard: dict[int, list[int]], count: int) -> bool:
    return dict(heard) == {queue: list(range(queue, count, QUEUES)) for queue in range(QUEUES)}


async def test_each_queue_is_consumed_in_its_order(cluster: LiveCluster) -> None:
    listener = Ordered()
    await send(cluster, 300)
    async with consuming(cluster, listener) as consumer:
        await eventually(lambda: listener.count == 300, "all are heard")
        assert set((await consumer.lag()).values()) == {0}
    assert in_order(listener.heard, 300)


async def test_a_failure_holds_its_queue_up_until_it_succeeds(cluster: LiveCluster) -> None:
    listener = Ordered()
    listener.failing = {4: 2, 10: 1}
    await send(cluster, 60)
    async with consuming(cluster, listener):
        await eventually(lambda: listener.count == 60, "all are heard")
    assert in_order(listener.heard, 60)
    assert [attempt for number, attempt in listener.tries if number == 4] == [1, 2, 3]
    assert await bodies(cluster, "%RETRY%billing", 1) == []


async def test_after_its_retries_a_message_is_a_dead_letter_and_the_next_have_their_turn(
    cluster: LiveCluster,
) -> None:
    listener = Ordered()
    listener.failing = {4: 1000}
    await send(cluster, 30)
    async with consuming(cluster, listener, retries_max=2) as consumer:
        await eventually(lambda: listener.count == 29, "the others are heard")
        assert [attempt for number, attempt in listener.tries if number == 4] == [1, 2, 3]

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"4"]

        await eventually(is_dead, "it is a dead letter")
        assert set((await consumer.lag()).values()) == {0}
    assert listener.heard[1] == [1, *range(7, 30, 3)]


async def test_a_message_can_be_given_up_at_once(cluster: LiveCluster) -> None:
    tried: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        tried.append(message.body)
        if message.body == b"0":
            raise RetryLater(delay_level=-1)

    await send(cluster, 6)
    async with consuming(cluster, listener):  # type: ignore[arg-type]
        await eventually(lambda: len(tried) == 6, "each was tried once")

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"0"]

        await eventually(is_dead, "it is a dead letter")


async def test_batches_in_order(cluster: LiveCluster) -> None:
    heard: dict[int, list[int]] = defaultdict(list)
    fail_once = {7}

    async def listener(batch: list[ReceivedMessage]) -> None:
        numbers = [int(message.body) for message in batch]
        for number in numbers:
            if number in fail_once:
                fail_once.discard(number)
                raise ValueError("not yet")
        heard[batch[0].queue.queue_id] += numbers

    await send(cluster, 60)
    async with consuming(cluster, listener, batch_size=4):  # type: ignore[arg-type]
        await eventually(lambda: sum(map(len, heard.values())) == 60, "all are heard")
    assert in_order(heard, 60)


async def test_members_hand_queues_over_without_disturbing_the_order(
    cluster: LiveCluster,
) -> None:
    listener = Ordered()  # Shared: no queue may be consumed by two members at a time.
    listener.pause_seconds = 0.002
    sending = asyncio.ensure_future(send(cluster, 600))
    async with consuming(cluster, listener) as first:
        await eventually(lambda: listener.count > 30, "the first works")
        async with consuming(cluster, listener) as second:
            await eventually(
                lambda: {len(first.assigned), len(second.assigned)} == {1, 2}, "they share"
            )
            await eventually(lambda: listener.count > 200, "both work")
            await second.close()
            await eventually(lambda: len(first.assigned) == 3, "the first has all again")
        await sending
        await eventually(lambda: listener.count >= 600, "all are heard")
    assert in_order(listener.heard, 600)


async def test_a_queue_that_another_member_has_locked_is_waited_for(cluster: LiveCluster) -> None:
    locks = cluster.brokers[0].core.locks
    listener = Ordered()
    await send(cluster, 9)
    locks.lock("billing", "somebody else", [("orders", 1)])
    async with consuming(cluster, listener) as consumer:
        await eventually(lambda: listener.count == 6, "the free queues are heard")
        assert len(consumer.assigned) == 2
        locks.unlock("billing", "somebody else", [("orders", 1)])
        await eventually(lambda: listener.count == 9, "then the third")
        assert locks.holder("billing", ("orders", 1)) == consumer.client_id
    assert locks.holder("billing", ("orders", 1)) is None


async def test_a_lock_that_was_lost_to_another_member_ends_the_queue(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.client.consumer.push.orderly.LOCK_SECONDS", 0.05)
    locks = cluster.brokers[0].core.locks
    listener = Ordered()
    async with consuming(cluster, listener) as consumer:
        locks.unlock("billing", consumer.client_id, [("orders", 1)])
        locks.lock("billing", "somebody else", [("orders", 1)])
        await eventually(lambda: len(consumer.assigned) == 2, "it is not ours any more")
        locks.unlock("billing", "somebody else", [("orders", 1)])
        await eventually(lambda: len(consumer.assigned) == 3, "it is ours again")
        await send(cluster, 6)
        await eventually(lambda: listener.count == 6, "all are heard")


async def test_nothing_is_begun_without_a_lock_that_can_be_relied_on(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.client.consumer.push.orderly.LOCK_SECONDS", 0.05)
    listener = Ordered()
    is_held = QueueLocks.is_held
    monkeypatch.setattr(QueueLocks, "is_held", lambda self, queue: False)
    async with consuming(cluster, listener) as consumer:
        await send(cluster, 6)
        fetching = consumer._fetching
        assert fetching is not None
        await eventually(
            lambda: sum(each.cached_msg_count for each in fetching.queue_table().values()) == 6,
            "the messages are here",
        )
        assert listener.count == 0
        assert not any(each.locked for each in fetching.queue_table().values())
        monkeypatch.setattr(QueueLocks, "is_held", is_held)
        await eventually(lambda: listener.count == 6, "with the lock they are heard")


async def test_what_was_given_back_before_is_consumed_too(cluster: LiveCluster) -> None:
    listener = Ordered()
    cluster.brokers[0].core.groups.require("billing")
    for number in range(4):
        topic = "orders" if number != 2 else "gone"
        await cluster.send("%RETRY%billing", b"%d" % number, RETRY_TOPIC=topic)
    async with consuming(cluster, listener):
        await eventually(lambda: listener.heard[0] == [0, 1, 3], "those with a listener are heard")

        async def is_dead() -> bool:
            return await bodies(cluster, "%DLQ%billing", 1) == [b"2"]

        await eventually(is_dead, "the other is a dead letter")


async def test_a_broadcast_in_order_needs_no_locks_and_is_given_up_after_its_retries(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    listener = Ordered()
    listener.failing = {3: 1000, 7: 1}
    await send(cluster, 30)
    async with consuming(
        cluster,
        listener,
        model="broadcasting",
        offsets_path=tmp_path / "positions.json",
        retries_max=1,
    ) as consumer:
        await eventually(lambda: listener.count == 29, "all but the one that failed")
        assert set((await consumer.lag()).values()) == {0}
    assert not cluster.brokers[0].core.locks.any_held("billing")
    assert [attempt for number, attempt in listener.tries if number == 3] == [1, 2]
    assert listener.heard[1] == list(range(1, 30, 3))


async def test_locks_of_brokers_that_do_not_answer_are_neither_granted_nor_lost(
    cluster: LiveCluster,
) -> None:
    core = AsyncPushConsumer("billing", nameserver=cluster.addresses)
    await core.instance.start()
    locks = QueueLocks(core.instance, "billing")
    here, nowhere = Queue("orders", "broker-a", 0), Queue("orders", "broker-z", 0)
    assert await locks.lock([here, nowhere]) == {here}
    lost, all_is_well = await locks.renew([here, nowhere])
    assert (lost, all_is_well) == ([], False)
    assert (locks.is_held(here), locks.is_held(nowhere)) == (True, False)
    await locks.unlock([here, nowhere])
    assert not locks.is_held(here)
    await core.close()


async def test_a_lock_is_as_good_as_the_connection_that_it_came_over(cluster: LiveCluster) -> None:
    listener = Ordered()
    async with consuming(cluster, listener) as consumer:
        await cluster.send("orders", b"1", 0)
        await eventually(lambda: listener.count == 1, "the first")
        fetching = consumer._fetching
        assert isinstance(fetching, OrderedFetching)
        locks = fetching._locks
        assert locks is not None
        queue = Queue("orders", "broker-a", 0)
        assert locks.is_held(queue)
        granted = locks._granted[queue]
        assert granted[1] is not None
        granted[1].connection.abort()
        await eventually(lambda: not locks.is_held(queue), "it is not relied on")
        # It is had anew long before the twenty seconds after which locks are renewed.
        await eventually(lambda: locks.is_held(queue), "it is renewed", 15)
        await cluster.send("orders", b"2", 0)
        await eventually(lambda: listener.heard[0] == [1, 2], "the second")
