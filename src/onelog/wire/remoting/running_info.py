"""How a consumer stands, for the tools that ask (RocketMQ: ConsumerRunningInfo)."""

from msgspec import field

from onelog.wire.remoting.body import Body, MessageQueue
from onelog.wire.remoting.clients import SubscriptionData


class ProcessQueueInfo(Body, frozen=True):
    """One queue that is pulled from. Offsets are of messages in hand; -1 or 0 if there is none."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mi_b: int = field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class PopQueueInfo(Body, frozen=True):
    """One queue that is popped from (PopProcessQueueInfo)."""

    droped: bool = False
    last_pop_timestamp: int = 0
    wait_ack_count: int = 0


class ConsumeStatus(Body, frozen=True):
    """Times in milliseconds and rates per second, over the last minute; failures of the hour."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(Body, frozen=True):
    """A whole consumer. `properties` holds its options, and a few that RocketMQ's tools need."""

    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopQueueInfo] = field(default_factory=dict)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
