"""Operations on topics, their queues, and the messages in them."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from onelog.admin.operations import (
    Identified,
    Name,
    OfTopic,
    Paged,
    Position,
    Text,
    Time,
    about,
    declared,
)

Access = Literal["rw", "r", "w", "none"]
Kind = Literal["normal", "retry", "dead", "system"]
Encoding = Literal["text", "base64"]
Protocol = Literal["rocketmq", "kafka", "amqp", "stomp", "mqtt", "http"]
SCHEMA_CHARACTERS_MAX = 64 * 1024


class TopicQuery(Paged):
    """Which topics."""

    kind: Kind | None = None


class TopicState(Struct):
    """A topic."""

    name: str
    kind: Kind
    queues: int
    permission: str
    ordered: bool
    messages: int
    """That can be read now."""
    put_per_second: float
    attributes: dict[str, str]
    created_ms: int


class TopicSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is set for a topic; what is left out stays as it is."""

    queues: Annotated[int, about("Queues for writing and reading.", ge=1, le=1_024)] | None = None
    permission: Annotated[Access, about("What clients may do.", "--perm")] | None = None
    ordered: Annotated[bool, about("Keep queues where they are.", "--order/--no-order")] | None = (
        None
    )
    attributes: dict[str, str] | None = None


class NewTopic(TopicSettings):
    """A topic to create."""

    name: Name


class ChangedTopic(TopicSettings):
    """A topic, and what to change."""

    topic: Name


class QueueRange(Struct):
    """A queue: its messages are those from `begin` up to `end`."""

    queue: int
    begin: int
    end: int
    last_ms: int | None


class RoutedQueues(Struct):
    """What one broker has of a topic."""

    broker: str
    addresses: dict[str, str]
    """By id; 0 is the master."""
    read_queues: int
    write_queues: int
    permission: Access


# -- messages --------------------------------------------------------------------------------------


class MessageDocument(Struct):
    """A message. A body that is no text is in base64; a long one may be cut."""

    columns: ClassVar[str] = "stored=store_ms, broker, >queue, >offset, tags, keys, id, body"
    id: str
    unique_key: str | None
    topic: str
    queue: int
    offset: int
    log_offset: int
    tags: str | None
    keys: list[str]
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    sys_flag_means: list[str]
    size: int
    properties: dict[str, str]
    body: str
    body_encoding: Encoding
    body_bytes: int
    body_is_cut: bool
    trouble: str | None = None
    """Why the body is shown as it was sent."""
    broker: str | None = None
    """Whose log it is in, if several were asked."""


class OutgoingMessage(OfTopic):
    """A message to send."""

    body: Annotated[str, about("The body.", max_length=4 << 20)]
    body_encoding: Annotated[Encoding, about("How it is written.")] = "text"
    tags: Annotated[str, about("Its tag.", "--tag", max_length=255)] = ""
    keys: Annotated[list[Text], about("A key. Repeatable.", "--key")] = field(default_factory=list)
    properties: Annotated[dict[str, str], about("NAME=VALUE. Repeatable.", "--property")] = field(
        default_factory=dict
    )
    queue: Annotated[int, about("Which queue; else any.", ge=0, le=65_535)] | None = None
    deliver_at_ms: Annotated[int, about("Then, not before.", ge=0, le=1 << 52)] | None = None


class Sent(Struct):
    """Where a message is; it has no place yet if it waits for its time."""

    id: str | None
    unique_key: str
    topic: str
    queue: int
    offset: int | None


class MessageQuery(OfTopic):
    """Which messages. Without an offset the newest come first."""

    queue: Annotated[int, about("Only of this queue.", ge=0, le=65_535)] | None = None
    offset: Annotated[Position, Meta(description="Of that queue, from there on.")] | None = None
    from_ms: Time | None = None
    to_ms: Time | None = None
    key: Annotated[str, about("With this key.", max_length=255)] = ""
    tag: Annotated[str, about("Tags: a || b", max_length=1_000)] = ""
    sql: Annotated[str, about("A SQL-92 condition.", max_length=1_000)] = ""
    limit: Annotated[int, about("How many at most.", ge=1, le=200)] = 32


class Messages(Struct):
    """Messages, how many were looked at for that, and where to go on."""

    items: list[MessageDocument]
    looked_at: int
    next_offset: int | None = None
    next_to_ms: int | None = None


class BodySchema(Struct, forbid_unknown_fields=True):
    """What the bodies of a topic are, for who looks at them; the broker does not check it."""

    format: Literal["avro", "protobuf"]
    schema: Annotated[str, Meta(min_length=1, max_length=SCHEMA_CHARACTERS_MAX)]
    """An Avro schema in JSON, or a .proto file."""
    message: Text = ""
    """Which message of the .proto file; else the first."""


class SchemaOfTopic(Struct):
    """The schema of a topic, if somebody gave it one."""

    schema: BodySchema | None


class NewSchema(OfTopic):
    """The schema of a topic; null forgets it."""

    schema: Annotated[BodySchema | None, about('{"format": "avro", "schema": ...}, or null.')]


class OffsetQuery(Identified):
    """Which message of several that are stored together, and in which of its topics."""

    offset: Annotated[Position, Meta(description="Its queue offset; else the first.")] | None = None
    topic: Text = ""


class Field(Struct):
    """Something that a client is told."""

    name: str
    value: str | None
    encoding: Encoding = "text"


class View(Struct):
    """The message as one protocol has it."""

    protocol: Protocol
    fields: list[Field]


class WholeMessage(Struct):
    """A message, and the same as each protocol sees it."""

    message: MessageDocument
    form: Protocol
    """Whose form it is stored in."""
    views: list[View]
    schema: BodySchema | None
    """What the bodies of its topic are, if somebody said."""


OPERATIONS = declared(
    globals(),
    """
    GET /v1/topics = topic list
        list_topics(TopicQuery) -> Listing[TopicState]: List topics
    POST /v1/topics = topic create
        create_topic(NewTopic) -> TopicState 201: Create a topic
    GET /v1/topics/{topic} = topic describe
        get_topic(OfTopic) -> TopicState: Show a topic
    PATCH /v1/topics/{topic} = topic update
        update_topic(ChangedTopic) -> TopicState: Change a topic
    DELETE /v1/topics/{topic} = topic delete
        delete_topic(OfTopic) -> Done: Delete a topic and its messages
    GET /v1/topics/{topic}/queues = topic status
        list_queues(OfTopic) -> Listing[QueueRange]: List the queues of a topic
    GET /v1/topics/{topic}/groups = topic groups
        list_topic_groups(OfTopic) -> Listing[str]: List the groups that consume a topic
    GET /v1/topics/{topic}/route = topic route
        get_route(OfTopic) -> Listing[RoutedQueues]: Show where in the cluster a topic is
    GET /v1/topics/{topic}/messages = message list, message by-key,
        message by-unique-key, message by-offset, message by-time
        list_messages(MessageQuery) -> Messages: Browse and search messages
    POST /v1/topics/{topic}/messages = message send
        send_message(OutgoingMessage) -> Sent 201: Send a message
    DELETE /v1/topics/{topic}/messages = topic purge
        purge_topic(OfTopic) -> Done: Delete all messages of a topic
    GET /v1/messages/{id} = message get
        get_message(OffsetQuery) -> WholeMessage: Show a message
    GET /v1/topics/{topic}/schema = topic schema
        get_schema(OfTopic) -> SchemaOfTopic: Show what the bodies of a topic are
    PUT /v1/topics/{topic}/schema = topic set-schema
        put_schema(NewSchema) -> SchemaOfTopic: Say what the bodies of a topic are
    """,
)
