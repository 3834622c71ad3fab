"""Bodies that brokers give each other and their tools: whole tables, and one form for C++ clients.

The tables are what RocketMQ keeps in config/*.json, sent as they are; a slave reads them so.
"""

from msgspec import field

from onelog.wire.remoting.body import Body, Int32
from onelog.wire.remoting.clients import RequestMode
from onelog.wire.remoting.registration import DataVersion


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
