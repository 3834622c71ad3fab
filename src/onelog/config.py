"""Every setting, declared once, with its default, its limits and what it means.

A setting has a dotted key (`broker.port`); `config_sources` says where its value comes from.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Value = bool | int | str
T = TypeVar("T", bool, int, str)

INT32_MAX = 2**31 - 1
DAY_MS = 86_400_000
_HOURS = r"(?:[01][0-9]|2[0-3])(?:;(?:[01][0-9]|2[0-3]))*"
_LEVELS = r"[1-9][0-9]*[smhd](?: [1-9][0-9]*[smhd])*"
_ADDRESS = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:;\[\]]+):[0-9]{1,5}"
_NAME = r"[%|A-Za-z0-9_-]+"


def setting(
    default: T,
    text: str,
    least: int | None = None,
    most: int | None = None,
    *,
    pattern: str = "",
    example: str = "",
    live: bool = False,
) -> T:
    """A dataclass field with everything that is known about one setting.

    `least` and `most` bound an integer; `pattern` is what a whole text must match, and `example`
    shows people such a text. `live` says that a running broker can take a new value.
    """
    about = {"help": text, "least": least, "most": most, "pattern": pattern, "example": example}
    return field(default=default, metadata={**about, "reloadable": live})


def choice(default: str, text: str, *, live: bool = False) -> Any:
    """The same for a setting that is one of a few words."""
    return field(default=default, metadata={"help": text, "reloadable": live})


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How one store lays out its files and looks after them. Defaults are RocketMQ's."""

    segment_bytes: int = setting(1 << 30, "size of one commit log file", 4096, INT32_MAX)
    queue_file_entries: int = setting(300_000, "entries in one queue file", 1, INT32_MAX // 20)
    index_slots: int = setting(5_000_000, "hash slots in one index file", 1, INT32_MAX // 8)
    index_entries: int = setting(20_000_000, "entries in one index file", 2, INT32_MAX // 24)
    body_bytes_max: int = setting(4 << 20, "largest body of a message", 1, 1 << 30, live=True)
    record_crc: bool = setting(False, "append a checksum of the whole record to its properties")
    flush: Literal["async", "sync"] = choice(
        "async", "when a message is acknowledged: once written, or once on disk"
    )
    flush_interval_ms: int = setting(500, "how often async flush looks", 1, 60_000)
    flush_pages_min: int = setting(4, "dirty pages (4 KiB) worth an async flush", 0, INT32_MAX)
    flush_thorough_ms: int = setting(10_000, "when async flush takes any dirty page", 1, 600_000)
    checkpoint_interval_ms: int = setting(5_000, "how often the checkpoint is written", 1, 600_000)
    retention_ms: int = setting(
        72 * 3_600_000, "age at which a log file may go", 1, 36_500 * DAY_MS, live=True
    )
    retention_hours: str = setting(
        "04",
        "hours of the day at which old files are deleted; empty for none",
        pattern=f"(?:{_HOURS})?",
        example="04;16",
        live=True,
    )
    retention_files_per_round: int = setting(10, "files deleted in one round", 1, 10_000, live=True)
    disk_clean_percent: int = setting(75, "disk use that deletes old files at any hour", 1, 100)
    disk_force_percent: int = setting(85, "disk use that deletes files before their age", 1, 100)
    disk_refuse_percent: int = setting(90, "disk use that refuses messages", 1, 100)
    delay_levels: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "the delay of each delay level, from level 1 on",
        pattern=_LEVELS,
        example="1s 30s 5m 2h 1d",
    )


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker: its name, its addresses, and how much it lets its clients do."""

    name: str = setting(
        "broker-a", "the name that a master and its slaves share", pattern=_NAME, example="broker-a"
    )
    cluster: str = setting(
        "DefaultCluster", "the cluster it belongs to", pattern=_NAME, example="DefaultCluster"
    )
    broker_id: int = setting(0, "0 for the master, above for slaves", 0, INT32_MAX)
    region: str = setting(
        "DefaultRegion", "the region told to producers", pattern=r"\S+", example="eu-west"
    )
    store_path: str = setting("~/.onelog/store", "folder of the store", pattern=r"[^\0]+")
    host: str = setting("127.0.0.1", "address to listen on", pattern=r"\S+", example="127.0.0.1")
    advertised_host: str = setting(
        "", "address that clients are told; empty for `host`", pattern=r"\S*", example="10.0.0.5"
    )
    port: int = setting(10911, "port to listen on; 0 takes a free one", 0, 65_535)
    vip_port: int = setting(
        -1, "second port of older clients; -1 for two below `port`, 0 for none", -1, 65_535
    )
    nameservers: str = setting(
        "127.0.0.1:9876",
        "name servers to register with; empty for none",
        pattern=f"(?:{_ADDRESS}(?:;{_ADDRESS})*)?",
        example="10.0.0.1:9876;10.0.0.2:9876",
        live=True,
    )
    # RocketMQ accepts 10 to 60 s; a name server forgets a broker after 120 s.
    register_interval_ms: int = setting(30_000, "how often it registers", 1_000, 60_000)
    register_timeout_ms: int = setting(6_000, "wait for a name server's answer", 100, 60_000)
    auto_create_topics: bool = setting(True, "a message to an unknown topic creates it", live=True)
    auto_create_groups: bool = setting(
        True, "a heartbeat of an unknown group creates it", live=True
    )
    default_topic_queues: int = setting(
        8, "queues of a topic created by its first message", 1, 1024, live=True
    )
    property_filter: bool = setting(True, "allow SQL-92 filters on properties", live=True)
    filter_budget_ms: int = setting(
        10, "time of one tick of the loop for all SQL-92 filters together", 1, 1_000, live=True
    )
    long_poll: bool = setting(True, "let a pull wait for new messages", live=True)
    short_poll_ms: int = setting(
        1_000, "a pull's wait when long polling is off", 0, 60_000, live=True
    )
    default_request_mode: Literal["pull", "pop"] = choice(
        "pull", "how groups consume that let the broker share out queues and set no mode", live=True
    )
    default_pop_share: int = setting(
        -1, "other members' queues each takes from, by pop; -1 for all", -1, INT32_MAX, live=True
    )
    trace: bool = setting(True, "tell clients that they may trace messages", live=True)
    flush_timeout_ms: int = setting(5_000, "a send's wait for sync flush", 1, 600_000, live=True)
    client_expiry_ms: int = setting(120_000, "silence that drops a client", 1_000, DAY_MS)
    client_scan_ms: int = setting(10_000, "how often silence is looked for", 100, 600_000)
    lock_expiry_ms: int = setting(60_000, "how long a queue's lock lasts", 1_000, DAY_MS)
    consumer_timeout_ms: int = setting(
        1_800_000,
        "how long a consumer of a declared queue may keep a message; 0 for ever",
        0,
        INT32_MAX,
        live=True,
    )
    memory_queue_bytes_max: int = setting(
        256 << 20, "messages in queues that live in memory", 1 << 20, 1 << 40, live=True
    )
    routed_body_bytes_max: int = setting(
        16 << 20, "largest message that is published to an exchange", 1, 512 << 20, live=True
    )
    transaction_timeout_ms: int = setting(
        6_000, "age at which a producer may be asked about a transaction", 1, DAY_MS, live=True
    )
    transaction_check_max: int = setting(
        15, "how often producers are asked about one transaction", 1, 100_000, live=True
    )
    transaction_check_interval_ms: int = setting(
        30_000, "how often producers are asked about open transactions", 10, DAY_MS, live=True
    )
    timer_delay_max_ms: int = setting(
        40 * DAY_MS, "longest delay of a timed message", 1, 3_650 * DAY_MS, live=True
    )
    pop_retry_percent: int = setting(
        20,
        "how many POP requests of a hundred look for messages that came back first",
        0,
        100,
        live=True,
    )
    priority_retry_percent: int = setting(
        0,
        "the same for topics with priorities: 0 makes them the lowest, 100 the highest",
        0,
        100,
        live=True,
    )
    priority_ascending: bool = setting(
        True, "whether a higher queue of a topic with priorities is a higher priority", live=True
    )
    pop_separate_retry: bool = setting(
        False, "let messages that came back to POP keep their queue, and its priority", live=True
    )
    compaction_interval_ms: int = setting(
        15_000, "how often queues are looked for that are to be compacted", 10, DAY_MS
    )
    offsets_flush_ms: int = setting(5_000, "how often offsets are saved", 10, 600_000)
    pull_bytes_max: int = setting(256 << 10, "bytes in one pull's answer", 1, 64 << 20, live=True)
    pull_count_max: int = setting(32, "messages in one pull's answer", 1, 65_535, live=True)
    pull_bulk_bytes_max: int = setting(
        4 << 20, "bytes in one pull's answer to a bulk reader; 0 for none", 0, 64 << 20, live=True
    )
    pull_cold_bytes_max: int = setting(64 << 10, "bytes, if read from disk", 1, 64 << 20, live=True)
    pull_cold_count_max: int = setting(8, "messages, if read from disk", 1, 65_535, live=True)
    query_count_max: int = setting(64, "messages in one answer by key", 1, 10_000, live=True)
    frame_bytes_max: int = setting(16 << 20, "largest request that is read", 64 << 10, 1 << 30)
    write_buffer_bytes_max: int = setting(
        16 << 20, "unsent bytes at which a slow reader is cut off", 64 << 10, 1 << 30
    )

    @property
    def nameserver_addresses(self) -> tuple[tuple[str, int], ...]:
        """`nameservers`, as hosts and ports."""
        pairs = (address.rpartition(":") for address in self.nameservers.split(";") if address)
        return tuple((host.strip("[]"), int(port)) for host, _, port in pairs)

    @property
    def client_host(self) -> str:
        """The host that clients are told to connect to."""
        return self.advertised_host or self.host

    @property
    def second_port(self) -> int | None:
        """The port of `vip_port`, or None if there is none to listen on."""
        port = self.port - 2 if self.vip_port == -1 else self.vip_port
        return port if port > 0 else None


@dataclass(frozen=True, slots=True)
class NameserverConfig:
    """One name server."""

    host: str = setting("127.0.0.1", "address to listen on", pattern=r"\S+", example="127.0.0.1")
    port: int = setting(9876, "port to listen on; 0 takes a free one", 0, 65_535)
    broker_expiry_ms: int = setting(120_000, "silence that drops a broker", 1_000, DAY_MS)
    scan_interval_ms: int = setting(5_000, "how often silence is looked for", 10, 600_000)
    kv_path: str = setting(
        "~/.onelog/kvConfig.json", "file of the key-value configuration", pattern=r"[^\0]+"
    )


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Kafka's protocol. It listens where the broker does."""

    port: int = setting(9092, "port of Kafka's clients; 0 for none, -1 for a free one", -1, 65_535)
    node_id: int = setting(
        -1, "number among the brokers that are one Kafka cluster; -1 to be one alone", -1, 999
    )
    topic_partitions: int = setting(
        1, "partitions of a topic that a Kafka client names first", 1, 1024, live=True
    )
    message_bytes_max: int = setting(
        1_048_588, "largest batch, unless the topic says otherwise", 0, INT32_MAX, live=True
    )
    in_sync_min: int = setting(
        1, "replicas in sync for acks=all, unless the topic says otherwise", 1, INT32_MAX, live=True
    )
    heartbeat_ms: int = setting(
        5_000, "time between heartbeats of the newer group protocol", 50, 60_000, live=True
    )
    session_min_ms: int = setting(
        6_000,
        "shortest session.timeout.ms of a member of the classic group protocol",
        10,
        60_000,
        live=True,
    )
    initial_rebalance_delay_ms: int = setting(
        3_000, "time that a new classic group waits for members", 0, 3_600_000, live=True
    )
    share_lock_ms: int = setting(
        30_000, "time for which a message is a share group member's", 100, 3_600_000, live=True
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        "time after which positions of a Kafka group without members are forgotten",
        1,
        1 << 31,
        live=True,
    )


@dataclass(frozen=True, slots=True)
class MqttConfig:
    """MQTT. It listens where the broker does."""

    port: int = setting(1883, "port of MQTT's clients; 0 for none, -1 for a free one", -1, 65_535)
    packet_bytes_max: int = setting(
        4 << 20, "largest packet that a client may send", 1_024, 268_435_460, live=True
    )
    receive_maximum: int = setting(
        1_000,
        "messages of QoS 1 and 2 that a client of version 5 may send before it is answered",
        1,
        65_535,
        live=True,
    )
    in_flight_max: int = setting(
        1_000, "messages of QoS 1 and 2 that a client gets before it answers", 1, 32_767, live=True
    )
    topic_alias_maximum: int = setting(
        100, "aliases of topics that a connection has, either way; 0 for none", 0, 65_535
    )
    keep_alive_max_s: int = setting(
        0,
        "longest keep alive, for clients of version 5; 0 for what they like",
        0,
        65_535,
        live=True,
    )
    session_expiry_max_s: int = setting(
        0,
        "longest time that a session is kept without its client; 0 for what it likes",
        0,
        1 << 31,
        live=True,
    )
    refused_filters: str = setting(
        "",
        "filters that nobody may subscribe to, with a ; between them",
        pattern=r"[^\0]*",
        example="secret/#;test/nosubscribe",
        live=True,
    )


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP port: console, REST, metrics. It listens where the broker does."""

    port: int = setting(
        15672, "port of the console, REST and metrics; 0 for none, -1 for a free one", -1, 65_535
    )
    lake: str = setting(
        "",
        "folder of lake tables (onelog lake sync) that the console shows; empty for none",
        pattern=r"[^\0]*",
        example="/data/lake",
    )
    hosts: str = setting(
        "",
        "names, beside addresses and localhost, that browsers may call this machine by",
        pattern=r"[A-Za-z0-9_.,-]*",
        example="mq.example.com,mq",
        live=True,
    )
    origins: str = setting(
        "",
        "pages of other servers that may call it, too; * for all",
        pattern=r"(\*|https?://[^\s,]+(,https?://[^\s,]+)*)?",
        example="https://shop.example.com",
        live=True,
    )


@dataclass(frozen=True, slots=True)
class AmqpConfig:
    """AMQP 0-9-1, RabbitMQ's protocol. It listens where the broker does."""

    port: int = setting(
        5672, "port of RabbitMQ's clients; 0 for none, -1 for a free one", -1, 65_535
    )
    heartbeat_seconds: int = setting(
        60,
        "time between signs of life that clients are asked for; 0 for none",
        0,
        65_535,
        live=True,
    )
    channel_max: int = setting(2_047, "channels of one connection", 1, 65_535, live=True)
    frame_bytes_max: int = setting(
        131_072, "largest frame that clients are offered", 4_096, 1 << 24, live=True
    )


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    """RocketMQ's gRPC protocol; limits are its proxy's. It listens where the broker does."""

    port: int = setting(
        8081, "port of RocketMQ's gRPC clients; 0 for none, -1 for a free one", -1, 65_535
    )
    poll_min_ms: int = setting(
        5_000, "shortest time that a receive waits for messages", 0, 600_000, live=True
    )
    poll_max_ms: int = setting(
        20_000, "longest time that a receive waits for messages", 1, 600_000, live=True
    )
    invisible_min_ms: int = setting(
        10_000, "shortest time that a receiver has a message to itself", 1, DAY_MS, live=True
    )
    invisible_ms: int = setting(
        60_000, "time of a lease that the broker itself renews", 100, DAY_MS, live=True
    )


@dataclass(frozen=True, slots=True)
class StompConfig:
    """STOMP, for clients of ActiveMQ and RabbitMQ. It listens where the broker does."""

    port: int = setting(61613, "port of STOMP's clients; 0 for none, -1 for a free one", -1, 65_535)


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Replicas of a broker: the same log on several machines, one of which is the master."""

    ack: Literal["local", "one", "majority", "all"] = choice(
        "local", "who must have a message before its sender is answered"
    )
    replicas: int = setting(1, "how many nodes, the master included, are a whole set", 1, 9)
    port: int = setting(
        -1, "port of followers; -1 for one above `broker.port`, 0 for none", -1, 65_535
    )
    master: str = setting(
        "",
        "where a slave finds its master's port of followers; empty asks the name servers",
        pattern=r"(\S+:\d+)?",
        example="10.0.0.5:10912",
    )
    followers: str = setting(
        "",
        "other machines that may follow, which is to read everything: addresses, networks",
        pattern=r"([0-9A-Fa-f.:]+(/\d+)?([;,][0-9A-Fa-f.:]+(/\d+)?)*)?",
        example="10.0.0.6;10.1.0.0/16",
    )
    etcd: str = setting(
        "",
        "etcd, which judges who is master; empty: node 0 always is",
        pattern=r"(\S+:\d+([;,]\S+:\d+)*)?",
        example="10.0.0.5:2379;10.0.0.6:2379",
    )
    lease_ms: int = setting(3_000, "time after which a silent master is replaced", 1_000, 60_000)
    lag_ms: int = setting(
        2_000, "time after which a follower that is behind is not waited for", 100, 600_000
    )
    timeout_ms: int = setting(
        5_000, "time that a sender waits for replicas before it is told so", 1, 600_000
    )
    unclean: bool = setting(
        False, "let a node become master that may lack messages, if no other is left"
    )
    slave_reads: bool = setting(False, "send consumers that are far behind to a slave", live=True)
    slave_reads_percent: int = setting(
        40, "how far behind that is: bytes of the log, in percent of the memory", 0, 100, live=True
    )

    @property
    def is_on(self) -> bool:
        """Whether the log is on more than one node, or is to be."""
        return self.replicas > 1 or bool(self.etcd) or bool(self.master)


@dataclass(frozen=True, slots=True)
class NetConfig:
    """What all ports of a process let their peers take together, broker's and name server's."""

    connections_max: int = setting(20_000, "open connections", 1, 1_000_000)
    unread_bytes_max: int = setting(
        256 << 20, "bytes of requests that have not arrived whole", 1 << 20, 1 << 40
    )
    unsent_bytes_max: int = setting(
        1 << 30, "bytes of answers that slow readers have not read", 1 << 20, 1 << 40
    )
    proxy_protocol: bool = setting(
        False, "believe load balancers that name a client's address (HAProxy's PROXY prefix)"
    )
    frame_timeout_ms: int = setting(
        60_000, "time within which a request must arrive whole", 1_000, DAY_MS
    )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Encryption of every listener, and of a broker's own calls to name servers."""

    mode: Literal["disabled", "permissive", "enforcing"] = choice(
        "permissive", "plain text only, both on one port, or TLS only"
    )
    cert_path: str = setting(
        "", "certificate (PEM); empty for a self-signed one", pattern=r"[^\0]*", live=True
    )
    key_path: str = setting(
        "", "private key (PEM) of the certificate", pattern=r"[^\0]*", live=True
    )
    client_ca_path: str = setting(
        "",
        "authority (PEM) of clients' certificates; empty: they are not asked for one",
        pattern=r"[^\0]*",
        live=True,
    )
    client_auth: Literal["requested", "required"] = choice(
        "requested",
        "with `client_ca_path`: whether TLS clients without a certificate are served",
        live=True,
    )
    outgoing: Literal["auto", "on", "off"] = choice(
        "auto",
        "whether a broker calls name servers and its master with TLS; auto: if `mode` is enforcing",
        live=True,
    )
    ca_path: str = setting(
        "",
        "authority (PEM) that those must prove themselves to; empty takes any certificate",
        pattern=r"[^\0]*",
        live=True,
    )
    check_hostname: bool = setting(
        True, "with `ca_path`: their certificates must name their addresses", live=True
    )


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who may do what. Without users, everybody on this machine may do everything."""

    anonymous: bool = setting(
        False,
        "serve other machines without users; with users: who does not log in",
        live=True,
    )
    jwks: str = setting(
        "",
        "file or URL of the keys that sign tokens (JWKS); empty: no tokens are taken",
        pattern=r"\S*",
        example="https://login.example/keys",
    )
    jwt_issuer: str = setting(
        "",
        "who must have issued a token (iss); empty: anybody",
        pattern=r"\S*",
        example="https://login.example",
    )
    jwt_audience: str = setting(
        "", "whom a token must be for (aud); empty: anybody", pattern=r"\S*", example="onelog"
    )
    jwt_claim: str = setting(
        "sub", "what of a token names the user", pattern=r"\S+", example="preferred_username"
    )
    certificate_user: Literal["common_name", "dns", "email", "uri"] = choice(
        "common_name",
        "what of a client's certificate names the user: its subject's common name, "
        "or the first alternative name of a kind",
        live=True,
    )
    broker_user: str = setting(
        "",
        "the user as whom brokers of one Kafka cluster log in to each other; empty: nobody, or "
        "whom their certificate names",
        pattern=r"\S*",
        example="brokers",
        live=True,
    )
    key_path: str = setting(
        "",
        "file with the key that secrets are encrypted with, and that followers show: the same "
        "on all nodes of a set; empty: `config/onelog.key` in the store, made if it is missing",
        pattern=r"[^\0]*",
        example="/etc/onelog/onelog.key",
    )
    remote_admin: bool = setting(
        False, "let other machines delete, reset and reconfigure, too", live=True
    )


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """What is told to OpenTelemetry."""

    traces: str = setting(
        "",
        "where spans of traced messages go (OTLP over HTTP); empty: nowhere",
        pattern=r"(https?://\S+)?",
        example="http://127.0.0.1:4318/v1/traces",
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All sections."""

    store: StoreConfig = StoreConfig()
    broker: BrokerConfig = BrokerConfig()
    nameserver: NameserverConfig = NameserverConfig()
    kafka: KafkaConfig = KafkaConfig()
    mqtt: MqttConfig = MqttConfig()
    http: HttpConfig = HttpConfig()
    amqp: AmqpConfig = AmqpConfig()
    stomp: StompConfig = StompConfig()
    grpc: GrpcConfig = GrpcConfig()
    replication: ReplicationConfig = ReplicationConfig()
    net: NetConfig = NetConfig()
    tls: TlsConfig = TlsConfig()
    security: SecurityConfig = SecurityConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
