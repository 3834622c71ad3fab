"""Has a broker store something of everything that it can remember, by the protocols' own clients.

`tests/e2e/make_broker_stores.py` makes the stores with it that `test_older_stores.py` opens. What
cannot be known beforehand, as a receipt, is kept in a dict of facts beside the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import confluent_kafka
import httpx
import pika
from confluent_kafka import AcknowledgeType

from onelog.message import encode_properties
from onelog.record.inner_batch import encode_batch
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.mqtt.codes import V5, Packet
from onelog.wire.mqtt.properties import Properties, Property
from onelog.wire.remoting.codes import RequestCode
from tests.gateways.kafka.live import SECONDS, address, consumer, produce, take
from tests.gateways.kafka.raw import batch_of, raw
from tests.gateways.kafka.test_share_fetch import sharer
from tests.gateways.kafka.test_transactions import Teller
from tests.gateways.mqtt.raw import Raw
from tests.gateways.remoting.live import Client, client
from tests.gateways.remoting.popping import GROUP, TOPIC, Popper
from tests.gateways.stomp import live as stomp

Facts = dict[str, Any]
HOUR_MS = 3_600_000
ROOT = ("root", "correct horse")
SCHEMA = {"format": "avro", "schema": '"long"', "message": ""}
PORTS: dict[str, int] = {
    f"{protocol}__port": -1 for protocol in ("kafka", "amqp", "stomp", "mqtt", "http", "grpc")
}
SETTINGS: dict[str, Any] = {
    **PORTS,
    "broker__name": "broker-a",
    "broker__compaction_interval_ms": 20,
    "security__anonymous": True,
    # A small archive wants small files.
    "store__segment_bytes": 256 << 10,
    "store__queue_file_entries": 100,
    "store__index_slots": 200,
    "store__index_entries": 800,
    "store__body_bytes_max": 64 << 10,
}


def amqp_parameters(server: BrokerServer, *login: str) -> pika.ConnectionParameters:
    """How pika connects."""
    credentials = pika.PlainCredentials(*(login or ("guest", "guest")))
    return pika.ConnectionParameters("127.0.0.1", server.config.amqp.port, credentials=credentials)


def api(server: BrokerServer, *login: str) -> httpx.Client:
    """REST, as an administrator or somebody else."""
    port, account = server.config.http.port, login or ROOT
    return httpx.Client(
        base_url=f"http://127.0.0.1:{port}", timeout=SECONDS, auth=(account[0], account[1])
    )


async def plain_messages(_: BrokerServer, words: Client, facts: Facts) -> None:
    """Messages with keys and tags, a batch, a position, a message that failed, a dead one."""
    facts["ids"] = []
    for number in range(12):
        about = {"KEYS": f"key{number}", "TAGS": "odd" if number % 2 else "even", "own": "x"}
        answer = await words.send("plain", b"plain %d" % number, about, e=number % 4)
        facts["ids"].append(answer.ext["msgId"])
    batch = encode_batch([(0, b"batched %d" % each, b"") for each in range(3)])
    await words.send("batched", batch, {}, m="true")
    for group, times in (("pullers", 16), ("retriers", 16), ("undertakers", 0)):
        await words.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            b'{"groupName":"%s","retryMaxTimes":%d}' % (group.encode(), times),
        )
    for queue_id, offset in ((0, 2), (1, 3)):
        answer = await words.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="pullers",
            topic="plain",
            queueId=queue_id,
            commitOffset=offset,
        )
        assert answer.code == 0, answer
    for group, times in (("retriers", 16), ("undertakers", 0)):
        answer = await words.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=int(facts["ids"][5][-16:], 16),
            group=group,
            originMsgId=facts["ids"][5],
            originTopic="plain",
            delayLevel=3,
            maxReconsumeTimes=times,
        )
        assert answer.code == 0, answer


async def popped_messages(_: BrokerServer, words: Client, facts: Facts) -> None:
    """Of six messages one is acknowledged, two are in flight, one comes in two hours."""
    popper = Popper(words)
    for number in range(6):
        await popper.send(b"pop %d" % number)
    popped = await popper.pop(maxMsgNums=4, invisibleTime=HOUR_MS)
    assert [each.body for each in popped] == [b"pop %d" % each for each in range(4)]
    assert (await popper.ack(popped[0])).code == 0
    assert (await popper.change(popped[3], 2 * HOUR_MS)).code == 0
    facts["receipts"] = [popped[1].receipt, popped[2].receipt]


async def timed_messages(_: BrokerServer, words: Client, facts: Facts) -> None:
    """For a time, for a level of delay, and one that was taken back."""
    now_ms = time.time_ns() // 1_000_000
    for name, about in {
        "in-an-hour": {"TIMER_DELIVER_MS": str(now_ms + HOUR_MS)},
        "by-level-17": {"DELAY": "17"},
        "by-level-18": {"DELAY": "18"},
        "taken-back": {"TIMER_DELIVER_MS": str(now_ms + HOUR_MS)},
        "to-be-taken-back": {"TIMER_DELIVER_MS": str(now_ms + 2 * HOUR_MS)},
    }.items():
        answer = await words.send("timed", name.encode(), {"UNIQ_KEY": name, **about})
        assert answer.code == 0, answer
        if name.endswith("taken-back"):
            facts[name] = answer.ext["recallHandle"]
    about = {"topic": "timed", "recallHandle": facts["taken-back"], "producerGroup": "g"}
    assert (await words.ask(RequestCode.RECALL_MESSAGE, **about)).code == 0


async def half_messages(_: BrokerServer, words: Client, facts: Facts) -> None:
    """One is committed, one rolled back, and one open."""
    about = {"TRAN_MSG": "true", "PGROUP": "payers", "TAGS": "t"}
    for name, outcome in (("committed", 8), ("rolled back", 12), ("open", None)):
        answer = await words.send("paid", name.encode(), {**about, "UNIQ_KEY": name}, f=4)
        place = {
            "producerGroup": "payers",
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": int(answer.ext["msgId"][-16:], 16),
            "msgId": answer.ext["transactionId"],
            "transactionId": answer.ext["transactionId"],
        }
        facts["half"] = place
        if outcome is not None:
            end = await words.ask(RequestCode.END_TRANSACTION, **place, commitOrRollback=outcome)
            assert end.code == 0


async def staged_messages(_: BrokerServer, words: Client, facts: Facts) -> None:
    """One batch of a query is committed, and one only staged."""
    for number, text in enumerate((b"staged", b"staged, not committed")):
        body = encode_batch([(0, text, encode_properties({"TAGS": "s"}))])
        fields = {"query": "q", "batch": number, "topic": "staged", "queueId": 0}
        answer = await words.ask(RequestCode.STAGE_MESSAGES, body, **fields)
        facts["staged"] = int(answer.ext["offset"])
        if number == 0:
            offsets = b"[%d]" % facts["staged"]
            done = await words.ask(RequestCode.COMMIT_STAGED, offsets, query="q", batch=0)
            assert done.code == 0


async def kafka_messages(server: BrokerServer, _: Client, facts: Facts) -> None:
    """Topics, compressed batches, a compacted topic, and groups of all kinds."""
    at = address(server)
    async with raw(server) as kafka:
        await kafka.make_topic("kafka", 2, retention_ms="864000000")
        compacted = {"cleanup_policy": "compact", "segment_ms": "1"}
        await kafka.make_topic("prices", 1, min_cleanable_dirty_ratio="0.01", **compacted)
        await kafka.make_topic("shared", 1)
        told = await kafka.ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None})
        facts["producer"] = [told["producer_id"], told["producer_epoch"]]
        batch = batch_of(b"once", producer=(*facts["producer"], 0))
        facts["once"] = (await kafka.produce("kafka", batch, 1))["base_offset"]
        for committed in (True, False):
            name = "committed" if committed else "open"
            teller = Teller(kafka, f"txn-{name}")
            await teller.begin(timeout_ms=900_000)
            assert await teller.add(1, topic="kafka") == 0
            batch = batch_of(
                name.encode(), producer=(teller.id, teller.epoch, 0), attributes=1 << 4
            )
            assert (await kafka.produce("kafka", batch, 1))["error_code"] == 0
            if committed:
                assert await teller.end(commit=True) == 0
            facts["open producer"] = [teller.id, teller.epoch]
        settings = [("share.auto.offset.reset", "earliest")]
        entries = [{"name": key, "config_operation": 0, "value": value} for key, value in settings]
        group = {"resource_type": 32, "resource_name": "sharers", "configs": entries}
        changed = await kafka.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [group]})
        assert changed["responses"][0]["error_code"] == 0

    def write_and_read() -> None:
        for codec, values in (("none", range(5)), ("zstd", range(5, 10))):
            texts: list[bytes | None] = [b"kafka %d" % each for each in values]
            produce(at, "kafka", texts, compression_type=codec)
        for last in range(4):
            texts = [b"%d of %d" % (last, each) for each in range(3)]
            produce(at, "prices", texts)
        produce(at, "shared", [b"share %d" % each for each in range(5)], linger_ms=0)
        for name, kind, count in (("classic", "classic", 4), ("modern", "consumer", 6)):
            reader = consumer(at, name, group_protocol=kind)
            reader.subscribe(["kafka"])
            found = take(reader, 10)
            place = confluent_kafka.TopicPartition("kafka", 0, count, f"of {name}")
            assert len(found) >= 10
            reader.commit(offsets=[place], asynchronous=False)
            reader.close()
        member = sharer(at, share_acknowledgement_mode="explicit")
        member.unsubscribe()
        member.subscribe(["shared"])
        while not (taken := member.poll(0.5)):
            pass
        answers = [AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RELEASE]
        for message, answer in zip(taken, answers, strict=False):
            member.acknowledge(message, answer)
        assert all(error is None for error in member.commit_sync(SECONDS).values())
        facts["shared"] = len(taken)
        facts["share member"] = member

    await asyncio.to_thread(write_and_read)


def _declare_everything(channel: Any) -> None:
    for name, kind, more in (
        ("by-key", "topic", {}),
        ("to-all", "fanout", {}),
        ("by-header", "headers", {}),
        ("plain-key", "direct", {"alternate-exchange": "to-all"}),
        ("late", "x-delayed-message", {"x-delayed-type": "direct"}),
    ):
        channel.exchange_declare(name, kind, durable=True, arguments=more)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    for name, arguments in {
        "tasks": {},
        "dead": {},
        "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 5},
        "urgent": {"x-max-priority": 9},
        "short": {"x-message-ttl": HOUR_MS, **dead},
        "refused": dead,
        "little": {"x-max-length": 2},
        "leaving": {"x-expires": 24 * HOUR_MS},
        "single": {"x-single-active-consumer": True},
        "stream": {"x-queue-type": "stream"},
        "bound": {},
        "late": {},
    }.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare("memory", durable=False)
    channel.queue_bind("bound", "by-key", "orders.*.new")
    channel.queue_bind("bound", "by-header", "", {"x-match": "all", "kind": "a"})
    channel.queue_bind("bound", "to-all")
    channel.queue_bind("late", "late", "late")
    channel.exchange_bind("by-key", "plain-key", "orders.eu.new")


async def amqp_messages(server: BrokerServer, _: Client, facts: Facts) -> None:
    """Queues and exchanges of all kinds, messages in flight, refused, late, and of a tx."""

    def work() -> None:
        connection = pika.BlockingConnection(amqp_parameters(server))
        channel = connection.channel()
        _declare_everything(channel)
        channel.confirm_delivery()

        def put(key: str, body: str, exchange: str = "", **about: Any) -> None:
            properties = pika.BasicProperties(delivery_mode=2, **about)
            channel.basic_publish(exchange, key, body.encode(), properties)

        counts = {"tasks": 5, "quorum": 2, "short": 2, "refused": 1, "little": 4, "leaving": 1}
        for queue, count in {**counts, "single": 1, "stream": 4, "memory": 2}.items():
            for number in range(count):
                put(queue, f"{queue} {number}")
        for number in (1, 9, 5):
            put("urgent", f"priority {number}", priority=number)
        put("short", "short 2", expiration=str(HOUR_MS // 2))
        put("orders.eu.new", "by key", "by-key")
        put("", "by header", "by-header", headers={"kind": "a"})
        put("nowhere", "by the alternate exchange", "plain-key")
        put("late", "late", "late", headers={"x-delay": HOUR_MS})
        tag = channel.basic_get("refused")[0].delivery_tag
        channel.basic_nack(tag, requeue=False)
        for _ in range(2):
            tag = channel.basic_get("quorum")[0].delivery_tag
            channel.basic_nack(tag, requeue=True)
        tag = channel.basic_get("tasks")[0].delivery_tag
        channel.basic_ack(tag)
        assert channel.basic_get("tasks")[2] == b"tasks 1"
        for ends in (True, False):
            other = connection.channel()
            other.tx_select()
            text = b"of a tx" if ends else b"of a tx without an end"
            other.basic_publish("", "tasks", text, pika.BasicProperties(delivery_mode=2))
            if ends:
                other.tx_commit()
        facts["amqp"] = connection

    await asyncio.to_thread(work)


async def stomp_messages(server: BrokerServer, _: Client, facts: Facts) -> None:
    """A durable subscription with what waits for it, a schedule, and a late message."""
    at = ("127.0.0.1", server.config.stomp.port)

    def work() -> None:
        login, durable = {"client-id": "shop"}, {"activemq.subscriptionName": "subscription"}
        with stomp.connected(at, login=login) as member:
            member.subscribe("/topic/news", **durable)
        with stomp.connected(at) as sender:
            for number in range(2):
                sender.send("/topic/news", f"news {number}")
            sender.send("/queue/stomp", "from stomp", mine="x")
            sender.send("/queue/stomp", "an hour later", AMQ_SCHEDULED_DELAY=str(HOUR_MS))
            sender.send("/queue/hourly", "each hour", AMQ_SCHEDULED_CRON="0 * * * *")

    await asyncio.to_thread(work)


async def mqtt_messages(server: BrokerServer, _: Client, facts: Facts) -> None:
    """Sessions with what waits, with what is half done of QoS 2, shared; retained messages."""
    port = server.config.mqtt.port

    def work() -> None:
        with Raw(port) as old:
            old.connect("old", clean=False)
            old.subscribe(("home/+/heat", 1), ("home/#", 2))
        never = {Property.SESSION_EXPIRY: 0xFFFFFFFF}
        with Raw(port, V5) as new:
            new.connect("new", properties=never)
            new.subscribe(("home/#", 2), ("$share/workers/work/#", 1))
        with Raw(port) as sender:
            sender.connect("sender", clean=False)
            sender.publish("home/attic/heat", b"21", 1, 1, retain=True)
            assert sender.expect(Packet.PUBACK).packet_id == 1
            sender.publish("work/1", b"work", 1, 2)
            assert sender.expect(Packet.PUBACK).packet_id == 2
            sender.publish("home/cellar/heat", b"7", 2, 3)
            assert sender.expect(Packet.PUBREC).packet_id == 3
        with Raw(port, V5) as about:
            about.connect("about")
            options: Properties = {
                Property.CONTENT_TYPE: "text/plain",
                Property.MESSAGE_EXPIRY: 86_400,
            }
            about.publish("status", b"up", 1, 1, retain=True, about=options)
            about.expect(Packet.PUBACK)
        # Delivered, and not acknowledged.
        with Raw(port) as old:
            assert old.connect("old", clean=False).packet_id
            facts["mqtt ids"] = [each.packet_id for each in old.messages(2)]

    await asyncio.to_thread(work)


async def administration(server: BrokerServer, words: Client, facts: Facts) -> None:
    """Topics, groups, schemas, policies; and at last users, roles and what they may do."""

    def work() -> None:
        with api(server) as rest:

            def done(method: str, path: str, body: Any) -> None:
                answer = rest.request(method, path, json=body)
                assert answer.status_code < 300, answer.text

            root = {"name": ROOT[0], "password": ROOT[1], "roles": ["admin"]}
            done("POST", "/v1/users", root)
            orders = {"actions": ["publish", "consume"], "kind": "topic", "name": "orders*"}
            done("POST", "/v1/roles", {"name": "ops", "permissions": [orders]})
            secret = {"actions": ["publish"], "kind": "topic", "name": "orders-x", "effect": "deny"}
            ann = {"name": "ann", "password": "ann's", "roles": ["ops"], "permissions": [secret]}
            done("POST", "/v1/users", ann)
            bob = {"name": "bob", "password": "bob's", "enabled": False, "signing": False}
            done("POST", "/v1/users", bob)
            done("POST", "/v1/topics", {"name": "described", "queues": 3, "ordered": True})
            done("PUT", "/v1/topics/described/schema", {"schema": SCHEMA})
            done("POST", "/v1/groups", {"name": "described"})
            policy = {"pattern": "^limited", "definition": {"max-length": 3}, "apply-to": "queues"}
            done("PUT", "/api/policies/%2F/limits", policy)

    await asyncio.to_thread(work)


Chapter = Callable[[BrokerServer, Client, Facts], Awaitable[None]]
CHAPTERS: tuple[Chapter, ...] = (
    plain_messages,
    popped_messages,
    timed_messages,
    half_messages,
    staged_messages,
    kafka_messages,
    amqp_messages,
    stomp_messages,
    mqtt_messages,
    administration,
)


async def write_everything(server: BrokerServer) -> Facts:
    """Write all of it; the facts."""
    facts: Facts = {}
    async with client(server) as words:
        await words.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"%s"}' % GROUP.encode()
        )
        fields = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        await words.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        for chapter in CHAPTERS:
            await chapter(server, words, facts)
    return facts
