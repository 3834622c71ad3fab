"""Topics, groups, positions and modes as RocketMQ writes them, in requests and in its config files.

Invariant: `group_from_body(group_body(x))` is `x` again, and so for topics.
"""

from collections.abc import Mapping
from typing import Any

from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.offsets import cursor_key
from onelog.core.durable.tables import DataVersion
from onelog.core.membership.assignment import RequestMode
from onelog.wire.remoting.clients import RequestMode as ModeBody
from onelog.wire.remoting.groups import SubscriptionGroupConfig
from onelog.wire.remoting.registration import DataVersion as VersionBody
from onelog.wire.remoting.registration import TopicConfig as TopicBody
from onelog.wire.remoting.stats import ConsumerOffsets, DelayOffsets, RequestModes

_TOPIC = {
    "attributes": "attributes",
    "order": "order",
    "perm": "perm",
    "name": "topic_name",
    "read_queues": "read_queue_nums",
    "write_queues": "write_queue_nums",
    "filter_type": "topic_filter_type",
    "sys_flag": "topic_sys_flag",
}
"""What the core calls each setting, and what RocketMQ does."""
_GROUP = {
    "attributes": "attributes",
    "broker_id": "broker_id",
    "name": "group_name",
    "consume_enable": "consume_enable",
    "consume_from_min_enable": "consume_from_min_enable",
    "consume_broadcast_enable": "consume_broadcast_enable",
    "consume_message_orderly": "consume_message_orderly",
    "retry_queues": "retry_queue_nums",
    "retry_times_max": "retry_max_times",
    "retry_policy": "group_retry_policy",
    "slow_broker_id": "which_broker_when_consume_slowly",
    "sys_flag": "group_sys_flag",
    "notify_members": "notify_consumer_ids_changed_enable",
    "consume_timeout_minutes": "consume_timeout_minute",
}
_PLAIN_RETRY: dict[str, Any] = {"type": "CUSTOMIZED"}


def version_body(version: DataVersion) -> VersionBody:
    """The version of a set of settings."""
    return VersionBody(
        counter=version.counter,
        state_version=version.state_version,
        timestamp=version.timestamp_ms,
    )


def topic_body(topic: TopicConfig) -> TopicBody:
    """A topic's settings."""
    return TopicBody(**{theirs: getattr(topic, ours) for ours, theirs in _TOPIC.items()})


def topic_from_body(body: TopicBody) -> TopicConfig:
    """The settings that a body has; a filter type that is none is the usual one."""
    values = {ours: getattr(body, theirs) for ours, theirs in _TOPIC.items()}
    is_multi = body.topic_filter_type == "MULTI_TAG"
    return TopicConfig(**{**values, "filter_type": "MULTI_TAG" if is_multi else "SINGLE_TAG"})


def group_body(group: GroupConfig) -> SubscriptionGroupConfig:
    """A consumer group's settings."""
    values = {theirs: getattr(group, ours) for ours, theirs in _GROUP.items()}
    values["group_retry_policy"] = group.retry_policy or _PLAIN_RETRY
    return SubscriptionGroupConfig(**values)


def group_from_body(body: SubscriptionGroupConfig) -> GroupConfig:
    """The settings that a body has. In a request, its attributes are changes (see `attributes`)."""
    values = {ours: getattr(body, theirs) for ours, theirs in _GROUP.items()}
    if body.group_retry_policy == _PLAIN_RETRY:
        values["retry_policy"] = None
    return GroupConfig(**values)


def offsets_body(
    version: DataVersion, positions: Mapping[tuple[str, str], dict[int, int]]
) -> ConsumerOffsets:
    return ConsumerOffsets(
        data_version=version_body(version),
        offset_table={cursor_key(*cursor): at for cursor, at in positions.items()},
    )


def delay_body(version: DataVersion, progress: Mapping[int, tuple[int, int]]) -> DelayOffsets:
    """How far each delay level has been delivered."""
    return DelayOffsets(
        data_version=version_body(version),
        offset_table={level: at for level, (at, _) in progress.items()},
    )


def modes_body(modes: Mapping[tuple[str, str], RequestMode]) -> RequestModes:
    """The groups that do not consume by the default."""
    table: dict[str, dict[str, ModeBody]] = {}
    for (topic, group), mode in modes.items():
        table.setdefault(topic, {})[group] = ModeBody(
            consumer_group=group, mode=mode.mode, pop_share_queue_num=mode.share, topic=topic
        )
    return RequestModes(message_request_mode_map=table)
