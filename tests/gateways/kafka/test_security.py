"""Without users, requests about them and their ACLs change nothing; with them, they do."""

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.core.users.logins import HOST_CHECKS_MAX
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.errors import NotAuthenticatedError
from onelog.server import BrokerServer
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.live import SECONDS, address, kafka
from tests.gateways.kafka.raw import RawClient, fetch_fields, raw


async def test_rules_are_neither_told_nor_taken(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        told = await client.ask(ApiKey.DESCRIBE_ACLS, 3)
        made = await client.ask(ApiKey.CREATE_ACLS, 3, {"creations": [{}, {}]})
        gone = await client.ask(ApiKey.DELETE_ACLS, 3, {"filters": [{}]})
        assert (told["error_code"], told["resources"]) == (ErrorCode.SECURITY_DISABLED, [])
        for results in (made["results"], gone["filter_results"]):
            assert {each["error_code"] for each in results} == {ErrorCode.SECURITY_DISABLED}
        assert len(made["results"]) == 2


def upsertion(name: str, mechanism: int = 1, password: bytes = b"secret", **more: Any) -> Fields:
    """As Kafka's tools send a password: salted."""
    digest = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(digest, password, b"salt of it", 4_096)
    usual = {"iterations": 4_096, "salt": b"salt of it", "salted_password": salted}
    return {"name": name, "mechanism": mechanism, **usual, **more}


async def alter(
    client: RawClient, *upsertions: Fields, deletions: Sequence[tuple[str, int]] = ()
) -> list[tuple[str, int]]:
    gone = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
    fields = {"upsertions": upsertions, "deletions": gone}
    told = await client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, fields)
    return [(each["user"], each["error_code"]) for each in told["results"]]


async def test_the_first_user_is_an_administrator_who_can_log_in_everywhere(
    tmp_path: Path,
) -> None:
    def work(at: str) -> None:
        for mechanism in ("SCRAM-SHA-256", "PLAIN"):  # SCRAM's keys prove a password that is sent.
            admin = AdminClient({**login("ann", "secret", mechanism), "bootstrap.servers": at})
            name = f"by-{mechanism}"
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": at, "log_level": 0}).list_topics(timeout=0.5)

    async with kafka(tmp_path) as server:
        async with raw(server) as client:
            told = await client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
            assert told["results"] == []
            assert await alter(client, upsertion("ann"), upsertion("eve")) == [
                ("ann", 0),
                ("eve", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            ]
        assert server.broker.users.user(SELF, "ann").roles == ("admin",)
        await asyncio.to_thread(work, address(server))
        proven = asyncio.get_running_loop().create_future()
        server.broker.users.logins.log_in("ann", "guess", "http", "127.0.0.1:1", proven.set_result)
        assert isinstance(await asyncio.wait_for(proven, SECONDS), NotAuthenticatedError)
    async with kafka(tmp_path) as server:
        await asyncio.to_thread(
            lambda: AdminClient(
                {**login("ann", "secret", "SCRAM-SHA-256"), "bootstrap.servers": address(server)}
            ).list_topics(timeout=SECONDS)
        )


async def test_changes_of_credentials_are_refused_as_kafka_refuses_them(tmp_path: Path) -> None:
    """Each of these codes was seen from Kafka 4.3.1."""
    async with kafka(tmp_path, security__anonymous=True) as server, raw(server) as client:
        gone, unsupported = ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.UNSUPPORTED_SASL_MECHANISM
        bad, twice = ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.DUPLICATE_RESOURCE
        assert await alter(client, upsertion("ann"), upsertion("ann")) == [("ann", twice)]
        assert await alter(client, upsertion("x", 0)) == [("x", unsupported)]
        assert await alter(client, upsertion("x", 3)) == [("x", unsupported)]
        assert await alter(client, upsertion("x", iterations=4_095)) == [("x", bad)]
        assert await alter(client, upsertion("x", iterations=16_385)) == [("x", bad)]
        assert await alter(client, upsertion("")) == [("", bad)]
        assert await alter(client, deletions=[("nobody", 1)]) == [("nobody", gone)]
        assert await alter(client, deletions=[("nobody", 7)]) == [("nobody", unsupported)]
        assert await alter(client, upsertion("ann"), upsertion("bob", iterations=1)) == [
            ("ann", 0),
            ("bob", bad),
        ]
        asked = {"users": [{"name": "ann"}, {"name": "bob"}, {"name": "bob"}]}
        told = await client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, asked)
        assert [(each["user"], each["error_code"]) for each in told["results"]] == [
            ("ann", 0),
            ("bob", twice),
        ]


async def test_a_user_whose_last_credential_is_deleted_is_gone(tmp_path: Path) -> None:
    async with kafka(tmp_path, security__anonymous=True) as server, raw(server) as client:
        assert await alter(client, upsertion("ann"), upsertion("ann", 2)) == [("ann", 0)]
        assert await alter(client, deletions=[("ann", 1)]) == [("ann", 0)]
        assert list(server.broker.users.user(SELF, "ann").proofs.scram) == ["SCRAM-SHA-512"]
        assert await alter(client, deletions=[("ann", 2)]) == [("ann", 0)]
        assert server.broker.users.all_users(SELF) == []


# -- with users ----------------------------------------------------------------------------------


def users_of(server: BrokerServer) -> None:
    users = server.broker.users
    users.create_user(SELF, "ann", prove("secret"), ("admin",))
    users.create_user(SELF, "bob", prove("b"))
    rules = (Rule(("publish", "consume"), "topic", "or", "prefix"), Rule(("consume",), "group"))
    users.set_rules(SELF, "bob", rules)
    server.broker.topics.create(SELF, TopicConfig("orders", 1, 1))
    server.broker.topics.create(SELF, TopicConfig("hidden", 1, 1))


def login(name: str, password: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
    }


async def test_many_connections_together_guess_few_passwords_by_scram(tmp_path: Path) -> None:
    """Each begins an exchange of its own, and all send their proofs at once."""
    count = 2 * HOST_CHECKS_MAX

    async def guess(client: RawClient, first: Fields) -> str:
        nonce = first["auth_bytes"].decode().split(",")[0]
        proof = base64.b64encode(bytes(32)).decode()
        sent = {"auth_bytes": f"c=biws,{nonce},p={proof}".encode()}
        told = await client.ask(ApiKey.SASL_AUTHENTICATE, 0, sent)
        assert told["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        return str(told["error_message"])

    async with kafka(tmp_path) as server, contextlib.AsyncExitStack() as stack:
        users_of(server)
        begun = []
        for _ in range(count):
            client = await stack.enter_async_context(raw(server))
            await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
            sent = {"auth_bytes": b"n,,n=ann,r=abc"}
            begun.append((client, await client.ask(ApiKey.SASL_AUTHENTICATE, 0, sent)))
        told = await asyncio.gather(*(guess(*each) for each in begun))
        assert sum("too many came from here" in each for each in told) >= count - HOST_CHECKS_MAX


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_logs_in_and_does_what_he_may(tmp_path: Path, mechanism: str) -> None:
    async with kafka(tmp_path) as server:
        users_of(server)
        how = {**login("bob", "b", mechanism), "bootstrap.servers": address(server)}

        def work() -> tuple[list[object], bytes | None, object, set[str]]:
            producer = Producer(how)
            told: list[object] = []
            producer.produce("orders", b"1", on_delivery=lambda error, _: told.append(error))
            producer.flush(SECONDS)
            consumer = Consumer({**how, "group.id": "g", "auto.offset.reset": "earliest"})
            consumer.subscribe(["orders"])
            read = consumer.poll(SECONDS)
            consumer.close()
            admin = AdminClient(how)
            seen = admin.list_topics(timeout=SECONDS).topics
            asked = admin.list_topics("hidden", timeout=SECONDS).topics["hidden"].error
            return told, read.value() if read else None, asked, set(seen)

        told, value, asked, seen = await asyncio.to_thread(work)
        assert (told, value) == ([None], b"1")
        assert "orders" in seen
        assert "hidden" not in seen
        assert isinstance(asked, KafkaError)
        assert asked.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(("name", "password"), [("bob", "guess"), ("eve", "b")])
async def test_who_cannot_log_in_is_told_so(
    tmp_path: Path, mechanism: str, name: str, password: str
) -> None:
    async with kafka(tmp_path) as server:
        users_of(server)
        told: list[KafkaError] = []
        how = {
            **login(name, password, mechanism),
            "bootstrap.servers": address(server),
            "error_cb": told.append,
            "log_level": 0,
        }
        producer = Producer(how)
        for _ in range(200):
            await asyncio.to_thread(producer.poll, 0.1)
            if told:
                break
        assert told[0].code() == KafkaError._AUTHENTICATION
        assert server.broker.users.logins.failed


async def test_who_does_not_log_in_learns_the_versions_only(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        users_of(server)
        assert (await client.ask(ApiKey.API_VERSIONS, 2))["error_code"] == 0
        with pytest.raises((EOFError, ConnectionError, asyncio.IncompleteReadError)):
            await client.ask(ApiKey.METADATA, 12, {"topics": None})


async def test_mechanisms_are_told_and_others_refused(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        users_of(server)
        told = await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
        assert told["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert told["mechanisms"] == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        told = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"x"})
        assert told["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "SASL_HANDSHAKE" in told["error_message"]
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        for garbage, reason in (
            (b"", "message of PLAIN"),
            (b"\0" * 9, "message of PLAIN"),
            (b"\0\xff\0x", "UTF-8"),
            (b"ann\0eve\0secret", "as himself"),
            (b"x" * 70_000, "70000 bytes of SASL: at most 65536"),
        ):
            told = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": garbage})
            assert told["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert reason in told["error_message"]


async def test_acls_are_permissions_of_users(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        users_of(server)
        how = {**login("ann", "secret"), "bootstrap.servers": address(server)}
        allow, write = AclPermissionType.ALLOW, AclOperation.WRITE
        literal = ResourcePatternType.LITERAL
        acl = AclBinding(ResourceType.TOPIC, "news", literal, "User:eve", "*", write, allow)
        anything: Any = None
        every = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            "User:eve",
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )

        def work() -> None:
            admin = AdminClient(how)
            for made in admin.create_acls([acl]).values():
                made.result(SECONDS)
            assert admin.describe_acls(every).result(SECONDS) == [acl]
            eve = Principal("eve", "test")
            assert server.broker.users.may(eve, "publish", ("topic", "news"))
            for gone in admin.delete_acls([every]).values():
                assert gone.result(SECONDS) == [acl]
            assert admin.describe_acls(every).result(SECONDS) == []
            assert not server.broker.users.may(eve, "publish", ("topic", "news"))

        await asyncio.to_thread(work)


async def test_only_administrators_see_and_change_acls(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        users_of(server)
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        told = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0bob\0b"})
        assert told["error_code"] == 0
        every = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        told = await client.ask(ApiKey.DESCRIBE_ACLS, 3, every)
        assert told["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        acl = {
            "resource_type": 2,
            "resource_name": "*",
            "resource_pattern_type": 3,
            "principal": "User:bob",
            "host": "*",
            "operation": 2,
            "permission_type": 3,
        }
        (told,) = (await client.ask(ApiKey.CREATE_ACLS, 3, {"creations": [acl]}))["results"]
        assert told["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def described(admin: AdminClient, name: str) -> Future[Any]:
    found = admin.describe_user_scram_credentials([name])
    assert isinstance(found, dict)
    return found[name]


async def test_passwords_of_scram_can_be_given_by_kafkas_tools(tmp_path: Path) -> None:
    async with kafka(tmp_path) as server:
        users_of(server)
        how = {**login("ann", "secret"), "bootstrap.servers": address(server)}

        def work() -> None:
            admin = AdminClient(how)
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
            change = UserScramCredentialUpsertion("eve", info, b"new password")
            for made in admin.alter_user_scram_credentials([change]).values():
                made.result(SECONDS)
            found = described(admin, "eve").result(SECONDS)
            assert [each.iterations for each in found.scram_credential_infos] == [4_096]
            eve = {**how, **login("eve", "new password", "SCRAM-SHA-256")}
            assert "orders" not in AdminClient(eve).list_topics(timeout=SECONDS).topics
            gone = UserScramCredentialDeletion("eve", ScramMechanism.SCRAM_SHA_256)
            for each in admin.alter_user_scram_credentials([gone]).values():
                each.result(SECONDS)
            with pytest.raises(KafkaException):
                described(admin, "eve").result(SECONDS)

        await asyncio.to_thread(work)


async def test_the_first_rule_is_taken_where_nobody_has_to_log_in(tmp_path: Path) -> None:
    async with kafka(tmp_path, security__anonymous=True) as server, raw(server) as client:
        acl = {
            "resource_type": 2,
            "resource_name": "news",
            "resource_pattern_type": 3,
            "principal": "User:eve",
            "host": "*",
            "operation": 4,
            "permission_type": 3,
        }
        made = await client.ask(ApiKey.CREATE_ACLS, 3, {"creations": [acl]})
        assert [each["error_code"] for each in made["results"]] == [0]
        assert server.broker.users.may(Principal("eve", "test"), "publish", ("topic", "news"))
        await client.make_topic("news", 1)
        made = {"name": "ann", "mechanism": 1, "iterations": 4096, "salt": b"s"}
        upsertions = {"upsertions": [{**made, "salted_password": b"p"}], "deletions": []}
        (told,) = (await client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions))["results"]
        assert told["error_code"] == 0


async def test_what_somebody_may_is_told_as_it_is(tmp_path: Path) -> None:
    fields = {
        "topics": [{"name": "orders"}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    async with kafka(tmp_path) as server:
        server.broker.topics.create(SELF, TopicConfig("orders", 1, 1))
        users = server.broker.users
        users.create_user(SELF, "root", prove("r"), ("admin",))
        users.create_user(SELF, "bob", prove("b"))
        rules = Rule(("consume",), "topic", "orders", "literal"), Rule(("consume",), "group", "g*")
        users.set_rules(SELF, "bob", rules)
        told = {}
        for name, password in (("root", "r"), ("bob", "b")):
            async with raw(server) as client:
                await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                given = {"auth_bytes": f"\0{name}\0{password}".encode()}
                await client.ask(ApiKey.SASL_AUTHENTICATE, 2, given)
                topic = (await client.ask(ApiKey.METADATA, 8, fields))["topics"][0]
                wanted = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
                cluster = await client.ask(ApiKey.DESCRIBE_CLUSTER, 1, wanted)
                asked = {"groups": ["g1", "h1"], "include_authorized_operations": True}
                groups = (await client.ask(ApiKey.DESCRIBE_GROUPS, 5, asked))["groups"]
                told[name] = [
                    topic["topic_authorized_operations"],
                    cluster["cluster_authorized_operations"],
                    *(each["authorized_operations"] for each in groups),
                ]
        read, describe, describe_configs, idempotent = 1 << 3, 1 << 8, 1 << 10, 1 << 12
        assert told["root"] == [0xDF8, 0x1FA0, 0x148, 0x148]
        of_cluster = describe | describe_configs | idempotent
        assert told["bob"] == [read | describe | describe_configs, of_cluster, read | describe, 0]


async def test_a_topic_that_they_may_not_read_does_not_keep_the_others_from_them(
    tmp_path: Path,
) -> None:
    async with kafka(tmp_path) as server, raw(server) as client:
        users_of(server)
        rules = (
            Rule(("consume",), "topic", "orders", "literal"),
            Rule(("describe",), "topic", "hidden", "literal"),
        )
        server.broker.users.set_rules(SELF, "bob", rules)
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        await client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0bob\0b"})
        fields = fetch_fields("orders", [(0, 0)])
        fields["topics"] += fetch_fields("hidden", [(0, 0)])["topics"]
        told = await client.ask(ApiKey.FETCH, 12, fields)
        assert told["error_code"] == 0
        assert {
            each["topic"]: each["partitions"][0]["error_code"] for each in told["responses"]
        } == {"orders": 0, "hidden": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
