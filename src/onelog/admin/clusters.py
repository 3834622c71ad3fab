"""Operations on the broker and its cluster: how it runs, who is connected, settings, replicas."""

from typing import Annotated

from msgspec import Struct

from onelog.admin.operations import Arguments, Limit, Position, about, declared

Node = Annotated[int, about("Which node of the set: its id.", ge=0, le=1_000_000)]


class Rates(Struct):
    """Messages per second, over ten seconds, a minute and ten minutes."""

    put: list[float]
    got: list[float]


class Latency(Struct):
    """Seconds below which half of, and nearly all, were; as far as buckets tell."""

    count: int
    p50: float
    p99: float


class Log(Struct):
    """The log on its disk."""

    folder: str
    bytes: int
    begin: int
    end: int
    not_flushed_bytes: int
    disk_percent: float
    first_ms: int | None


class Follower(Struct):
    """A node that follows this one."""

    node_id: int
    address: str
    behind_bytes: int
    behind_ms: int
    in_sync: bool


class Overview(Struct):
    """How the broker runs."""

    name: str
    cluster: str
    version: str
    address: str
    role: str
    started_ms: int
    now_ms: int
    refusal: str | None
    """Why messages are refused, if they are."""
    user: str
    """Who asks; empty while nobody has to log in."""
    may_change: bool
    """Whether who asks may change anything."""
    topics: int
    groups: int
    put_total: int
    put_bytes_total: int
    put_failed_total: int
    got_total: int
    rates: Rates
    latencies: dict[str, Latency]
    log: Log
    timed: int
    delayed: int
    connections: dict[str, int]
    ports: dict[str, int]
    memory_bytes: int
    processor_seconds: float
    open_files: int
    stalls: int
    stalled_ms: int
    followers: list[Follower]
    mismatched_groups: list[str]
    set_aside: list[str]
    """What is recorded of topics, queues, users and so on, and cannot be read by this version."""


class ConnectionQuery(Arguments):
    """Which connections."""

    protocol: Annotated[str, about("Only of this protocol.", max_length=20)] = ""
    q: Annotated[str, about("Only with this in it.", max_length=255)] = ""
    limit: Limit = 200
    skip: Position = 0


class Client(Struct):
    """A connection, and who is behind it as far as they said."""

    id: str
    protocol: str
    address: str
    local: str
    secure: bool
    is_congested: bool
    client_id: str | None
    language: str | None
    groups: list[str]


class Value(Struct):
    """A setting, with where it came from."""

    key: str
    value: bool | int | str
    default: bool | int | str
    source: str
    help: str
    can_change: bool
    choices: list[str]


class Changes(Arguments):
    """Settings, and their new values."""

    settings: Annotated[dict[str, bool | int | str], about("KEY=VALUE. Repeatable.", "--set")]


class Broker(Struct):
    """A broker of the cluster, as name servers know it."""

    name: str
    cluster: str
    members: dict[str, str]
    """Addresses by id; 0 is the master."""
    is_this: bool


class Cluster(Struct):
    """All brokers, this one's standing, and who follows it."""

    nameservers: list[str]
    brokers: list[Broker]
    trouble: str | None
    broker_id: int
    epoch: int
    ha_address: str
    replicated: bool
    followers: list[Follower]


# -- replicas --------------------------------------------------------------------------------------


class ReplicaNode(Struct):
    """A node of a set: one that is there, or that the set misses."""

    cluster: str
    broker: str
    node: int
    role: str
    """master, follower, or missing."""
    in_sync: bool
    address: str
    epoch: int
    log_end: int
    confirmed: int
    lag_bytes: int | None
    lag_ms: int | None
    remark: str


class Promotion(Arguments):
    """Who is to be master; without a node, the best of the others."""

    node: Node | None = None


class OneNode(Arguments):
    """Which node of the set."""

    node: Node


class Joining(OneNode):
    """Which node is to be counted, once it is in sync."""

    replicas: (
        Annotated[int, about("How many nodes are a whole set; else, all.", ge=1, le=9)] | None
    ) = None


class SetState(Struct):
    """What a set is now."""

    epoch: int
    master: int
    replicas: int
    in_sync: list[int]


# -- lake tables -----------------------------------------------------------------------------------


class LakeTable(Struct):
    """A table."""

    name: str
    form: str
    files: int
    size_bytes: int
    rows: int


class LakeQuery(Struct):
    """A query that keeps tables fresh, by its checkpoint."""

    name: str
    topics: list[str]
    batch: int
    """The last one that was begun."""
    is_open: bool
    """Whether that has not ended."""
    updated_ms: int
    lag: int
    """Messages of this broker that are not in the tables yet."""


class SparkRead(Struct):
    """A topic that Spark, or another tool, reads without a group of its own."""

    topic: str
    per_second: float


class Lake(Struct):
    """Tables, queries and reads."""

    folder: str
    trouble: str | None
    tables: list[LakeTable]
    queries: list[LakeQuery]
    reads: list[SparkRead]


OPERATIONS = declared(
    globals(),
    """
    GET /v1/overview = cluster overview
        get_overview() -> Overview: How the broker runs
    GET /v1/connections = connection list
        list_connections(ConnectionQuery) -> Listing[Client]: List connections of all protocols
    DELETE /v1/connections/{id} = connection close
        close_connection(Identified) -> Done: Close a connection
    GET /v1/config = cluster settings
        get_config() -> Listing[Value]: List settings and their sources
    PATCH /v1/config = cluster configure
        change_config(Changes) -> Listing[Value] whole=settings: Change settings of a running broker
    GET /v1/cluster = cluster list, cluster brokers
        get_cluster() -> Cluster: Brokers and replicas
    GET /v1/cluster/replicas = cluster status
        list_replicas() -> Listing[ReplicaNode]: List the nodes of replica sets
    POST /v1/cluster/promote = cluster promote, cluster demote
        promote(Promotion) -> SetState: Make another node the master
    POST /v1/cluster/drain = cluster drain
        drain(OneNode) -> SetState: Have a node leave its set
    POST /v1/cluster/join = cluster join
        join(Joining) -> SetState: Count a node that was started
    POST /v1/cluster/elect = cluster elect
        elect(OneNode) -> SetState: Make a node master, whatever it lacks
    POST /v1/cluster/truncate = cluster truncate
        truncate(OneNode) -> SetState: Have a node give up what its master lacks
    GET /v1/lake = lake status
        get_lake() -> Lake: Lake tables, and what Spark reads
    """,
)
