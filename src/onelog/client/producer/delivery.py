"""Getting messages to brokers: at once where nothing stands in the way, patiently where it does.

`post` is the fast way: route, queue and connection are known, so one request is written and noted,
and `finish` is called when its fate is known. `deliver` is the other way: it asks for the route,
connects, waits for room, and tries again, on another broker if there is one.

Invariants: every `post` that returned True ends in one call of `finish`; a message keeps its
unique id however often it is tried.
"""

import asyncio
import random
import time

from onelog.client.connection.address import Address
from onelog.client.connection.direct_sends import finish_one, send_by_line
from onelog.client.connection.faults import Faults
from onelog.client.connection.instance import Instance
from onelog.client.connection.routes import Route
from onelog.client.message import Message, Queue, Receipt
from onelog.client.producer.outgoing import properties_of
from onelog.client.producer.pending_sends import (
    IN_FLIGHT_MAX,
    SEND,
    Finish,
    Flight,
    Flights,
    Missed,
    Parcel,
    given_up,
)
from onelog.client.producer.send_targets import Channel, Lane, Place
from onelog.client.producer.unique_id import unique_id
from onelog.clock import SystemClock
from onelog.errors import BrokerNotFoundError, PeerClosedError, PeerTimeoutError
from onelog.net.peer import Peer
from onelog.rocketmq.names import DEFAULT_TOPIC
from onelog.wire.remoting.frame import BODY_COPY_MAX, encode_request
from onelog.wire.remoting.send_request import SendTemplate

PAUSE_SECONDS = 0.05
"""Before the broker that could not be reached is tried again; longer each time."""
REFRESH_SECONDS_MIN = 1.0
UNREACHABLE_SECONDS = 2.0
"""For so long a broker that could not be connected to is left out if there are others."""

_SEND_CODE = SEND.value


class Delivery:
    """The sending side of one client."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self, instance: Instance, group: str, *, retries: int, queues: int, avoid_faults: bool
    ) -> None:
        self.instance = instance
        self.flights = Flights(Faults(SystemClock()) if avoid_faults else None)
        self._group = instance.wrap(group)
        self._retries = retries
        self._queues = queues
        self._credentials = instance.credentials
        self._lanes: dict[str, Lane] = {}
        self._channels: dict[tuple[str, Address | None], Channel] = {}
        self._refreshed: dict[str, float] = {}
        instance.routes.on_change.append(self._route_changed)

    def start(self) -> None:
        """Belong to this event loop."""
        self.loop = self.flights.loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Wait for what is on its way, as long as a request may take; take nothing new."""
        self._lanes.clear()
        await self.flights.landed(self.instance.timeout_ms)

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
        lane = self._lanes.get(message.topic)
        flights = self.flights
        if lane is None or flights.in_flight >= IN_FLIGHT_MAX:
            return False
        if order_key is not None:
            place = lane.of_key(order_key)
        elif queue is not None:
            found = lane.by_queue.get(queue)
            if found is None:
                return False
            place = found
        elif flights.faults is not None:
            place = lane.next_unless(flights.faults)
        else:
            place = lane.next()
        if lane.is_spread and self._retries and order_key is None and queue is None:
            timeout_ms = (timeout_ms + 1) >> 1  # The other brokers need time too.
        peer = place.channel.peer
        if peer is None or peer.connection.closing:
            lane.back()
            return False
        body = message.body
        born_ms = time.time_ns() // 1_000_000
        message_id = unique_id(born_ms)
        properties = properties_of(message, message_id)
        line = peer.connection.line if self._credentials is None else None
        if line is not None and (
            sent := send_by_line(line, place, message, message_id, properties, born_ms)
        ):
            self.loop.call_soon(finish_one, finish, sent)
            return True
        flight = Flight(flights, place, message_id, len(body), finish)
        opaque = peer.expect(flight, _SEND_CODE, timeout_ms, self.loop)
        if self._credentials is None and len(body) <= BODY_COPY_MAX:
            head = place.template.head(opaque, 0, born_ms, message.flag, properties, len(body))
            peer.connection.write(head + body)
        else:
            parcel = Parcel(
                message.topic, message_id, properties, body, message.flag, timeout_ms=timeout_ms
            )
            self._write(peer, place, parcel, opaque)
        return True

    # The patient way.

    async def deliver(
        self, parcel: Parcel, missed: Missed | None = None, tried: list[Channel] | None = None
    ) -> Receipt:
        """Send, and try again where that helps; `missed` is a first try that failed.

        `tried` is given the brokers as they are tried.
        """
        tries = [missed] if missed is not None else []
        used = self.loop.time() - missed.started if missed is not None else 0.0
        lane = await self.lane(parcel.topic)
        deadline = self.loop.time() + parcel.timeout_ms / 1000 - used
        while True:
            if tries:
                lane = await self._lane_again(parcel, tries, deadline)
            place = self._choose(lane, parcel, tries)
            if tried is not None:
                tried.append(place.channel)
            started = self.loop.time()
            left = deadline - started
            if len(tries) < self._retries and lane.is_spread and not parcel.is_fixed:
                left /= 2  # The others need time too.
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    peer = await self._ready(place.channel, parcel)
                left_ms = round((started + left - self.loop.time()) * 1000)
                result = await self._attempt(peer, place, parcel, max(1, left_ms))
            except TimeoutError:
                place.channel.unreachable_until = self.loop.time() + UNREACHABLE_SECONDS
                late = PeerTimeoutError(f"no connection to {place.channel} in {left:.3f} s")
                result = self.flights.missed(place.channel, parcel.message_id, late, started)
            except (PeerClosedError, PeerTimeoutError, BrokerNotFoundError) as error:
                result = self.flights.missed(place.channel, parcel.message_id, error, started)
            if type(result) is Receipt:
                return result
            assert isinstance(result, Missed)
            tries.append(result)

    async def deliver_oneway(self, parcel: Parcel) -> None:
        """Write the request, to whichever broker can be reached, and want no answer."""
        lane = await self.lane(parcel.topic)
        tries: list[Missed] = []
        while True:
            place = self._choose(lane, parcel, tries)
            started = self.loop.time()
            try:
                peer = await self._ready(place.channel, parcel)
                await peer.caught_up()
            except (PeerClosedError, PeerTimeoutError, BrokerNotFoundError) as error:
                tries.append(self.flights.missed(place.channel, parcel.message_id, error, started))
                if len(tries) > self._retries or parcel.is_fixed:
                    raise given_up(parcel.topic, tries) from error
            else:
                self._write(peer, place, parcel, 0, oneway=True)
                return

    async def lane(self, topic: str) -> Lane:
        """The queues of a topic; they are looked up if they are not known."""
        self.check_open()
        lane = self._lanes.get(topic)
        if lane is None:
            routes = self.instance.routes
            route = await routes.get_for_sending(self.instance.wrap(topic), self._queues)
            self.check_open()
            lane = self._lanes.get(topic) or self._made(topic, route)
        if not lane.places:
            del self._lanes[topic]  # Next time they are looked up again.
            raise BrokerNotFoundError(
                f"topic {topic!r} has no queue that can be written to now: no broker that has it "
                f"is a master and lets it be written"
            )
        return lane

    def check_open(self) -> None:
        """`ClientClosedError` unless the client runs, `WrongLoopError` on another loop."""
        self.instance.check_open()

    # Inside.

    async def _lane_again(self, parcel: Parcel, tries: list[Missed], deadline: float) -> Lane:
        """The queues after a try that failed, if there is to be another one."""
        last = tries[-1]
        if not last.is_worth_another:
            raise last.error
        self._refresh_soon(parcel.topic)
        left = deadline - self.loop.time()
        if len(tries) > self._retries or left <= 0:
            raise given_up(parcel.topic, tries) from last.error
        lane = self._lanes.get(parcel.topic)
        if lane is None or not lane.brokers - {each.broker for each in tries}:
            pause = PAUSE_SECONDS * 2 ** (len(tries) - 1)
            await asyncio.sleep(min(pause, left / 2))
        return await self.lane(parcel.topic)

    def _choose(self, lane: Lane, parcel: Parcel, tries: list[Missed]) -> Place:
        if parcel.order_key is not None:
            return lane.of_key(parcel.order_key)
        if parcel.queue is not None:
            place = lane.by_queue.get(parcel.queue)
            if place is None:
                raise BrokerNotFoundError(
                    f"{parcel.queue} is no queue that can be written to now: topic "
                    f"{parcel.topic!r} has {len(lane.places)} on {', '.join(sorted(lane.brokers))}"
                )
            return place
        if tries:
            return (
                lane.next_except({each.broker for each in tries})
                or lane.next_except({tries[-1].broker})
                or lane.next()
            )
        faults = self.flights.faults
        place = lane.next() if faults is None else lane.next_unless(faults)
        now = self.loop.time()
        if place.channel.unreachable_until > now:
            channels = {each.channel for each in lane.places}
            out = {each.broker for each in channels if each.unreachable_until > now}
            place = lane.next_except(out) or place
        return place

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
        self, peer: Peer, place: Place, parcel: Parcel, timeout_ms: int
    ) -> Receipt | Missed:
        if not peer.is_open:
            raise PeerClosedError(f"{place.channel} closed the connection")
        future: asyncio.Future[Receipt | Missed] = self.loop.create_future()
        size = len(parcel.body)
        flight = Flight(self.flights, place, parcel.message_id, size, future.set_result)
        opaque = peer.expect(flight, parcel.code, timeout_ms, self.loop)
        self._write(peer, place, parcel, opaque)
        return await future

    def _write(
        self, peer: Peer, place: Place, parcel: Parcel, opaque: int, *, oneway: bool = False
    ) -> None:
        _, _, properties, body, flag, sys_flag, code, *_ = parcel
        template = place.template
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

    def _made(self, topic: str, route: Route) -> Lane:
        places = []
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
            places.append(Place(Queue(topic, queue.broker, queue.queue_id), channel, template))
        # Else the first message of every producer would go to the same queue.
        lane = self._lanes[topic] = Lane(places, random.randrange(len(places) or 1))
        return lane

    def _route_changed(self, topic: str, route: Route) -> None:
        name = self.instance.unwrap(topic)
        if name in self._lanes:
            self._made(name, route)

    def _refresh_soon(self, topic: str) -> None:
        """Ask the name servers again, but do not wait for them, and not all the time."""
        now = self.loop.time()
        if now - self._refreshed.get(topic, -REFRESH_SECONDS_MIN) >= REFRESH_SECONDS_MIN:
            self._refreshed[topic] = now
            name = self.instance.wrap(topic)
            self.instance.spawn(self.instance.routes.refresh_quietly(name))
