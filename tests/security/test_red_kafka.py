"""Attacks on Kafka's doors: its own topics, users by SCRAM, settings, groups."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.errors import OnelogError
from onelog.gateways.kafka.kept_settings import METRICS_CONFIGS
from onelog.gateways.kafka.names import INTERNAL_TOPICS, topic_id
from onelog.message import NewMessage
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import RawClient, batch_of, fetch_fields, raw
from tests.gateways.kafka.test_offsets_topic import READERS, TOPIC, commit, records_in
from tests.gateways.kafka.test_security import alter, upsertion
from tests.gateways.kafka.test_settings import BROKER, CLIENT_METRICS, change
from tests.gateways.remoting.live import client as remoting_client
from tests.security.secrets import ADMIN, NOBODY, OWNER, people
from tests.security.test_sweep_kafka import log_in


@pytest.fixture
def afar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client is on another machine."""
    monkeypatch.setattr("onelog.gateways.kafka.session.is_here", lambda *_: False)


# -- Kafka's own topics ----------------------------------------------------------------------------


async def test_a_forged_position_cannot_be_produced(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await commit(client, 5)
        ((_, key, value),) = records_in(await client.fetch(TOPIC, 0, READERS))
        assert value is not None
        for version in (3, 9):
            for acks in (1, -1):
                told = await client.produce(
                    TOPIC, batch_of(value), READERS, acks=acks, version=version
                )
                assert told["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert records_in(await client.fetch(TOPIC, 0, READERS))[0][1:] == (key, value)
        assert server.core.offsets.get("readers", "orders", 0) == 5


async def test_a_forged_position_cannot_be_produced_in_a_transaction(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        asked: Fields = {"transactional_id": "eve", "transaction_timeout_ms": 60_000}
        producer = await client.ask(ApiKey.INIT_PRODUCER_ID, 2, asked)
        adding = {
            "v3_and_below_transactional_id": "eve",
            "v3_and_below_producer_id": producer["producer_id"],
            "v3_and_below_producer_epoch": producer["producer_epoch"],
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [READERS]}],
        }
        told = await client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, adding)
        (partition,) = told["results_by_topic_v3_and_below"][0]["results_by_partition"]
        assert partition["partition_error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        batch = batch_of(
            b"x", producer=(producer["producer_id"], producer["producer_epoch"], 0), attributes=16
        )
        told = await client.produce(TOPIC, batch, READERS)
        assert told["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_rocketmqs_clients_cannot_make_or_write_it(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, remoting_client(server) as peer:
        making = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        answer = await peer.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, making)
        assert answer.code != ResponseCode.SUCCESS
        sending = {
            "producerGroup": "p",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1",
            "flag": "0",
            "properties": "",
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        answer = await peer.peer.ask(RequestCode.SEND_MESSAGE, sending, b"x")
        assert answer.code != ResponseCode.SUCCESS
        assert server.core.topics.get(TOPIC) is None


async def test_what_the_core_takes_from_other_gateways_does_not_get_there(tmp_path: Path) -> None:
    """AMQP, STOMP, MQTT and HTTP publish and declare by these verbs."""
    async with kafka(tmp_path) as server:
        broker = server.broker
        for name in INTERNAL_TOPICS:
            with pytest.raises(OnelogError):
                broker.topics.create(SELF, TopicConfig(name, 1, 1))
            with pytest.raises(OnelogError):
                broker.topics.create_for_send(SELF, name, "TBW102", 4)
            with pytest.raises(OnelogError):
                broker.publish.send(SELF, NewMessage(name, 0, b"x"), lambda *_: None)
            with pytest.raises(OnelogError):
                server.core.topics.ensure(TopicConfig(name, 1, 1))
            assert server.core.topics.get(name) is None


async def test_asking_for_it_makes_no_topic_with_auto_creation(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        wanted = {"topics": [{"name": each} for each in INTERNAL_TOPICS]}
        told = await client.ask(ApiKey.METADATA, 12, {**wanted, "allow_auto_topic_creation": True})
        assert {each["is_internal"] for each in told["topics"]} == {True}
        assert not {each.name for each in server.core.topics.all()} & set(INTERNAL_TOPICS)


async def test_it_is_not_deleted_by_its_id(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        id_ = topic_id(INTERNAL_TOPICS[TOPIC])
        told = await client.ask(
            ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": id_}]}
        )
        assert told["responses"][0]["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await client.fetch(TOPIC, 0))["error_code"] == 0


async def fetched(client: RawClient, version: int = 12) -> int:
    fields = fetch_fields(TOPIC, [(READERS, 0)])
    if version > 12:
        id_ = topic_id(INTERNAL_TOPICS[TOPIC])
        fields["topics"] = [{**each, "topic_id": id_} for each in fields["topics"]]
    answer = await client.ask(ApiKey.FETCH, version, fields)
    code: int = answer["responses"][0]["partitions"][0]["error_code"]
    return code


@pytest.mark.parametrize("login", [NOBODY, OWNER])
async def test_positions_are_not_read_without_permission(
    tmp_path: Path, login: tuple[str, str]
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        await log_in(client, login)
        assert await fetched(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await fetched(client, 16) in (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.UNKNOWN_TOPIC_ID,
        )
        wanted = {"partition_index": 0, "timestamp": -1}
        told = await client.ask(
            ApiKey.LIST_OFFSETS, 7, {"topics": [{"name": TOPIC, "partitions": [wanted]}]}
        )
        (partition,) = told["topics"][0]["partitions"]
        assert partition["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        listed = await client.ask(ApiKey.METADATA, 12, {"topics": None})
        assert TOPIC not in {each["name"] for each in listed["topics"]}


async def test_who_may_only_describe_it_does_not_read_it(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        users = server.broker.users
        users.set_rules(SELF, NOBODY[0], (Rule(("describe",), "topic", TOPIC, "literal"),))
        await log_in(client, NOBODY)
        assert await fetched(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_denial_goes_before_a_permission_for_all_topics(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        every = Rule(("consume", "describe"), "topic", "*", "pattern")
        but = Rule(("consume",), "topic", TOPIC, "literal", "deny")
        server.broker.users.set_rules(SELF, NOBODY[0], (every, but))
        await log_in(client, NOBODY)
        assert await fetched(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_share_group_does_not_lease_it(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        positions = [{"partition_index": 0, "start_offset": 0}]
        fields = {"group_id": "eve", "topics": [{"topic_name": TOPIC, "partitions": positions}]}
        told = await client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, fields)
        (partition,) = told["responses"][0]["partitions"]
        assert partition["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("offset", [-1, 1 << 62, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("partition", [0, 49, 50, -1, 1 << 30])
async def test_no_place_breaks_the_view(tmp_path: Path, offset: int, partition: int) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        told = await client.fetch(TOPIC, offset, partition)
        assert told["error_code"] in (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        assert (await client.fetch(TOPIC, 0))["error_code"] == 0


async def test_fetches_of_all_partitions_do_not_hold_the_others(tmp_path: Path) -> None:
    """Eight readers of 20,000 positions, again and again; somebody else is served meanwhile."""
    async with kafka(tmp_path) as server, raw(server) as other:
        await other.make_topic("orders")
        for number in range(20_000):
            server.core.offsets.commit(f"g{number}", "orders", 0, 1)
        server.core.offsets.flush()
        places = [(each, 0) for each in range(50)]

        async def read() -> None:
            async with raw(server) as client:
                for _ in range(5):
                    await client.ask(ApiKey.FETCH, 12, fetch_fields(TOPIC, places))

        reading = asyncio.gather(*(read() for _ in range(8)))
        longest = 0.0
        while not reading.done():
            begun = time.thread_time()
            await other.ask(ApiKey.API_VERSIONS, 2)
            longest = max(longest, time.thread_time() - begun)
        await reading
        assert longest < 1.0


# -- users ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("afar")
@pytest.mark.parametrize("remote_admin", [False, True])
async def test_the_first_user_is_not_made_from_afar(tmp_path: Path, remote_admin: bool) -> None:
    async with kafka(tmp_path, security__remote_admin=remote_admin) as server, raw(server) as eve:
        assert await alter(eve, upsertion("eve")) == [
            ("eve", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        ]
        assert server.broker.users.is_open


async def test_a_user_does_not_take_over_another_by_giving_him_a_password(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        await log_in(client, OWNER)
        told = await alter(client, upsertion(ADMIN[0], password=b"mine"))
        assert told == [(ADMIN[0], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
        async with raw(server) as admin:
            await log_in(admin, ADMIN)


async def test_a_user_makes_no_other_and_deletes_nobody(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        before = server.broker.users.all_users(SELF)
        await log_in(client, NOBODY)
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await alter(client, upsertion("two")) == [("two", refused)]
        assert await alter(client, deletions=[(ADMIN[0], 1)]) == [(ADMIN[0], refused)]
        assert server.broker.users.all_users(SELF) == before


async def test_a_user_is_not_told_whether_another_is_there(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        await log_in(client, NOBODY)
        for name in (ADMIN[0], "zzabsent"):
            told = await alter(client, deletions=[(name, 2)])
            assert told == [(name, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]


@pytest.mark.parametrize("iterations", [-1, 0, 1, 4_095, 16_385, (1 << 31) - 1])
async def test_no_count_of_iterations_is_cheap_to_guess_or_dear_to_check(
    tmp_path: Path, iterations: int
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        told = await alter(client, upsertion("eve", iterations=iterations))
        assert told == [("eve", ErrorCode.UNACCEPTABLE_CREDENTIAL)]
        assert server.broker.users.is_open


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "\x1b[2J", "x" * 300])
async def test_no_name_of_a_user_writes_into_logs(tmp_path: Path, name: str) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        ((_, code),) = await alter(client, upsertion(name))
        assert code == ErrorCode.INVALID_REQUEST
        assert server.broker.users.is_open


@pytest.mark.parametrize("empty", ["salt", "salted_password"])
async def test_a_credential_of_nothing_is_no_credential(tmp_path: Path, empty: str) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        told = await alter(client, {**upsertion("eve"), empty: b""})
        assert told == [("eve", ErrorCode.UNACCEPTABLE_CREDENTIAL)]


async def test_the_last_administrator_is_not_deleted_beside_others(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        async with raw(server) as client:
            await alter(client, upsertion("ann"))
        server.broker.users.create_user(SELF, "bob", prove("b"))
        async with raw(server) as client:
            await log_in(client, ("ann", "secret"))
            ((_, code),) = await alter(client, deletions=[("ann", 1)])
            assert code == ErrorCode.INVALID_REQUEST
        assert server.broker.users.is_admin(Principal("ann", "test"))


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BROKER, CLIENT_METRICS])
async def test_a_user_without_permission_changes_no_settings(tmp_path: Path, kind: int) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        people(server)
        await log_in(client, OWNER)
        setting = ("num.partitions", "9") if kind == BROKER else ("metrics", "x")
        told = await change(client, kind, "0", setting)
        assert told == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert server.broker.admin.kafka_settings.all() == {}


@pytest.mark.usefixtures("afar")
async def test_settings_are_not_changed_from_afar(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as eve:
        told = await change(eve, BROKER, "", ("log.retention.ms", "1"))
        assert told == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert server.config.store.retention_ms > 1


@pytest.mark.parametrize(
    "name",
    [
        "security.anonymous",
        "security.remote_admin",
        "broker.store_path",
        "store.retention_ms",
        "kafka.port",
        "ssl.keystore.location",
        "sasl.jaas.config",
        "authorizer.class.name",
        "listeners",
        "super.users",
        "metric.reporters",
        "config.providers",
    ],
)
async def test_no_other_setting_is_reached_by_kafkas_names(tmp_path: Path, name: str) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        assert await change(client, BROKER, "0", (name, "true")) == ErrorCode.INVALID_REQUEST
        assert server.broker.admin.kafka_settings.all() == {}


@given(st.text(max_size=200))
def test_no_pattern_of_a_subscription_takes_long(text: str) -> None:
    begun = time.thread_time()
    for value in (
        text,
        f"client_id={text}",
        f"client_id=({text}+)+$",
        "client_id=" + "(a*)*" * 200,
    ):
        METRICS_CONFIGS["match"].check(value)
    assert time.thread_time() - begun < 1.0


async def test_a_topic_that_takes_everything_still_takes_no_larger_request(tmp_path: Path) -> None:
    async with kafka(tmp_path, broker__frame_bytes_max=1 << 20) as server, raw(server) as client:
        await client.make_topic("orders", max_message_bytes="2147483647")
        wanted = {"index": 0, "records": batch_of(bytes(2 << 20))}
        fields = {"acks": 1, "topic_data": [{"name": "orders", "partition_data": [wanted]}]}
        client.tell(ApiKey.PRODUCE, 9, fields)
        assert await client.is_closed()
        assert server.core.store.max_offset("orders", 0) == 0


async def test_a_name_ten_thousand_times_in_one_request_costs_little(tmp_path: Path) -> None:
    topic = {"name": "same", "num_partitions": 1, "replication_factor": 1}
    async with kafka(tmp_path) as server, raw(server) as client:
        for key, version, fields in (
            (ApiKey.CREATE_TOPICS, 7, {"topics": [topic] * 10_000}),
            (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["same"] * 10_000}),
        ):
            begun = time.thread_time()
            await client.ask(key, version, fields)
            assert time.thread_time() - begun < 1.5
        assert server.core.topics.get("same") is None


# -- groups ----------------------------------------------------------------------------------------


def joining(member: str, **changed: Any) -> Fields:
    return {
        "group_id": "readers",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 700,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **changed,
    }


async def test_members_that_keep_coming_do_not_keep_a_new_group_waiting(tmp_path: Path) -> None:
    async with kafka(tmp_path, kafka__initial_rebalance_delay_ms=200) as server:
        async with raw(server) as client, raw(server) as eve:
            client.tell(ApiKey.JOIN_GROUP, 2, joining(""))

            async def flood() -> None:
                for _ in range(400):
                    eve.tell(ApiKey.JOIN_GROUP, 2, joining(""))
                    await asyncio.sleep(0.05)

            flooding = asyncio.create_task(flood())
            begun = time.monotonic()
            told = await client.hear(ApiKey.JOIN_GROUP, 2)
            assert told["error_code"] == 0
            assert time.monotonic() - begun < 15, "the rebalance time is the end of it"
            flooding.cancel()


async def test_ids_that_nobody_uses_do_not_keep_a_group_from_being_deleted(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as eve, raw(server) as client:
        for _ in range(200):
            await eve.ask(ApiKey.JOIN_GROUP, 5, joining(""))
        told = await client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["readers"]})
        assert told["results"][0]["error_code"] == 0


async def test_who_was_replaced_does_not_move_the_group(tmp_path: Path) -> None:
    """A process that stood still, and whose name another one has by now."""
    async with kafka(tmp_path) as server, raw(server) as client, raw(server) as zombie:
        await client.make_topic("orders")
        old = await zombie.ask(ApiKey.JOIN_GROUP, 5, joining("", group_instance_id="till"))
        new = await client.ask(ApiKey.JOIN_GROUP, 5, joining("", group_instance_id="till"))
        assert new["member_id"] != old["member_id"]
        partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
        for instance, code in (
            ("till", ErrorCode.FENCED_INSTANCE_ID),
            (None, ErrorCode.UNKNOWN_MEMBER_ID),
            ("other", ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            fields = {
                "group_id": "readers",
                "generation_id_or_member_epoch": old["generation_id"],
                "member_id": old["member_id"],
                "group_instance_id": instance,
                "topics": [{"name": "orders", "partitions": [partition]}],
            }
            told = await zombie.ask(ApiKey.OFFSET_COMMIT, 8, fields)
            assert told["topics"][0]["partitions"][0]["error_code"] == code
        assert server.core.offsets.get("readers", "orders", 0) is None


async def test_a_consumer_group_is_not_rewound_as_a_share_group(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        await client.make_topic("orders")
        await client.produce("orders", batch_of(b"x", b"y"))
        await commit(client, 2)
        positions = [{"partition_index": 0, "start_offset": 0}]
        fields = {
            "group_id": "readers",
            "topics": [{"topic_name": "orders", "partitions": positions}],
        }
        told = await client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, fields)
        assert told["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        assert server.core.offsets.get("readers", "orders", 0) == 2
