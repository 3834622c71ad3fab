"""What deletes or reconfigures is for the broker's own machine, unless others are let in."""

from pathlib import Path
from typing import Any

import pytest

from onelog.gateways.kafka import session
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from tests.gateways.kafka.live import kafka
from tests.gateways.kafka.raw import batch_of, raw

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TOPIC = {"resource_type": 2, "resource_name": "orders", "configs": []}
REQUESTS: dict[ApiKey, tuple[int, dict[str, Any], list[str | int]]] = {
    ApiKey.CREATE_TOPICS: (
        5,
        {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]},
        ["topics", 0],
    ),
    ApiKey.DELETE_TOPICS: (5, {"topic_names": ["orders"]}, ["responses", 0]),
    ApiKey.CREATE_PARTITIONS: (
        3,
        {"topics": [{"name": "orders", "count": 2, "assignments": None}]},
        ["results", 0],
    ),
    ApiKey.DELETE_RECORDS: (
        2,
        {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]},
        ["topics", 0, "partitions", 0],
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        1,
        {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": [0]}]}]},
        ["responses", 0, "partitions", 0],
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        2,
        {"dirs": [{"path": "/", "topics": [{"name": "orders", "partitions": [0]}]}]},
        ["results", 0, "partitions", 0],
    ),
    ApiKey.ALTER_CONFIGS: (1, {"resources": [TOPIC]}, ["responses", 0]),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, {"resources": [TOPIC]}, ["responses", 0]),
    ApiKey.ALTER_CLIENT_QUOTAS: (1, {"entries": [{"entity": [], "ops": []}]}, ["entries", 0]),
    ApiKey.DELETE_GROUPS: (2, {"groups_names": ["readers"]}, ["results", 0]),
    ApiKey.OFFSET_DELETE: (0, {"group_id": "readers", "topics": []}, []),
}


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name.lower())
async def test_a_peer_on_another_machine_may_not_administer(
    tmp_path: Path, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, fields, place = REQUESTS[key]
    async with kafka(tmp_path) as server:
        async with raw(server) as client:
            await client.make_topic("orders")
            await client.produce("orders", batch_of(b"x"))
            server.core.offsets.commit("readers", "orders", 0, 1)
        monkeypatch.setattr(session, "is_here", lambda remote, local: False)
        async with raw(server) as client:
            codes = []
            for is_open in ("false", "true"):
                server.reconfigure({"security.remote_admin": is_open})
                found: Any = await client.ask(key, version, fields)
                for step in place:
                    found = found[step]
                codes.append(found["error_code"])
            assert codes[0] == REFUSED
            assert codes[1] != REFUSED
            assert (await client.produce("orders", batch_of(b"y")))["error_code"] in (
                0,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
