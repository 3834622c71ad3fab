"""Topics, their queues and their messages."""

import asyncio
import base64
import binascii
import uuid
from dataclasses import replace
from typing import Any

import msgspec

from onelog.admin.broker.call import Call, Pace
from onelog.admin.broker.cluster_admin import admin_of
from onelog.admin.broker.reading import browse, by_id, by_key, form_name, views
from onelog.admin.documents import LONG_BYTES, document
from onelog.admin.operations import Done, Listing, OfTopic, fill, paged
from onelog.admin.topics import (
    Access,
    BodySchema,
    ChangedTopic,
    Kind,
    MessageQuery,
    Messages,
    NewSchema,
    NewTopic,
    OffsetQuery,
    OutgoingMessage,
    QueueRange,
    RoutedQueues,
    SchemaOfTopic,
    Sent,
    TopicQuery,
    TopicSettings,
    TopicState,
    WholeMessage,
)
from onelog.core.catalog.topics import PERM_READ, PERM_READ_WRITE, PERM_WRITE, TopicConfig
from onelog.core.publish import Intent
from onelog.errors import InvalidRequestError, MessageError, TopicExistsError
from onelog.gateways.http.requests import called, looked_up
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

_PERMISSIONS: dict[int, Access] = {
    PERM_READ_WRITE: "rw",
    PERM_READ: "r",
    PERM_WRITE: "w",
    0: "none",
}
_BITS = {text: bits for bits, text in _PERMISSIONS.items()}
SCHEMAS_MAX = 1_000


def kind_of(call: Call, name: str) -> Kind:
    """What kind of topic that is, by its name."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead"
    return "system" if call.broker.topics.is_system(name) else "normal"


def _topic(call: Call, config: TopicConfig) -> TopicState:
    stats = call.broker.topics.stats(call.principal, config.name)
    return fill(
        TopicState,
        config,
        kind=kind_of(call, config.name),
        permission=_PERMISSIONS.get(config.perm & PERM_READ_WRITE, "none"),
        ordered=config.order,
        messages=sum(each.max_offset - each.min_offset for each in stats.queues),
        put_per_second=round(stats.put_per_second, 2),
        attributes=dict(config.attributes),
    )


async def _found(call: Call, name: str) -> TopicState:
    """A topic; times are read from the disk."""
    config = call.broker.topics.require(call.principal, name)
    return await looked_up(call.context, lambda: _topic(call, config))


async def list_topics(call: Call, given: TopicQuery) -> Listing[TopicState]:
    """Topics by name."""
    _, topics = call.broker.topics.all(call.principal)
    known = {each.name: each for each in topics}
    pace = Pace()
    names = []
    for number, name in enumerate(known):
        if given.q.lower() in name.lower() and given.kind in (None, kind_of(call, name)):
            names.append(name)
        if number % 200 == 0:
            await pace.give()
    names.sort()
    page, following = paged(names, given.limit, given.after)
    find = lambda: [_topic(call, known[name]) for name in page]  # noqa: E731 - for a worker
    return Listing(await looked_up(call.context, find), len(names), following)


async def get_topic(call: Call, given: OfTopic) -> TopicState:
    """One topic."""
    return await _found(call, given.topic)


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


async def create_topic(call: Call, given: NewTopic) -> TopicState:
    """A new topic."""
    broker = call.broker
    if broker.topics.find(call.principal, given.name) is not None:
        raise TopicExistsError(f"topic {given.name} exists")
    queues = broker.admin.config.default_topic_queues
    config = TopicConfig(given.name, queues, queues, created_ms=call.context.clock.now_ms())
    broker.topics.create(call.principal, _changed(config, given))
    return await _found(call, given.name)


async def update_topic(call: Call, given: ChangedTopic) -> TopicState:
    """Other settings."""
    broker = call.broker
    config = broker.topics.require(call.principal, given.topic)
    broker.topics.create(call.principal, _changed(config, given))
    return await _found(call, config.name)


async def delete_topic(call: Call, given: OfTopic) -> Done:
    """Without a way back."""
    broker = call.broker
    config = broker.topics.require(call.principal, given.topic)
    broker.topics.delete(call.principal, config.name)
    return Done()


async def list_queues(call: Call, given: OfTopic) -> Listing[QueueRange]:
    """The queues of a topic."""
    stats = await looked_up(
        call.context, lambda: call.broker.topics.stats(call.principal, given.topic)
    )
    items = [
        QueueRange(each.queue_id, each.min_offset, each.max_offset, each.last_ms or None)
        for each in stats.queues
    ]
    return Listing(items, len(items))


async def list_topic_groups(call: Call, given: OfTopic) -> Listing[str]:
    """Who consumes a topic."""
    broker = call.broker
    name = broker.topics.require(call.principal, given.topic).name
    groups = broker.groups.of_topic(call.principal, name)
    return Listing(groups, len(groups))


async def get_route(call: Call, given: OfTopic) -> Listing[RoutedQueues]:
    """Where a topic is in the cluster, as name servers tell clients."""
    topic = given.topic
    call.check("describe", topic, "topic")
    items = [
        fill(
            RoutedQueues,
            each,
            broker=each.brokers.name,
            addresses={str(number): str(address) for number, address in each.brokers.members},
            permission=_PERMISSIONS.get(each.perm & PERM_READ_WRITE, "none"),
        )
        for each in (await admin_of(call).topics.route(topic)).brokers
    ]
    return Listing(items, len(items))


async def list_messages(call: Call, given: MessageQuery) -> Messages:
    """Nothing is consumed by that.

    By key, by place (queue and offset), by time, with tags or a SQL-92 condition; without an offset
    the newest come first.
    """
    topic = call.broker.topics.require(call.principal, given.topic).name
    if given.key:
        found = await by_key(call, topic, given)
        if found:
            return Messages([document(each) for each in found], len(found))
        # The index is of RocketMQ's keys; those of other protocols are looked for one by one.
    if given.offset is not None and given.queue is None:
        raise InvalidRequestError("an offset is of a queue: name that, too")
    found, looked_at, next_offset, next_to_ms = await browse(call, topic, given)
    return Messages([document(each) for each in found], looked_at, next_offset, next_to_ms)


async def purge_topic(call: Call, given: OfTopic) -> Done:
    """Delete all messages that a topic has now."""
    broker = call.broker
    config = broker.topics.require(call.principal, given.topic)
    for queue_id in range(config.queues):
        broker.topics.delete_before(call.principal, config.name, queue_id, -1)
        await asyncio.sleep(0)
    return Done()


async def send_message(call: Call, given: OutgoingMessage) -> Sent:
    """Send one message."""
    broker = call.broker
    config = broker.topics.require(call.principal, given.topic)
    queue = given.queue
    if queue is None:
        queue = call.context.random.randrange(max(1, config.write_queues))
    unique = uuid.uuid4().hex.upper()
    properties = {**call.traced, **given.properties, UNIQUE_KEY: unique}
    if given.tags:
        properties[TAGS] = given.tags
    if given.keys:
        properties[KEYS] = " ".join(given.keys)
    for name, value in properties.items():
        if "\x01" in name + value or "\x02" in name + value or not name:
            raise MessageError(f"a property may not have \\x01 or \\x02 in it: {name!r:.80}")
    message = NewMessage(
        config.name,
        queue,
        _bytes(given),
        encode_properties(properties),
        born_ms=call.context.clock.now_ms(),
        born_host=encode_host(*call.origin),
        store_host=call.context.store_host,
    )
    intent = None if given.deliver_at_ms is None else Intent(given.deliver_at_ms)
    _, where, error = await called(
        lambda done: broker.publish.send(call.principal, message, done, None, intent)
    )
    if error is not None:
        raise error
    waits = given.deliver_at_ms is not None and given.deliver_at_ms > message.born_ms
    if waits or where is None:
        return Sent(None, unique, config.name, queue, None)
    # Computed, not looked up: who may send need not be allowed to read.
    ident = message_id(call.context.store_host, where.log_offset)
    return Sent(ident, unique, config.name, queue, where.queue_offset)


def _bytes(given: OutgoingMessage) -> bytes:
    if given.body_encoding == "text":
        return given.body.encode("utf-8", "replace")
    try:
        return base64.b64decode(given.body, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("the body is no base64") from None


async def get_message(call: Call, given: OffsetQuery) -> WholeMessage:
    """One message, by its id; messages that came as a batch have the same."""
    record, message = await by_id(call, given.id, given.offset, given.topic)
    shown = document(message, LONG_BYTES)
    schema = _schema(call, message.topic)
    return WholeMessage(shown, form_name(record), views(message), schema)


async def get_schema(call: Call, given: OfTopic) -> SchemaOfTopic:
    """Its schema, if it has one."""
    return SchemaOfTopic(
        _schema(call, call.broker.topics.require(call.principal, given.topic).name)
    )


def _schema(call: Call, topic: str) -> BodySchema | None:
    text = call.broker.topics.schemas.get(topic)
    return None if text is None else msgspec.json.decode(text, type=BodySchema)


async def put_schema(call: Call, given: NewSchema) -> SchemaOfTopic:
    """Say what its bodies are, or with null that this is not known any more."""
    broker = call.broker
    name = broker.topics.require(call.principal, given.topic).name
    call.check("alter", name, "topic")
    text = None if given.schema is None else msgspec.json.encode(given.schema).decode()
    if (
        text
        and len(broker.topics.schemas.all()) >= SCHEMAS_MAX
        and broker.topics.schemas.get(name) is None
    ):
        raise InvalidRequestError(f"{SCHEMAS_MAX} topics have a schema, which is the limit")
    broker.topics.schemas.put(name, text)
    return SchemaOfTopic(given.schema)
