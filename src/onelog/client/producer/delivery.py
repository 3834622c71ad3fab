"""Getting messages to brokers: at once if possible, else with waiting and further tries.

`post` is the fast way: route, queue and connection are known, so one request is written, and
`finish` is called when its answer comes. `deliver` is the slow way: it asks for the route,
connects, waits for room, and tries again, on another broker if there is one. `send_directly` is for
a broker on the same event loop, which takes the message by a plain call.

Invariants: every `post` that returned True ends in one call of `finish`; a message keeps its unique
id however often it is tried.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import TypeVar

from onelog.client.connection.address import Address
from onelog.client.connection.instance import Instance
from onelog.client.connection.nodes import at_once
from onelog.client.connection.routes import Route
from onelog.client.message import Message, Queue, Receipt
from onelog.client.producer.outgoing import properties_of
from onelog.client.producer.pending_sends import (
    PENDING_MAX,
    SEND,
    FailedTry,
    Finish,
    Parcel,
    PendingSend,
    PendingSends,
    given_up,
)
from onelog.client.producer.send_targets import Channel, Faults, SendTarget, SendTargets
from onelog.client.producer.unique_id import unique_id
from onelog.clock import SystemClock
from onelog.errors import BrokerNotFoundError, PeerClosedError, PeerTimeoutError
from onelog.net.line import Line
from onelog.net.peer import Peer
from onelog.net.tasks import repeat
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting.frame import BODY_COPY_MAX, encode_request
from onelog.wire.remoting.send import SendTemplate

PAUSE_SECONDS = 0.05
"""Before the broker that could not be reached is tried again; longer each time."""
REFRESH_SECONDS_MIN = 1.0
UNREACHABLE_SECONDS = 2.0
"""For so long a broker that could not be connected to is left out if there are others."""

LOOK_SECONDS = 0.5
SILENT_SECONDS = 1.0
"""A broker that owes an answer for so long may have been replaced: the name servers are asked."""

_SEND_CODE = SEND.value

T = TypeVar("T")


class Delivery:
    """The sending side of one client."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self, instance: Instance, group: str, *, retries: int, queues: int, avoid_faults: bool
    ) -> None:
        self.instance = instance
        self.pending = PendingSends(Faults(SystemClock()) if avoid_faults else None)
        self._group = group
        self._retries = retries
        self._queues = queues
        self._credentials = instance.credentials
        self._targets: dict[str, SendTargets] = {}
        self._channels: dict[tuple[str, Address | None], Channel] = {}
        self._refreshed: dict[str, float] = {}
        instance.routes.on_change.append(self._route_changed)

    def start(self) -> None:
        self.loop = self.pending.loop = asyncio.get_running_loop()
        name = "looking for brokers that do not answer"
        self.instance.spawn(repeat(name, LOOK_SECONDS, self._look_for_silent))

    async def close(self) -> None:
        """Wait for what is on its way, as long as a request may take; take nothing new."""
        self._targets.clear()
        await self.pending.all_ended(self.instance.timeout_ms)

    # The fast way.

    def post(
        self,
        message: Message,
        order_key: str | None,
        queue: Queue | None,
        timeout_ms: int,
        finish: Finish,
    ) -> bool:
        """Send now and call `finish` later; False if that cannot be done without waiting."""
        targets = self._targets.get(message.topic)
        pending = self.pending
        if targets is None or pending.weight >= PENDING_MAX:
            return False
        if order_key is not None:
            target = targets.of_key(order_key)
        elif queue is not None:
            found = targets.by_queue.get(queue)
            if found is None:
                return False
            target = found
        elif pending.faults is not None:
            target = targets.next_unless(pending.faults)
        else:
            target = targets.next()
        if targets.is_spread and self._retries and order_key is None and queue is None:
            timeout_ms = (timeout_ms + 1) >> 1  # The other brokers need time too.
        peer = target.channel.peer
        if peer is None or peer.connection.closing:
            targets.back()
            return False
        body = message.body
        born_ms = time.time_ns() // 1_000_000
        message_id = unique_id(born_ms)
        properties = properties_of(message, message_id)
        line = peer.connection.line if self._credentials is None else None
        if line is not None and (
            receipt := send_directly(line, target, message, message_id, properties, born_ms)
        ):
            self.loop.call_soon(finish_one, finish, receipt)
            return True
        send = PendingSend(pending, target, message_id, len(body), finish)
        opaque = peer.expect(send, _SEND_CODE, timeout_ms, self.loop)
        if self._credentials is None and len(body) <= BODY_COPY_MAX:
            head = target.template.head(opaque, 0, born_ms, message.flag, properties, len(body))
            peer.connection.write(head + body)
        else:
            parcel = Parcel(
                message.topic, message_id, properties, body, message.flag, timeout_ms=timeout_ms
            )
            self._write(peer, target, parcel, opaque)
        return True

    # The patient way.

    async def deliver(
        self, parcel: Parcel, failed: FailedTry | None = None, tried: list[Channel] | None = None
    ) -> Receipt:
        """Send, and try again where that helps; `failed` is a first try that failed.

        `tried` is given the brokers as they are tried. The receipt of a message that wants no
        answer says only which queue it went to.
        """
        tries = [failed] if failed is not None else []
        used = self.loop.time() - failed.started if failed is not None else 0.0
        targets = await self.targets(parcel.topic)
        deadline = self.loop.time() + parcel.timeout_ms / 1000 - used
        while True:
            if tries:
                targets = await self._targets_again(parcel, tries, deadline)
            target = self._choose(targets, parcel, tries)
            if tried is not None:
                tried.append(target.channel)
            started = self.loop.time()
            left = deadline - started
            if len(tries) < self._retries and targets.is_spread and not parcel.is_fixed:
                left /= 2  # The others need time too.
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    peer = await self._ready(target.channel, parcel)
                left_ms = round((started + left - self.loop.time()) * 1000)
                result = await self._attempt(peer, target, parcel, max(1, left_ms))
            except TimeoutError:
                target.channel.unreachable_until = self.loop.time() + UNREACHABLE_SECONDS
                late = PeerTimeoutError(f"no connection to {target.channel} in {left:.3f} s")
                result = self.pending.failed(target.channel, parcel.message_id, late, started)
            except (PeerClosedError, PeerTimeoutError, BrokerNotFoundError) as error:
                result = self.pending.failed(target.channel, parcel.message_id, error, started)
            if type(result) is Receipt:
                return result
            assert isinstance(result, FailedTry)
            tries.append(result)

    async def targets(self, topic: str) -> SendTargets:
        """The queues of a topic; they are looked up if they are not known."""
        self.instance.check_open()
        targets = self._targets.get(topic)
        if targets is None:
            routes = self.instance.routes
            route = await routes.get_for_sending(self.instance.wrap(topic), self._queues)
            self.instance.check_open()
            targets = self._targets.get(topic) or self._made(topic, route)
        if not targets.all:
            del self._targets[topic]  # Next time they are looked up again.
            raise BrokerNotFoundError(
                f"topic {topic!r} has no queue that can be written to now: no broker that has it "
                f"is a master and lets it be written"
            )
        return targets

    # Inside.

    async def _targets_again(
        self, parcel: Parcel, tries: list[FailedTry], deadline: float
    ) -> SendTargets:
        """The queues after a try that failed, if there is to be another one."""
        last = tries[-1]
        if not last.is_worth_another:
            raise last.error
        self._refresh_soon(parcel.topic)
        left = deadline - self.loop.time()
        if len(tries) > self._retries or left <= 0:
            raise given_up(parcel.topic, tries) from last.error
        targets = self._targets.get(parcel.topic)
        if targets is None or not targets.brokers - {each.broker for each in tries}:
            pause = PAUSE_SECONDS * 2 ** (len(tries) - 1)
            await asyncio.sleep(min(pause, left / 2))
        return await self.targets(parcel.topic)

    def _choose(self, targets: SendTargets, parcel: Parcel, tries: list[FailedTry]) -> SendTarget:
        if parcel.order_key is not None:
            return targets.of_key(parcel.order_key)
        if parcel.queue is not None:
            target = targets.by_queue.get(parcel.queue)
            if target is None:
                there = f"{len(targets.all)} on {', '.join(sorted(targets.brokers))}"
                raise BrokerNotFoundError(
                    f"{parcel.queue} is no queue that can be written to now: topic "
                    f"{parcel.topic!r} has {there}"
                )
            return target
        if tries:
            return (
                targets.next_except({each.broker for each in tries})
                or targets.next_except({tries[-1].broker})
                or targets.next()
            )
        faults = self.pending.faults
        target = targets.next() if faults is None else targets.next_unless(faults)
        now = self.loop.time()
        if target.channel.unreachable_until > now:
            channels = {each.channel for each in targets.all}
            out = {each.broker for each in channels if each.unreachable_until > now}
            target = targets.next_except(out) or target
        return target

    async def _ready(self, channel: Channel, parcel: Parcel) -> Peer:
        """The connection to a broker."""
        if channel.address is None:
            raise BrokerNotFoundError(f"the name servers know no broker {channel.broker!r} now")
        peer = channel.peer
        if peer is None or not peer.is_open:
            try:
                peer = channel.peer = await self.instance.nodes.peer(channel.address)
            except (PeerClosedError, PeerTimeoutError):
                channel.unreachable_until = self.loop.time() + UNREACHABLE_SECONDS
                raise
        if parcel.is_timed:
            await self.instance.check_timers(channel.address)
        return peer

    async def _attempt(
        self, peer: Peer, target: SendTarget, parcel: Parcel, timeout_ms: int
    ) -> Receipt | FailedTry:
        if not peer.is_open:
            raise PeerClosedError(f"{target.channel} closed the connection")
        if parcel.is_oneway:
            await peer.caught_up()
            self._write(peer, target, parcel, 0)
            return Receipt(parcel.message_id, "", target.queue, -1)
        future: asyncio.Future[Receipt | FailedTry] = self.loop.create_future()
        size = len(parcel.body)
        send = PendingSend(self.pending, target, parcel.message_id, size, future.set_result)
        opaque = peer.expect(send, parcel.code, timeout_ms, self.loop)
        self._write(peer, target, parcel, opaque)
        return await future

    def _write(self, peer: Peer, target: SendTarget, parcel: Parcel, opaque: int) -> None:
        _, _, properties, body, flag, sys_flag, code, *_, oneway = parcel
        template = target.template
        born_ms = time.time_ns() // 1_000_000
        if code != SEND:
            template = template.with_code(code)
        if self._credentials is not None:
            fields = template.message_fields(sys_flag, born_ms, flag, properties)
            signed = self._credentials.sign(fields, body)
            peer.connection.send(
                encode_request(code, opaque, signed, body, oneway=oneway, language=peer.language)
            )
            return
        head = template.head(opaque, sys_flag, born_ms, flag, properties, len(body), oneway)
        peer.connection.send((head, body))

    def _made(self, topic: str, route: Route) -> SendTargets:
        found = []
        for queue in route.publish_queues:
            brokers = route.brokers.get(queue.broker)
            address = None if brokers is None else brokers.master
            key = (queue.broker, address)
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = Channel(*key)
            template = SendTemplate(
                self._group,
                route.topic,
                queue.queue_id,
                queue.broker,
                default_topic=DEFAULT_TOPIC,
                default_queues=self._queues,
            )
            found.append(SendTarget(Queue(topic, queue.broker, queue.queue_id), channel, template))
        # Else the first message of every producer would go to the same queue.
        targets = self._targets[topic] = SendTargets(found, random.randrange(len(found) or 1))
        return targets

    async def _look_for_silent(self) -> None:
        """See whether brokers that do not answer are still the masters."""
        silent = [each for each in self._channels.values() if self._is_silent(each)]
        topics = [
            self.instance.wrap(topic)
            for topic, targets in self._targets.items()
            if silent and not targets.brokers.isdisjoint(each.broker for each in silent)
        ]
        await at_once(self.instance.routes.refresh_quietly, topics)

    def _is_silent(self, channel: Channel, seconds: float = SILENT_SECONDS) -> bool:
        since = None if channel.peer is None else channel.peer.owes_since()
        return since is not None and self.loop.time() - since >= seconds

    def _leave(self, channel: Channel) -> None:
        """Wait no longer for answers of a broker that was replaced: it will give none."""
        if channel.peer is not None and self._is_silent(channel, LOOK_SECONDS):
            channel.peer.connection.abort()

    def _route_changed(self, topic: str, route: Route) -> None:
        name = self.instance.unwrap(topic)
        for (broker, address), channel in list(self._channels.items()):
            brokers = route.brokers.get(broker)
            if brokers is not None and brokers.master not in (None, address):
                # What it answered before that may still be on its way.
                self.loop.call_later(LOOK_SECONDS, self._leave, channel)
                del self._channels[broker, address]
        if name in self._targets and not route.publish_queues:
            del self._targets[name]  # There is no master now: who sends asks for one.
        elif name in self._targets:
            self._made(name, route)

    def _refresh_soon(self, topic: str) -> None:
        """Ask the name servers again, but do not wait for them, and not all the time."""
        now = self.loop.time()
        if now - self._refreshed.get(topic, -REFRESH_SECONDS_MIN) >= REFRESH_SECONDS_MIN:
            self._refreshed[topic] = now
            name = self.instance.wrap(topic)
            self.instance.spawn(self.instance.routes.refresh_quietly(name))


def send_directly(
    line: Line, target: SendTarget, message: Message, message_id: str, properties: str, born_ms: int
) -> Receipt | None:
    """The receipt of a message that was stored; None if it takes a proper request."""
    queue = target.queue
    sent = line.send(
        target.template.fields["b"], queue.queue_id, message.body, properties, message.flag, born_ms
    )
    return None if sent is None else Receipt(message_id, sent[0], queue, sent[1])


def finish_one(finish: Callable[[T], None], result: T) -> None:
    """Report to a sender that may have gone in the meantime."""
    try:
        finish(result)
    except asyncio.InvalidStateError:
        pass  # Nobody waits for it any more.
