"""Topics, their queues and their messages."""

import asyncio
import base64
import binascii
import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.broker.documents import (
    LONG_BYTES,
    MessageDocument,
    OutgoingMessage,
    document,
)
from onelog.admin.broker.reading import browse, by_id, by_key
from onelog.admin.broker.views import Protocol, View, form_name, views
from onelog.admin.operations import (
    Ask,
    Count,
    Done,
    Limit,
    Listing,
    Name,
    Operation,
    Pace,
    Time,
    check,
    paged,
)
from onelog.core.catalog.topics import PERM_READ, PERM_READ_WRITE, PERM_WRITE, TopicConfig
from onelog.core.publish import Intent
from onelog.errors import InvalidRequestError, MessageError, TopicExistsError
from onelog.gateways.http.requests import called, traced_by
from onelog.message import (
    KEYS,
    TAGS,
    UNIQUE_KEY,
    NewMessage,
    encode_host,
    encode_properties,
    message_id,
)
from onelog.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

Permission = Literal["rw", "r", "w", "none"]
Kind = Literal["normal", "retry", "dead", "system"]
_PERMISSIONS: dict[int, Permission] = {
    PERM_READ_WRITE: "rw",
    PERM_READ: "r",
    PERM_WRITE: "w",
    0: "none",
}
_BITS = {text: bits for bits, text in _PERMISSIONS.items()}
Queues = Annotated[int, Meta(ge=1, le=1_024)]
SCHEMA_CHARACTERS_MAX = 64 * 1024
SCHEMAS_MAX = 1_000


class TopicQuery(Struct, forbid_unknown_fields=True):
    """Which topics."""

    q: Annotated[str, Meta(max_length=255, description="Only names that have this in them.")] = ""
    kind: Kind | None = None
    limit: Limit = 100
    after: Annotated[str, Meta(max_length=255, description="The `next` of the last page.")] = ""


class Topic(Struct):
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


class TopicSettings(Struct, forbid_unknown_fields=True):
    """What is set for a topic; what is left out stays as it is."""

    queues: Queues | None = None
    permission: Permission | None = None
    ordered: bool | None = None
    attributes: dict[str, str] | None = None


class NewTopic(TopicSettings, kw_only=True):
    """A topic to create."""

    name: Name


class Queue(Struct):
    """A queue: its messages are those from `begin` up to `end`."""

    queue: int
    begin: int
    end: int
    last_ms: int | None


class Sent(Struct):
    """Where a message is; it has no place yet if it waits for its time."""

    id: str | None
    unique_key: str
    topic: str
    queue: int
    offset: int | None


class MessageQuery(Struct, forbid_unknown_fields=True):
    """Which messages. Without an offset the newest come first."""

    queue: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    offset: Annotated[Count, Meta(description="Of that queue, from there on.")] | None = None
    from_ms: Time | None = None
    to_ms: Time | None = None
    key: Annotated[str, Meta(max_length=255)] = ""
    tag: Annotated[str, Meta(max_length=1_000, description="Tags: a || b")] = ""
    sql: Annotated[str, Meta(max_length=1_000, description="A SQL-92 condition.")] = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 32


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
    message: Annotated[str, Meta(max_length=255)] = ""
    """Which message of the .proto file; else the first."""


class WholeMessage(Struct):
    """A message, and the same as each protocol sees it."""

    message: MessageDocument
    form: Protocol
    """Whose form it is stored in."""
    views: list[View]
    schema: BodySchema | None
    """What the bodies of its topic are, if somebody said."""


def kind_of(ask: Ask, name: str) -> Kind:
    """What kind of topic that is, by its name."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead"
    return "system" if ask.context.broker.admin.is_system_topic(name) else "normal"


def _topic(ask: Ask, config: TopicConfig) -> Topic:
    stats = ask.context.broker.admin.topic_stats(ask.principal, config.name)
    return Topic(
        name=config.name,
        kind=kind_of(ask, config.name),
        queues=config.queues,
        permission=_PERMISSIONS.get(config.perm & PERM_READ_WRITE, "none"),
        ordered=config.order,
        messages=sum(each.max_offset - each.min_offset for each in stats.queues),
        put_per_second=round(stats.put_per_second, 2),
        attributes=dict(config.attributes),
        created_ms=config.created_ms,
    )


async def list_topics(ask: Ask) -> Listing[Topic]:
    """Topics by name."""
    query: TopicQuery = ask.query
    _, topics = ask.context.broker.admin.topics(ask.principal)
    known = {each.name: each for each in topics}
    pace = Pace()
    names = []
    for number, name in enumerate(known):
        if query.q.lower() in name.lower() and query.kind in (None, kind_of(ask, name)):
            names.append(name)
        if number % 200 == 0:
            await pace.give()
    names.sort()
    page, following = paged(names, query.limit, query.after)
    items = []
    for number, name in enumerate(page, 1):
        items.append(_topic(ask, known[name]))
        if number % 5 == 0:
            await pace.give()
    return Listing(items, len(names), following)


async def get_topic(ask: Ask) -> Topic:
    """One topic."""
    return _topic(ask, ask.context.broker.topic(ask.principal, ask.path["topic"]))


def _changed(config: TopicConfig, settings: TopicSettings) -> TopicConfig:
    changes: dict[str, Any] = {}
    if settings.queues is not None:
        changes |= {"read_queues": settings.queues, "write_queues": settings.queues}
    if settings.permission is not None:
        others = config.perm & ~PERM_READ_WRITE
        changes["perm"] = others | _BITS[settings.permission]
    if settings.ordered is not None:
        changes["order"] = settings.ordered
    if settings.attributes is not None:
        changes["attributes"] = settings.attributes
    return replace(config, **changes)


async def create_topic(ask: Ask) -> Topic:
    """A new topic."""
    body: NewTopic = ask.body
    broker = ask.context.broker
    if broker.find_topic(ask.principal, body.name) is not None:
        raise TopicExistsError(f"topic {body.name} exists")
    queues = broker.config.default_topic_queues
    config = TopicConfig(body.name, queues, queues, created_ms=ask.context.clock.now_ms())
    broker.admin.create_topic(ask.principal, _changed(config, body))
    return _topic(ask, broker.topic(ask.principal, body.name))


async def update_topic(ask: Ask) -> Topic:
    """Other settings."""
    broker = ask.context.broker
    config = broker.topic(ask.principal, ask.path["topic"])
    broker.admin.create_topic(ask.principal, _changed(config, ask.body))
    return _topic(ask, broker.topic(ask.principal, config.name))


async def delete_topic(ask: Ask) -> Done:
    """Without a way back."""
    broker = ask.context.broker
    config = broker.topic(ask.principal, ask.path["topic"])
    broker.admin.delete_topic(ask.principal, config.name)
    return Done()


async def list_queues(ask: Ask) -> Listing[Queue]:
    """The queues of a topic."""
    stats = ask.context.broker.admin.topic_stats(ask.principal, ask.path["topic"])
    items = [
        Queue(each.queue_id, each.min_offset, each.max_offset, each.last_ms or None)
        for each in stats.queues
    ]
    return Listing(items, len(items))


async def list_topic_groups(ask: Ask) -> Listing[str]:
    """Who consumes a topic."""
    broker = ask.context.broker
    name = broker.topic(ask.principal, ask.path["topic"]).name
    groups = broker.admin.groups_of_topic(ask.principal, name)
    return Listing(groups, len(groups))


class RoutedQueues(Struct):
    """What one broker has of a topic."""

    broker: str
    addresses: dict[str, str]
    """By id; 0 is the master."""
    read_queues: int
    write_queues: int
    permission: Permission


async def get_route(ask: Ask) -> Listing[RoutedQueues]:
    """Where a topic is in the cluster, as name servers tell clients."""
    topic = ask.path["topic"]
    check(ask, "describe", topic, "topic")
    items = [
        RoutedQueues(
            each.brokers.name,
            {str(number): str(address) for number, address in each.brokers.members},
            each.read_queues,
            each.write_queues,
            _PERMISSIONS.get(each.perm & PERM_READ_WRITE, "none"),
        )
        for each in (await admin_of(ask).topics.route(topic)).brokers
    ]
    return Listing(items, len(items))


async def list_messages(ask: Ask) -> Messages:
    """Messages of a topic, by place, time, key or filter."""
    query: MessageQuery = ask.query
    topic = ask.context.broker.topic(ask.principal, ask.path["topic"]).name
    if query.key:
        found = await by_key(ask, topic, query)
        if found:
            return Messages([document(each) for each in found], len(found))
        # The index is of RocketMQ's keys; those of other protocols are looked for one by one.
    if query.offset is not None and query.queue is None:
        raise InvalidRequestError("an offset is of a queue: name that, too")
    found, looked_at, next_offset, next_to_ms = await browse(ask, topic, query)
    return Messages([document(each) for each in found], looked_at, next_offset, next_to_ms)


async def purge_topic(ask: Ask) -> Done:
    """Delete all messages that a topic has now."""
    broker = ask.context.broker
    config = broker.topic(ask.principal, ask.path["topic"])
    for queue_id in range(config.queues):
        broker.delete_before(ask.principal, config.name, queue_id, -1)
        await asyncio.sleep(0)
    return Done()


async def send_message(ask: Ask) -> Sent:
    """Send one message."""
    body: OutgoingMessage = ask.body
    broker = ask.context.broker
    config = broker.topic(ask.principal, ask.path["topic"])
    queue = body.queue
    if queue is None:
        queue = ask.context.random.randrange(max(1, config.write_queues))
    unique = uuid.uuid4().hex.upper()
    properties = {**traced_by(ask.request), **body.properties, UNIQUE_KEY: unique}
    if body.tags:
        properties[TAGS] = body.tags
    if body.keys:
        properties[KEYS] = " ".join(body.keys)
    for name, value in properties.items():
        if "\x01" in name + value or "\x02" in name + value or not name:
            raise MessageError(f"a property may not have \\x01 or \\x02 in it: {name!r:.80}")
    host, port = ask.request.client or ("127.0.0.1", 0)
    message = NewMessage(
        config.name,
        queue,
        _bytes(body),
        encode_properties(properties),
        born_ms=ask.context.clock.now_ms(),
        born_host=encode_host(host, port),
        store_host=ask.context.store_host,
    )
    intent = None if body.deliver_at_ms is None else Intent(body.deliver_at_ms)
    _, where, error = await called(
        lambda done: broker.publish(ask.principal, message, done, None, intent)
    )
    if error is not None:
        raise error
    waits = body.deliver_at_ms is not None and body.deliver_at_ms > message.born_ms
    if waits or where is None:
        return Sent(None, unique, config.name, queue, None)
    # Computed, not looked up: who may send need not be allowed to read.
    ident = message_id(ask.context.store_host, where.log_offset)
    return Sent(ident, unique, config.name, queue, where.queue_offset)


def _bytes(body: OutgoingMessage) -> bytes:
    if body.body_encoding == "text":
        return body.body.encode("utf-8", "replace")
    try:
        return base64.b64decode(body.body, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("the body is no base64") from None


class OffsetQuery(Struct, forbid_unknown_fields=True):
    """Which message of several that are stored together, and in which of its topics."""

    offset: Annotated[Count, Meta(description="Its queue offset; else the first.")] | None = None
    topic: Annotated[str, Meta(max_length=255)] = ""


async def get_message(ask: Ask) -> WholeMessage:
    """One message, by its id; messages that came as a batch have the same."""
    query: OffsetQuery = ask.query
    record, message = await by_id(ask, ask.path["id"], query.offset, query.topic)
    shown = document(message, LONG_BYTES)
    schema = _schema(ask, message.topic)
    return WholeMessage(shown, form_name(record), views(message), schema)


# -- schemas ---------------------------------------------------------------------------------------


class SchemaOfTopic(Struct):
    """The schema of a topic, if somebody gave it one."""

    schema: BodySchema | None


async def get_schema(ask: Ask) -> SchemaOfTopic:
    """Its schema, if it has one."""
    return SchemaOfTopic(
        _schema(ask, ask.context.broker.topic(ask.principal, ask.path["topic"]).name)
    )


def _schema(ask: Ask, topic: str) -> BodySchema | None:
    text = ask.context.broker.schemas.get(topic)
    return None if text is None else msgspec.json.decode(text, type=BodySchema)


async def put_schema(ask: Ask) -> SchemaOfTopic:
    """Say what its bodies are, or with null that this is not known any more."""
    body: SchemaOfTopic = ask.body
    broker = ask.context.broker
    name = broker.topic(ask.principal, ask.path["topic"]).name
    check(ask, "alter", name, "topic")
    text = None if body.schema is None else msgspec.json.encode(body.schema).decode()
    if text and len(broker.schemas.all()) >= SCHEMAS_MAX and broker.schemas.get(name) is None:
        raise InvalidRequestError(f"{SCHEMAS_MAX} topics have a schema, which is the limit")
    broker.schemas.put(name, text)
    return body


OPERATIONS = [
    Operation("GET", "/v1/topics", "List topics", list_topics, Listing[Topic], TopicQuery),
    Operation(
        "POST",
        "/v1/topics",
        "Create a topic",
        create_topic,
        Topic,
        body=NewTopic,
        status=201,
        example={"name": "orders", "queues": 8},
    ),
    Operation("GET", "/v1/topics/{topic}", "Show a topic", get_topic, Topic),
    Operation(
        "PATCH",
        "/v1/topics/{topic}",
        "Change a topic",
        update_topic,
        Topic,
        body=TopicSettings,
        example={"queues": 16, "permission": "rw"},
    ),
    Operation(
        "DELETE", "/v1/topics/{topic}", "Delete a topic and its messages", delete_topic, Done
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}/queues",
        "List the queues of a topic",
        list_queues,
        Listing[Queue],
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}/groups",
        "List the groups that consume a topic",
        list_topic_groups,
        Listing[str],
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}/route",
        "Show where in the cluster a topic is",
        get_route,
        Listing[RoutedQueues],
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}/messages",
        "Browse and search messages",
        list_messages,
        Messages,
        MessageQuery,
        text="Nothing is consumed by that. By key, by place (queue and offset), by time, with "
        "tags or a SQL-92 condition; without an offset the newest come first.",
    ),
    Operation(
        "POST",
        "/v1/topics/{topic}/messages",
        "Send a message",
        send_message,
        Sent,
        body=OutgoingMessage,
        status=201,
        example={"body": '{"order": 1}', "keys": ["order-1"], "tags": "paid"},
    ),
    Operation(
        "DELETE",
        "/v1/topics/{topic}/messages",
        "Delete all messages of a topic",
        purge_topic,
        Done,
    ),
    Operation("GET", "/v1/messages/{id}", "Show a message", get_message, WholeMessage, OffsetQuery),
    Operation(
        "GET",
        "/v1/topics/{topic}/schema",
        "Show what the bodies of a topic are",
        get_schema,
        SchemaOfTopic,
    ),
    Operation(
        "PUT",
        "/v1/topics/{topic}/schema",
        "Say what the bodies of a topic are",
        put_schema,
        SchemaOfTopic,
        body=SchemaOfTopic,
        example={"schema": {"format": "avro", "schema": '{"type": "string"}'}},
    ),
]
