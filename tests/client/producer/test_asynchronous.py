"""The asyncio producer, against real brokers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onelog.client.credentials import Credentials
from onelog.client.hooks import SendContext
from onelog.client.message import Message, Queue, Receipt, ReceivedMessage, SendStatus
from onelog.client.producer import pending_sends as flights_module
from onelog.client.producer.producer import AsyncProducer
from onelog.config_sources import load
from onelog.errors import (
    ClientClosedError,
    ConfigError,
    InvalidGroupError,
    MessageError,
    MessageTooLargeError,
    SendFailedError,
    TopicNotFoundError,
    WireError,
    WrongLoopError,
)
from onelog.message import java_hash
from onelog.server import running_broker
from onelog.wire.remoting.codes import RequestCode
from tests.client.live_cluster import LiveCluster, live_cluster
from tests.client.scripted import knowing, route_data, scripted, silent, storing
from tests.client.watching import TOO_LARGE, bodies, stored
from tests.gateways.remoting.live import SMALL, pass_time
from tests.ports import free_port
from tests.waiting import eventually


@pytest.fixture
async def producer(cluster: LiveCluster) -> AsyncIterator[AsyncProducer]:
    await cluster.create_topic("orders", queues=4)
    async with AsyncProducer("shop", nameserver=cluster.addresses, timeout=20) as running:
        yield running


async def only(cluster: LiveCluster, topic: str = "orders") -> ReceivedMessage:
    (record,) = await stored(cluster, topic)
    return ReceivedMessage(record, "broker-a")


# One message.


async def test_what_is_sent_is_stored_with_everything(
    cluster: LiveCluster, producer: AsyncProducer
) -> None:
    sent = Message(
        "orders", b"hello", tags="paid", keys=["42", "43"], properties={"größe": 'ß"\\'}, flag=7
    )
    receipt = await producer.send(sent)
    message = await only(cluster)
    assert (message.body, message.tags, message.keys) == (b"hello", "paid", ["42", "43"])
    assert (message.properties, message.flag) == ({"größe": 'ß"\\'}, 7)
    assert (message.message_id, message.offset_id) == (receipt.message_id, receipt.offset_id)
    assert (message.queue, message.offset) == (receipt.queue, receipt.offset)
    assert receipt.status is SendStatus.OK
    assert abs(message.store_ms - message.born_ms) < 20_000


async def test_messages_go_round_the_queues(producer: AsyncProducer) -> None:
    queues = await producer.queues("orders")
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
    receipts = [await producer.send(Message("orders", b"x")) for _ in range(12)]
    assert Counter(receipt.queue for receipt in receipts) == dict.fromkeys(queues, 3)
    assert sorted(receipt.offset for receipt in receipts) == [0] * 4 + [1] * 4 + [2] * 4


async def test_two_topics_that_take_turns_use_all_their_queues(producer: AsyncProducer) -> None:
    await producer.send(Message("other", b"x"))
    used: Counter[Queue] = Counter()
    for _ in range(8):
        used[(await producer.send(Message("orders", b"x"))).queue] += 1
        await producer.send(Message("other", b"x"))
    assert set(used.values()) == {2}


async def test_one_key_is_one_queue_and_the_one_that_java_takes(producer: AsyncProducer) -> None:
    queues = await producer.queues("orders")
    for key in ("42", "order-1", "schön"):
        receipts = [await producer.send(Message("orders", b"x"), order_key=key) for _ in range(3)]
        assert {receipt.queue for receipt in receipts} == {queues[abs(java_hash(key)) % 4]}
        offsets = [receipt.offset for receipt in receipts]
        assert offsets == sorted(offsets)


async def test_a_queue_may_be_chosen(producer: AsyncProducer) -> None:
    queue = (await producer.queues("orders"))[2]
    for _ in range(3):
        assert (await producer.send(Message("orders", b"x"), queue=queue)).queue == queue


async def test_choices_that_make_no_sense_are_refused(producer: AsyncProducer) -> None:
    await producer.send(Message("orders", b"x"))
    queue = Queue("orders", "broker-a", 0)
    with pytest.raises(MessageError, match="exclude one another"):
        await producer.send(Message("orders", b"x"), order_key="1", queue=queue)
    with pytest.raises(MessageError, match="is no queue of topic 'other'"):
        await producer.send(Message("other", b"x"), queue=queue)
    with pytest.raises(TypeError, match="order_key must be a text, not int"):
        await producer.send(Message("orders", b"x"), order_key=42)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout must be a positive time"):
        await producer.send(Message("orders", b"x"), timeout=0)


async def test_many_sends_at_a_time_all_arrive(
    cluster: LiveCluster, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit is reached again and again, from the first moment on.
    monkeypatch.setattr(flights_module, "PENDING_MAX", 16)
    monkeypatch.setattr("onelog.client.producer.delivery.PENDING_MAX", 16)
    wanted = [b"%d" % number for number in range(500)]
    receipts = await asyncio.gather(*(producer.send(Message("orders", body)) for body in wanted))
    assert len({receipt.message_id for receipt in receipts}) == 500
    assert len({(receipt.queue, receipt.offset) for receipt in receipts}) == 500
    assert sorted(await bodies(cluster, "orders")) == sorted(wanted)
    assert producer.delivery.pending.weight == 0


async def test_a_send_that_is_given_up_disturbs_nobody(producer: AsyncProducer) -> None:
    await producer.send(Message("orders", b"x"))
    given_up = asyncio.create_task(producer.send(Message("orders", b"x")))
    await asyncio.sleep(0)
    given_up.cancel()
    receipts = await asyncio.gather(*(producer.send(Message("orders", b"y")) for _ in range(10)))
    assert len(receipts) == 10
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert producer.delivery.pending.weight == 0


async def test_a_topic_comes_into_being_with_as_many_queues_as_asked_for(
    cluster: LiveCluster,
) -> None:
    async with AsyncProducer("shop", nameserver=cluster.addresses, queues=3) as producer:
        await producer.send(Message("fresh", b"x"))
        assert len(await producer.queues("fresh")) == 3
    async with cluster.admin() as admin:
        assert len((await admin.topics.status("fresh")).queues) == 3


async def test_a_topic_that_may_not_come_into_being_is_an_error(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, broker__auto_create_topics=False) as cluster:
        async with AsyncProducer("shop", nameserver=cluster.addresses) as producer:
            with pytest.raises(TopicNotFoundError, match="'missing'"):
                await producer.send(Message("missing", b"x"))


async def test_a_namespace_is_before_all_names_and_nobody_sees_it(cluster: LiveCluster) -> None:
    await cluster.create_topic("tenant%orders", queues=2)
    async with AsyncProducer("shop", nameserver=cluster.addresses, namespace="tenant") as producer:
        receipt = await producer.send(Message("orders", b"x"))
        await producer.send(Message("orders", b"y"), queue=receipt.queue)
        assert receipt.queue.topic == "orders"
        assert await bodies(cluster, "tenant%orders", 2) == [b"x", b"y"]
        client = await cluster.client()
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        answer = await client.ask(code, producerGroup="tenant%shop")
        assert producer.instance.client_id in bytes(answer.body).decode()


# Bodies.


@pytest.mark.parametrize("form", ["zlib", "lz4", "zstd"])
@pytest.mark.parametrize("size", [5_000, 80_000])
async def test_large_bodies_travel_compressed(cluster: LiveCluster, form: str, size: int) -> None:
    await cluster.create_topic("orders")
    async with AsyncProducer(
        "shop",
        nameserver=cluster.addresses,
        compression=form,  # type: ignore[arg-type]
    ) as producer:
        await producer.send(Message("orders", b"x" * size))
    message = await only(cluster)
    assert len(message.raw.body) < size / 10
    assert message.body == b"x" * size


async def test_small_and_incompressible_bodies_travel_as_they_are(
    cluster: LiveCluster, producer: AsyncProducer
) -> None:
    small, random = b"x" * 4096, TOO_LARGE[:5_000]
    for body in (small, random):
        await producer.send(Message("orders", body), order_key="1")
    assert await bodies(cluster, "orders") == [small, random]


async def test_a_body_over_the_limit_is_refused_before_it_travels(cluster: LiveCluster) -> None:
    async with AsyncProducer("shop", nameserver=cluster.addresses) as producer:
        with pytest.raises(MessageTooLargeError, match="has 4194305 bytes; the limit is 4194304"):
            await producer.send(Message("orders", bytes((4 << 20) + 1)))
    async with AsyncProducer("shop", nameserver=cluster.addresses, body_bytes_max=10) as producer:
        with pytest.raises(MessageTooLargeError, match="the limit is 10"):
            await producer.send(Message("orders", b"x" * 11))


async def test_a_body_over_the_brokers_limit_is_the_brokers_error(
    cluster: LiveCluster, producer: AsyncProducer
) -> None:
    broker = f"127.0.0.1:{cluster.brokers[0].config.broker.port}"
    with pytest.raises(MessageError, match=f"{broker} refused"):
        await producer.send(Message("orders", TOO_LARGE))


# Batches.


async def test_a_batch_is_stored_together(cluster: LiveCluster, producer: AsyncProducer) -> None:
    batch = [Message("orders", b"%d" % number, tags=f"t{number}", keys="k") for number in range(5)]
    receipt = await producer.send_batch(batch)
    found = [ReceivedMessage(record, "broker-a") for record in await stored(cluster, "orders")]
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.tags for message in found] == ["t0", "t1", "t2", "t3", "t4"]
    assert ",".join(message.message_id for message in found) == receipt.message_id
    assert ",".join(message.offset_id for message in found) == receipt.offset_id
    assert {message.queue for message in found} == {receipt.queue}
    assert receipt.offset == 0


async def test_a_batch_goes_where_it_is_told(producer: AsyncProducer) -> None:
    queues = await producer.queues("orders")
    batch = [Message("orders", b"x")] * 3
    assert (await producer.send_batch(batch, queue=queues[3])).queue == queues[3]
    keyed = await producer.send_batch(batch, order_key="1")
    assert keyed.queue == (await producer.send(Message("orders", b"x"), order_key="1")).queue


async def test_a_batch_over_the_limit_is_refused(producer: AsyncProducer) -> None:
    with pytest.raises(MessageTooLargeError, match="send it in parts"):
        await producer.send_batch([Message("orders", bytes(1 << 20))] * 4)
    with pytest.raises(MessageError, match="go to one topic"):
        await producer.send_batch([Message("orders", b"x"), Message("other", b"x")])


# Later, and without an answer.


async def test_a_delayed_message_comes_later(
    cluster: LiveCluster, producer: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = await producer.send(Message("orders", b"x", delay=timedelta(minutes=1)))
    assert receipt.recall_handle is not None

    async def is_there() -> bool:
        return bool(await bodies(cluster, "orders"))

    assert not await is_there()
    pass_time(cluster.brokers[0], 61_000, monkeypatch)
    await eventually(is_there, "the delayed message")
    message = await only(cluster)
    assert message.message_id == receipt.message_id


async def test_a_timed_message_comes_at_its_time_or_not_at_all(
    cluster: LiveCluster, producer: AsyncProducer
) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=400)
    await producer.send(Message("orders", b"soon", deliver_at=soon))
    late = await producer.send(
        Message("orders", b"late", deliver_at=soon + timedelta(hours=1), keys="k")
    )
    assert late.recall_handle is not None
    assert await producer.recall("orders", late.recall_handle) == late.message_id

    async def is_there() -> bool:
        return await bodies(cluster, "orders") == [b"soon"]

    await eventually(is_there, "the timed message")
    assert await producer.recall("orders", late.recall_handle) == late.message_id
    with pytest.raises(WireError, match="handle is invalid"):
        await producer.recall("orders", "nonsense")


async def test_a_delay_level_is_kept_by_the_broker(
    cluster: LiveCluster, producer: AsyncProducer
) -> None:
    await producer.send(Message("orders", b"x", delay_level=1))

    async def is_there() -> bool:
        return bool(await bodies(cluster, "orders"))

    await eventually(is_there, "the message of level 1")
    message = await only(cluster)
    assert message.store_ms - message.born_ms >= 990


async def test_one_way_messages_arrive_without_an_answer(
    cluster: LiveCluster, producer: AsyncProducer
) -> None:
    for number in range(20):
        await producer.send_oneway(Message("orders", b"%02d" % number), order_key="1")

    async def are_there() -> bool:
        return len(await bodies(cluster, "orders")) == 20

    await eventually(are_there, "20 messages")
    assert await bodies(cluster, "orders") == [b"%02d" % number for number in range(20)]


# Several brokers, and those that fail.


async def test_messages_are_spread_over_brokers(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        for broker in range(2):
            await cluster.create_topic("orders", queues=2, broker=broker)
        async with AsyncProducer("shop", nameserver=cluster.addresses) as producer:
            for _ in range(4):  # Until there are connections to both.
                await producer.send(Message("orders", b"x"))
            receipts = [await producer.send(Message("orders", b"x")) for _ in range(8)]
            used = Counter(receipt.queue for receipt in receipts)
            assert used == dict.fromkeys(await producer.queues("orders"), 2)
            assert {queue.broker for queue in used} == {"broker-a", "broker-b"}


async def test_when_a_broker_is_gone_the_others_take_everything(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=2) as cluster:
        for broker in range(2):
            await cluster.create_topic("orders", queues=2, broker=broker)
        async with AsyncProducer("shop", nameserver=cluster.addresses, timeout=20) as producer:
            sent = 0
            ends: list[Receipt] = []

            async def send_on() -> None:
                nonlocal sent
                while sent < 400:
                    sent += 1
                    ends.append(await producer.send(Message("orders", b"%d" % sent)))

            senders = [asyncio.create_task(send_on()) for _ in range(8)]
            await eventually(lambda: len(ends) > 50, "messages on their way")
            for listener in cluster.brokers[0]._listeners:
                await listener.close()
            await asyncio.gather(*senders)
            assert len({end.message_id for end in ends}) == len(ends) == sent
            assert {end.queue.broker for end in ends[-20:]} == {"broker-b"}


async def test_a_broker_that_comes_back_is_used_again(tmp_path: Path) -> None:
    async with live_cluster(tmp_path, brokers=0) as cluster:
        port = free_port()
        overrides = {
            **SMALL,
            "broker.nameservers": cluster.addresses,
            "broker.store_path": str(tmp_path / "store"),
            "broker.port": port,
        }
        async with AsyncProducer(
            "shop", nameserver=cluster.addresses, timeout=30, retries=1
        ) as producer:
            async with running_broker(load(overrides=overrides)):
                before = await producer.send(Message("orders", b"before"), order_key="1")
            with pytest.raises(SendFailedError, match=f"127.0.0.1:{port}"):
                await producer.send(Message("orders", b"lost"), order_key="1")
            async with running_broker(load(overrides=overrides)):
                after = await producer.send(Message("orders", b"after"), order_key="1")
            assert (after.queue, after.offset) == (before.queue, before.offset + 1)


async def test_a_half_dead_name_server_is_noticed_once(cluster: LiveCluster) -> None:
    async with scripted(silent) as dead:
        both = f"{dead.address};{cluster.addresses}"
        async with AsyncProducer("shop", nameserver=both, timeout=1.0) as producer:
            await producer.send(Message("orders", b"x"), timeout=20)
            asked = len(dead.requests)
            for topic in ("other", "third"):
                await producer.send(Message(topic, b"x"), timeout=20)
            assert len(dead.requests) == asked


# Signed, hooked, closed.


async def test_signed_sends_carry_a_signature_over_all_their_fields() -> None:
    credentials = Credentials("me", "hush")
    async with scripted(storing) as broker:
        async with scripted(knowing({"orders": route_data({"a": broker.address})})) as nameserver:
            async with AsyncProducer(
                "shop", nameserver=str(nameserver.address), credentials=credentials
            ) as producer:
                for _ in range(2):  # The first goes the slow way, the second the fast one.
                    await producer.send(Message("orders", b"hello", tags="paid"))
                await producer.send_oneway(Message("orders", b"hello"))
                await eventually(lambda: len(broker.sends()) == 3, "three sends")
            for command in broker.sends():
                ext = dict(command.ext)
                assert credentials.sign(ext, bytes(command.body)) == ext
                assert ext["AccessKey"] == "me"


class Notes:
    """A hook that writes down what it sees."""

    def __init__(self) -> None:
        self.before: list[SendContext] = []
        self.after: list[tuple[str, str, Receipt | None, BaseException | None]] = []

    def before_send(self, context: SendContext) -> None:
        context.properties["seen"] = "yes"
        self.before.append(context)

    def after_send(self, context: SendContext) -> None:
        self.after.append((context.message_id, context.address, context.receipt, context.error))


async def test_hooks_see_every_send_and_may_add_properties(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    notes = Notes()
    async with AsyncProducer("shop", nameserver=cluster.addresses, hooks=[notes]) as producer:
        first = await producer.send(Message("orders", b"one"))
        second = await producer.send_batch([Message("orders", b"two"), Message("orders", b"tri")])
        await producer.send_oneway(Message("orders", b"four"))
        with pytest.raises(MessageError) as failure:
            await producer.send(Message("orders", TOO_LARGE))
    address = f"127.0.0.1:{cluster.brokers[0].config.broker.port}"
    assert [len(context.messages) for context in notes.before] == [1, 2, 1, 1]
    assert notes.after[0] == (first.message_id, address, first, None)
    assert notes.after[1] == (second.message_id, address, second, None)
    assert notes.after[2][2:] == (None, None)
    assert notes.after[3][1:] == (address, None, failure.value)
    assert len({each[0] for each in notes.after}) == 4
    found = [ReceivedMessage(record, "broker-a") for record in await stored(cluster, "orders")]
    assert [message.properties for message in found] == [{"seen": "yes"}] * 4


async def test_closing_waits_for_what_is_on_its_way(cluster: LiveCluster) -> None:
    await cluster.create_topic("orders")
    async with AsyncProducer("shop", nameserver=cluster.addresses) as producer:
        await producer.send(Message("orders", b"x"))
        sends = [asyncio.create_task(producer.send(Message("orders", b"y"))) for _ in range(50)]
        await asyncio.sleep(0)
    assert len({(await send).message_id for send in sends}) == 50


async def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(silent) as broker:
        async with scripted(knowing({"orders": route_data({"a": broker.address})})) as nameserver:
            producer = AsyncProducer("shop", nameserver=str(nameserver.address), timeout=0.5)
            await producer.start()
            lost = asyncio.create_task(producer.send(Message("orders", b"x"), timeout=60))
            await eventually(lambda: bool(broker.sends()), "a message on its way")
            async with asyncio.timeout(20):
                await producer.close()
                with pytest.raises(ClientClosedError):
                    await lost


async def test_a_producer_that_is_not_open_says_so(cluster: LiveCluster) -> None:
    producer = AsyncProducer("shop", nameserver=cluster.addresses)
    with pytest.raises(ClientClosedError, match="not started"):
        await producer.send(Message("orders", b"x"))
    await producer.start()
    await producer.send(Message("orders", b"x"))
    await producer.close()
    await producer.close()
    with pytest.raises(ClientClosedError, match="is closed"):
        await producer.send(Message("orders", b"x"))
    with pytest.raises(ClientClosedError):
        await producer.send_batch([Message("orders", b"x")])
    with pytest.raises(ClientClosedError):
        await producer.send_oneway(Message("orders", b"x"))
    with pytest.raises(ClientClosedError):
        await producer.queues("orders")


async def test_a_producer_on_another_loop_says_so(producer: AsyncProducer) -> None:
    await producer.send(Message("orders", b"x"))

    def elsewhere() -> None:
        asyncio.run(producer.send(Message("orders", b"x")))

    with pytest.raises(WrongLoopError, match="which is another one"):
        await asyncio.to_thread(elsewhere)


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"AsyncProducer\(\) has no option 'nameservers'; did you"):
        AsyncProducer("shop", nameservers="x")  # type: ignore[call-arg]
    with pytest.raises(InvalidGroupError):
        AsyncProducer("")
    with pytest.raises(InvalidGroupError, match="121 characters"):
        AsyncProducer("x" * 121)
    with pytest.raises(ConfigError, match="retries must be at least 0"):
        AsyncProducer("shop", retries=-1)
    with pytest.raises(TypeError, match="queues must be a whole number"):
        AsyncProducer("shop", queues=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="compression must be zlib, lz4 or zstd, not 'gzip'"):
        AsyncProducer("shop", compression="gzip")  # type: ignore[arg-type]
