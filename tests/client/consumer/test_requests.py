"""What administrators and brokers ask of a live consumer, over the broker, as their tools do."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.client.admin.groups import read_running_info
from onelog.client.consumer.listening import RetryLater
from onelog.client.consumer.push.consumer import AsyncPushConsumer
from onelog.client.consumer.requests import ConsumerRequests
from onelog.client.message import ReceivedMessage
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import ConsumerRunningInfo
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.stats import ConsumerStatus, DirectConsumption, ResetOffsets
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.waiting import eventually

QUEUE = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    async with live_cluster(tmp_path) as running:
        await running.create_topic("orders", 2)
        yield running


class Listener:
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.error: BaseException | None = None

    async def __call__(self, message: ReceivedMessage) -> None:
        self.heard.append(message.body)
        if self.error is not None:
            raise self.error


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
async def consumer(cluster: LiveCluster, listener: Listener) -> AsyncIterator[AsyncPushConsumer]:
    consumer = AsyncPushConsumer("billing", nameserver=cluster.addresses, start="first")
    async with consumer:
        consumer.subscribe("orders", "a || b", listener=listener)
        await consumer.start()
        yield consumer


async def test_it_tells_how_it_stands(
    cluster: LiveCluster, consumer: AsyncPushConsumer, listener: Listener
) -> None:
    for number in range(5):
        await cluster.send("orders", b"%d" % number, TAGS="a")
    await eventually(lambda: len(listener.heard) == 5, "all are heard")
    client = await cluster.client()
    answer = await client.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup="billing",
        clientId=consumer.client_id,
        jstackEnable="true",
    )
    assert answer.code == 0, answer.remark
    info = ConsumerRunningInfo.decode(answer.body)
    assert info.mq_table[QUEUE].commit_offset == 5
    assert info.mq_table[QUEUE].last_pull_timestamp > 1_700_000_000_000
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 1_700_000_000_000
    assert info.properties["start"] == "first"
    assert info.jstack is not None
    assert "MainThread" in info.jstack
    assert info.status_table["orders"].consume_ok_tps > 0
    queues, filters = read_running_info(answer.body)
    assert QUEUE in queues
    assert filters == {"%RETRY%billing": "*", "orders": "a || b"}


async def test_the_admin_describes_it(cluster: LiveCluster, consumer: AsyncPushConsumer) -> None:
    await consumer.commit()
    async with cluster.admin() as admin:
        description = await admin.groups.describe("billing", with_owners=True)
    assert [each.client_id for each in description.members.members] == [consumer.client_id]
    owners = [each.client_id for each in description.progress.queues if each.topic == "orders"]
    assert owners == [consumer.client_id] * 2


async def test_a_consumer_of_another_group_is_not_asked(
    cluster: LiveCluster, consumer: AsyncPushConsumer
) -> None:
    client = await cluster.client()
    answer = await client.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup="others",
        clientId=consumer.client_id,
        jstackEnable="false",
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_it_tells_its_positions(
    cluster: LiveCluster, consumer: AsyncPushConsumer, listener: Listener
) -> None:
    await cluster.send("orders", b"1", TAGS="a")
    await eventually(lambda: len(listener.heard) == 1, "it is heard")
    client = await cluster.client()
    answer = await client.ask(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        topic="orders",
        group="billing",
        clientAddr="",
    )
    table = ConsumerStatus.decode(answer.body).consumer_table[consumer.client_id]
    assert table[QUEUE] == 1


@pytest.mark.parametrize(
    ("error", "result", "remark"),
    [
        (None, "CR_SUCCESS", None),
        (ValueError("broken"), "CR_THROW_EXCEPTION", "ValueError: broken"),
        (RetryLater("on Monday"), "CR_LATER", "on Monday"),
    ],
)
async def test_it_consumes_a_message_when_it_is_told_to(
    cluster: LiveCluster,
    consumer: AsyncPushConsumer,
    listener: Listener,
    error: Exception | None,
    result: str,
    remark: str | None,
) -> None:
    message_id = await cluster.send("orders", b"1", TAGS="z")
    listener.error = error
    client = await cluster.client()
    answer = await client.ask(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup="billing",
        clientId=consumer.client_id,
        msgId=message_id,
        topic="orders",
    )
    assert answer.code == 0, answer.remark
    told = DirectConsumption.decode(answer.body)
    assert (told.consume_result, told.remark, told.order) == (result, remark, False)
    # It has no wanted tag, so this was the only way for it to be heard.
    assert listener.heard == [b"1"]


async def test_a_reset_that_a_broker_leaves_to_members_is_carried_out(
    cluster: LiveCluster, consumer: AsyncPushConsumer, listener: Listener
) -> None:
    for number in range(5):
        await cluster.send("orders", b"%d" % number, TAGS="a")
    await eventually(lambda: len(listener.heard) == 5, "all are heard")
    server = cluster.brokers[0]
    live = server.core.members.group("billing")
    assert live is not None
    member = live.find(consumer.client_id)
    assert member is not None
    channel = member.client.channel
    body = ResetOffsets(offset_table={QUEUE: 3}).encode()
    for group in ("others", "billing"):
        channel.oneway(  # type: ignore[attr-defined]
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"topic": "orders", "group": group, "timestamp": "0", "isForce": "true"},
            body,
        )
    await eventually(lambda: len(listener.heard) >= 7, "two come again")
    assert listener.heard == [b"0", b"1", b"2", b"3", b"4", b"3", b"4"]


async def test_a_change_of_members_is_acted_upon_at_once(
    cluster: LiveCluster, consumer: AsyncPushConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(consumer.assigned) == 2
    other = AsyncPushConsumer("billing", nameserver=cluster.addresses)
    async with other:
        other.subscribe("orders", "a || b", listener=Listener())
        await other.start()
        # Without the broker's word this would take 20 s.
        async with asyncio.timeout(10):
            await eventually(lambda: len(consumer.assigned) == 1, "they share")
    await eventually(lambda: len(consumer.assigned) == 2, "it has both again")


def test_all_requests_of_brokers_to_consumers_are_known() -> None:
    class Sink:
        handlers: dict[int, object]
        consumers: dict[str, object]

    sink = Sink()
    sink.handlers, sink.consumers = {}, {}

    class Member:
        instance = sink
        group = "billing"

    ConsumerRequests(Member(), None, "CONSUME_PASSIVELY", {}).register()  # type: ignore[arg-type]
    assert set(sink.handlers) == {40, 220, 221, 307, 309}
