"""Kafka's protocol: no request tells a user anything about what he has no permission for."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from onelog.core.access import SELF
from onelog.gateways.kafka.handlers import HANDLERS, VERSIONS
from onelog.gateways.kafka.names import topic_id
from onelog.server import BrokerServer
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.raw import RawClient, batch_of, raw
from tests.security.secrets import ABSENT, NOBODY, OWNER, SECRET, TRACE, context, hidden, state

BEFORE_LOGIN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
GROUPS = {"group_id", "groups", "groups_names", "coordinator_keys", "key"}
GIVEN: dict[str, Any] = {
    "host": "*",
    "member_id": "m",
    "session_epoch": -1,
    "share_session_epoch": 0,
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "session_timeout_ms": 10_000,
    "acks": -1,
    "timeout_ms": 100,
    "resource_type": 2,
    "replica_id": -1,
    "protocol_type": "consumer",
    "producer_id": -1,
    "producer_epoch": -1,
    "transaction_timeout_ms": 1_000,
    "isolation_level": 0,
    "key_type": 0,
    "response_partition_limit": 100,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 9,
    "rebalance_timeout_ms": 10_000,
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "resource_pattern_type": 3,
    "operation": 1,
    "permission_type": 1,
    "timestamp": -2,
    "current_leader_epoch": -1,
    "max_num_offsets": 9,
    "member_epoch": 0,
    "iterations": 4096,
    "mechanism": 1,
    "max_records": 10,
    "batch_size": 10,
    "leader_epoch": 0,
    "tombstones": b"",
    "resource_types": [],
    "state_filters": [],
    "states_filter": [],
    "types_filter": [],
    "config_resource_types": [],
    "states": [],
    "config_source": 0,
    "assignments": [],
    "configuration_keys": None,
    "configs": [],
    "generation_id": -1,
    "instance_id": None,
    "group_instance_id": None,
    "rack_id": None,
    "server_assignor": None,
    "protocol_name": None,
    "subscribed_topic_regex": None,
    "committed_metadata": None,
    "metadata": b"",
    "reason": None,
}


def fill(
    fields: list[Any], version: int, name: str, own: str, id_: bytes, asks_all: bool
) -> Fields:
    """A request about one thing; or about all, where that can be said."""
    made: Fields = {}
    value: Any
    for field in fields:
        if version not in field.versions:
            continue
        if asks_all and field.is_array and version in field.nullable:
            made[field.name] = None
        elif field.name in GIVEN:
            value = GIVEN[field.name]
            made[field.name] = "" if value is None and version not in field.nullable else value
        elif field.kind == "{}":
            inner = fill(field.fields, version, name, own, id_, asks_all)
            made[field.name] = [inner] if field.is_array and not asks_all else inner
            if field.is_array and asks_all:
                made[field.name] = []
        else:
            value = 0
            if field.kind == "string":
                value = own if field.name in GROUPS else name
                value = f"User:{name}" if field.name == "principal" else value
            elif field.kind == "bytes":
                value = batch_of(b"x") if field.name == "records" else b""
            elif field.kind == "records":
                value = batch_of(b"x")
            elif field.kind == "uuid":
                value = id_
            elif field.kind == "bool":
                value = True
            made[field.name] = [value] if field.is_array else value
    return made


async def log_in(client: RawClient, login: tuple[str, str]) -> None:
    await client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    data = f"\0{login[0]}\0{login[1]}".encode()
    answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": data})
    assert answer["error_code"] == 0


def flat(answer: Fields, name: str, id_: bytes) -> bytes:
    """What an answer says, but for the name and id that were asked about."""
    told = re.sub("<memory at [^>]+>", "records", repr(answer))
    text = hidden(told.encode(), name).replace(repr(id_).encode(), b"ID")
    return re.sub(rb"'(member_id|timestamp|producer_id|log_dir)': [^,}]+", b"", text)


async def asked(
    server: BrokerServer, key: ApiKey, version: int, login: Any, fields: Fields
) -> Fields:
    async with raw(server) as client:
        await log_in(client, login)
        try:
            return await client.ask(key, version, fields)
        except asyncio.IncompleteReadError:
            return {"closed": True}


async def complaint(server: BrokerServer, login: tuple[str, str], key: ApiKey, version: int) -> str:
    """What is wrong with the answers to a request."""
    secret_id = topic_id(server.broker.topics.require(SELF, SECRET))
    request = schema.apis()[key].request
    everything = fill(request, version, ABSENT, ABSENT, bytes(16), True)
    answer = await asked(server, key, version, login, everything)
    if TRACE in flat(answer, "\0", secret_id):
        return f"tells a name: {answer}"
    for own in ("",) if login is NOBODY else ("", "own"):
        answers = []
        if own and SECRET not in repr(fill(request, version, SECRET, own, secret_id, False)):
            continue  # It names nothing but their own.
        for name, id_ in ((SECRET, secret_id), (ABSENT, b"absent".ljust(16, b"."))):
            fields = fill(request, version, name, own or name, id_, False)
            answers.append(flat(await asked(server, key, version, login, fields), name, id_))
        # An id is no name, and nobody can guess one: Kafka tells whether there is such a topic.
        if answers[0] != answers[1] and b"ID" not in answers[0]:
            return f"tells that something is there: {answers}"
        if TRACE in answers[0]:
            return f"tells a name: {answers}"
    return ""


@pytest.mark.parametrize("login", [NOBODY, OWNER], ids=["nobody", "owner"])
async def test_no_request_tells_what_is_there(tmp_path: Path, login: tuple[str, str]) -> None:
    wrong: dict[str, str] = {}
    async with context(tmp_path) as server:
        before = state(server)
        for key in sorted(HANDLERS.keys() - BEFORE_LOGIN):
            versions = VERSIONS[key]
            for version in {versions[0], versions[-1]}:
                if found := await complaint(server, login, key, version):
                    wrong[f"{key.name} {version}"] = found
                if state(server) != before:
                    wrong[f"{key.name} {version}"] = "changes something"
                    before = state(server)
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


async def test_who_has_not_logged_in_is_cut_off(tmp_path: Path) -> None:
    async with context(tmp_path) as server:
        for key in sorted(HANDLERS.keys() - BEFORE_LOGIN):
            async with raw(server) as client:
                client.tell(key, VERSIONS[key][-1], None)
                assert await client.is_closed(), key.name
