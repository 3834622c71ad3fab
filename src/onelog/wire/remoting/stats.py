"""Bodies about offsets, lag and rates, and whole tables for tools and slaves.

Tables by queue have objects as keys (see `fastjson`). Those that RocketMQ keeps in config/*.json
are sent as they are there.
"""

from typing import Any

from msgspec import field

from onelog.wire.remoting.body import Body, Int32, MessageQueue
from onelog.wire.remoting.clients import RequestMode, SubscriptionData
from onelog.wire.remoting.registration import DataVersion


class TopicOffset(Body, frozen=True):
    """The range of one queue."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStatsTable(Body, frozen=True):
    """The ranges of a topic's queues."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class OffsetWrapper(Body, frozen=True):
    """How far a group is in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(Body, frozen=True):
    """How far a group is in each queue."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)


class ConsumeStatsList(Body, frozen=True):
    """The body of the answer to GET_BROKER_CONSUME_STATS."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    total_diff: int = 0
    total_inflight_diff: int = 0


class BrokerStatsItem(Body, frozen=True):
    """A counter over one span of time."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(Body, frozen=True):
    """A counter over the last minute, hour and day."""

    stats_day: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_minute: BrokerStatsItem | None = None


class QueueTimeSpan(Body, frozen=True):
    """The times of the oldest, the newest and the next message to consume in a queue."""

    consume_time_stamp: int = 0
    delay_time: int = 0
    max_time_stamp: int = 0
    message_queue: MessageQueue = MessageQueue()
    min_time_stamp: int = 0


class ConsumeTimeSpans(Body, frozen=True):
    """The body of the answer to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class ResetOffsets(Body, frozen=True):
    """New offsets of a group, queue by queue (RocketMQ: ResetOffsetBody)."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class ConsumerStatus(Body, frozen=True):
    """Offsets as clients have them: of one client, or by client id."""

    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)


class CorrectionOffsets(Body, frozen=True):
    """The body of the answer to QUERY_CORRECTION_OFFSET."""

    correction_offsets: dict[Int32, int] = field(default_factory=dict)


class QueueEntry(Body, frozen=True):
    """One entry of a consume queue."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0


class QueueEntries(Body, frozen=True):
    """The body of the answer to QUERY_CONSUME_QUEUE."""

    filter_data: str | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[QueueEntry] = field(default_factory=list)
    subscription_data: SubscriptionData | None = None


class GroupSubscription(Body, frozen=True):
    """The body of the answer to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str | None = None
    subscription_data: SubscriptionData | None = None
    topic: str | None = None


class DirectConsumption(Body, frozen=True):
    """How a client fared with a message it was told to consume (ConsumeMessageDirectlyResult)."""

    auto_commit: bool = True
    consume_result: str | None = None
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0


class HaStatus(Body, frozen=True):
    """The body of the answer to GET_BROKER_HA_STATUS."""

    ha_client_runtime_info: dict[str, Any] | None = None
    ha_connection_info: list[dict[str, Any]] = field(default_factory=list)
    in_sync_slave_nums: int = 0
    master: bool = True
    master_commit_log_max_offset: int = 0


class ConsumerOffsets(Body, frozen=True):
    """All positions: by "topic@group", and in it by queue (ConsumerOffsetSerializeWrapper)."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[Int32, int]] = field(default_factory=dict)


class DelayOffsets(Body, frozen=True):
    """How far each delay level has been delivered (DelayOffsetSerializeWrapper)."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[Int32, int] = field(default_factory=dict)


class RequestModes(Body, frozen=True):
    """How groups are to consume topics: by topic, and in it by group."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)


class TimingCount(Body, frozen=True):
    """How many timed messages of a topic wait, and since when it is so."""

    count: int = 0
    time_stamp: int = 0


class TimerMetrics(Body, frozen=True):
    """How many timed messages wait, by topic (TimerMetrics.TimerMetricsSerializeWrapper)."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimingCount] = field(default_factory=dict)


class QueuePosition(Body, frozen=True):
    """A queue and an offset in it (MessageQueueForC)."""

    broker_name: str = ""
    offset: int = 0
    queue_id: int = 0
    topic: str = ""


class ResetOffsetList(Body, frozen=True):
    """`ResetOffsets` for C++ clients, which cannot read objects as keys (ResetOffsetBodyForC)."""

    offset_table: list[QueuePosition] = field(default_factory=list)
