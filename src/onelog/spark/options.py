"""The options of the data source: every name, what it takes, and which do not go together.

Names are those of Spark's Kafka source where the meaning is the same. Spark hands options over as
texts, and does not tell capital letters from small ones.

Invariant: `ReadOptions` and `WriteOptions` are complete and checked; what was wrong raised
`ConfigError` that names the option and says what to do. Times such as "-2h" are kept as they are,
because they count from when a query begins and not from when it was written down.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from onelog.errors import ConfigError
from onelog.spark import link
from onelog.spark.folders import local_folder
from onelog.spark.link import Link, link_of
from onelog.spark.read.boundaries import (
    EARLIEST,
    Boundary,
    BoundaryKind,
    parse_assignment,
    parse_boundary,
    parse_time,
)

Corruption = Literal["fail", "skip"]
SplitBy = Literal["bytes", "queue"]
Form = Literal["json", "avro", "protobuf", "string"]
Framing = Literal["none", "confluent"]
Mode = Literal["permissive", "failfast"]

NAMES: dict[str, str] = {
    "nameserver": "name servers, host:port between semicolons",
    "accessKey": "who reads or writes, where brokers ask for that",
    "secretKey": "the secret that proves it",
    "secretKeyFile": "a file of the driver's machine with that secret",
    "securityToken": "a token that belongs to the access key, if there is one",
    "securityTokenFile": "a file of the driver's machine with that token",
    "tls": "true encrypts connections",
    "tlsCa": "the authority (PEM) whose certificates are accepted, and no others",
    "tlsHostname": "whether a certificate must be made for the address that is called; true",
    "tlsCert": "the certificate (PEM) to show to brokers that ask for one",
    "tlsKey": "the key (PEM) of that certificate",
    "requestTimeoutMs": "how long one request may take",
    "retryTimeoutMs": "how long to go on trying while brokers cannot be reached",
    "store": "folder of a store whose files are read without a broker",
    "subscribe": "topics, between commas",
    "subscribePattern": "regular expression that whole names of topics must match",
    "assign": 'queues, as {"topic": ["broker-a:0"]}',
    "topic": "the topic to write to; for reading the same as subscribe with one topic",
    "startingOffsets": 'earliest, latest, group, -2h, or {"topic": {"broker-a:0": 5}}',
    "startingTimestamp": "milliseconds since the epoch, 2026-05-01T10:30:00Z, or -2h",
    "endingOffsets": "the same for the end of a batch query, which is not part of it",
    "endingTimestamp": "the same for the end of a batch query",
    "maxOffsetsPerTrigger": "messages in one batch of a stream",
    "maxBytesPerTrigger": "bytes of records in one batch of a stream, about",
    "minPartitions": "tasks to divide the work among, at least",
    "maxRecordsPerPartition": "messages for one task",
    "failOnDataLoss": "whether to stop when messages are gone; true",
    "group": "consumer group that reads",
    "commitOffsets": "whether a stream tells brokers how far the group is; false",
    "tags": "tags of the messages that are wanted, between ||",
    "columns": "columns to decode, between commas",
    "decode": "json, avro, protobuf or string: turn bodies into columns",
    "schema": "what bodies look like: a DDL text, or an Avro schema",
    "schemaFile": "a file with the schema",
    "messageType": "name of the Protobuf message",
    "framing": "confluent: bodies begin with the number of a schema in a registry; none",
    "mode": "permissive (bodies that cannot be decoded give nulls and _error) or failfast",
    "sampleRecords": "messages that a schema is inferred from, if none is given",
    "splitBy": "with store: divide the log by bytes, or by queue",
    "onCorruption": "with store: fail, or skip damaged ranges",
    "pushdown": "whether filters spare reading; only for a DataFrame that is used once; false",
    "delivery": "writing: exactly-once or at-least-once",
    "maxBodyBytes": "writing: largest body",
    "txnAppId": "batch writing: whose batch this is, so that it is written once",
    "txnVersion": "batch writing: which batch, a number that grows",
    "decidingBroker": "writing exactly once: who decides, if the one that did is gone for good",
}
"""All options, and what they are."""

CHECKPOINT = "checkpointlocation"
SPARKS_OWN = frozenset(
    {
        "path",
        "serialization.format",
        CHECKPOINT,
        "queryname",
        "provider",
        "owner",
        "location",
        "comment",
        "external",
        "is_managed_location",
        "collation",
    }
)
"""What Spark adds by itself to tables and loads; `path` only counts if it is not empty."""

_SPELLING = {name.lower(): name for name in NAMES}
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_COUNT_MAX = (1 << 63) - 1

T = TypeVar("T", bound=str)


class Given:
    """The options that somebody gave, to be read one by one."""

    def __init__(self, options: Mapping[str, str], *, set_: bool = False) -> None:
        """With `set_` they are from the environment, where an empty one is none."""
        self._is_set = set_
        self._options: dict[str, str] = {}
        if set_:
            options = {name: value for name, value in options.items() if value.strip()}
        for key, value in options.items():
            # A table keeps its options a second time, under this prefix.
            lower = key.lower().removeprefix("option.")
            if lower in _SPELLING:
                self._options[lower] = str(value)
            elif lower not in SPARKS_OWN or (lower == "path" and value):
                raise _unknown(key)

    def __bool__(self) -> bool:
        return bool(self._options)

    def has(self, name: str) -> bool:
        assert name in NAMES
        return name.lower() in self._options

    def called(self, name: str) -> str:
        """How to speak of an option to whoever gave it."""
        return f"variable {link.ENVIRONMENT[name]}" if self._is_set else f"option {name}"

    def text(self, name: str) -> str | None:
        """A text; None if it was not given. Empty is refused: it is a variable that was not set."""
        assert name in NAMES
        value = self._options.get(name.lower())
        if value is not None and not value.strip():
            raise ConfigError(f"option {name} is empty: leave it out, or say {NAMES[name]}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.text(name)
        if value is None:
            return default
        word = value.strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise ConfigError(f"{self.called(name)} is true or false, and not {value!r}")
        return word in _TRUE

    def whole(self, name: str, least: int = 1) -> int | None:
        """A whole number; None if it was not given."""
        value = self.text(name)
        if value is None:
            return None
        word = value.strip().replace("_", "")
        if not (word.isdecimal() and word.isascii()) or not least <= int(word) <= _COUNT_MAX:
            raise ConfigError(f"option {name} is a whole number from {least} on, and not {value!r}")
        return int(word)

    def choice(self, name: str, choices: tuple[T, ...]) -> T | None:
        """One of a few words; None if it was not given."""
        value = self.text(name)
        if value is None:
            return None
        for each in choices:
            if each == value.strip().lower():
                return each
        raise ConfigError(f"option {name} is {' or '.join(choices)}, and not {value!r}")

    def words(self, name: str, separator: str = ",") -> tuple[str, ...] | None:
        """Several words, none twice; None if none were given."""
        value = self.text(name)
        if value is None:
            return None
        found = tuple(dict.fromkeys(filter(None, map(str.strip, value.split(separator)))))
        if not found:
            raise ConfigError(f"option {name} names nothing: say {NAMES[name]}")
        return found

    def refuse_together(self, *names: str) -> None:
        """`ConfigError` if more than one of these options was given."""
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            kind = "variables" if self._is_set else "options"
            named = " and ".join(link.ENVIRONMENT[n] if self._is_set else n for n in given)
            raise ConfigError(f"{kind} {named} exclude each other: keep one of them")

    def refuse_with(self, name: str, others: tuple[str, ...], reason: str) -> None:
        """`ConfigError` if `name` was given and one of the others as well."""
        found = [other for other in others if self.has(other)]
        if self.has(name) and found:
            raise ConfigError(f"option {found[0]} does not go with {name}: {reason}")

    def refuse_without(self, name: str, other: str, reason: str) -> None:
        """`ConfigError` if `name` was given and the other was not."""
        if self.has(name) and not self.has(other):
            raise ConfigError(f"{self.called(name)} needs the {self.called(other)}: {reason}")


def _unknown(key: str) -> ConfigError:
    near = difflib.get_close_matches(key.lower(), _SPELLING, 1, 0.7)
    if key.lower() == "path":
        advice = "topics are named with the option subscribe, a store's folder with store"
    elif near:
        advice = f"did you mean {_SPELLING[near[0]]}?"
    elif key.lower().startswith("kafka."):
        advice = "settings of Kafka's clients have no meaning here: leave it out"
    else:
        advice = f"there are {', '.join(NAMES)}"
    return ConfigError(f"option {key} is unknown: {advice}")


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics are read; exactly one of the three, or none for all topics of a store."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    queues: Mapping[str, tuple[str, ...]] | None = None
    """By topic, the queues as `broker:queue` or `queue`."""


@dataclass(frozen=True, slots=True)
class Decode:
    """How bodies become columns."""

    form: Form
    schema: str | None = None
    schema_file: str | None = None
    message_type: str | None = None
    mode: Mode = "permissive"
    framing: Framing = "none"
    sample_records: int = 1_000

    @property
    def needs_sample(self) -> bool:
        """Whether only messages themselves can tell what they look like."""
        is_open = self.schema is None and self.schema_file is None
        return is_open and self.form in ("json", "avro")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader was told."""

    link: Link | None
    store: str | None
    subscription: TopicSelection
    start: Boundary | None
    """None: a batch begins with the earliest, a stream with the latest message."""
    end: Boundary | None
    """None: a batch ends with the latest message."""
    rows_per_trigger: int | None
    bytes_per_trigger: int | None
    partitions_min: int | None
    partition_rows_max: int | None
    fail_on_data_loss: bool
    group: str | None
    commit_offsets: bool
    tags: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    decode: Decode | None
    split_by: SplitBy | None
    """None: whichever reads less."""
    on_corruption: Corruption
    pushdown: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a writer was told."""

    link: Link
    topic: str | None
    delivery: str
    body_bytes_max: int
    transaction: tuple[str, int] | None = None
    """Whose batch a batch write is, and which: one that was written before is not written again."""
    decider: str | None = None
    """The broker that is to decide, whoever did before."""
    checkpoint: str | None = None
    """Where a stream remembers how far it is, as Spark was told."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read, checked."""
    given = Given(options)
    store = given.text("store")
    if store is not None:
        store = str(local_folder("option store", store))
        network = (*link.NAMES, "group", "commitOffsets")
        given.refuse_with("store", network, "a store's files are read without asking a broker")
    else:
        for name in ("splitBy", "onCorruption"):
            given.refuse_without(name, "store", "it is about reading files")
    given.refuse_without("commitOffsets", "group", "say whose position is committed")
    start, end = _boundary(given, "starting"), _boundary(given, "ending")
    for name, boundary in (("endingOffsets", end), ("startingOffsets", start)):
        if boundary is not None and boundary.kind is BoundaryKind.GROUP:
            given.refuse_without(name, "group", "say whose position is meant")
    if start and end and start.kind is end.kind is BoundaryKind.TIME and end.ms < start.ms:
        raise ConfigError("option endingTimestamp lies before startingTimestamp: swap them")
    return ReadOptions(
        link=link_of(given) if store is None else None,
        store=store,
        subscription=_subscription(given),
        start=start,
        end=end,
        rows_per_trigger=given.whole("maxOffsetsPerTrigger"),
        bytes_per_trigger=given.whole("maxBytesPerTrigger"),
        partitions_min=given.whole("minPartitions"),
        partition_rows_max=given.whole("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        group=given.text("group"),
        commit_offsets=given.flag("commitOffsets", False),
        tags=_tags(given),
        columns=given.words("columns"),
        decode=_decode(given),
        split_by=given.choice("splitBy", ("bytes", "queue")),
        on_corruption=given.choice("onCorruption", ("fail", "skip")) or "fail",
        pushdown=given.flag("pushdown", False),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write, checked."""
    given = Given(options)
    if given.has("store"):
        raise ConfigError("option store is for reading: only a broker writes to a store")
    topic = given.text("topic")
    if topic is None and (subscribed := given.words("subscribe")) and len(subscribed) == 1:
        topic = subscribed[0]
    given.refuse_without("txnAppId", "txnVersion", "say which batch this is")
    given.refuse_without("txnVersion", "txnAppId", "say whose batch this is")
    app_id, version = given.text("txnAppId"), given.whole("txnVersion", 0)
    return WriteOptions(
        link=link_of(given),
        topic=topic,
        transaction=None if app_id is None or version is None else (app_id, version),
        delivery=given.choice("delivery", ("exactly-once", "at-least-once")) or "exactly-once",
        body_bytes_max=given.whole("maxBodyBytes") or 4 << 20,
        decider=given.text("decidingBroker"),
        checkpoint=next((v for k, v in options.items() if k.lower() == CHECKPOINT), None),
    )


def _subscription(given: Given) -> TopicSelection:
    given.refuse_together("subscribe", "subscribePattern", "assign")
    topics, pattern = given.words("subscribe"), given.text("subscribePattern")
    assigned = given.text("assign")
    if topics is None and pattern is None and assigned is None:
        topics = given.words("topic")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"option subscribePattern: {pattern!r} is no regular expression: {error}"
            ) from None
    if assigned is not None:
        return TopicSelection(queues=parse_assignment(assigned))
    if topics is None and pattern is None and not given.has("store"):
        said = "no topic is named: set one of the options subscribe, subscribePattern and assign"
        if not given:
            said += (
                ". Spark does not hand the options of a table on to sources in Python: make a view "
                "(create temporary view ... using onelog options (...)), or name them in the query "
                "(select ... from t with (...))"
            )
        raise ConfigError(said)
    return TopicSelection(topics, pattern)


def _boundary(given: Given, which: Literal["starting", "ending"]) -> Boundary | None:
    by_offset, by_time = f"{which}Offsets", f"{which}Timestamp"
    given.refuse_together(by_offset, by_time)
    if (offsets := given.text(by_offset)) is not None:
        found = parse_boundary(by_offset, offsets)
        if which == "ending" and found == EARLIEST:
            raise ConfigError(
                "option endingOffsets: earliest leaves nothing to read; latest is the default"
            )
        return found
    if (time := given.text(by_time)) is not None:
        return parse_time(by_time, time)
    return None


def _tags(given: Given) -> tuple[str, ...] | None:
    tags = given.words("tags", "||")
    return None if tags == ("*",) else tags


def _decode(given: Given) -> Decode | None:
    form: Form | None = given.choice("decode", ("json", "avro", "protobuf", "string"))
    for name in ("schema", "schemaFile", "messageType", "mode", "framing", "sampleRecords"):
        given.refuse_without(name, "decode", "say what bodies are")
    if form is None:
        return None
    given.refuse_together("schema", "schemaFile")
    if given.has("messageType") and form != "protobuf":
        raise ConfigError(f"option messageType is for decode=protobuf, and not for {form}")
    return Decode(
        form,
        given.text("schema"),
        given.text("schemaFile"),
        given.text("messageType"),
        given.choice("mode", ("permissive", "failfast")) or "permissive",
        given.choice("framing", ("none", "confluent")) or "none",
        given.whole("sampleRecords") or 1_000,
    )
