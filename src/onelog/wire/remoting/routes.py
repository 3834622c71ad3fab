"""Bodies that name servers answer with: routes, clusters, lists of topics, key-value tables."""

from typing import Any

from msgspec import field

from onelog.wire.remoting.body import Body, Int32


class QueueData(Body, frozen=True):
    """A topic's queues on one broker."""

    broker_name: str = ""
    perm: int = 6
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Body, frozen=True):
    """The brokers that share a name, by id: 0 is the master."""

    broker_addrs: dict[Int32, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRouteData(Body, frozen=True):
    """Where a topic's queues are."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(Body, frozen=True):
    """All brokers, by name and by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class TopicList(Body, frozen=True):
    """Names of topics, and for lists of system topics the address of some broker."""

    broker_addr: str | None = None
    topic_list: list[str] = field(default_factory=list)


class KVTable(Body, frozen=True):
    """Texts by key."""

    table: dict[str, str] = field(default_factory=dict)


class BrokerMemberGroup(Body, frozen=True):
    """The live brokers that share a name."""

    broker_addrs: dict[Int32, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""


class BrokerMemberGroupAnswer(Body, frozen=True):
    """The body of the answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup = BrokerMemberGroup()
