"""Finding messages over the network."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog.client.admin import messages as messages_module
from onelog.client.admin.admin import AsyncAdmin
from onelog.client.admin.groups import GroupChange
from onelog.client.admin.messages import Found
from onelog.clock import SystemClock
from onelog.errors import InvalidRequestError, MessageNotFoundError, TopicNotFoundError
from onelog.message import encode_host, message_id
from tests.client.admin.test_groups import commit
from tests.client.live_cluster import LiveCluster, live_cluster


def bodies(found: list[Found] | tuple[Found, ...]) -> list[bytes]:
    return [bytes(each.message.body) for each in found]


async def test_an_id_leads_to_its_message_on_its_broker(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
            for number in range(3):
                sent = await cluster.send("orders", b"%d-%d" % (broker, number), broker=broker)
            for given in (sent, sent.lower()):
                found = await admin.messages.by_id(given)
                assert bytes(found.message.body) == b"%d-2" % broker
                assert found.broker == f"broker-{'ab'[broker]}"
                assert str(found.address) == cluster.brokers[broker].address
                assert found.message.message_id == sent


async def test_an_id_of_nothing_is_not_found(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    sent = await cluster.send("orders", b"x")
    port = cluster.brokers[0].config.broker.port
    here = encode_host("127.0.0.1", port)
    assert sent.startswith(here.hex().upper())
    inside = message_id(here, int(sent[16:], 16) + 1)
    after = message_id(here, 1 << 40)
    for missing in (inside, after):
        with pytest.raises(MessageNotFoundError, match=missing):
            await admin.messages.by_id(missing)


async def test_a_message_at_the_same_place_of_another_broker_is_not_taken_for_it(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    sent = await cluster.send("orders", b"x")
    elsewhere = message_id(encode_host("127.0.0.1", 1), int(sent[16:], 16))
    with pytest.raises(MessageNotFoundError, match=elsewhere):
        await admin.messages.by_id(elsewhere)


@pytest.mark.parametrize("text", ["", "12", "x" * 32, "00" * 15, "00" * 20])
async def test_what_is_no_id_is_refused(admin: AsyncAdmin, text: str) -> None:
    with pytest.raises(InvalidRequestError):
        await admin.messages.by_id(text)


async def test_keys_are_looked_for_on_every_broker_and_collisions_dropped(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
        # "Aa" and "BB" have the same hash in Java.
        await cluster.send("orders", b"first", KEYS="Aa one")
        await cluster.send("orders", b"collides", KEYS="BB")
        await cluster.send("orders", b"second", broker=1, KEYS="two Aa")
        search = await admin.messages.by_key("orders", "Aa")
        assert bodies(search.messages) == [b"first", b"second"]
        assert [found.broker for found in search.messages] == ["broker-a", "broker-b"]
        assert search.failures == ()
        assert bodies((await admin.messages.by_key("orders", "BB")).messages) == [b"collides"]
        assert bodies((await admin.messages.by_key("orders", "Aa", count_max=1)).messages) == [
            b"second"
        ]
        with pytest.raises(MessageNotFoundError, match="has the key 'Cc'"):
            await admin.messages.by_key("orders", "Cc")


async def test_keys_are_looked_for_in_a_span_of_time(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"x", KEYS="k")
    now_ms = SystemClock().now_ms()
    search = await admin.messages.by_key("orders", "k", begin_ms=now_ms - 60_000)
    assert bodies(search.messages) == [b"x"]
    with pytest.raises(MessageNotFoundError):
        await admin.messages.by_key("orders", "k", begin_ms=now_ms + 60_000)


async def test_a_broker_that_does_not_answer_may_have_the_key(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
        for listener in cluster.brokers[0]._listeners:
            await listener.close()
        search = await admin.messages.by_key("orders", "k")
        assert search.messages == ()
        assert [failure.who for failure in search.failures] == ["broker-a"]


async def test_a_unique_key_is_not_a_key(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    await cluster.send("orders", b"right", UNIQ_KEY="AC1100010001")
    await cluster.send("orders", b"wrong", KEYS="AC1100010001")
    search = await admin.messages.by_unique_key("orders", "AC1100010001")
    assert bodies(search.messages) == [b"right"]
    with pytest.raises(MessageNotFoundError, match="unique key 'AC00'"):
        await admin.messages.by_unique_key("orders", "AC00")


async def test_a_place_leads_to_messages_from_there_on(
    admin: AsyncAdmin, cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "PULL_COUNT", 4)
    await cluster.create_topic("orders", 2)
    for number in range(10):
        await cluster.send("orders", b"%d" % number, queue=1)
    assert bodies(await admin.messages.by_offset("orders", 1, 3)) == [b"3"]
    found = await admin.messages.by_offset("orders", 1, 2, count=7)
    assert bodies(found) == [b"%d" % number for number in range(2, 9)]
    found = await admin.messages.by_offset("orders", 1, 8, count=100, broker="broker-a")
    assert bodies(found) == [b"8", b"9"]


async def test_a_place_without_a_message_says_what_there_is(
    admin: AsyncAdmin, cluster: LiveCluster
) -> None:
    await cluster.create_topic("orders", 2)
    await cluster.send("orders", b"x", queue=1)
    with pytest.raises(MessageNotFoundError, match=r"no message at offset 1: .* has 0 up to 0"):
        await admin.messages.by_offset("orders", 1, 1)
    with pytest.raises(MessageNotFoundError, match="is empty"):
        await admin.messages.by_offset("orders", 0, 5)
    with pytest.raises(InvalidRequestError, match="no such queue: broker-a has 0 to 1"):
        await admin.messages.by_offset("orders", 2, 0)
    with pytest.raises(TopicNotFoundError):
        await admin.messages.by_offset("nope", 0, 0)


async def test_a_queue_on_several_brokers_needs_a_name(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
        await cluster.send("orders", b"x", broker=1)
        with pytest.raises(InvalidRequestError, match="say which: broker-a, broker-b"):
            await admin.messages.by_offset("orders", 0, 0)
        found = await admin.messages.by_offset("orders", 0, 0, broker="broker-b")
        assert bodies(found) == [b"x"]


async def test_a_span_of_time_has_the_messages_of_all_queues_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "PULL_COUNT", 2)
    async with live_cluster(tmp_path, brokers=2) as cluster, cluster.admin() as admin:
        for broker in (0, 1):
            await cluster.create_topic("orders", broker=broker)
        times = []
        for number in range(12):
            await asyncio.sleep(0.002)
            times.append(SystemClock().now_ms())
            await cluster.send("orders", b"%d" % number, queue=number % 2, broker=number // 2 % 2)
        await asyncio.sleep(0.002)

        async def found(begin_ms: int, **more: Any) -> list[bytes]:
            return bodies(
                [each async for each in admin.messages.by_time("orders", begin_ms, **more)]
            )

        everything = [b"%d" % number for number in range(12)]
        assert await found(0) == everything
        assert await found(times[5]) == everything[5:]
        assert await found(times[5], end_ms=times[9] - 1) == everything[5:9]
        assert await found(times[5], queue_id=1) == everything[5::2]
        assert await found(SystemClock().now_ms() + 1000) == []
        with pytest.raises(InvalidRequestError, match="no such queue"):
            await found(0, queue_id=7)


async def test_following_goes_on_with_what_comes(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 2)
    await cluster.send("orders", b"old")
    following = admin.messages.follow("orders", 0, pause_seconds=0.01)
    assert bytes((await anext(following)).message.body) == b"old"
    for number in range(3):
        coming = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.03)
        assert not coming.done()
        await cluster.send("orders", b"%d" % number, queue=number % 2)
        async with asyncio.timeout(30):
            assert bytes((await coming).message.body) == b"%d" % number
    await following.aclose()


async def test_which_groups_are_past_a_message(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    sent = [await cluster.send("orders", b"x") for _ in range(2)]
    client = await cluster.client()
    for group, position in (("slow", 1), ("fast", 2)):
        await admin.groups.create(group, GroupChange())
        await commit(client, group, "orders", 0, position)
    found = await admin.messages.by_id(sent[1])
    assert [(c.group, c.position, c.is_past) for c in await admin.messages.consumption(found)] == [
        ("fast", 2, True),
        ("slow", 1, False),
    ]


async def test_looking_leaves_no_trace(admin: AsyncAdmin, cluster: LiveCluster) -> None:
    await cluster.create_topic("orders", 1)
    await cluster.send("orders", b"x")
    await admin.messages.by_offset("orders", 0, 0)
    async for _ in admin.messages.by_time("orders", 0):
        pass
    assert cluster.brokers[0].core.offsets.groups_of("orders") == []
