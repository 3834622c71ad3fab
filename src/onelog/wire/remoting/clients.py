"""Bodies about clients: heartbeats, members of groups, queue locks, connections, assignments."""

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
