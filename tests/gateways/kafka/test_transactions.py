"""Transactions: what readers see of them, who is fenced, and that a crash leaves none in halves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import KafkaException, Producer, TopicPartition

from onelog.core.access import SELF
from onelog.core.transactions.transactional_ids import TransactionalIds
from onelog.record.forms.kafka import Attribute
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.core.replicas import give_replicas
from tests.gateways.kafka.live import SECONDS, address, consumer, kafka, take
from tests.gateways.kafka.raw import RawClient, batch_of, batches_in, fetch_fields, raw, values_in
from tests.gateways.remoting.live import client as remoting_client
from tests.gateways.remoting.live import messages
from tests.waiting import eventually

ID = "payments"
TRANSACTIONAL = Attribute.TRANSACTIONAL


def transactional(at: str, **settings: Any) -> Producer:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer({"bootstrap.servers": at, "transactional.id": ID, **given})
    producer.init_transactions(SECONDS)
    return producer


class Teller:
    """A transactional producer, word by word."""

    def __init__(self, client: RawClient, name: str = ID) -> None:
        self.client = client
        self.name = name
        self.sequence: dict[int, int] = {}

    async def begin(self, timeout_ms: int = 60_000) -> Fields:
        fields = {"transactional_id": self.name, "transaction_timeout_ms": timeout_ms}
        told = await self.client.ask(ApiKey.INIT_PRODUCER_ID, 4, fields)
        if not told["error_code"]:
            self.id, self.epoch = told["producer_id"], told["producer_epoch"]
        self.sequence.clear()
        return told

    async def add(self, *partitions: int, topic: str = "orders") -> int:
        told = await self.client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            {
                "v3_and_below_transactional_id": self.name,
                "v3_and_below_producer_id": self.id,
                "v3_and_below_producer_epoch": self.epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
            },
        )
        (result,) = told["results_by_topic_v3_and_below"]
        code: int = result["results_by_partition"][0]["partition_error_code"]
        return code

    async def send(self, *values: bytes, partition: int = 0) -> int:
        number = self.sequence.get(partition, 0)
        batch = batch_of(*values, producer=(self.id, self.epoch, number), attributes=TRANSACTIONAL)
        told = await self.client.produce("orders", batch, partition)
        code: int = told["error_code"]
        if not code:
            self.sequence[partition] = number + len(values)
        return code

    async def end(self, commit: bool, version: int = 3) -> int:
        fields = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        code: int = (await self.client.ask(ApiKey.END_TXN, version, fields))["error_code"]
        return code


async def committed(client: RawClient, partition: int = 0) -> list[bytes | None]:
    """What a reader of committed messages sees, as Kafka's clients sort it out."""
    found = await client.fetch("orders", 0, partition, isolation_level=1)
    aborted = [
        (each["first_offset"], each["producer_id"]) for each in found["aborted_transactions"]
    ]
    dropped: set[int] = set()
    values: list[bytes | None] = []
    at = 0
    for batch in batches_in(found["records"]):
        piece = found["records"][at : at + batch.size]
        at += batch.size
        while aborted and aborted[0][0] <= batch.base_offset:
            dropped.add(aborted.pop(0)[1])
        if batch.is_control:
            dropped.discard(batch.producer_id)
        elif not (batch.attributes & TRANSACTIONAL and batch.producer_id in dropped):
            values += [value for _, value in values_in(piece)]
    return values


# -- what another master must know -----


async def test_a_producer_is_told_its_epoch_when_another_master_would_know_it(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        replicas = give_replicas(server.core.durability)
        server.core.durability.replicas_timeout_ms = 10_000
        for name in (ID, None):
            fields = {"transactional_id": name, "transaction_timeout_ms": 60_000}
            client.tell(ApiKey.INIT_PRODUCER_ID, 4, fields)
            await eventually(lambda: replicas._waiting, "appended")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.readexactly(1), 0.1)
            replicas.confirmed(int(server.store.log_end))
            told = await client.hear(ApiKey.INIT_PRODUCER_ID, 4)
            assert (told["error_code"], told["producer_epoch"]) == (0, 0)
        wanted = {"transactional_id": ID, "transaction_timeout_ms": 60_000}
        client.tell(ApiKey.INIT_PRODUCER_ID, 4, wanted)
        await eventually(
            lambda: server.broker.transactions.in_place.transactions(SELF)[0].epoch == 1,
            "taken over",
        )
        server.core.fence()
        told = await client.hear(ApiKey.INIT_PRODUCER_ID, 4)
        # Java's producer gives up on any code that does not say whom else to ask.
        assert (told["error_code"], told["producer_id"]) == (ErrorCode.NOT_COORDINATOR, -1)
        told = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, wanted)
        assert told["error_code"] == ErrorCode.NOT_COORDINATOR


async def test_positions_of_a_transaction_are_told_when_another_master_would_know_them(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        replicas = give_replicas(server.core.durability)
        server.core.durability.replicas_timeout_ms = 10_000
        partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
        fields = {
            "transactional_id": ID,
            "group_id": "readers",
            "producer_id": teller.id,
            "producer_epoch": teller.epoch,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "orders", "partitions": [partition]}],
        }
        client.tell(ApiKey.TXN_OFFSET_COMMIT, 5, fields)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.readexactly(1), 0.1)
        replicas.confirmed(int(server.store.log_end))
        told = await client.hear(ApiKey.TXN_OFFSET_COMMIT, 5)
        assert told["topics"][0]["partitions"][0]["error_code"] == 0


# -- what readers see ----------------------------------------------------------------------------


async def test_committed_messages_are_seen_when_they_are_and_aborted_ones_never(
    tmp_path: Path,
) -> None:
    async with (
        kafka(tmp_path) as server,
        raw(server) as client,
        remoting_client(server) as rocketmq,
    ):
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        assert await teller.add(0) == 0
        assert await teller.send(b"one", b"two") == 0
        await client.produce("orders", batch_of(b"plain"))
        assert await committed(client) == [], "the open one is before the plain one"
        found = await client.fetch("orders", 0, isolation_level=1)
        assert (found["high_watermark"], found["last_stable_offset"]) == (3, 0)
        assert len(values_in((await client.fetch("orders", 0))["records"])) == 3
        assert messages(await rocketmq.pull("orders", 0)) == []
        assert await teller.end(commit=True) == 0
        assert await committed(client) == [b"one", b"two", b"plain"]
        await teller.add(0)
        await teller.send(b"three")
        assert await teller.end(commit=False) == 0
        await client.produce("orders", batch_of(b"last"))
        seen = [b"one", b"two", b"plain", b"last"]
        assert await committed(client) == seen
        found = await client.fetch("orders", 0)
        assert [each.is_control for each in batches_in(found["records"])] == [
            False,
            False,
            True,
            False,
            True,
            False,
        ]
        pulled = messages(await rocketmq.pull("orders", 0))
        assert [bytes(each.body) for each in pulled] == seen
        assert [each.queue_offset for each in pulled] == [0, 1, 2, 6]


async def test_a_reader_of_committed_messages_waits_for_the_end(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client, raw(server) as reader:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        await teller.add(0)
        await teller.send(b"one")
        held = fetch_fields("orders", [(0, 0)], max_wait_ms=20_000, isolation_level=1)
        reader.tell(ApiKey.FETCH, 12, held)
        await eventually(lambda: len(server.core.waiting) == 1, "held")
        await teller.end(commit=True)
        answer = await reader.hear(ApiKey.FETCH, 12)
        found = answer["responses"][0]["partitions"][0]
        assert len(batches_in(found["records"])) == 2


async def test_the_end_for_readers_of_committed_messages_is_the_stable_one(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        await client.produce("orders", batch_of(b"plain"))
        await teller.add(0)
        await teller.send(b"one")
        wanted = {"partition_index": 0, "timestamp": -1}
        topics = [{"name": "orders", "partitions": [wanted]}]
        for level, end in ((0, 2), (1, 1)):
            told = await client.ask(
                ApiKey.LIST_OFFSETS, 7, {"isolation_level": level, "topics": topics}
            )
            assert told["topics"][0]["partitions"][0]["offset"] == end


# -- who may -------------------------------------------------------------------------------------


async def test_who_takes_an_id_over_fences_the_one_before_and_aborts_what_it_had(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        old, new = Teller(client), Teller(client)
        await old.begin()
        await old.add(0)
        await old.send(b"old")
        await new.begin()
        assert (new.id, new.epoch) == (old.id, old.epoch + 1)
        assert await old.send(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old.add(0) == ErrorCode.PRODUCER_FENCED
        assert await old.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await old.end(commit=True, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await new.add(0) == 0
        assert await new.send(b"new") == 0
        assert await new.end(commit=True) == 0
        assert await committed(client) == [b"new"]


async def test_steps_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2)
        teller = Teller(client)
        wrong = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert (await teller.begin(0))["error_code"] == wrong
        assert (await teller.begin(900_001))["error_code"] == wrong
        assert (await Teller(client, "").begin())["error_code"] == ErrorCode.INVALID_REQUEST
        await teller.begin()
        assert await teller.end(commit=True) == ErrorCode.INVALID_TXN_STATE
        assert await teller.send(b"x") == ErrorCode.INVALID_TXN_STATE
        nowhere = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await teller.add(7) == nowhere
        assert await teller.add(0, 7) == ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await teller.add(0) == 0
        assert await teller.send(b"x") == 0
        assert await teller.send(b"x", partition=1) == ErrorCode.INVALID_TXN_STATE
        plain = batch_of(b"y", producer=(teller.id, teller.epoch, 1))
        told = await client.produce("orders", plain)
        assert told["error_code"] == ErrorCode.INVALID_TXN_STATE
        assert await teller.end(commit=True) == 0
        assert await teller.end(commit=True) == 0, "the answer was lost"
        assert await teller.end(commit=False) == ErrorCode.INVALID_TXN_STATE
        teller.id += 1
        assert await teller.add(0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_a_transaction_that_lasts_too_long_is_aborted(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin(timeout_ms=1)
        await teller.add(0)
        await teller.send(b"x")
        await eventually(lambda: server.core.store.max_offset("orders", 0) == 2, "aborted")
        assert await teller.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert await committed(client) == []


# -- positions -----------------------------------------------------------------------------------


async def position(client: RawClient, *, stable: bool) -> tuple[int, int]:
    wanted = {"group_id": "readers", "topics": [{"name": "orders", "partition_indexes": [0]}]}
    told = await client.ask(ApiKey.OFFSET_FETCH, 8, {"groups": [wanted], "require_stable": stable})
    (found,) = told["groups"][0]["topics"][0]["partitions"]
    return found["error_code"], found["committed_offset"]


@pytest.mark.parametrize("commit", [True, False])
async def test_positions_in_a_transaction_count_when_it_is_committed(
    tmp_path: Path, commit: bool
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        identity = {
            "transactional_id": ID,
            "producer_id": teller.id,
            "producer_epoch": teller.epoch,
        }
        moved = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}
        wanted = {
            **identity,
            "group_id": "readers",
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": "orders", "partitions": [moved]}],
        }
        told = await client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, wanted)
        code = told["topics"][0]["partitions"][0]["error_code"]
        assert code == ErrorCode.INVALID_TXN_STATE, "the group was not added"
        told = await client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, {**identity, "group_id": "readers"})
        assert told["error_code"] == 0
        told = await client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, wanted)
        assert told["topics"][0]["partitions"][0]["error_code"] == 0
        assert await position(client, stable=False) == (0, -1)
        assert await position(client, stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        await teller.end(commit=commit)
        assert await position(client, stable=True) == (0, 7 if commit else -1)


# -- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
async def test_what_was_decided_before_a_crash_is_carried_out_after_it(
    tmp_path: Path, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders", 2)
        teller = Teller(client)
        await teller.begin()
        await teller.add(0, 1)
        await teller.send(b"zero")
        await teller.send(b"one", partition=1)
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalIds, "_carry_out", lambda self, found: found)
            assert await teller.end(commit=commit) == 0
        assert server.core.store.max_offset("orders", 0) == 1
    async with kafka(tmp_path) as server, raw(server) as client:
        for partition, value in ((0, b"zero"), (1, b"one")):
            assert server.core.store.max_offset("orders", partition) == 2
            assert await committed(client, partition) == ([value] if commit else [])
        teller.client = client
        assert await teller.end(commit=commit) == 0, "the answer was lost"


async def test_an_open_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        await teller.add(0)
        await teller.send(b"one")
    async with kafka(tmp_path) as server, raw(server) as client:
        teller.client = client
        assert await committed(client) == []
        assert await teller.send(b"two") == 0
        assert await teller.end(commit=True) == 0
        assert await committed(client) == [b"one", b"two"]


# -- other people's clients ----------------------------------------------------------------------


async def test_librdkafka_copies_between_topics_exactly_once(tmp_path: Path) -> None:
    def run(at: str) -> None:
        producer = transactional(at)
        producer.begin_transaction()
        for each in range(20):
            producer.produce("orders", b"%d" % each, partition=0)
        producer.commit_transaction(SECONDS)
        producer.begin_transaction()
        producer.produce("orders", b"aborted", partition=0)
        producer.flush(SECONDS)
        producer.abort_transaction(SECONDS)
        reader = consumer(at, "copiers", isolation_level="read_committed")
        reader.subscribe(["orders"])
        for part in range(2):
            producer.begin_transaction()
            for message in take(reader, 10):
                producer.produce("copies", message.value(), partition=0)
            positions = reader.position(reader.assignment())
            producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
            if part == 0:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
        (place,) = reader.committed([TopicPartition("orders", 0)], SECONDS)
        assert place.offset == 10
        reader.close()
        copies = consumer(at, "others", isolation_level="read_committed")
        copies.assign([TopicPartition("copies", 0, 0)])
        assert [each.value() for each in take(copies, 10)] == [b"%d" % each for each in range(10)]
        assert copies.consume(1, 0.3) == []
        copies.close()

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))
        assert server.core.offsets.get("copiers", "orders", 0) == 10


async def test_librdkafka_is_told_that_it_is_fenced(tmp_path: Path) -> None:
    def run(at: str) -> None:
        old = transactional(at)
        old.begin_transaction()
        old.produce("orders", b"old", partition=0)
        old.flush(SECONDS)
        new = transactional(at)
        with pytest.raises(KafkaException) as caught:
            old.commit_transaction(SECONDS)
        assert caught.value.args[0].fatal()
        new.begin_transaction()
        new.produce("orders", b"new", partition=0)
        new.commit_transaction(SECONDS)

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(run, address(server))


async def test_aiokafka_commits_and_aborts(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        at = address(server)
        producer = AIOKafkaProducer(bootstrap_servers=at, transactional_id=ID)
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait("orders", b"one")
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"two")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("orders", b"three")
        await producer.stop()
        reader = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=at,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await reader.start()
        found = [await asyncio.wait_for(reader.getone(), SECONDS) for _ in range(2)]
        assert [each.value for each in found] == [b"one", b"three"]
        await reader.stop()


async def test_administrators_are_told_of_transactions_and_producers(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        await teller.add(0)
        await teller.send(b"one")
        told = await client.ask(ApiKey.LIST_TRANSACTIONS, 1, {"state_filters": ["Ongoing", "Odd"]})
        assert told["unknown_state_filters"] == ["Odd"]
        assert [each["transactional_id"] for each in told["transaction_states"]] == [ID]
        told = await client.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [ID, "nobody"]}
        )
        found, nobody = told["transaction_states"]
        assert found["topics"] == [{"topic": "orders", "partitions": [0]}]
        assert nobody["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        wanted = {"topics": [{"name": "orders", "partition_indexes": [0, 9]}]}
        told = await client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, wanted)
        here, nowhere = told["topics"][0]["partitions"]
        (producer,) = here["active_producers"]
        assert (producer["producer_id"], producer["current_txn_start_offset"]) == (teller.id, 0)
        assert nowhere["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_with_sync_flush_nothing_of_a_transaction_is_seen_before_its_end(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path, store__flush="sync") as server, raw(server) as client:
        await client.make_topic("orders")
        teller = Teller(client)
        await teller.begin()
        await teller.add(0)
        for each in (True, False):
            assert await teller.send(b"one") == 0
            assert await committed(client) == ([] if each else [b"one"])
            assert await teller.end(commit=each) == 0
            await teller.add(0)
        assert await committed(client) == [b"one"]
