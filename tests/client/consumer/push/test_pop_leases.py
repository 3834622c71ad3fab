"""Leases on live brokers, with answers that come late, get lost, or say no."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push import popping as pop_leases
from onelog.errors import PeerTimeoutError
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.groups import SubscriptionGroupConfig
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.pop_member import GROUP, Member, member
from tests.client.watching import bodies
from tests.waiting import eventually

ACK = RequestCode.ACK_MESSAGE
BATCH = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", queues=1)
        yield running


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_leases, "AGAIN_SECONDS", 0.05)


async def left(one: Member) -> int:
    await one.fetching.commit()
    return sum((await one.fetching.lag()).values())


async def send(cluster: LiveCluster, count: int) -> list[bytes]:
    sent = [b"%d" % number for number in range(count)]
    for body in sent:
        await cluster.send("orders", body)
    return sent


async def test_a_broker_that_knows_no_batches_is_told_one_by_one(cluster: LiveCluster) -> None:
    async def refuse() -> Command:
        return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    sent = await send(cluster, 5)
    async with member(cluster) as one:
        one.interfere[BATCH] = refuse
        await one.has(*sent)
        one.done()
        assert await left(one) == 0
        assert (len(one.asked[BATCH]), len(one.asked[ACK])) == (1, 5)
        await one.has(*await send(cluster, 3))
        one.done()
        assert await left(one) == 0
        assert (len(one.asked[BATCH]), len(one.asked[ACK])) == (1, 8)


async def test_an_acknowledgement_that_got_lost_is_sent_again(cluster: LiveCluster) -> None:
    async def lose() -> None:
        if len(one.asked[ACK]) < 3:
            raise PeerTimeoutError("lost")

    sent = await send(cluster, 1)
    async with member(cluster) as one:
        one.interfere[ACK] = lose
        await one.has(*sent)
        one.done()
        assert await left(one) == 0
        assert len(one.asked[ACK]) == 3


async def test_acknowledging_ends_with_the_lease(cluster: LiveCluster) -> None:
    async def lose() -> None:
        raise PeerTimeoutError("lost")

    sent = await send(cluster, 1)
    async with member(cluster, invisible_ms=500) as one:
        one.interfere[ACK] = lose
        await one.has(*sent)
        one.done()
        async with asyncio.timeout(30):
            await one.fetching.commit()
        await one.has(*sent)
        assert one.taken[0][1].delivery_attempt == 2


async def test_what_is_done_while_its_lease_is_prolonged_is_acknowledged_afterwards(
    cluster: LiveCluster,
) -> None:
    go_on = asyncio.Event()

    async def wait() -> None:
        await go_on.wait()

    sent = await send(cluster, 1)
    async with member(cluster, invisible_ms=2_000) as one:
        one.interfere[CHANGE] = wait
        await one.has(*sent)
        await eventually(lambda: one.asked[CHANGE])
        one.done()
        await asyncio.sleep(0.05)
        assert not one.asked[ACK]
        go_on.set()
        await eventually(lambda: one.asked[ACK])
        assert one.asked[ACK][0]["extraInfo"] != one.asked[CHANGE][0]["extraInfo"]
        assert await left(one) == 0
        assert len(one.asked[ACK]) == 1


async def test_a_message_whose_lease_was_lost_is_not_spoken_of_any_more(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def deny() -> Command:
        return Command(ResponseCode.NO_MESSAGE, remark="not out under that receipt")

    sent = await send(cluster, 1)
    async with member(cluster, invisible_ms=1_000) as one:
        one.interfere[CHANGE] = deny
        await one.has(*sent)
        await eventually(lambda: "comes again while it is in hand" in caplog.text)
        assert "not out under that receipt" in caplog.text
        one.done()
        await one.fetching.commit()
        assert not one.asked[ACK]


async def test_a_lease_that_could_not_be_prolonged_is_tried_again(cluster: LiveCluster) -> None:
    async def lose() -> None:
        if len(one.asked[CHANGE]) == 1:
            raise PeerTimeoutError("lost")

    sent = await send(cluster, 1)
    async with member(cluster, invisible_ms=2_000) as one:
        one.interfere[CHANGE] = lose
        await one.has(*sent)
        await eventually(lambda: len(one.asked[CHANGE]) >= 3)
        assert one.bodies == sent
        one.done()
        assert await left(one) == 0


async def test_how_often_a_message_is_retried_is_the_groups_setting(cluster: LiveCluster) -> None:
    config = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    asking = await cluster.client()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await asking.peer.ask(code, None, config.encode())).code == 0
    sent = await send(cluster, 2)
    async with member(cluster) as one:
        await one.has(*sent)
        one.failed(ValueError("never"))
        await one.fetching.commit()
        assert sorted(await bodies(cluster, f"%DLQ%{GROUP}", 1)) == sent


async def test_a_dead_letter_that_cannot_be_written_comes_again_later(
    cluster: LiveCluster,
) -> None:
    async def lose() -> None:
        raise PeerTimeoutError("lost")

    sent = await send(cluster, 1)
    async with member(cluster) as one:
        one.interfere[RequestCode.CONSUMER_SEND_MSG_BACK] = lose
        await one.has(*sent)
        one.failed(RetryLater(delay_level=-1))
        await one.fetching.commit()
        assert not one.asked[ACK]
        assert one.asked[CHANGE][0]["invisibleTime"] == "10000"
