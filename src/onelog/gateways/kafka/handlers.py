"""Which requests are served, by whom, and in which versions."""

from onelog.gateways.kafka import (
    fetch,
    list_offsets,
    produce,
    settings,
    storage,
    topics,
    transactions,
)
from onelog.gateways.kafka.groups import describing, members, positions
from onelog.gateways.kafka.session import Handler, api_versions
from onelog.wire.kafka.codes import ApiKey

HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.API_VERSIONS: api_versions,
    **produce.HANDLERS,
    **fetch.HANDLERS,
    **list_offsets.HANDLERS,
    **topics.HANDLERS,
    **settings.HANDLERS,
    **storage.HANDLERS,
    **transactions.HANDLERS,
    **members.HANDLERS,
    **positions.HANDLERS,
    **describing.HANDLERS,
}

VERSIONS: dict[ApiKey, range] = {
    ApiKey.PRODUCE: range(13),
    ApiKey.FETCH: range(17),
    ApiKey.LIST_OFFSETS: range(8),
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
    ApiKey.API_VERSIONS: range(5),
    ApiKey.CREATE_TOPICS: range(2, 8),
    ApiKey.DELETE_TOPICS: range(1, 7),
    ApiKey.ADD_PARTITIONS_TO_TXN: range(4),
    ApiKey.ADD_OFFSETS_TO_TXN: range(5),
    ApiKey.END_TXN: range(6),
    ApiKey.TXN_OFFSET_COMMIT: range(6),
    ApiKey.DESCRIBE_CONFIGS: range(1, 5),
    ApiKey.ALTER_CONFIGS: range(3),
    ApiKey.DESCRIBE_LOG_DIRS: range(1, 5),
    ApiKey.CREATE_PARTITIONS: range(4),
    ApiKey.DELETE_GROUPS: range(3),
    ApiKey.ELECT_LEADERS: range(3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: range(2),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: range(1),
    ApiKey.OFFSET_DELETE: range(1),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: range(2),
    ApiKey.DESCRIBE_CLUSTER: range(2),
    ApiKey.DESCRIBE_PRODUCERS: range(1),
    ApiKey.DESCRIBE_TRANSACTIONS: range(1),
    ApiKey.LIST_TRANSACTIONS: range(2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: range(2),
    ApiKey.CONSUMER_GROUP_DESCRIBE: range(2),
    ApiKey.LIST_CONFIG_RESOURCES: range(2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: range(1),
}
"""What clients are told that they may use."""
