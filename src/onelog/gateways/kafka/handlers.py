"""Which requests are served, by whom, and in which versions."""

from onelog.gateways.kafka import (
    fetch,
    list_offsets,
    placement,
    produce,
    security,
    settings,
    share_fetch,
    topics,
    transaction_parts,
    transactions,
)
from onelog.gateways.kafka.groups import describing, members, positions, shares
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, api_versions
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.API_VERSIONS: api_versions,
    **produce.HANDLERS,
    **fetch.HANDLERS,
    **list_offsets.HANDLERS,
    **topics.HANDLERS,
    **settings.HANDLERS,
    **placement.HANDLERS,
    **security.HANDLERS,
    **transactions.HANDLERS,
    **transaction_parts.HANDLERS,
    **members.HANDLERS,
    **positions.HANDLERS,
    **describing.HANDLERS,
    **shares.HANDLERS,
    **share_fetch.HANDLERS,
}

VERSIONS: dict[ApiKey, range] = {
    ApiKey.PRODUCE: range(13),
    ApiKey.FETCH: range(17),
    ApiKey.LIST_OFFSETS: range(12),
    ApiKey.METADATA: range(14),
    ApiKey.OFFSET_COMMIT: range(2, 10),
    ApiKey.OFFSET_FETCH: range(1, 10),
    ApiKey.FIND_COORDINATOR: range(5),
    ApiKey.JOIN_GROUP: range(10),
    ApiKey.HEARTBEAT: range(5),
    ApiKey.LEAVE_GROUP: range(6),
    ApiKey.SYNC_GROUP: range(6),
    ApiKey.DESCRIBE_GROUPS: range(6),
    ApiKey.LIST_GROUPS: range(6),
    ApiKey.DELETE_RECORDS: range(3),
    ApiKey.INIT_PRODUCER_ID: range(7),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: range(2, 5),
    ApiKey.SASL_HANDSHAKE: range(2),
    ApiKey.API_VERSIONS: range(5),
    ApiKey.CREATE_TOPICS: range(2, 8),
    ApiKey.DELETE_TOPICS: range(1, 7),
    ApiKey.ADD_PARTITIONS_TO_TXN: range(5),
    ApiKey.ADD_OFFSETS_TO_TXN: range(5),
    ApiKey.END_TXN: range(6),
    ApiKey.WRITE_TXN_MARKERS: range(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: range(6),
    ApiKey.DESCRIBE_ACLS: range(1, 4),
    ApiKey.CREATE_ACLS: range(1, 4),
    ApiKey.DELETE_ACLS: range(1, 4),
    ApiKey.DESCRIBE_CONFIGS: range(1, 5),
    ApiKey.ALTER_CONFIGS: range(3),
    ApiKey.ALTER_REPLICA_LOG_DIRS: range(1, 3),
    ApiKey.DESCRIBE_LOG_DIRS: range(1, 6),
    ApiKey.SASL_AUTHENTICATE: range(3),
    ApiKey.CREATE_PARTITIONS: range(4),
    ApiKey.DELETE_GROUPS: range(3),
    ApiKey.ELECT_LEADERS: range(3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: range(2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: range(2),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: range(1),
    ApiKey.OFFSET_DELETE: range(1),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: range(2),
    ApiKey.ALTER_CLIENT_QUOTAS: range(2),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: range(1),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: range(1),
    ApiKey.DESCRIBE_QUORUM: range(3),
    ApiKey.DESCRIBE_CLUSTER: range(2),
    ApiKey.DESCRIBE_PRODUCERS: range(1),
    ApiKey.DESCRIBE_TRANSACTIONS: range(1),
    ApiKey.LIST_TRANSACTIONS: range(2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: range(2),
    ApiKey.CONSUMER_GROUP_DESCRIBE: range(2),
    ApiKey.LIST_CONFIG_RESOURCES: range(2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: range(1),
    ApiKey.SHARE_GROUP_HEARTBEAT: range(1, 2),
    ApiKey.SHARE_GROUP_DESCRIBE: range(1, 2),
    ApiKey.SHARE_FETCH: range(1, 3),
    ApiKey.SHARE_ACKNOWLEDGE: range(1, 3),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: range(2),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: range(1),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: range(1),
}
"""What clients are told that they may use."""

CLUSTER_VERSIONS: dict[ApiKey, range] = {
    **VERSIONS,
    ApiKey.PRODUCE: range(12),
    ApiKey.ADD_OFFSETS_TO_TXN: range(4),
    ApiKey.END_TXN: range(5),
    ApiKey.TXN_OFFSET_COMMIT: range(5),
}
"""The same in a cluster: transactions are those of version 1."""


def _ask_the_master(session: KafkaSession, request: Request) -> None:
    """The connection ends: clients ask for metadata then, and go where the master is."""
    session.connection.close()


def _none_here(session: KafkaSession, request: Request) -> Fields:
    """LIST_GROUPS, LIST_TRANSACTIONS: the master tells of them all."""
    return {"error_code": 0, "groups": [], "transaction_states": [], "unknown_state_filters": []}


_OF_FOLLOWERS = (
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.METADATA,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.FIND_COORDINATOR,
)
FOLLOWER_HANDLERS: dict[ApiKey, Handler] = {
    **dict.fromkeys(HANDLERS, _ask_the_master),
    **{key: HANDLERS[key] for key in _OF_FOLLOWERS},
    ApiKey.LIST_GROUPS: _none_here,
    ApiKey.LIST_TRANSACTIONS: _none_here,
}
"""What a node answers that follows the master of its set: who is there, and who is master."""
