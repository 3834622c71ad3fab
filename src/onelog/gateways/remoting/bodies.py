"""The core's values as bodies of the protocol, and back; and lists that are too long for one body.

Invariant: `group_from_body(group_body(x), ...)` is `x` again, but for its attributes.
"""

from collections.abc import Iterable
from typing import Any

from onelog.core.broker import Broker
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.durable.tables import DataVersion
from onelog.core.filters.tags import Subscription
from onelog.core.membership.members import Client
from onelog.wire.remoting import fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import Connection, SubscriptionData
from onelog.wire.remoting.groups import SubscriptionGroupConfig
from onelog.wire.remoting.registration import DataVersion as WireVersion
from onelog.wire.remoting.registration import TopicConfig as WireTopic

PAGE_MAX = 2_000
"""RocketMQ's splitMetadataSize: entries of a list in one answer, for those who ask page by page."""

_PLAIN_RETRY: dict[str, Any] = {"type": "CUSTOMIZED"}


def broker_address(broker: Broker) -> str:
    """Host and port that clients are told."""
    host = broker.config.client_host
    return f"[{host}]:{broker.config.port}" if ":" in host else f"{host}:{broker.config.port}"


def version_body(version: DataVersion) -> WireVersion:
    """The version of a set of settings."""
    return WireVersion(
        counter=version.counter,
        state_version=version.state_version,
        timestamp=version.timestamp_ms,
    )


def queue_body(broker: Broker, topic: str, queue_id: int) -> MessageQueue:
    """A queue of this broker."""
    return MessageQueue(broker_name=broker.config.name, queue_id=queue_id, topic=topic)


def topic_body(topic: TopicConfig) -> WireTopic:
    """A topic's settings."""
    return WireTopic(
        attributes=topic.attributes,
        order=topic.order,
        perm=topic.perm,
        read_queue_nums=topic.read_queues,
        topic_filter_type=topic.filter_type,
        topic_name=topic.name,
        topic_sys_flag=topic.sys_flag,
        write_queue_nums=topic.write_queues,
    )


def group_body(group: GroupConfig) -> SubscriptionGroupConfig:
    """A consumer group's settings."""
    return SubscriptionGroupConfig(
        attributes=group.attributes,
        broker_id=group.broker_id,
        consume_broadcast_enable=group.consume_broadcast_enable,
        consume_enable=group.consume_enable,
        consume_from_min_enable=group.consume_from_min_enable,
        consume_message_orderly=group.consume_message_orderly,
        consume_timeout_minute=group.consume_timeout_minutes,
        group_name=group.name,
        group_retry_policy=group.retry_policy or _PLAIN_RETRY,
        group_sys_flag=group.sys_flag,
        notify_consumer_ids_changed_enable=group.notify_members,
        retry_max_times=group.retry_times_max,
        retry_queue_nums=group.retry_queues,
        which_broker_when_consume_slowly=group.slow_broker_id,
    )


def group_from_body(body: SubscriptionGroupConfig, attributes: dict[str, str]) -> GroupConfig:
    """The settings that a request asks for. Its attributes are changes: see `attributes`."""
    policy = body.group_retry_policy
    return GroupConfig(
        body.group_name,
        consume_enable=body.consume_enable,
        consume_from_min_enable=body.consume_from_min_enable,
        consume_broadcast_enable=body.consume_broadcast_enable,
        consume_message_orderly=body.consume_message_orderly,
        retry_queues=body.retry_queue_nums,
        retry_times_max=body.retry_max_times,
        retry_policy=None if policy == _PLAIN_RETRY else policy,
        broker_id=body.broker_id,
        slow_broker_id=body.which_broker_when_consume_slowly,
        notify_members=body.notify_consumer_ids_changed_enable,
        sys_flag=body.group_sys_flag,
        consume_timeout_minutes=body.consume_timeout_minute,
        attributes=attributes,
    )


def subscription_body(subscription: Subscription) -> SubscriptionData:
    """What a consumer wants of a topic."""
    return SubscriptionData(
        code_set=sorted(subscription.codes or ()),
        expression_type=subscription.kind,
        sub_string=subscription.expression,
        sub_version=subscription.version,
        tags_set=sorted(subscription.tags),
        topic=subscription.topic,
    )


def connection_body(client: Client) -> Connection:
    """A live client."""
    return Connection(
        client_addr=client.address,
        client_id=client.client_id,
        language=client.language,
        version=client.version,
    )


def page(
    names: Iterable[str], ext: dict[str, str], seq: str, count: str, version: WireVersion
) -> list[str]:
    """The names that a request for all of them gets, in the order of the alphabet.

    That is all, or, if it has one of the fields `seq`, `count` and `dataVersion`, a page. A page
    after the first makes sense only as long as nothing changes: otherwise it is the first again.
    """
    ordered = sorted(names)
    if not ext.keys() & {seq, count, "dataVersion"}:
        return ordered
    first = max(0, fields.int32(ext, seq, 0))
    size = max(0, min(fields.int32(ext, count, PAGE_MAX), PAGE_MAX))
    if first:
        known = ext.get("dataVersion", "")
        if not known.strip() or WireVersion.decode(known.encode()) != version:
            first = 0
    return ordered[first : first + size]
