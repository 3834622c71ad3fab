"""Consumer and producer groups, as admin tools ask for them: settings, members, positions, lag.

Names, limits and answers are RocketMQ 5.5's. It moves groups on the broker's side: a live member
is sent to the new position with its next pull. Members older than 5.0 are told at once besides,
because one whose buffers are full of what is to be skipped does not pull.
"""

import logging
from dataclasses import replace
from functools import partial

import msgspec

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.catalog.groups import GroupConfig
from onelog.core.membership.group_membership import ConsumeStats
from onelog.core.membership.members import LiveGroup
from onelog.errors import (
    ConsumersOfflineError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidRequestError,
)
from onelog.gateways.remoting.admin.attributes import GROUP_ATTRIBUTES, alter
from onelog.gateways.remoting.bodies import (
    broker_address,
    connection_body,
    page,
    queue_body,
    subscription_body,
)
from onelog.gateways.remoting.names import usable_group
from onelog.gateways.remoting.session import BrokerSession, Handler, Success, by_worker
from onelog.rocketmq.names import check_group
from onelog.rocketmq.tables import (
    delay_body,
    group_body,
    group_from_body,
    offsets_body,
    version_body,
)
from onelog.wire.remoting import fields
from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
)
from onelog.wire.remoting.codes import VERSION_WITH_QUEUE_MAPPINGS, RequestCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from onelog.wire.remoting.routes import TopicList
from onelog.wire.remoting.stats import ConsumeStats as WireStats
from onelog.wire.remoting.stats import (
    ConsumeStatsList,
    GroupSubscription,
    OffsetWrapper,
    QueuePosition,
    ResetOffsetList,
    ResetOffsets,
)

log = logging.getLogger(__name__)

VERSION_WITH_RESET = 28
"""V3_0_7_SNAPSHOT: clients from here on understand RESET_CONSUMER_CLIENT_OFFSET."""
VERSION_SENT_BY_PULL = VERSION_WITH_QUEUE_MAPPINGS
"""V5_0_0: brokers from here on answer a pull with the position that a group was moved to."""


# -- settings ------------------------------------------------------------------------------------


def update_group(session: BrokerSession, command: Command) -> Success:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. Without a body nothing happens."""
    if command.body:
        body = SubscriptionGroupConfig.decode_request(command.body)
        session.broker.groups.put(session.principal, _group_config(session, body))
    return Success()


def update_groups(session: BrokerSession, command: Command) -> Success | None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST. One that is refused keeps all others from it."""
    wanted = SubscriptionGroupList.decode_request(command.body).group_config_list
    update = partial(session.broker.groups.put, session.principal)
    return session.in_turns(command, wanted, update, partial(_group_config, session))


def _group_config(session: BrokerSession, body: SubscriptionGroupConfig) -> GroupConfig:
    check_group(body.group_name)
    current = session.broker.groups.find(session.principal, body.group_name)
    before = None if current is None else current.attributes
    attributes = alter(GROUP_ATTRIBUTES, before, body.attributes)
    return replace(group_from_body(body), attributes=attributes)


@by_worker
def all_groups(session: BrokerSession, command: Command) -> Success:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    known, groups = session.broker.groups.all(session.principal)
    version = version_body(known)
    configs = {config.name: config for config in groups}
    names = page(configs, command.ext, "groupSeq", "maxGroupNum", version)
    table = SubscriptionGroupTable(
        data_version=version,
        subscription_group_table={name: group_body(configs[name]) for name in names},
    )
    return Success({"totalGroupNum": str(len(configs))}, table.encode())


def group_config(session: BrokerSession, command: Command) -> Success:
    """GET_SUBSCRIPTIONGROUP_CONFIG; as in RocketMQ, asking creates it where using it would."""
    try:
        config = session.broker.groups.require(
            session.principal, usable_group(session.broker, fields.text(command.ext, "group"))
        )
    except InvalidGroupError as error:
        raise GroupNotFoundError(f"No group in this broker: {error}") from None
    return Success(body=group_body(config).encode())


def delete_group(session: BrokerSession, command: Command) -> Success:
    """DELETE_SUBSCRIPTIONGROUP. Tools ask every broker of a cluster, also those without it."""
    group = fields.text(command.ext, "groupName")
    clean_offsets = fields.flag(command.ext, "cleanOffset")
    session.broker.groups.delete(session.principal, group, clean_offsets=clean_offsets)
    return Success()


# -- members -------------------------------------------------------------------------------------


def consumer_connections(session: BrokerSession, command: Command) -> Success:
    """GET_CONSUMER_CONNECTION_LIST."""
    name = fields.text(command.ext, "consumerGroup")
    group = session.broker.groups.live(session.principal, name)
    if group is None:
        raise ConsumersOfflineError(f"the consumer group[{name}] not online")
    connections = ConsumerConnection(
        connection_set=[connection_body(member.client) for member in group.members.values()],
        consume_from_where=group.consume_from,
        consume_type=group.consume_type,
        member_subscriptions=_member_subscriptions(group),
        message_model=group.message_model,
        subscription_table={
            topic: subscription_body(each) for topic, each in group.subscriptions.items()
        },
    )
    return Success(body=connections.encode())


def _member_subscriptions(group: LiveGroup) -> dict[str, list[SubscriptionData]] | None:
    """What each member subscribes to, if that is not the same for all."""
    if not group.mismatch:
        return None
    return {
        member.client.client_id: [subscription_body(each) for each in member.subscriptions.values()]
        for member in group.members.values()
    }


def producer_connections(session: BrokerSession, command: Command) -> Success:
    """GET_PRODUCER_CONNECTION_LIST."""
    group = fields.text(command.ext, "producerGroup")
    members = session.broker.groups.producers(session.principal).get(group)
    if not members:
        raise InvalidRequestError(f"the producer group[{group}] not exist")
    connections = [connection_body(member.client) for member in members]
    return Success(body=ProducerConnection(connection_set=connections).encode())


def all_producers(session: BrokerSession, command: Command) -> Success:
    """GET_ALL_PRODUCER_INFO."""
    producers = session.broker.groups.producers(session.principal)
    table = ProducerTable(
        data={
            group: [
                ProducerInfo(
                    client_id=member.client.client_id,
                    language=member.client.language,
                    last_update_timestamp=member.seen_ms,
                    remote_ip=member.client.address,
                    version=member.client.version,
                )
                for member in members
            ]
            for group, members in producers.items()
        }
    )
    return Success(body=table.encode())


def subscription_of_group(session: BrokerSession, command: Command) -> Success:
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""
    group, topic = fields.text(command.ext, "group"), command.ext.get("topic")
    found = session.broker.groups.subscription(session.principal, group, topic or "")
    data = None if found is None else subscription_body(found)
    answer = GroupSubscription(group=group, subscription_data=data, topic=topic)
    return Success(body=answer.encode())


def topics_of_group(session: BrokerSession, command: Command) -> Success:
    """QUERY_TOPICS_BY_CONSUMER: those in which the group has a position."""
    group = fields.text(command.ext, "group")
    topics = session.broker.groups.topics_of(session.principal, group)
    answer = TopicList(broker_addr=broker_address(session.broker), topic_list=topics)
    return Success(body=answer.encode())


# -- lag -----------------------------------------------------------------------------------------


@by_worker
def consume_stats(session: BrokerSession, command: Command) -> Success:
    """GET_CONSUME_STATS: in topicList, else in topic, else wherever the group has a position."""
    ext = command.ext
    topics = [topic for topic in ext.get("topicList", "").split(";") if topic.strip()]
    topic = ext.get("topic", "").strip() or None
    group = fields.text(ext, "consumerGroup")
    stats = session.broker.groups.consume_stats(session.principal, group, topic, topics)
    return Success(body=_stats_body(session.broker, stats).encode())


def _stats_body(broker: Broker, stats: ConsumeStats) -> WireStats:
    return WireStats(
        consume_tps=stats.get_per_second,
        offset_table={
            queue_body(broker, queue.topic, queue.queue_id): OffsetWrapper(
                broker_offset=queue.broker_offset,
                consumer_offset=queue.consumer_offset,
                last_timestamp=queue.last_ms,
                pull_offset=queue.pull_offset,
            )
            for queue in stats.queues
        },
    )


@by_worker
def all_consume_stats(session: BrokerSession, command: Command) -> Success:
    """GET_BROKER_CONSUME_STATS: every group, also those that have consumed nothing."""
    broker, principal = session.broker, session.principal
    ordered_only = fields.flag(command.ext, "isOrder")
    found = broker.groups.all_consume_stats(principal, ordered_only=ordered_only)
    _, groups = broker.groups.all(principal)
    by_group: dict[str, list[WireStats]] = {group.name: [] for group in groups}
    for stats in found:
        by_group.setdefault(stats.group, []).append(_stats_body(broker, stats))
    queues = [queue for stats in found for queue in stats.queues]
    answer = ConsumeStatsList(
        broker_addr=broker_address(broker),
        consume_stats_list=[{group: each} for group, each in by_group.items()],
        total_diff=sum(queue.lag for queue in queues),
        total_inflight_diff=sum(queue.in_flight for queue in queues),
    )
    return Success(body=answer.encode())


# -- positions -----------------------------------------------------------------------------------


def reset_offsets(session: BrokerSession, command: Command) -> None:
    """INVOKE_BROKER_TO_RESET_OFFSET: to a time (-1 is the end), or one queue to an offset.

    Without isForce a time moves no queue forward. RocketMQ 5 ignores that field; 4 obeys it, and
    whoever sets it to false wants to see messages again, not to miss some.
    """
    ext, broker, principal = command.ext, session.broker, session.principal
    group, topic = fields.text(ext, "group"), fields.text(ext, "topic")
    time_ms = fields.number(ext, "timestamp")
    queue_id, offset = fields.int32(ext, "queueId", -1), fields.number(ext, "offset", -1)
    is_forced = fields.flag(ext, "isForce", True) or (queue_id >= 0 and offset != -1)
    config = broker.topics.require(principal, topic)
    queues = [queue_id] if queue_id >= 0 else range(config.read_queues)

    def reset(starts: dict[int, int]) -> Success:
        if is_forced:
            moved = broker.cursors.reset(
                principal, group, topic, time_ms, queue_id=queue_id, offset=offset, starts=starts
            )
        else:
            moved = broker.cursors.move_back(principal, group, topic, starts)
        table = {queue_body(broker, topic, each): at for each, at in moved.items()}
        _tell_old_members(session, command, table)
        return Success(body=ResetOffsets(offset_table=table).encode())

    session.look_up(
        command, lambda: broker.cursors.offsets_at(principal, topic, queues, time_ms), reset
    )


def _tell_old_members(
    session: BrokerSession, command: Command, table: dict[MessageQueue, int]
) -> None:
    named = ("topic", "group", "timestamp")
    ext = {"isForce": "true", **{name: command.ext[name] for name in named}}
    live = session.broker.groups.live(SELF, ext["group"])
    for member in live.members.values() if live is not None else ():
        client = member.client
        if not isinstance(client.channel, BrokerSession):
            continue
        if VERSION_WITH_RESET <= client.version < VERSION_SENT_BY_PULL:
            is_cpp = "CPP" in (client.language, command.language)
            body = _list_for_cpp(table) if is_cpp else ResetOffsets(offset_table=table)
            client.channel.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body.encode())
            log.info("%r was told where group %r was moved to", client.client_id, ext["group"])


def _list_for_cpp(table: dict[MessageQueue, int]) -> ResetOffsetList:
    return ResetOffsetList(
        offset_table=[
            QueuePosition(offset=offset, **msgspec.structs.asdict(queue))
            for queue, offset in table.items()
        ]
    )


def clone_offsets(session: BrokerSession, command: Command) -> Success | None:
    ext, broker, principal = command.ext, session.broker, session.principal
    source, target = fields.text(ext, "srcGroup"), fields.text(ext, "destGroup")
    check_group(target)
    topics = broker.cursors.topics_to_clone(
        principal, source, target, ext.get("topic", "").strip(), offline=fields.flag(ext, "offline")
    )

    def clone(topic: str) -> None:
        broker.cursors.clone(principal, source, target, topic, offline=True)

    return session.in_turns(command, topics, clone, str)


@by_worker
def all_offsets(session: BrokerSession, command: Command) -> Success:
    """GET_ALL_CONSUMER_OFFSET, which slaves ask."""
    return Success(body=offsets_body(*session.broker.cursors.positions(session.principal)).encode())


def delay_offsets(session: BrokerSession, command: Command) -> Success:
    """GET_ALL_DELAY_OFFSET, which slaves ask."""
    return Success(body=delay_body(*session.broker.admin.delayed(session.principal)).encode())


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_config,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: subscription_of_group,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: topics_of_group,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: all_consume_stats,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offsets,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: delay_offsets,
}
