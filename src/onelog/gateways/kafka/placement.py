"""Requests about where partitions are, and who decides that: they stay where they are.

A request to put a partition where it is already is done at once; any other is refused.
"""

from onelog.errors import OnelogError, TopicNotFoundError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.names import require_topic
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

METADATA_TOPIC = "__cluster_metadata"
"""Where Kafka's brokers keep what they agree on; it is only asked about."""


def alter_partition_reassignments(session: KafkaSession, request: Request) -> Steps:
    results: list[Fields] = []
    for topic in request.fields["topics"]:
        partitions: list[Fields] = []
        results.append({"name": topic["name"], "partitions": partitions})
        for each in topic["partitions"]:
            yield
            reassigned = _reassigned(session, topic["name"], each)
            partitions.append({"partition_index": each["partition_index"], **reassigned})
    allowed = request.fields.get("allow_replication_factor_change", True)
    return {
        "error_code": 0,
        "error_message": None,
        "responses": results,
        "allow_replication_factor_change": allowed,
    }


def _reassigned(session: KafkaSession, topic: str, wanted: Fields) -> Fields:
    code, reason = ErrorCode.NONE, None
    try:
        leader = _leader(session, topic, wanted["partition_index"])
        if wanted["replicas"] is None:
            code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        elif sorted(wanted["replicas"]) not in (
            [leader],
            sorted(replicas := session.gateway.cluster.copies(leader)["replica_nodes"]),
        ):
            code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            reason = f"a partition stays where it is, on {replicas}"
    except OnelogError as error:
        code = error_code(error)
    return {"error_code": code, "error_message": reason}


def _leader(session: KafkaSession, topic: str, partition: int) -> int:
    """Who has a partition; raises if who asks may not move it, or there is none such."""
    session.require_administrator()
    config = require_topic(session.broker, session.principal, topic)
    leaders = session.gateway.cluster.leaders(config)
    if not 0 <= partition < len(leaders):
        raise TopicNotFoundError(f"topic {topic} has no partition {partition}")
    return leaders[partition]


def alter_replica_log_dirs(session: KafkaSession, request: Request) -> None:
    """ALTER_REPLICA_LOG_DIRS: there is one folder, and everything is in it."""

    def moved(path: str, topic: str, partition: int, folder: str) -> Fields:
        try:
            _leader(session, topic, partition)
            code = ErrorCode.NONE if path == folder else ErrorCode.LOG_DIR_NOT_FOUND
        except OnelogError as error:
            code = error_code(error)
        return {"partition_index": partition, "error_code": code}

    def find() -> Fields:
        folder = str(session.broker.admin.log_state(session.principal).folder)
        return {
            "results": [
                {
                    "topic_name": topic["name"],
                    "partitions": [
                        moved(each["path"], topic["name"], partition, folder)
                        for partition in topic["partitions"]
                    ],
                }
                for each in request.fields["dirs"]
                for topic in each["topics"]
            ]
        }

    session.look_up(request, find)


def describe_quorum(session: KafkaSession, request: Request) -> Steps:
    """DESCRIBE_QUORUM: one broker decides."""
    cluster = session.gateway.cluster
    node_id = cluster.controller_id
    voter = {"replica_id": node_id, "log_end_offset": 0}
    alone: Fields = {
        "error_code": 0,
        "error_message": None,
        "leader_id": node_id,
        "leader_epoch": cluster.leader_epoch,
        "high_watermark": 0,
        "current_voters": [voter],
        "observers": [],
    }
    unknown: Fields = {
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": None,
        "leader_id": -1,
    }
    results: list[Fields] = []
    for topic in request.fields["topics"]:
        name = topic["topic_name"]
        partitions: list[Fields] = []
        results.append({"topic_name": name, "partitions": partitions})
        for number in (each["partition_index"] for each in topic["partitions"]):
            yield
            found = alone if (name, number) == (METADATA_TOPIC, 0) else unknown
            partitions.append({**found, "partition_index": number})
    nodes = [
        {
            "node_id": each.node_id,
            "listeners": [{"name": "PLAINTEXT", "host": each.host, "port": each.port}],
        }
        for each in cluster.brokers()
        if each.node_id == node_id
    ]
    return {"error_code": 0, "error_message": None, "topics": results, "nodes": nodes}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
}
