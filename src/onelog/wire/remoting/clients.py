"""Bodies about clients: heartbeats, members, locks, connections, assignments, running info."""

from msgspec import field

from onelog.wire.remoting.body import Body, MessageQueue, Name, Text


class SubscriptionData(Body, frozen=True):
    """One topic that a consumer wants, and the filter on it."""

    class_filter_mode: bool = False
    code_set: list[int] = field(default_factory=list)
    expression_type: Name = "TAG"
    filter_class_source: Text | None = None
    sub_string: Text = ""
    sub_version: int = 0
    tags_set: list[Text] = field(default_factory=list)
    topic: Name = ""


class ConsumerData(Body, frozen=True):
    """A consumer group as one client runs it."""

    consume_from_where: Name | None = None
    consume_type: Name | None = None
    group_name: Name = ""
    message_model: Name | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body, frozen=True):
    """A producer group that a client takes part in."""

    group_name: Name = ""


class HeartbeatData(Body, frozen=True):
    """All groups of one client."""

    client_id: Name = field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = field(default_factory=list)
    without_sub: bool = False


class ConsumerList(Body, frozen=True):
    """The clients of a consumer group."""

    consumer_id_list: list[str] = field(default_factory=list)


class LockRequest(Body, frozen=True):
    """Queues that a client wants to lock, or to unlock."""

    client_id: Name = ""
    consumer_group: Name = ""
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False


class LockAnswer(Body, frozen=True):
    """The queues that it holds now."""

    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class CheckClientRequest(Body, frozen=True):
    """A subscription that a client wants to have checked."""

    client_id: Name = ""
    group: Name = ""
    namespace: Name | None = None
    subscription_data: SubscriptionData | None = None


class Connection(Body, frozen=True):
    """One client, as the admin tools list it."""

    client_addr: str = ""
    client_id: str = ""
    language: str = "JAVA"
    version: int = 0


class ConsumerConnection(Body, frozen=True):
    """The clients of a consumer group, and what they subscribe to."""

    connection_set: list[Connection] = field(default_factory=list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    member_subscriptions: dict[str, list[SubscriptionData]] | None = None
    """By client id, while members subscribe differently. Only OneLog sends it; RocketMQ's tools
    ignore it."""
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)


class ProducerConnection(Body, frozen=True):
    """The clients of a producer group."""

    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(Body, frozen=True):
    """One producer, as GET_ALL_PRODUCER_INFO lists it."""

    client_id: str = ""
    language: str = "JAVA"
    last_update_timestamp: int = 0
    remote_ip: str = field(name="remoteIP", default="")
    version: int = 0


class ProducerTable(Body, frozen=True):
    """All producers, by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class AssignmentRequest(Body, frozen=True):
    """The body of QUERY_ASSIGNMENT."""

    client_id: Name = ""
    consumer_group: Name = ""
    message_model: Name | None = None
    strategy_name: Name | None = None
    topic: Name = ""


class Assignment(Body, frozen=True):
    """One queue that a client is to consume, and how."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue = MessageQueue()
    mode: str = "PULL"


class AssignmentAnswer(Body, frozen=True):
    """The queues that a client is to consume."""

    message_queue_assignments: list[Assignment] = field(default_factory=list)


class RequestMode(Body, frozen=True):
    """The body of SET_MESSAGE_REQUEST_MODE."""

    consumer_group: Name = ""
    mode: Name = "PULL"
    pop_share_queue_num: int = 0
    topic: Name = ""


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
