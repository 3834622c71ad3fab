"""Topics, as admin tools ask for them: create and delete, list, look into their queues.

Names, limits and answers are RocketMQ 5.5's, except that a question about a queue is bounded.
Bindings between MQTT's topics and these are `onelog bind`'s.
"""

from dataclasses import replace
from functools import partial

import msgspec

from onelog.core.broker import Broker
from onelog.core.catalog.topics import TopicConfig
from onelog.core.filters.tags import Subscription
from onelog.core.routing.mqtt_forwarding import EXCHANGE
from onelog.core.routing.names import DEFAULT_VHOST, swapped
from onelog.errors import InvalidRequestError, InvalidTopicError, SystemTopicError
from onelog.gateways.remoting import names
from onelog.gateways.remoting.admin.attributes import (
    TOPIC_ATTRIBUTES,
    alter,
    parse_changes,
)
from onelog.gateways.remoting.bodies import (
    page,
    queue_body,
    subscription_body,
)
from onelog.gateways.remoting.session import BrokerSession, Handler, Success, by_worker
from onelog.record.entries import ENTRY
from onelog.rocketmq import message_types
from onelog.rocketmq.names import DEFAULT_TOPIC, check_topic
from onelog.rocketmq.tables import topic_body, topic_from_body, version_body
from onelog.wire.remoting import fields
from onelog.wire.remoting.bindings import BindingList, TopicBinding
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.fields import STABLE_ENDS, TOPIC_CREATED_MS
from onelog.wire.remoting.groups import GroupList
from onelog.wire.remoting.registration import DataVersion, TopicConfigList, TopicTable
from onelog.wire.remoting.registration import TopicConfig as TopicBody
from onelog.wire.remoting.routes import TopicList
from onelog.wire.remoting.stats import (
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueEntries,
    QueueEntry,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)

_QUEUES = 4
"""Of a topic that is made for a binding."""


def change_binding(session: BrokerSession, command: Command) -> Success:
    ext, broker, principal = command.ext, session.broker, session.principal
    topic, wanted = fields.text(ext, "topic"), fields.text(ext, "filter")
    back, remove = fields.flag(ext, "back"), fields.flag(ext, "remove")
    key = swapped(wanted)
    if not wanted or (back and ("+" in wanted or "#" in wanted)):
        raise InvalidRequestError(f"{wanted!r} is no topic that messages can be published to")
    if not remove:
        names.create_topic(broker, principal, topic, DEFAULT_TOPIC, _QUEUES)
    if back and remove:
        broker.topics.mqtt_forwarding.remove(principal, topic)
    elif back:
        broker.topics.mqtt_forwarding.add(principal, topic, key)
    elif remove:
        broker.publish.routing.unbind(principal, DEFAULT_VHOST, EXCHANGE, "topic", topic, key)
    else:
        broker.publish.routing.bind(principal, DEFAULT_VHOST, EXCHANGE, "topic", topic, key)
    return Success()


def bindings(session: BrokerSession, command: Command) -> Success:
    broker, principal = session.broker, session.principal
    found = [
        TopicBinding(filter=swapped(each.key), topic=each.destination)
        for each in broker.publish.routing.bindings(principal, DEFAULT_VHOST, EXCHANGE)
        if each.kind == "topic"
    ]
    found += [
        TopicBinding(back=True, filter=swapped(key), topic=topic)
        for topic, key in broker.topics.mqtt_forwarding.all(principal).items()
    ]
    return Success(body=BindingList(bindings=found).encode())


QUEUE_ENTRIES_MAX = 10_000
"""Entries of a queue in one answer."""

_NO_MIXED_TYPE = Success(
    code=ResponseCode.INVALID_PARAMETER, remark="MIXED message type is not supported."
)


# -- creating and deleting -----------------------------------------------------------------------


def create_topic(session: BrokerSession, command: Command) -> Success | None:
    ext = command.ext
    body = TopicBody(
        topic_name=fields.text(ext, "topic"),
        read_queue_nums=fields.int32(ext, "readQueueNums"),
        write_queue_nums=fields.int32(ext, "writeQueueNums"),
        perm=fields.int32(ext, "perm"),
        topic_filter_type=fields.text(ext, "topicFilterType"),
        order=fields.flag(ext, "order"),
        topic_sys_flag=fields.int32(ext, "topicSysFlag", 0),
        attributes=parse_changes(ext.get("attributes")),
    )
    return _create(session, command, [body])


def create_topics(session: BrokerSession, command: Command) -> Success | None:
    """UPDATE_AND_CREATE_TOPIC_LIST. One that cannot be created keeps all others from it."""
    return _create(session, command, TopicConfigList.decode_request(command.body).topic_config_list)


def _create(session: BrokerSession, command: Command, wanted: list[TopicBody]) -> Success | None:
    broker, principal = session.broker, session.principal
    for body in wanted:
        if body.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise InvalidRequestError(f"topicFilterType = [{body.topic_filter_type}] value invalid")
        if body.attributes.get(f"+{message_types.ATTRIBUTE}") == "MIXED":
            return _NO_MIXED_TYPE

    def prepare(body: TopicBody) -> TopicConfig:
        check_topic(body.topic_name)
        _refuse_system_topic(broker, body.topic_name)
        current = broker.topics.find(principal, body.topic_name)
        before = None if current is None else current.attributes
        attributes = alter(TOPIC_ATTRIBUTES, before, body.attributes)
        return replace(topic_from_body(body), attributes=attributes)

    return session.in_turns(command, wanted, partial(broker.topics.create, principal), prepare)


def _refuse_system_topic(broker: Broker, topic: str) -> None:
    if broker.topics.is_system(topic):
        raise SystemTopicError(f"The topic[{topic}] is conflict with system topic.")


def delete_topic(session: BrokerSession, command: Command) -> Success:
    """DELETE_TOPIC_IN_BROKER. Tools ask every broker of a cluster, also those without the topic."""
    topic = fields.text(command.ext, "topic")
    if not topic.strip():
        raise InvalidTopicError("The specified topic is blank.")
    _refuse_system_topic(session.broker, topic)
    if session.broker.topics.find(session.principal, topic) is not None:
        session.broker.topics.delete(session.principal, topic)
    return Success()


def clean_unused_topics(session: BrokerSession, command: Command) -> Success | None:
    """CLEAN_UNUSED_TOPIC: queues whose topic was deleted."""
    topics, principal = session.broker.topics, session.principal
    return session.in_turns(
        command, topics.unused(principal), partial(topics.delete_queues, principal), str
    )


# -- listing -------------------------------------------------------------------------------------


@by_worker
def all_topics(session: BrokerSession, command: Command) -> Success:
    """GET_ALL_TOPIC_CONFIG."""
    known, topics = session.broker.topics.all(session.principal)
    version = version_body(known)
    configs = {config.name: config for config in topics}
    names = page(configs, command.ext, "topicSeq", "maxTopicNum", version)
    table = TopicTable(
        data_version=version,
        mapping_data_version=DataVersion(),
        topic_config_table={name: topic_body(configs[name]) for name in names},
        topic_queue_mapping_detail_map={},
        topic_queue_mapping_info_map={},
    )
    return Success({"totalTopicNum": str(len(configs))}, table.encode())


def topic_config(session: BrokerSession, command: Command) -> Success:
    config = session.broker.topics.require(session.principal, fields.text(command.ext, "topic"))
    return Success(body=topic_body(config).encode())


def system_topics(session: BrokerSession, command: Command) -> Success:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER: also those that are created on demand only."""
    names = session.broker.topics.system_names(session.principal)
    return Success(body=TopicList(topic_list=names).encode())


def groups_of_topic(session: BrokerSession, command: Command) -> Success:
    """QUERY_TOPIC_CONSUME_BY_WHO."""
    topic = fields.text(command.ext, "topic")
    groups = session.broker.groups.of_topic(session.principal, topic)
    return Success(body=GroupList(group_list=groups).encode())


# -- what is in them -----------------------------------------------------------------------------


def topic_stats(session: BrokerSession, command: Command) -> None:
    """GET_TOPIC_STATS_INFO: every queue, the empty ones too."""
    broker, topic = session.broker, fields.text(command.ext, "topic")

    def with_stable_ends(answer: Success) -> Success:
        # After the worker has looked: what is decided now was decided, or not there, then.
        ends = broker.cursors.stable_ends(session.principal, topic)
        if ends:
            answer.ext[STABLE_ENDS] = ",".join(f"{queue}={end}" for queue, end in ends.items())
        return answer

    session.look_up(command, partial(_topic_stats, session, topic), with_stable_ends)


def _topic_stats(session: BrokerSession, topic: str) -> Success:
    broker = session.broker
    config = broker.topics.require(session.principal, topic)
    stats = broker.topics.stats(session.principal, topic)
    table = TopicStatsTable(
        offset_table={
            queue_body(broker, topic, queue.queue_id): TopicOffset(
                last_update_timestamp=queue.last_ms,
                max_offset=queue.max_offset,
                min_offset=queue.min_offset,
            )
            for queue in stats.queues
        },
        topic_put_tps=stats.put_per_second,
    )
    created = {TOPIC_CREATED_MS: str(config.created_ms)} if config.created_ms else {}
    return Success(created, table.encode())


@by_worker
def consume_time_spans(session: BrokerSession, command: Command) -> Success:
    """QUERY_CONSUME_TIME_SPAN. A time that there is not, because there is no message, is -1."""
    topic, group = fields.text(command.ext, "topic"), fields.text(command.ext, "group")
    broker = session.broker
    spans = ConsumeTimeSpans(
        consume_time_span_set=[
            QueueTimeSpan(
                consume_time_stamp=span.consumed_ms or -1,
                delay_time=span.delay_ms,
                max_time_stamp=span.max_ms or -1,
                message_queue=queue_body(broker, topic, span.queue_id),
                min_time_stamp=span.min_ms or -1,
            )
            for span in broker.groups.consume_time_spans(session.principal, group, topic)
        ]
    )
    return Success(body=spans.encode())


def correction_offsets(session: BrokerSession, command: Command) -> Success:
    """QUERY_CORRECTION_OFFSET: where the slowest group is, queue by queue."""
    ext = command.ext
    least = session.broker.cursors.least_offsets(
        session.principal,
        fields.text(ext, "topic"),
        fields.text(ext, "compareGroup"),
        ext.get("filterGroups", "").split(","),
    )
    return Success(body=CorrectionOffsets(correction_offsets=least).encode())


@by_worker
def queue_entries(session: BrokerSession, command: Command) -> Success:
    """QUERY_CONSUME_QUEUE: entries of a queue as they are on disk."""
    ext, admin, principal = command.ext, session.broker.admin, session.principal
    topic, queue_id = fields.text(ext, "topic"), fields.int32(ext, "queueId")
    index = fields.number(ext, "index")
    count = max(0, min(fields.int32(ext, "count"), QUEUE_ENTRIES_MAX))
    subscription, filter_data = None, None
    group = ext.get("consumerGroup")
    if group is not None:
        subscription = session.broker.groups.subscription(principal, group, topic)
        filter_data = _filter_data(group, topic, subscription)
    found = admin.queue_entries(principal, topic, queue_id, index, count)
    if found is None:
        raise InvalidRequestError(f"{queue_id}@{topic} is not exist!")
    if not found.min_offset <= index < found.max_offset:
        return Success(remark=f"Index {index} of {queue_id}@{topic} is not exist!")
    entries = QueueEntries(
        filter_data=filter_data,
        max_queue_index=found.max_offset,
        min_queue_index=found.min_offset,
        queue_data=[
            QueueEntry(physic_offset=at, physic_size=size, tags_code=code)
            for at, size, code in ENTRY.iter_unpack(found.data)
        ],
        subscription_data=None if subscription is None else subscription_body(subscription),
    )
    return Success(body=entries.encode())


def _filter_data(group: str, topic: str, subscription: Subscription | None) -> str:
    """What the tool prints as the group's filter on properties."""
    if subscription is None:
        return f"{group}@{topic} is not online!"
    if subscription.kind == "TAG":
        return "null"
    shown = {
        "clientVersion": subscription.version,
        "consumerGroup": group,
        "expression": subscription.expression,
        "expressionType": subscription.kind,
        "topic": topic,
    }
    return msgspec.json.format(msgspec.json.encode(shown)).decode()


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: create_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.CLEAN_UNUSED_TOPIC: clean_unused_topics,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
    RequestCode.GET_TOPIC_CONFIG: topic_config,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: system_topics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups_of_topic,
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: consume_time_spans,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offsets,
    RequestCode.QUERY_CONSUME_QUEUE: queue_entries,
    RequestCode.CHANGE_BINDING: change_binding,
    RequestCode.LIST_BINDINGS: bindings,
}
