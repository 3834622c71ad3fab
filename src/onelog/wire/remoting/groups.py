"""Bodies about consumer groups as brokers configure them."""

from typing import Any

from msgspec import field

from onelog.wire.remoting.body import Body, Name, Text
from onelog.wire.remoting.registration import DataVersion


class SimpleSubscription(Body, frozen=True):
    """A subscription that is fixed in the group's configuration."""

    expression: Text | None = None
    expression_type: Name | None = None
    topic: Name = ""
    version: int = 0


class SubscriptionGroupConfig(Body, frozen=True):
    """A consumer group as one broker has it."""

    attributes: dict[Name, Name] = field(default_factory=dict)
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: Name = ""
    group_retry_policy: dict[Name, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    subscription_data_set: list[SimpleSubscription] | None = None
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupTable(Body, frozen=True):
    """A broker's groups (RocketMQ: SubscriptionGroupWrapper)."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


class SubscriptionGroupList(Body, frozen=True):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupList(Body, frozen=True):
    """Names of groups."""

    group_list: list[str] = field(default_factory=list)
