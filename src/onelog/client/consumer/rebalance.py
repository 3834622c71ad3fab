"""Which queues are this member's, worked out from the routes and the members of the group.

Every member does that for itself, from the same sorted lists, so that the shares fit together. What
fails is tried again every second; `Obstacles` keeps the log from saying the same every second.

Invariants: while the members are not known, queues stay where they are. The log has one warning for
a new reason, and no further one while the reason stays the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

from onelog.client.connection.routes import Route
from onelog.client.consumer.offsets import (
    BrokerOffsets,
    ConsumerOffsets,
    LocalOffsets,
    local_path,
    offset_at,
)
from onelog.client.consumer.push.fetching import Membership
from onelog.client.message import Queue
from onelog.errors import OnelogError, RequestRefusedError, TopicNotFoundError
from onelog.jobs import Job
from onelog.names import RETRY_PREFIX
from onelog.wire.remoting.clients import ConsumerList
from onelog.wire.remoting.codes import RequestCode

REBALANCE_SECONDS = 20.0
UNBALANCED_SECONDS = 1.0
"""The same, while something could not be shared out."""

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
    for name in sorted(route.brokers):
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        try:
            answer = await member.instance.ask_reader(route, name, code, ext)
        except RequestRefusedError:
            return []
        except OnelogError as error:
            problem = error
        else:
            return ConsumerList.decode(answer.body).consumer_id_list
    raise problem or RequestRefusedError(f"topic {route.topic} has no broker")


async def keep_balanced(
    group: str, wake: asyncio.Event, rebalance: Callable[[], Awaitable[bool]], balanced: bool
) -> None:
    """Share out the queues again and again, and at once when woken; ends by being cancelled.

    `rebalance` says whether everything could be shared out; if not, it is called again soon.
    """
    # What a user's strategy raises must not end the sharing out for good.
    job = Job(f"sharing out the queues of group {group}")
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REBALANCE_SECONDS if balanced else UNBALANCED_SECONDS):
                await wake.wait()
        wake.clear()
        balanced = False
        with job:
            balanced = await rebalance()


def member_offsets(
    member: Membership, client_id: str | None, *, is_exact: bool = False
) -> ConsumerOffsets:
    """Where a member keeps its positions."""
    if member.settings.broadcasting:
        return LocalOffsets(member.settings.offsets_path or local_path(client_id, member.group))
    return BrokerOffsets(member.instance, member.group, is_exact)


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
    target = start if isinstance(start, datetime) else RequestCode.GET_MAX_OFFSET
    return await offset_at(member.instance, queue, target)


class Obstacles:
    """The reasons why topics are not shared out."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    async def share_out(
        self,
        topics: Iterable[str],
        share: Callable[[str], Awaitable[bool]],
        fatal: type[OnelogError] | None = None,
    ) -> bool:
        """Share out topics one by one; False if that could not be done for all of them."""
        balanced = True
        for topic in topics:
            try:
                balanced &= await share(topic)
                self.settle(topic)
            except OnelogError as error:
                if fatal is not None and isinstance(error, fatal):
                    raise
                balanced = False
                self.tell(topic, error)
        return balanced

    def tell(self, topic: str, error: OnelogError) -> None:
        """A topic could not be shared out."""
        reason = str(error)
        is_news = self._reasons.get(topic) != reason
        self._reasons[topic] = reason
        # That a topic is missing was said at the start, and a retry topic comes when it is needed.
        is_usual = topic.startswith(RETRY_PREFIX) or isinstance(error, TopicNotFoundError)
        level = logging.WARNING if is_news and not is_usual else logging.DEBUG
        log.log(level, "the queues of %s cannot be shared out now: %s", topic, reason)

    def settle(self, topic: str) -> None:
        if self._reasons.pop(topic, None) is not None:
            log.info("the queues of %s are shared out again", topic)
