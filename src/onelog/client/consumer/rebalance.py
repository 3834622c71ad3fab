"""Which queues are this member's: asked of the routes and of the group's members.

Every member works that out for itself, from the same sorted lists, so that all come to shares that
fit together. Invariant: where the members cannot be told, nothing is shared out anew.
"""

import logging
from datetime import datetime

from onelog.client.connection.address import Address
from onelog.client.connection.routes import Route
from onelog.client.consumer.offsets import ConsumerOffsets
from onelog.client.consumer.push.fetching import Membership
from onelog.client.message import Queue
from onelog.errors import OnelogError, RequestRefusedError
from onelog.names import RETRY_PREFIX
from onelog.wire.remoting import fields
from onelog.wire.remoting.clients import ConsumerList
from onelog.wire.remoting.codes import RequestCode

log = logging.getLogger(__name__)


async def share_of(member: Membership, topic: str) -> list[Queue]:
    """The queues of a topic that this member is to consume; `OnelogError` if it cannot be told."""
    route = await member.instance.routes.get(topic)
    if member.settings.broadcasting:
        return list(route.read_queues)
    client_ids = await _client_ids(member, route)
    if member.instance.client_id not in client_ids:
        # The broker has not heard of us yet, or has forgotten us.
        await member.instance.heartbeat()
        client_ids = await _client_ids(member, route)
    if member.instance.client_id not in client_ids:
        raise RequestRefusedError(f"group {member.group} is not known to have this member")
    share = member.settings.allocation(
        member.group, member.instance.client_id, sorted(route.read_queues), sorted(client_ids)
    )
    return list(dict.fromkeys(share))


async def _client_ids(member: Membership, route: Route) -> list[str]:
    """The members of the group, as the first broker of the route knows them that answers."""
    ext = {"consumerGroup": member.group}
    problem: OnelogError | None = None
    for address in _addresses(route):
        try:
            answer = await member.instance.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
        except RequestRefusedError:
            return []
        except OnelogError as error:
            problem = error
        else:
            return ConsumerList.decode(answer.body).consumer_id_list
    raise problem or RequestRefusedError(f"topic {route.topic} has no broker")


def _addresses(route: Route) -> list[Address]:
    return [route.reading_address(name) for name in sorted(route.brokers)]


async def first_offset(member: Membership, offsets: ConsumerOffsets, queue: Queue) -> int:
    """Where to begin in a queue: where the group was, else where the consumer says.

    A retry topic is read from its beginning: what is in it was given back by this group.
    """
    committed = await offsets.read(queue)
    if committed is not None and committed >= 0:
        return committed
    start = member.settings.start
    if start == "first" or queue.topic.startswith(RETRY_PREFIX):
        return 0
    route = await member.instance.routes.get(queue.topic)
    address = route.reading_address(queue.broker)
    ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker}
    code = RequestCode.GET_MAX_OFFSET
    if isinstance(start, datetime):
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        ext["timestamp"] = str(round(start.timestamp() * 1000))
    answer = await member.instance.ask(address, code, ext)
    return fields.number(answer.ext, "offset")
