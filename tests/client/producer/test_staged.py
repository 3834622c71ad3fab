"""Batches that are staged on brokers and committed by a driver."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.message import Queue
from onelog.client.producer.staged import PreparedBatches
from onelog.errors import BrokerNotFoundError, PeerClosedError, RequestRefusedError
from onelog.record.inner_batch import encode_batch
from onelog.wire.remoting.codes import RequestCode
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.gateways.remoting.live import remoting

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path, brokers=2) as running:
        for broker in (0, 1):
            await running.create_topic("orders", 2, broker)
        yield running


@pytest.fixture
async def instance(pair: LiveCluster) -> AsyncIterator[Instance]:
    client = Instance({"nameserver": pair.addresses})
    await client.start()
    yield client
    await client.close()


def body(*bodies: bytes) -> bytes:
    return encode_batch([(0, each, b"") for each in bodies])


def stored(pair: LiveCluster, broker: int) -> list[bytes]:
    store = pair.brokers[broker].store
    return [bytes(each.body) for q in (0, 1) for each in store.messages("orders", q, 0, 100)]


async def test_a_batch_on_two_brokers_becomes_visible_on_both(
    pair: LiveCluster, instance: Instance
) -> None:
    job = PreparedBatches(instance, "copy")
    assert not await job.is_committed(0)
    parts = [
        await job.stage(Queue("orders", name, 1), body(b"1", b"2"), 0, "task-0")
        for name in ("broker-a", "broker-b")
    ]
    assert [part.size for part in parts] == [2, 2]
    assert stored(pair, 0) == stored(pair, 1) == []
    assert not await job.commit(0, parts)
    assert stored(pair, 0) == stored(pair, 1) == [b"1", b"2"]
    assert await job.is_committed(0)
    assert await job.commit(0, parts)
    assert stored(pair, 0) == stored(pair, 1) == [b"1", b"2"]


async def test_a_driver_that_died_after_the_decision_is_completed_by_the_next(
    pair: LiveCluster, instance: Instance
) -> None:
    job = PreparedBatches(instance, "copy")
    mine = await job.stage(Queue("orders", "broker-a", 0), body(b"a"), 0, "0")
    theirs = await job.stage(Queue("orders", "broker-b", 0), body(b"b"), 0, "0")
    coordinator = pair.brokers[0]
    address = await pair.client(0)
    decided = await address.ask(
        RequestCode.COMMIT_STAGED,
        b"[%d]" % mine.offset,
        query="copy",
        batch=0,
        note=json.dumps({"broker-b": [theirs.offset]}),
    )
    assert decided.code == 0
    assert coordinator.core.prepared_batches.last_batch("copy") == 0
    assert stored(pair, 1) == []
    # The next driver has staged the batch anew, in vain: the decision stands.
    again = await job.stage(Queue("orders", "broker-b", 0), body(b"b"), 0, "1")
    assert await job.commit(0, [again])
    assert (stored(pair, 0), stored(pair, 1)) == ([b"a"], [b"b"])


async def test_a_broker_that_is_gone_is_named_and_the_commit_can_be_repeated(
    pair: LiveCluster, instance: Instance
) -> None:
    job = PreparedBatches(instance, "copy")
    part = await job.stage(Queue("orders", "broker-a", 0), body(b"a"), 0, "0")
    with pytest.raises(BrokerNotFoundError, match=r"'broker-c'.*commit again"):
        await job.commit(0, [part, part._replace(broker="broker-c")])
    with pytest.raises(BrokerNotFoundError, match="broker-c"):
        await job.commit(0, [part])
    assert stored(pair, 0) == [b"a"]


async def test_a_topic_comes_into_being_when_something_is_staged_for_it(
    pair: LiveCluster, instance: Instance
) -> None:
    job = PreparedBatches(instance, "copy")
    part = await job.stage(Queue("fresh", "broker-a", 3), body(b"a"), 0, "0")
    await job.commit(0, [part])
    assert [bytes(m.body) for m in pair.brokers[0].store.messages("fresh", 3, 0, 9)] == [b"a"]


async def test_a_server_that_cannot_prepare_batches_is_named_as_the_reason(
    pair: LiveCluster, instance: Instance
) -> None:
    for server in pair.brokers:
        for code in (RequestCode.STAGE_MESSAGES, RequestCode.QUERY_STAGED):
            del remoting(server).local_handlers[code]
    job = PreparedBatches(instance, "copy")
    with pytest.raises(RequestRefusedError, match="no OneLog broker"):
        await job.stage(Queue("orders", "broker-a", 0), body(b"a"), 0, "0")


class Unreachable(PreparedBatches):
    """Finds one broker registered that does not answer."""

    away = "broker-a"

    async def _masters(self) -> dict[str, Address]:
        return {**await super()._masters(), self.away: Address("127.0.0.1", 1)}


async def test_nothing_is_decided_before_all_brokers_could_be_asked_who_decides(
    pair: LiveCluster, instance: Instance
) -> None:
    with pytest.raises(PeerClosedError, match="'broker-a' may know who decides for query 'copy'"):
        await Unreachable(instance, "copy").commit(0, [])
    await PreparedBatches(instance, "copy").commit(0, [])
    for ask in (
        Unreachable(instance, "copy").is_committed(0),
        Unreachable(instance, "copy").commit(1, []),
    ):
        with pytest.raises(PeerClosedError, match="'broker-a' decides for query 'copy', and cann"):
            await ask
    assert pair.brokers[1].core.prepared_batches.last_batch("copy") == 0


async def test_a_broker_that_does_not_decide_and_has_no_part_may_be_away(
    pair: LiveCluster, instance: Instance
) -> None:
    await PreparedBatches(instance, "copy").commit(0, [])
    away = Unreachable(instance, "copy")
    away.away = "broker-b"
    assert not await away.commit(1, [])
    assert await PreparedBatches(instance, "copy").is_committed(1)


async def test_a_broker_that_cannot_prepare_batches_does_not_decide(
    pair: LiveCluster, instance: Instance
) -> None:
    gateway = remoting(pair.brokers[0])
    for code in (RequestCode.QUERY_STAGED, RequestCode.COMMIT_STAGED):
        del gateway.local_handlers[code]
    job = PreparedBatches(instance, "copy")
    assert await job.choose_decider() == "broker-b"
    part = await job.stage(Queue("orders", "broker-b", 0), body(b"b"), 0, "0")
    await job.commit(0, [part])
    assert stored(pair, 1) == [b"b"]


async def test_every_broker_knows_who_decides_before_anything_is_decided(
    pair: LiveCluster, instance: Instance
) -> None:
    class Dying(PreparedBatches):
        async def _commit_on(self, *arguments: Any) -> None:
            if arguments[1] == "broker-a":
                raise ConnectionAbortedError
            await super()._commit_on(*arguments)

    with pytest.raises(ConnectionAbortedError):
        await Dying(instance, "copy").commit(0, [])
    assert pair.brokers[0].core.prepared_batches.last_batch("copy") is None
    assert await PreparedBatches(instance, "copy").find_decider() == "broker-a"
    assert not await PreparedBatches(instance, "copy").is_committed(0)
