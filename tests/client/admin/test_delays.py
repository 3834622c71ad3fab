"""Messages that wait, seen over the network."""

import asyncio
import time
from pathlib import Path

import pytest

from onelog.client.admin.admin import AsyncAdmin
from onelog.errors import (
    InvalidRequestError,
    MessageNotFoundError,
)
from onelog.message import NewMessage, encode_properties
from onelog.names import TIMER_TOPIC
from onelog.wire.remoting.recall_handle import RecallHandle
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.gateways.remoting.live import pass_time
from tests.waiting import eventually

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_nothing_waits(admin: AsyncAdmin) -> None:
    listing = await admin.delays.waiting()
    assert (listing.messages, listing.count, listing.failures) == ((), 0, ())


async def test_what_waits_is_listed_by_when_it_is_due(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders")
    begin = now_ms()
    later = await cluster.send(
        "orders",
        b"12345",
        1,
        UNIQ_KEY="U1",
        KEYS="a b",
        TAGS="t",
        TIMER_DELIVER_MS=str(begin + HOUR_MS),
    )
    level = await cluster.send("orders", b"x", UNIQ_KEY="U2", DELAY="16")
    await cluster.send("orders", b"delivered at once")
    listing = await admin.delays.waiting()
    first, second = listing.messages
    assert listing.count == 2
    assert (first.message_id, first.level, first.handle) == (level, 16, None)
    assert 0 <= first.due_ms - (begin + HOUR_MS // 2) < 60_000
    assert (second.message_id, second.level) == (later, None)
    assert (second.due_ms, second.topic, second.queue_id) == (begin + HOUR_MS, "orders", 1)
    assert (second.broker, second.unique_key, second.keys) == ("broker-a", "U1", ("a", "b"))
    assert (second.tags, second.body_bytes, second.born_ms) == ("t", 5, 1_700_000_000_000)
    assert second.handle is not None
    assert RecallHandle.decode(second.handle) == RecallHandle(
        "orders", "broker-a", begin + HOUR_MS + 1, "U1"
    )


async def test_what_is_delivered_or_taken_back_is_not_listed(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"x", UNIQ_KEY="soon", TIMER_DELAY_MS="100")
    store = cluster.brokers[0].store
    await eventually(lambda: store.max_offset("orders", 0) == 1, "it is delivered")
    for key in ("A", "B", "C"):
        await cluster.send("orders", b"x", UNIQ_KEY=key, TIMER_DELAY_MS=str(HOUR_MS))
    await admin.delays.cancel(await admin.delays.find("B"))
    listing = await admin.delays.waiting()
    assert [each.unique_key for each in listing.messages] == ["A", "C"]


async def test_many_are_read_and_the_first_are_listed(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders")
    await cluster.create_topic("other")
    client = await cluster.client()
    begin = now_ms() + HOUR_MS
    numbers = [number * 7_919 % 700 for number in range(700)]
    await asyncio.gather(
        *(
            client.send(
                "other" if number % 10 == 0 else "orders",
                b"x",
                {"UNIQ_KEY": f"U{number}", "TIMER_DELIVER_MS": str(begin + number)},
            )
            for number in numbers
        )
    )
    told: list[tuple[int, int]] = []
    listing = await admin.delays.waiting(
        count_max=5, on_progress=lambda done, total: told.append((done, total))
    )
    assert [each.due_ms - begin for each in listing.messages] == [0, 1, 2, 3, 4]
    assert listing.count == 700
    assert told[-1] == (700, 700)
    assert told == sorted(told)
    of_other = await admin.delays.waiting("other", count_max=3)
    assert [each.due_ms - begin for each in of_other.messages] == [0, 10, 20]
    assert of_other.count == 70


async def test_copies_that_replace_older_ones_are_listed_once(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    due_ms = now_ms() // 1_000 * 1_000 + HOUR_MS

    def scheduled(key: str, **more: str) -> NewMessage:
        own = {"UNIQ_KEY": key, "REAL_TOPIC": "t", "REAL_QID": "0", **more}
        return NewMessage(TIMER_TOPIC, 0, b"x", encode_properties(own))

    # As OneLog renews messages, and as RocketMQ rolls them.
    ours, theirs = {"TIMER_OUT_MS": f"0{due_ms}"}, {"TIMER_OUT_MS": str(due_ms)}
    cluster.brokers[0].store.append(
        [
            scheduled("A", **ours),
            scheduled("B", **theirs),
            scheduled("C", TIMER_DELIVER_MS=str(due_ms + 300), **theirs),
            scheduled("A", TIMER_ROLL_TIMES="1", TIMER_ROLL_FROM="0", **ours),
            scheduled("B", TIMER_ROLL_TIMES="1", **theirs),
            scheduled("D", TIMER_OUT_MS="soon"),
        ]
    )
    listing = await admin.delays.waiting()
    assert [(each.unique_key, each.due_ms - due_ms) for each in listing.messages] == [
        ("A", 0),
        ("C", 300),
        ("B", 1_000),
    ]


async def test_a_message_is_taken_back_by_handle_id_or_unique_key(
    cluster: LiveCluster, admin: AsyncAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("orders")
    client = await cluster.client()
    keys = [f"7F0000010001{number:020X}" for number in range(3)]
    sent = [
        await client.send("orders", b"%d" % number, {"UNIQ_KEY": key, "TIMER_DELAY_MS": "60000"})
        for number, key in enumerate(keys)
    ]
    await client.send("orders", b"kept", {"TIMER_DELAY_MS": "60000"})
    for which in (sent[0].ext["recallHandle"], sent[1].ext["msgId"], keys[2]):
        await admin.delays.cancel(await admin.delays.find(which))
    pass_time(cluster.brokers[0], 61_000, monkeypatch)
    store = cluster.brokers[0].store
    await eventually(lambda: store.max_offset("orders", 0) > 0, "one is delivered")
    assert [bytes(each.body) for each in store.messages("orders", 0, 0, 9)] == [b"kept"]


async def test_what_cannot_be_taken_back_is_refused(
    cluster: LiveCluster, admin: AsyncAdmin
) -> None:
    await cluster.create_topic("orders")
    level = await cluster.send("orders", b"x", DELAY="5")
    plain = await cluster.send("orders", b"x")
    timed = await cluster.send("orders", b"x", UNIQ_KEY="U1", TIMER_DELAY_MS=str(HOUR_MS))
    with pytest.raises(InvalidRequestError, match="delay level"):
        await admin.delays.find(level)
    with pytest.raises(MessageNotFoundError, match="in topic orders"):
        await admin.delays.find(plain)
    for unknown in ("nope", "7F000001" + "0" * 24):
        with pytest.raises(MessageNotFoundError):
            await admin.delays.find(unknown)
    handle = await admin.delays.find(timed)
    await admin.delays.cancel(handle)
    await admin.delays.cancel(handle)  # As with RocketMQ: what is not scheduled will not come.


async def test_all_brokers_are_read_and_one_that_fails_is_named(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in range(2):
            await cluster.create_topic("orders", broker=broker)
            await cluster.send("orders", b"x", broker=broker, TIMER_DELAY_MS=str(HOUR_MS))
        listing = await admin.delays.waiting()
        assert [each.broker for each in listing.messages] == ["broker-a", "broker-b"]
        for listener in cluster.brokers[1]._listeners:
            await listener.close()
        listing = await admin.delays.waiting()
        assert [each.broker for each in listing.messages] == ["broker-a"]
        (failure,) = listing.failures
        assert failure.who == "broker-b"
