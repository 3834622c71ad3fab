"""Share groups of librdkafka, and requests for them by hand."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from onelog.gateways.kafka import share_fetch
from onelog.gateways.kafka.names import topic_id
from onelog.message import NewMessage
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, address, kafka, produce
from tests.gateways.kafka.raw import RawClient, batch_of, batches_in, raw

GROUP, TOPIC = "sharers", "orders"


def sharer(at: str, **settings: Any) -> ShareConsumer:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    reader = ShareConsumer({"bootstrap.servers": at, "group.id": GROUP, **given})
    reader.subscribe([TOPIC])
    return reader


def set_group(at: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": at})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def take(reader: ShareConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    for _ in range(int(SECONDS * 5)):
        for each in reader.poll(0.2):
            assert each.error() is None, each.error()
            found.append(each)
        if len(found) >= count:
            break
    return found


async def test_members_share_one_partition_and_each_message_has_one_of_them(tmp_path: Path) -> None:
    def share(at: str) -> list[bytes | None]:
        set_group(at, share_auto_offset_reset="earliest")
        values: list[bytes | None] = [b"%d" % each for each in range(300)]
        readers = [sharer(at, max_poll_records=20) for _ in range(3)]
        produce(at, TOPIC, values, batch_num_messages=7)
        found: list[bytes | None] = []
        by_reader = [0] * 3
        for _ in range(2_000):
            for number, reader in enumerate(readers):
                some = [each.value() for each in reader.poll(0.05)]
                by_reader[number] += len(some)
                found += some
            if len(found) >= 300:
                break
        for reader in readers:
            reader.commit_sync(SECONDS)
            reader.close()
        assert all(by_reader)
        assert sorted(map(str, found)) == sorted(map(str, values))
        return found

    async with kafka(tmp_path) as server:
        await asyncio.to_thread(share, address(server))
        assert server.core.offsets.get(GROUP, TOPIC, 0) == 300


async def test_what_is_released_comes_again_what_is_rejected_does_not_and_messages_of_rocketmq_do(
    tmp_path: Path,
) -> None:
    def share(at: str) -> None:
        reader = sharer(at, share_acknowledgement_mode="explicit")
        first = take(reader, 3)
        assert [each.value() for each in first] == [b"plain", b"one", b"two"]
        kinds = [AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.ACCEPT]
        for message, kind in zip(first, kinds, strict=True):
            reader.acknowledge(message, kind)
        assert all(error is None for error in reader.commit_sync(SECONDS).values())
        (again,) = take(reader, 1)
        assert (again.value(), again.delivery_count()) == (b"plain", 2)
        reader.acknowledge(again)
        reader.close()

    async with kafka(tmp_path) as server:
        at = address(server)
        async with raw(server) as client:
            await client.make_topic(TOPIC)
        await asyncio.to_thread(set_group, at, share_auto_offset_reset="earliest")
        server.core.writer.write_now([NewMessage(TOPIC, 0, b"plain")])
        await asyncio.to_thread(produce, at, TOPIC, [b"one", b"two"])
        await asyncio.to_thread(share, at)
        assert server.core.offsets.get(GROUP, TOPIC, 0) == 3


async def test_a_member_that_closes_leaves_to_others_what_it_did_not_acknowledge(
    tmp_path: Path,
) -> None:
    def share(at: str) -> None:
        first = sharer(at, share_acknowledgement_mode="explicit")
        taken = take(first, 4)
        first.acknowledge(taken[0])
        first.close()
        found = take(sharer(at), 3)
        assert [each.value() for each in found] == [b"1", b"2", b"3"]

    async with kafka(tmp_path) as server:
        at = address(server)
        await asyncio.to_thread(set_group, at, share_auto_offset_reset="earliest")
        await asyncio.to_thread(produce, at, TOPIC, [b"0", b"1", b"2", b"3"])
        await asyncio.to_thread(share, at)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
async def test_isolation_is_the_groups(tmp_path: Path, level: str) -> None:
    def share(at: str) -> list[bytes | None]:
        set_group(at, share_auto_offset_reset="earliest", share_isolation_level=level)
        payer = Producer({"bootstrap.servers": at, "transactional.id": "payer"})
        payer.init_transactions(SECONDS)
        for value in (b"kept", b"lost", b"kept too"):
            payer.begin_transaction()
            payer.produce(TOPIC, value)
            payer.flush(SECONDS)
            (payer.abort_transaction if value == b"lost" else payer.commit_transaction)(SECONDS)
        reader = sharer(at)
        found = take(reader, 2 if level == "read_committed" else 3)
        reader.commit_sync(SECONDS)
        reader.close()
        return [each.value() for each in found]

    async with kafka(tmp_path) as server:
        found = await asyncio.to_thread(share, address(server))
        lost = [] if level == "read_committed" else [b"lost"]
        assert found == [b"kept", *lost, b"kept too"]
        assert server.core.offsets.get(GROUP, TOPIC, 0) in (5, 6)


# -- by hand -------------------------------------------------------------------------------------


class Member:
    """A member that says everything itself."""

    def __init__(self, client: RawClient, server: BrokerServer, name: str = "ann") -> None:
        self.client, self.server, self.name = client, server, name
        config = server.core.topics.get(TOPIC)
        assert config is not None
        self.topic = topic_id(config)
        self.epoch = 0

    def topics(self, batches: Sequence[tuple[int, int, Sequence[int]]], partition: int = 0) -> Any:
        told = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(kinds)}
            for first, last, kinds in batches
        ]
        return [
            {
                "topic_id": self.topic,
                "partitions": [{"partition_index": partition, "acknowledgement_batches": told}],
            }
        ]

    async def ask(self, key: ApiKey, fields: Fields) -> Fields:
        given = {
            "group_id": GROUP,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "topics": [],
            "forgotten_topics_data": [],
            **fields,
        }
        self.epoch += 1
        return await self.client.ask(key, 2, given)

    async def fetch(self, *batches: tuple[int, int, Sequence[int]], **changed: Any) -> Fields:
        fields = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 100,
            "topics": self.topics(batches),
            **changed,
        }
        return await self.ask(ApiKey.SHARE_FETCH, fields)

    async def acknowledge(self, *batches: tuple[int, int, Sequence[int]], **more: Any) -> Fields:
        return await self.ask(ApiKey.SHARE_ACKNOWLEDGE, {"topics": self.topics(batches), **more})


def acquired(answer: Fields) -> list[tuple[int, int, int]]:
    return [
        (each["first_offset"], each["last_offset"], each["delivery_count"])
        for topic in answer["responses"]
        for partition in topic["partitions"]
        for each in partition["acquired_records"]
    ]


def codes(answer: Fields, name: str = "error_code") -> list[int]:
    return [each[name] for topic in answer["responses"] for each in topic["partitions"]]


@pytest.fixture
async def ann(tmp_path: Path) -> Any:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic(TOPIC, 2)
        await asyncio.to_thread(set_group, address(server), share_auto_offset_reset="earliest")
        await client.produce(TOPIC, batch_of(*[b"%d" % each for each in range(10)]))
        yield Member(client, server)


async def test_ranges_are_taken_and_acknowledged_in_one_request(ann: Member) -> None:
    answer = await ann.fetch(max_records=4, share_acquire_mode=1)
    assert acquired(answer) == [(0, 3, 1)]
    assert answer["acquisition_lock_timeout_ms"] == 30_000
    (partition,) = answer["responses"][0]["partitions"]
    assert [batch.records for batch in batches_in(partition["records"])] == [10]
    answer = await ann.fetch((0, 3, [1, 2, 2, 3]), max_records=3, share_acquire_mode=1)
    assert codes(answer, "acknowledge_error_code") == [0]
    assert acquired(answer) == [(1, 2, 2), (4, 4, 1)]
    answer = await ann.fetch((1, 2, [1]), (4, 4, [0]), max_records=1)
    assert acquired(answer) == [(5, 9, 1)], "the batch is not divided"
    assert codes(await ann.acknowledge((5, 9, [1]))) == [0]
    answer = await ann.fetch()
    assert (answer["error_code"], answer["responses"]) == (0, [])


async def test_what_is_not_ones_own_is_refused_and_nothing_is_changed(ann: Member) -> None:
    await ann.fetch(max_records=4, share_acquire_mode=1)
    bob = Member(ann.client, ann.server, "bob")
    await bob.fetch(max_records=2, share_acquire_mode=1)
    for given in ([(3, 4, [1])], [(4, 5, [1]), (9, 9, [2])], [(0, 1 << 60, [1])]):
        assert codes(await ann.acknowledge(*given)) == [ErrorCode.INVALID_RECORD_STATE]
    wrong: list[list[tuple[int, int, list[int]]]] = [
        [(3, 2, [1])],
        [(2, 3, [1]), (3, 3, [1])],
        [(0, 3, [1, 1])],
        [(0, 0, [9])],
        [(0, 0, [])],
        [(0, 0, [4])],
    ]
    for given in wrong:
        assert codes(await ann.acknowledge(*given)) == [ErrorCode.INVALID_REQUEST]
    assert codes(await ann.acknowledge((0, 3, [1]))) == [0]
    assert codes(await bob.acknowledge((4, 5, [4]), is_renew_ack=True)) == [0]


async def test_sessions_and_what_is_wrong_with_them(ann: Member) -> None:
    answer = await ann.acknowledge((0, 0, [1]))
    assert answer["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    answer = await ann.fetch()
    assert answer["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    ann.epoch = 0
    assert acquired(await ann.fetch()) == [(0, 9, 1)]
    ann.epoch = 7
    answer = await ann.fetch()
    assert answer["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    ann.epoch = 1
    answer = await ann.fetch(is_renew_ack=True)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    ann.epoch = -1
    answer = await ann.fetch((0, 0, [1]))
    assert codes(answer, "acknowledge_error_code") == [0]
    bob = Member(ann.client, ann.server, "bob")
    assert acquired(await bob.fetch()) == [(1, 9, 1)], "what was acquired was not looked at"
    for name in ("", "x" * 37):
        ann.name, ann.epoch = name, 0
        assert (await ann.fetch())["error_code"] == ErrorCode.INVALID_REQUEST


async def test_partitions_are_added_forgotten_and_unknown(ann: Member) -> None:
    await ann.client.produce(TOPIC, batch_of(b"x"), 1)
    nowhere = [{"topic_id": b"x" * 16, "partitions": [{"partition_index": 0}]}]
    given = [*ann.topics((), 1), *ann.topics((), 9), *nowhere]
    for topic in nowhere:
        topic["partitions"][0]["acknowledgement_batches"] = []  # type: ignore[index]
    answer = await ann.fetch(topics=given)
    assert acquired(answer) == [(0, 0, 1)]
    assert sorted(codes(answer)) == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    forgotten = [
        {"topic_id": ann.topic, "partitions": [1, 9]},
        {"topic_id": b"x" * 16, "partitions": [0]},
    ]
    answer = await ann.fetch(forgotten_topics_data=forgotten)
    assert acquired(answer) == [(0, 9, 1)]
    answer = await ann.acknowledge()
    assert answer["responses"] == []
    given = [*ann.topics([(0, 0, [1])], 9)]
    answer = await ann.ask(ApiKey.SHARE_ACKNOWLEDGE, {"topics": given})
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_connection_that_goes_gives_back_what_its_members_have(ann: Member) -> None:
    server = ann.server
    async with raw(server) as client:
        bob = Member(client, server, "bob")
        assert acquired(await bob.fetch()) == [(0, 9, 1)]
    assert acquired(await ann.fetch(max_wait_ms=20_000)) == [(0, 9, 1)]


async def test_one_answer_has_only_so_much(ann: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_fetch, "RECORDS_MAX", 3)
    assert acquired(await ann.fetch(max_records=1 << 30, share_acquire_mode=1)) == [(0, 2, 1)]
    answer = await ann.fetch(max_records=0)
    assert (answer["error_code"], answer["responses"]) == (0, [])
