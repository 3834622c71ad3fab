"""What every client asks beside sending and fetching: membership, queues, positions, look-ups."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import get_args

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.catalog.topics import PERM_READ
from onelog.core.cursors.forms import records_of
from onelog.core.filters.tags import Subscription, subscribe
from onelog.core.membership.assignment import STRATEGIES, Mode, RequestMode, shared
from onelog.core.membership.locks import Queue
from onelog.core.membership.members import Client, ConsumerData, ConsumeType, Member, MessageModel
from onelog.errors import (
    FilterSyntaxError,
    InvalidGroupError,
    InvalidRequestError,
    KeyNotFoundError,
    OnelogError,
)
from onelog.gateways.remoting.admin.setting_names import UNIQUE_KEY_COUNT_MAX
from onelog.gateways.remoting.names import usable_group
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.names import LIGHT_QUEUE_PREFIX
from onelog.wire.remoting import fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
    CheckClientRequest,
    ConsumerList,
    HeartbeatData,
    LockAnswer,
    LockRequest,
    SubscriptionData,
)
from onelog.wire.remoting.clients import ConsumerData as WireConsumerData
from onelog.wire.remoting.clients import RequestMode as WireMode
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.routes import QueueData

log = logging.getLogger(__name__)

GROUPS_MAX = 500
"""Groups in one heartbeat. The largest that it may be takes some 50 ms, when all in it is new."""
SUBSCRIPTIONS_MAX = 2_000
SQL_CHARACTERS_MAX = 64_000
"""Of all SQL-92 filters in one heartbeat."""
QUEUES_MAX = 120_000
"""Of a request to lock some."""

_CONSUME_TYPES: dict[str | None, ConsumeType] = {each: each for each in get_args(ConsumeType)}
_MESSAGE_MODELS: dict[str | None, MessageModel] = {each: each for each in get_args(MessageModel)}


# -- membership --------------------------------------------------------------------------------


def heartbeat(session: BrokerSession, command: Command) -> Success:
    """HEART_BEAT: a client lives, and these are its groups."""
    data = HeartbeatData.decode_request(command.body)
    if not data.client_id:
        raise InvalidRequestError("the heartbeat has no clientID")
    _check_size(data)
    client = Client(
        data.client_id,
        session,
        command.language,
        command.version,
        session.connection.remote_address,
    )
    changed, principal = False, session.principal
    if data.without_sub:
        for consumer in data.consumer_data_set:
            known = session.broker.groups.refresh_membership(principal, client, consumer.group_name)
            changed = changed or not known
    else:
        usable = [each for each in data.consumer_data_set if _is_usable(session, data, each)]
        consumers = [_consumer(each) for each in usable]
        producers = [each.group_name for each in data.producer_data_set]
        changed = session.broker.groups.heartbeat(principal, client, consumers, producers)
    return Success(
        {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
    )


def _is_usable(session: BrokerSession, data: HeartbeatData, consumer: WireConsumerData) -> bool:
    try:
        usable_group(session.broker, consumer.group_name)
    except InvalidGroupError as error:
        log.warning("heartbeat of %r: %s", data.client_id, error)
        return False
    return True


def _check_size(data: HeartbeatData) -> None:
    groups = len(data.consumer_data_set) + len(data.producer_data_set)
    wanted = [each for one in data.consumer_data_set for each in one.subscription_data_set]
    if groups > GROUPS_MAX or len(wanted) > SUBSCRIPTIONS_MAX:
        raise InvalidRequestError(
            f"a heartbeat of {groups} groups with {len(wanted)} subscriptions; the limits are "
            f"{GROUPS_MAX} and {SUBSCRIPTIONS_MAX}: use several clients"
        )
    sql = sum(len(each.sub_string) for each in wanted if each.expression_type == "SQL92")
    if sql > SQL_CHARACTERS_MAX:
        raise FilterSyntaxError(
            f"the SQL-92 filters of one client have {sql} characters; the limit is "
            f"{SQL_CHARACTERS_MAX}: use several clients"
        )


def _consumer(data: WireConsumerData) -> ConsumerData:
    return ConsumerData(
        data.group_name,
        _CONSUME_TYPES.get(data.consume_type, "CONSUME_PASSIVELY"),
        _MESSAGE_MODELS.get(data.message_model, "CLUSTERING"),
        data.consume_from_where or "CONSUME_FROM_LAST_OFFSET",
        tuple(_subscriptions(data.subscription_data_set)),
        data.unit_mode,
    )


def _subscriptions(wanted: Iterable[SubscriptionData]) -> Iterable[Subscription]:
    for each in wanted:
        yield subscribe(each.topic, each.sub_string, each.expression_type, each.sub_version)


def unregister(session: BrokerSession, command: Command) -> Success:
    fields.text(command.ext, "clientID")
    session.broker.groups.unregister(
        session.principal,
        session,
        command.ext.get("consumerGroup"),
        command.ext.get("producerGroup"),
    )
    return Success()


def notify_members(group: str, members: list[Member]) -> None:
    """A group changed: notify its members, which share out the queues anew."""
    for member in members:
        channel = member.client.channel
        if isinstance(channel, BrokerSession):
            channel.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


def consumer_list(session: BrokerSession, command: Command) -> Success:
    """GET_CONSUMER_LIST_BY_GROUP."""
    group = fields.text(command.ext, "consumerGroup")
    live = session.broker.groups.live(session.principal, group)
    if live is None:
        return Success(
            code=ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group}"
        )
    return Success(body=ConsumerList(consumer_id_list=live.client_ids()).encode())


def check_client(session: BrokerSession, command: Command) -> Success:
    """CHECK_CLIENT_CONFIG: can this filter be understood, and is it allowed?"""
    data = CheckClientRequest.decode_request(command.body).subscription_data
    if data is None or data.expression_type == "TAG":
        return Success()
    if not session.broker.admin.config.property_filter:
        return Success(
            code=ResponseCode.SYSTEM_ERROR,
            remark="The broker does not support consumer to filter message by "
            + data.expression_type,
        )
    try:
        subscribe(data.topic, data.sub_string, data.expression_type, data.sub_version)
    except FilterSyntaxError as error:
        return Success(code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
    return Success()


# -- queue locks -------------------------------------------------------------------------------


def lock_queues(session: BrokerSession, command: Command) -> None:
    """LOCK_BATCH_MQ: for orderly consumers, one of a group at a time."""
    request = LockRequest.decode_request(command.body, QUEUES_MAX)
    principal, group = session.principal, request.consumer_group

    def steps() -> Iterator[None]:
        yield
        queues = {_queue(each): each for each in request.mq_set}
        try:
            locked = session.broker.groups.lock(principal, group, request.client_id, queues)
        except OnelogError as error:
            session.fail(command, error)
            return
        yield
        answer = LockAnswer(lock_ok_mq_set=[queues[each] for each in locked])
        session.answer(command, Success(body=answer.encode()))

    session.work(steps())


def unlock_queues(session: BrokerSession, command: Command) -> Success:
    """UNLOCK_BATCH_MQ."""
    request = LockRequest.decode_request(command.body, QUEUES_MAX)
    queues = [_queue(each) for each in request.mq_set]
    principal, group = session.principal, request.consumer_group
    session.broker.groups.unlock(principal, group, request.client_id, queues)
    return Success()


def _queue(queue: MessageQueue) -> Queue:
    return queue.topic, queue.queue_id


# -- positions ---------------------------------------------------------------------------------


def query_offset(session: BrokerSession, command: Command) -> Success:
    ext = command.ext
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    offset = session.broker.cursors.query(
        session.principal,
        group,
        topic,
        fields.int32(ext, "queueId"),
        zero_if_missing=fields.flag(ext, "setZeroIfNotFound", True),
    )
    if offset is None:
        raise KeyNotFoundError("Not found, maybe this group consumer boot first")
    return Success({"offset": str(offset)})


def update_offset(session: BrokerSession, command: Command) -> Success:
    ext = command.ext
    group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
    offset, principal = fields.number(ext, "commitOffset"), session.principal
    session.broker.cursors.commit(principal, group, topic, fields.int32(ext, "queueId"), offset)
    return Success()


def max_offset(session: BrokerSession, command: Command) -> Success:
    topic, queue_id = _topic_queue(command)
    return Success(
        {"offset": str(session.broker.topics.max_offset(session.principal, topic, queue_id))}
    )


def min_offset(session: BrokerSession, command: Command) -> Success:
    """GET_MIN_OFFSET. A queue of batches has none (-1) before its first one, as in RocketMQ."""
    broker, principal = session.broker, session.principal
    topic, queue_id = _topic_queue(command)
    offset = int(broker.topics.min_offset(principal, topic, queue_id))
    if offset == 0 and broker.topics.max_offset(principal, topic, queue_id) == 0:
        config = broker.topics.find(SELF, topic)
        if config is not None and config.attributes.get("queue.type") == "BatchCQ":
            offset = -1
    return Success({"offset": str(offset)})


def offset_by_time(session: BrokerSession, command: Command) -> None:
    """SEARCH_OFFSET_BY_TIMESTAMP."""
    topic, queue_id = _topic_queue(command)
    time_ms = fields.number(command.ext, "timestamp")
    upper = command.ext.get("boundaryType", "lower").lower() == "upper"
    session.look_up(
        command,
        lambda: session.broker.topics.offset_by_time(
            session.principal, topic, queue_id, time_ms, upper
        ),
        lambda offset: Success({"offset": str(offset)}),
    )


def earliest_time(session: BrokerSession, command: Command) -> None:
    """GET_EARLIEST_MSG_STORETIME."""
    topic, queue_id = _topic_queue(command)
    session.look_up(
        command,
        lambda: session.broker.topics.earliest_time(session.principal, topic, queue_id),
        lambda stored_ms: Success({"timestamp": str(stored_ms)}),
    )


def _topic_queue(command: Command) -> tuple[str, int]:
    return fields.text(command.ext, "topic"), fields.int32(command.ext, "queueId")


# -- look-ups ----------------------------------------------------------------------------------


def view_message(session: BrokerSession, command: Command) -> None:
    """VIEW_MESSAGE_BY_ID: one record, by its place in the log."""
    offset = fields.number(command.ext, "offset")
    session.look_up(
        command,
        lambda: records_of(session.broker.topics.message_at(session.principal, offset), 1),
        lambda records: Success(body=records),
    )


def query_message(session: BrokerSession, command: Command) -> None:
    """QUERY_MESSAGE: records with a key, in a span of time, newest first."""
    ext = command.ext
    broker = session.broker
    count_max = fields.int32(ext, "maxNum")
    if fields.flag(ext, "_UNIQUE_KEY_QUERY"):
        count_max = UNIQUE_KEY_COUNT_MAX
    topic, key = fields.text(ext, "topic"), fields.text(ext, "key")
    begin_ms, end_ms = fields.number(ext, "beginTimestamp"), fields.number(ext, "endTimestamp")
    count_max = max(0, min(count_max, broker.admin.config.query_count_max))
    session.look_up(
        command,
        lambda: [
            record
            for each in broker.topics.find_by_key(
                session.principal, topic, key, begin_ms, end_ms, count_max
            )
            for record in records_of(each, count_max, key)
        ],
        lambda found: _found_by_key(broker, found[:count_max]),
    )


def _found_by_key(broker: Broker, found: list[memoryview]) -> Success:
    latest = {
        "indexLastUpdateTimestamp": str(broker.admin.last_append_ms),
        "indexLastUpdatePhyoffset": str(broker.admin.log_end),
    }
    if not found:
        return Success(
            latest,
            code=ResponseCode.QUERY_NOT_FOUND,
            remark="can not find message, maybe time range not correct",
        )
    return Success(latest, [*found])


ALL_QUEUES = -1
_MODES: dict[str, Mode] = {"PULL": "PULL", "POP": "POP"}


def query_assignment(session: BrokerSession, command: Command) -> None:
    """QUERY_ASSIGNMENT: which queues of a topic a member shall consume, and how."""
    request = AssignmentRequest.decode_request(command.body)
    group, topic = request.consumer_group, request.topic
    mode = session.broker.groups.request_mode(session.principal, group, topic)
    answer = partial(_answer, session, command, request, mode)
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        name = session.broker.admin.config.name
        answer([MessageQueue(broker_name=name, topic=topic)])
    else:
        session.gateway.routes.find(
            topic, lambda known: answer(readable_queues(session.broker, topic, known))
        )


def readable_queues(
    broker: Broker, topic: str, known: Mapping[str, QueueData]
) -> list[MessageQueue]:
    """The topic's queues on all brokers, in order."""
    counts = {
        name: data.read_queue_nums if data.perm & PERM_READ else 0 for name, data in known.items()
    }
    own = broker.topics.find(SELF, topic)
    if own is not None:
        counts[broker.admin.config.name] = own.read_queues if own.readable else 0
    return [
        MessageQueue(broker_name=name, queue_id=queue_id, topic=topic)
        for name, count in sorted(counts.items())
        for queue_id in range(count)
    ]


def _answer(
    session: BrokerSession,
    command: Command,
    request: AssignmentRequest,
    mode: RequestMode,
    queues: list[MessageQueue],
) -> None:
    assigned = _assigned(session, request, mode, queues) if queues else None
    if assigned is None:
        # No list at all: the member keeps what it has. An empty one would take it away.
        session.answer(command, Success(body=b"{}"))
        return
    assignments = [Assignment(message_queue=queue, mode=mode.mode) for queue in assigned]
    session.answer(
        command, Success(body=AssignmentAnswer(message_queue_assignments=assignments).encode())
    )


def _assigned(
    session: BrokerSession,
    request: AssignmentRequest,
    mode: RequestMode,
    queues: list[MessageQueue],
) -> list[MessageQueue] | None:
    """The queues of the member that asks; None if that cannot be said now."""
    if request.message_model == "BROADCASTING":
        return queues
    live = session.broker.groups.live(SELF, request.consumer_group)
    strategy = STRATEGIES.get(request.strategy_name or "")
    if live is None or strategy is None:
        return None
    if live.find(request.client_id) is None:
        return []
    # Queues of members without this topic would be read by nobody. Whoever asks wants it, even if
    # its heartbeat does not say so yet.
    members = sorted({*live.subscriber_ids(request.topic), request.client_id})
    number = members.index(request.client_id)
    if mode.mode == "PULL":
        return strategy(queues, number, len(members))
    found = shared(queues, number, len(members), strategy, mode.share)
    if found is not None:
        return found
    brokers = dict.fromkeys(queue.broker_name for queue in queues)
    return [
        MessageQueue(broker_name=name, queue_id=ALL_QUEUES, topic=request.topic) for name in brokers
    ]


def set_request_mode(session: BrokerSession, command: Command) -> Success:
    """SET_MESSAGE_REQUEST_MODE: how a group consumes a topic from now on."""
    request = WireMode.decode_request(command.body)
    mode = _MODES.get(request.mode)
    if mode is None:
        raise InvalidRequestError(f"there is no mode {request.mode[:40]!r}; there are PULL and POP")
    session.broker.groups.set_request_mode(
        session.principal,
        usable_group(session.broker, request.consumer_group),
        request.topic,
        RequestMode(mode, request.pop_share_queue_num),
    )
    return Success()


HANDLERS: dict[int, Handler] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offset_by_time,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_time,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
}
