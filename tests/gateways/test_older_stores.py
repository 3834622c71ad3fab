"""Stores that an older version wrote are opened, and everything in them is found again.

An archive has a store as that version's broker left it, and one as it was on the disk while the
broker ran: what a crash leaves. For the broker that opens it, it is a second later.
"""

import asyncio
import contextlib
import json
import shutil
import tarfile
import time
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import pika
import pytest

from onelog.clock import SystemClock
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.mqtt.codes import V5, Packet
from onelog.wire.mqtt.properties import Property
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.kafka.live import address, consumer, take
from tests.gateways.kafka.raw import batch_of, raw, values_in
from tests.gateways.kafka.test_share_fetch import sharer
from tests.gateways.kafka.test_share_fetch import take as take_shared
from tests.gateways.mqtt.raw import Raw, properties_of
from tests.gateways.remoting.live import Client, bodies, broker, client, messages
from tests.gateways.remoting.popping import Popper
from tests.gateways.stomp import live as stomp
from tests.gateways.stored_features import (
    HOUR_MS,
    ROOT,
    SCHEMA,
    SETTINGS,
    Facts,
    amqp_parameters,
    api,
)
from tests.waiting import eventually

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ARCHIVES = sorted(FIXTURES.glob("onelog-store-*.tar.xz"))


class Opened:
    """A broker with an older store, what is known of that, and time at one's command."""

    server: BrokerServer
    words: Client

    def __init__(self, folder: Path, facts: Facts, patch: pytest.MonkeyPatch) -> None:
        self.facts = facts
        self._folder = folder
        self._shift_ms: int = facts["now_ms"] + 1_000 - time.time_ns() // 1_000_000
        self._stack = contextlib.AsyncExitStack()
        patch.setattr(SystemClock, "now_ms", lambda _: self.now_ms())

    def now_ms(self) -> int:
        """For the broker it is now."""
        return time.time_ns() // 1_000_000 + self._shift_ms

    async def open(self) -> None:
        """Start the broker, and connect to it."""
        self.server = await self._stack.enter_async_context(broker(self._folder, **SETTINGS))
        self.words = await self._stack.enter_async_context(client(self.server))

    async def close(self) -> None:
        """Stop both."""
        await self._stack.aclose()

    async def pass_time(self, ms: int) -> None:
        """Be there again after so long."""
        await self.close()
        self._shift_ms += ms
        await self.open()

    async def pulled(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[bytes]:
        """The messages of a queue."""
        return bodies(await self.words.pull(topic, offset, queueId=queue_id))

    async def has(self, topic: str, count: int) -> None:
        """Wait until so many messages are in queue 0."""
        await eventually(lambda: self.server.store.max_offset(topic, 0) >= count)


@cache
def unpacked(archive: Path, folder: Path) -> Facts:
    """Unpack an archive: its facts."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    facts: Facts = json.loads((folder / "facts.json").read_text())
    return facts


@pytest.fixture(scope="session")
def unpacked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("older-stores")


@pytest.fixture(
    params=[
        pytest.param((path, ending), id=f"{path.name.split('-')[2][:-7]}-{ending}")
        for path in ARCHIVES
        for ending in ("clean", "crashed")
    ]
)
async def opened(
    request: pytest.FixtureRequest,
    unpacked_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Opened]:
    archive, ending = request.param
    folder = unpacked_folder / archive.name
    opened = Opened(tmp_path, unpacked(archive, folder), monkeypatch)
    shutil.copytree(folder / ending, tmp_path / "store")
    await opened.open()
    yield opened
    await opened.close()


async def test_plain_messages_positions_retries_and_dead_letters(opened: Opened) -> None:
    words = opened.words
    for queue_id in range(4):
        expected = [b"plain %d" % each for each in range(queue_id, 12, 4)]
        assert await opened.pulled("plain", queue_id) == expected
    assert await opened.pulled("batched") == [b"batched 0", b"batched 1", b"batched 2"]
    for number, ident in enumerate(opened.facts["ids"]):
        answer = await words.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=int(ident[-16:], 16))
        (found,) = messages(answer)
        assert (bytes(found.body), found.keys) == (b"plain %d" % number, [f"key{number}"])
    by_key = {"topic": "plain", "key": "key7", "maxNum": 10, "beginTimestamp": 0}
    answer = await words.ask(RequestCode.QUERY_MESSAGE, **by_key, endTimestamp=1 << 60)
    assert bodies(answer) == [b"plain 7"]
    odd = await words.pull("plain", 0, queueId=1, subscription="odd")
    assert len(messages(odd)) == 3
    for queue_id, offset in ((0, 2), (1, 3)):
        place = {"consumerGroup": "pullers", "topic": "plain", "queueId": queue_id}
        answer = await words.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
        assert answer.ext["offset"] == str(offset)
    (dead,) = messages(await words.pull("%DLQ%undertakers", 0))
    assert (bytes(dead.body), dead.tags) == (b"plain 5", "odd")
    assert opened.server.store.max_offset("%RETRY%retriers", 0) == 0
    await opened.pass_time(20_000)
    await opened.has("%RETRY%retriers", 1)
    (again,) = messages(await opened.words.pull("%RETRY%retriers", 0))
    assert (bytes(again.body), again.reconsume_times) == (b"plain 5", 1)


async def test_popped_messages_are_in_flight_until_their_time_is_over(opened: Opened) -> None:
    assert [each.body for each in await Popper(opened.words).pop()] == [b"pop 4", b"pop 5"]
    first = opened.facts["receipts"][0]
    parts = first.split(" ")
    about = {"consumerGroup": "readers", "topic": "orders", "queueId": parts[6]}
    done = await opened.words.ask(
        RequestCode.ACK_MESSAGE, **about, extraInfo=first, offset=parts[7]
    )
    assert done.code == 0, "a receipt of before is good"
    await opened.pass_time(HOUR_MS + 5_000)
    found = {each.body for each in await Popper(opened.words).pop()}
    found |= {each.body for each in await Popper(opened.words).pop()}
    assert found == {b"pop 2", b"pop 4", b"pop 5"}
    await opened.pass_time(HOUR_MS)
    found = {each.body for _ in range(3) for each in await Popper(opened.words).pop()}
    assert b"pop 3" in found
    assert not found & {b"pop 0", b"pop 1"}


async def test_timed_messages_come_when_they_are_due_and_can_be_taken_back(opened: Opened) -> None:
    about = {"topic": "timed", "recallHandle": opened.facts["to-be-taken-back"]}
    answer = await opened.words.ask(RequestCode.RECALL_MESSAGE, **about, producerGroup="g")
    assert answer.code == 0
    assert await opened.pulled("timed") == []
    await opened.pass_time(HOUR_MS + 10_000)
    await opened.has("timed", 2)
    assert set(await opened.pulled("timed")) == {b"in-an-hour", b"by-level-17"}
    await opened.pass_time(2 * HOUR_MS)
    await opened.has("timed", 3)
    assert (await opened.pulled("timed"))[2:] == [b"by-level-18"]


async def test_half_messages_are_open_or_decided(opened: Opened) -> None:
    assert await opened.pulled("paid") == [b"committed"]
    place = opened.facts["half"]
    answer = await opened.words.ask(RequestCode.END_TRANSACTION, **place, commitOrRollback=8)
    assert answer.code == 0
    assert await opened.pulled("paid") == [b"committed", b"open"]


async def test_staged_batches_are_committed_once(opened: Opened) -> None:
    asked = await opened.words.ask(RequestCode.QUERY_STAGED, query="q")
    assert asked.ext["batch"] == "0"
    assert await opened.pulled("staged") == [b"staged"]
    offsets = b"[%d]" % opened.facts["staged"]
    done = await opened.words.ask(RequestCode.COMMIT_STAGED, offsets, query="q", batch=1)
    assert done.code == 0
    assert await opened.pulled("staged") == [b"staged", b"staged, not committed"]


async def test_kafkas_messages_transactions_and_groups(opened: Opened) -> None:
    at, facts = address(opened.server), opened.facts

    def read(group: str, topic: str, partition: int, count: int, **more: Any) -> list[bytes]:
        reader = consumer(at, group, **more)
        reader.assign([confluent_kafka.TopicPartition(topic, partition)])
        found = [each.value() for each in take(reader, count)]
        reader.close()
        return [each for each in found if each is not None]

    async with raw(opened.server) as kafka:
        batch = batch_of(b"once", producer=(*facts["producer"], 0))
        assert (await kafka.produce("kafka", batch, 1))["base_offset"] == facts["once"]
        found = await kafka.fetch("kafka", 0, 1, isolation_level=1)
        assert found["last_stable_offset"] < found["high_watermark"], "one is open"
        told = await kafka.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["txn-open", "txn-committed"]}
        )
        states = {each["transactional_id"]: each for each in told["transaction_states"]}
        assert states["txn-committed"]["transaction_state"] == "CompleteCommit"
        assert states["txn-open"]["transaction_state"] == "Ongoing"
        producer_id, epoch = facts["open producer"]
        end = {"transactional_id": "txn-open", "producer_id": producer_id, "producer_epoch": epoch}
        ended = await kafka.ask(ApiKey.END_TXN, 3, {**end, "committed": True})
        assert ended["error_code"] == 0
        resource = [{"resource_type": 2, "resource_name": "kafka", "configuration_keys": None}]
        told = await kafka.ask(ApiKey.DESCRIBE_CONFIGS, 1, {"resources": resource})
        settings = {each["name"]: each["value"] for each in told["results"][0]["configs"]}
        assert settings["retention.ms"] == "864000000"
    for group, count in (("classic", 4), ("modern", 6)):
        values = await asyncio.to_thread(read, group, "kafka", 0, 10 - count)
        assert values == [b"kafka %d" % each for each in range(count, 10)]
    committed = await asyncio.to_thread(read, "nobody", "kafka", 1, 3)
    assert committed == [b"once", b"committed", b"open"]
    async with raw(opened.server) as kafka:
        old = values_in((await kafka.fetch("prices", 0))["records"])
        new = values_in((await kafka.fetch("prices", old[-1][0] + 1))["records"])
    prices = [value for _, value in (*old, *new)]
    assert prices[-3:] == [b"3 of 0", b"3 of 1", b"3 of 2"]
    assert b"0 of 0" not in prices, "compacted"


async def test_a_share_group_has_what_was_not_acknowledged(opened: Opened) -> None:
    await opened.pass_time(60_000)

    def share() -> list[bytes | None]:
        reader = sharer(address(opened.server))
        reader.unsubscribe()
        reader.subscribe(["shared"])
        found = [each.value() for each in take_shared(reader, 3)]
        reader.close()
        return found

    found = await asyncio.to_thread(share)
    assert found == [b"share 2", b"share 3", b"share 4"]


async def test_declared_queues_exchanges_and_what_waits_for_its_time(opened: Opened) -> None:
    kept = {
        "tasks": ["tasks 1", "tasks 2", "tasks 3", "tasks 4", "of a tx"],
        "dead": ["refused 0"],
        "quorum": ["quorum 0", "quorum 1"],
        "urgent": ["priority 9", "priority 5", "priority 1"],
        "refused": [],
        "little": ["little 2", "little 3"],
        "leaving": ["leaving 0"],
        "bound": ["by key", "by header", "by the alternate exchange"],
        "late": [],
    }

    def take_all() -> None:
        connection = pika.BlockingConnection(amqp_parameters(opened.server, *ROOT))
        channel = connection.channel()
        for queue, count in (("short", 3), ("single", 1)):
            assert channel.queue_declare(queue, passive=True).method.message_count == count
        for queue, expected in kept.items():
            found: list[str] = []
            while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
                if queue == "quorum" and not found:
                    assert one[1].headers["x-delivery-count"] == 2
                if queue == "dead":
                    assert one[1].headers["x-death"][0]["reason"] == "rejected"
                found.append(one[2].decode())
            assert found == expected, queue
        channel.basic_publish("plain-key", "orders.eu.new", b"by two exchanges")
        assert channel.basic_get("bound", auto_ack=True)[2] == b"by two exchanges"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("memory", passive=True)
        connection.close()

    await asyncio.to_thread(take_all)
    await opened.pass_time(HOUR_MS + 10_000)

    def take_late() -> None:
        connection = pika.BlockingConnection(amqp_parameters(opened.server, *ROOT))
        channel = connection.channel()
        found: dict[str, list[bytes]] = {"late": [], "dead": []}
        ends = time.monotonic() + 60
        while time.monotonic() < ends and [len(each) for each in found.values()] != [1, 3]:
            for queue, some in found.items():
                if (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    some.append(one[2])
        assert found["late"] == [b"late"]
        assert sorted(found["dead"]) == [b"short 0", b"short 1", b"short 2"]
        offsets = []
        channel.basic_qos(prefetch_count=10)
        about = {"x-stream-offset": "first"}
        for method, properties, _ in channel.consume("stream", arguments=about):
            offsets.append(properties.headers["x-stream-offset"])
            channel.basic_ack(method.delivery_tag)
            if len(offsets) == 4:
                break
        assert offsets == [0, 1, 2, 3]
        connection.close()

    await asyncio.to_thread(take_late)


async def test_stomps_durable_subscriptions_and_schedules(opened: Opened) -> None:
    login = {"login": ROOT[0], "passcode": ROOT[1]}

    def subscribed() -> None:
        at = ("127.0.0.1", opened.server.config.stomp.port)
        with stomp.connected(at, login={**login, "client-id": "shop"}) as member:
            member.subscribe("/topic/news", **{"activemq.subscriptionName": "subscription"})
            assert member.bodies(2) == ["news 0", "news 1"]
        with stomp.connected(at, login=login) as reader:
            reader.subscribe("/queue/stomp")
            heard = reader.get()
            assert (heard.body, heard.headers["mine"]) == ("from stomp", "x")

    def scheduled() -> None:
        at = ("127.0.0.1", opened.server.config.stomp.port)
        with stomp.connected(at, login=login) as reader:
            reader.subscribe("/queue/stomp", "1")
            assert reader.get().body == "an hour later"
            reader.subscribe("/queue/hourly", "2")
            assert reader.get().body == "each hour"

    await asyncio.to_thread(subscribed)
    await opened.pass_time(HOUR_MS + 10_000)
    await asyncio.to_thread(scheduled)


async def test_mqtts_sessions_and_retained_messages(opened: Opened) -> None:
    port = opened.server.config.mqtt.port

    def work() -> None:
        with Raw(port) as old:
            assert old.connect("old", clean=False).packet_id, "the session is there"
            found = old.messages(len(opened.facts["mqtt ids"]))
            assert [each.packet_id for each in found] == opened.facts["mqtt ids"]
            assert [each.payload for each in found] == [b"21", b"7"]
            assert all(each.flags & 8 for each in found), "they come again"
        with Raw(port) as sender:
            assert sender.connect("sender", clean=False).packet_id
            sender.publish("home/cellar/heat", b"7", 2, 3, duplicate=True)
            assert sender.expect(Packet.PUBREC).packet_id == 3
            sender.answer(Packet.PUBREL, 3)
            assert sender.expect(Packet.PUBCOMP).packet_id == 3
        with Raw(port, V5) as new:
            about = {Property.SESSION_EXPIRY: 0xFFFFFFFF}
            assert new.connect("new", clean=False, properties=about).packet_id
            found = new.messages(3)
            assert sorted(each.payload for each in found) == [b"21", b"7", b"work"]
            assert new.is_quiet(), "what came twice was stored once"
        with Raw(port, V5) as late:
            late.connect("late")
            late.subscribe(("#", 1))
            kept = {bytes(each.topic): each for each in late.messages(2)}
            assert kept[b"home/attic/heat"].payload == b"21"
            assert properties_of(kept[b"status"])[Property.CONTENT_TYPE] == "text/plain"
            assert 0 < properties_of(kept[b"status"])[Property.MESSAGE_EXPIRY] <= 86_400

    await asyncio.to_thread(work)


async def test_users_their_permissions_and_what_administrators_set(opened: Opened) -> None:
    def work() -> None:
        for account, status in {
            ROOT: 200,
            ("ann", "ann's"): 200,
            ("bob", "bob's"): 401,
            ("root", "guess"): 401,
        }.items():
            with api(opened.server, *account) as rest:
                assert rest.get("/v1/topics").status_code == status, account
        with api(opened.server) as rest:
            users = {each["name"]: each for each in rest.get("/v1/users").json()["items"]}
            assert set(users) == {"root", "ann", "bob"}
            assert (users["ann"]["roles"], users["ann"]["signing"]) == (["ops"], True)
            assert (users["bob"]["enabled"], users["bob"]["signing"]) == (False, False)
            (denied,) = users["ann"]["permissions"]
            assert (denied["name"], denied["effect"]) == ("orders-x", "deny")
            described = rest.get("/v1/topics/described").json()
            assert (described["queues"], described["ordered"]) == (3, True)
            assert rest.get("/v1/topics/described/schema").json() == {"schema": SCHEMA}
            assert rest.get("/v1/groups/described").status_code == 200
            assert rest.get("/api/policies").json()[0]["definition"] == {"max-length": 3}
            (half,) = rest.get("/v1/half-messages").json()["items"]
            assert half["unique_key"] == "open"
        scram = {"sasl.mechanism": "SCRAM-SHA-256", "security.protocol": "SASL_PLAINTEXT"}
        at = {"bootstrap.servers": address(opened.server), **scram}
        login = {"sasl.username": "ann", "sasl.password": "ann's"}
        producer = confluent_kafka.Producer({**at, **login})
        errors: list[Any] = []
        for topic in ("orders", "orders-x", "plain"):
            producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
            assert producer.flush(60) == 0
        assert errors[0] is None
        codes = [error.code() for error in errors[1:]]
        assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2

    await asyncio.to_thread(work)
