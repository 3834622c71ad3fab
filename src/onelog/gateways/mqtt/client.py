"""A connected client: its session, whether durable or not, its subscriptions, and its messages.

A durable session is a queue in the log, made when the client first subscribes with a QoS above 0,
and bound like any other queue to `amq.topic`; so messages are there that came while the client was
away. What needs no keeping (QoS 0, and everything of sessions that end with their connection) goes
to the client at once: `Live` is bound in the place of a queue, for as long as it is connected. A
shared filter is a queue with all who have it as its consumers.

Invariant: a message reaches a client once, however many of its filters match.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from onelog.core.access import SELF
from onelog.core.durable.writer import nobody
from onelog.core.queues.consumers import Consumer, Window
from onelog.core.queues.deliveries import POSITION, Delivery
from onelog.core.queues.queue import WorkQueue
from onelog.core.queues.restore import read_again
from onelog.core.routing.names import DEFAULT_VHOST, swapped
from onelog.errors import OnelogError
from onelog.gateways.mqtt.encoded_publish import NO_PUBLISH
from onelog.gateways.mqtt.filters import Filter, read_filter
from onelog.gateways.mqtt.outgoing import Grant, Outgoing, UnacknowledgedPublish
from onelog.gateways.mqtt.subscriptions import Subscribed, Subscriptions
from onelog.record.forms import Form, mqtt

if TYPE_CHECKING:
    from onelog.gateways.mqtt.clients import Clients

EXCHANGE = "amq.topic"
_NAME_BYTES_MAX = 150
_FORM = Form.MQTT.sys_flag


def queue_name(client_id: str) -> str:
    """The queue of a durable session."""
    return _short(f"mqtt-session-{client_id}")


def shared_name(wanted: Filter) -> str:
    """The queue of a shared filter."""
    return _short(f"mqtt-shared-{wanted.group}/{wanted.text}")


def _short(name: str) -> str:
    raw = name.encode()
    if len(raw) <= _NAME_BYTES_MAX:
        return name
    return raw[:60].decode("utf-8", "ignore") + "-" + sha256(raw).hexdigest()


def _nowhere(*message: object) -> None:
    """Where messages go of a client that is leaving."""


def _too_late(consumer: Consumer, found: list[Delivery]) -> None:
    consumer.queue.requeue([each[POSITION] for each in found], counted=False)


class Live:
    """In the place of a queue: what is routed here goes to the client at once, or nowhere."""

    topic = ""
    is_durable = False
    levels = 0
    is_limited = False

    def __init__(self, name: str, client: "MqttClient") -> None:
        self.name = name
        self._client = client
        self.put: Callable[[bytes, int, int], None] = client.put
        self.put_all: Callable[[Sequence[bytes], int], None] = client.put_all

    def admits(self, body: bytes, form: int) -> bool:
        """Whatever comes."""
        return True


class MqttClient:
    """One connected client."""

    def __init__(
        self,
        clients: "Clients",
        client_id: str,
        outgoing: Outgoing,
        is_durable: bool,
    ) -> None:
        self._clients = clients
        self._broker = clients.broker
        self._encoder = clients.encoder
        self.client_id = client_id
        self.outgoing = outgoing
        self.is_durable = is_durable
        self.subscriptions = Subscriptions(client_id)
        self._live: Live | None = None
        self._queue: WorkQueue | None = None
        self._consumers: dict[str, Consumer] = {}
        """By the name of the queue."""
        self._window: Window | None = None
        self.replays: list[Iterator[tuple[Subscribed, bytes | None]]] = []

    # -- coming and going ----------------------------------------------------------------------

    def resume(self, known: dict[str, tuple[int, int]]) -> Iterator[None]:
        """Go on with a durable session, in steps: its filters, and what was on its way.

        Nothing is consumed before all packet ids are known that are in use.
        """
        self.is_durable = True
        self.outgoing.recorder = self
        for text, (options, identifier) in known.items():
            subscribed = Subscribed(read_filter(text), options, identifier)
            self.subscriptions.set(text, subscribed)
            yield
        if any(each.qos and not each.filter.group for each in self._all()):
            self._queue = self._declared()
        exchanges = self._broker.queues.packet_ids.of(self.client_id)
        for packet_id, position in list(exchanges.released.items()):
            self.outgoing.resume(packet_id, self._queue, position, is_shared=False)
            yield
        yield from self._resume_shared(exchanges.shared)
        for each in self._all():
            if each.filter.group:
                self._share(each)
            elif not each.qos:
                self._bind(self._lively(), each.filter)
            yield
        if self._queue is not None:
            self._consume(self._queue.name, None)

    def _resume_shared(self, shared: dict[int, tuple[str, int]]) -> Iterator[None]:
        """Send messages of shared filters again that are this client's."""
        grants = {shared_name(each.filter): each.grant for each in self._all() if each.filter.group}
        for packet_id, (name, position) in list(shared.items()):
            yield
            queue = self._clients.find_shared(name)
            if queue is None:
                self.outgoing.resume(packet_id, None, position, is_shared=True)
                continue
            sent = UnacknowledgedPublish(NO_PUBLISH, 2, (b"", b""), queue, position, True)
            self.outgoing.in_flight[packet_id] = sent  # Until it is read.
            grant = grants.get(name, Grant(2, False, ()))
            again = partial(self._send_again, packet_id, sent, queue, grant)
            read_again(self._broker.queues.declared, queue, position, again)

    def _send_again(
        self,
        packet_id: int,
        sent: UnacknowledgedPublish,
        queue: WorkQueue,
        grant: Grant,
        found: list[Delivery],
    ) -> None:
        if self.outgoing.in_flight.get(packet_id) is not sent:
            return  # The client is gone, or has answered.
        if not found:
            self.outgoing.resume(packet_id, queue, sent.position, is_shared=True)
        for position, _, body, form, _, _ in found:
            publish = self._clients.encoder.of(body, form)
            now_ms = self._clients.now_ms()
            self.outgoing.send_again(packet_id, publish, grant, queue, position, now_ms)

    def _all(self) -> list[Subscribed]:
        return list(self.subscriptions.by_filter.values())

    def leave(self, *, is_over: bool) -> None:
        """The connection is gone, and the session with it or not.

        It gets nothing more from now on, and its own queue is free for its next connection. What
        there may be very many of goes in steps.
        """
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.pause()
        if self._live is not None:
            self._live.put = self._live.put_all = _nowhere
        self.replays.clear()
        own = None if self._queue is None else consumers.pop(self._queue.name, None)
        if own is not None:
            self._broker.queues.declared.cancel(own)
        until = self._clients.next_number()
        self._clients.context.finish(self._leaving(list(consumers.values()), is_over, until))

    def _leaving(self, consumers: list[Consumer], is_over: bool, until: int) -> Iterator[None]:
        yield from self.outgoing.giving_back(self._queue, is_over=is_over)
        for consumer in consumers:
            self._broker.queues.declared.cancel(consumer)
            # What stays out for the session's next connection keeps the consumer, and nothing else.
            consumer.on_deliver, consumer.on_cancel, consumer.owner = _too_late, _nowhere, None
            yield
        live, self._live = self._live, None
        for each in self._all():
            if each.filter.group:
                if is_over:
                    self._clients.unshare(shared_name(each.filter), self.client_id, until)
            elif live is not None and not (self.is_durable and each.qos):
                self._unbind(live.name, each.filter)
            yield
        if live is not None:
            self._broker.publish.routing.remove_queue(DEFAULT_VHOST, live.name)

    # -- subscribing ---------------------------------------------------------------------------

    def subscribe(self, text: str, subscribed: Subscribed, *, replay: bool | None) -> None:
        """Add or change a subscription; `replay` says whether retained messages come, None for
        only if it is new."""
        before = self.subscriptions.by_filter.get(text)
        if subscribed.filter.group:
            self._share(subscribed)
        elif self.is_durable and subscribed.qos:
            if self._queue is None:
                self._queue = self._declared()
                self._consume(self._queue.name, None)
            self._bind(self._queue, subscribed.filter)
            if before is not None and not before.qos:
                self._unbind(self._lively().name, subscribed.filter)
        else:
            self._bind(self._lively(), subscribed.filter)
            if self.is_durable and before is not None and before.qos and self._queue is not None:
                self._unbind(self._queue.name, subscribed.filter)
        is_new = self.subscriptions.set(text, subscribed)
        if not subscribed.filter.group and (is_new if replay is None else replay):
            found = self._broker.topics.retained.matching(subscribed.filter.levels)
            self.replays.append((subscribed, body) for body in found)

    def unsubscribe(self, text: str) -> bool:
        """End a subscription; whether there was one."""
        subscribed = self.subscriptions.drop(text)
        if subscribed is None:
            return False
        if subscribed.filter.group:
            name = shared_name(subscribed.filter)
            consumer = self._consumers.pop(name, None)
            if consumer is not None:
                self._broker.queues.declared.cancel(consumer)
            self._clients.unshare(name, self.client_id, self._clients.next_number())
        elif self.is_durable and subscribed.qos:
            assert self._queue is not None
            self._unbind(self._queue.name, subscribed.filter)
        else:
            self._unbind(self._lively().name, subscribed.filter)
        return True

    def _declared(self) -> WorkQueue:
        return self._broker.queues.declared.declare(
            SELF, DEFAULT_VHOST, queue_name(self.client_id), durable=True
        )

    def _lively(self) -> Live:
        if self._live is None:
            # Another one than that of a connection before, which may not be gone altogether.
            name = f"mqtt-live-{self.client_id}-{self._clients.next_number()}"
            self._live = Live(name, self)
            self._broker.publish.routing.add_queue(DEFAULT_VHOST, self._live)
        return self._live

    def _bind(self, queue: "Live | WorkQueue", wanted: Filter) -> None:
        key = swapped(wanted.text)
        routing = self._broker.publish.routing
        routing.bind(SELF, DEFAULT_VHOST, EXCHANGE, "queue", queue.name, key)

    def _unbind(self, name: str, wanted: Filter) -> None:
        key = swapped(wanted.text)
        self._broker.publish.routing.unbind(SELF, DEFAULT_VHOST, EXCHANGE, "queue", name, key)

    def _share(self, subscribed: Subscribed) -> None:
        name = shared_name(subscribed.filter)
        consumer = self._consumers.get(name)
        if consumer is not None:
            consumer.data = subscribed
            return
        queue = self._clients.share(name, self.client_id, durable=self.is_durable)
        self._bind(queue, subscribed.filter)
        self._consume(name, subscribed)

    def _consume(self, name: str, subscribed: Subscribed | None) -> None:
        if self._window is None:
            self._window = Window(self.outgoing.window)
        consumer = self._broker.queues.declared.consume(
            SELF,
            DEFAULT_VHOST,
            name,
            self._delivered,
            self._cancelled,
            window=self._window,
            owner=self,
        )
        consumer.data = subscribed
        self._consumers[name] = consumer

    # -- messages ------------------------------------------------------------------------------

    def put(self, body: bytes, form: int, priority: int) -> None:
        """A message that is routed to `Live`."""
        encoder = self._encoder
        publish = encoder.last if body is encoder.body else encoder.of(body, form)
        subscriptions = self.subscriptions
        grant = None if subscriptions.has_no_local else subscriptions.grants.get(publish.topic)
        if grant is None:
            grant = subscriptions.grant(publish.topic, publish.publisher)
        # What the session's queue gets as well comes from there.
        if grant is not None and not (self.is_durable and grant.qos):
            self.outgoing.offer(publish, grant, 0 if publish.is_plain else self._clients.now_ms())

    def put_all(self, bodies: Sequence[bytes], form: int) -> None:
        """The same for several."""
        for body in bodies:
            self.put(body, form, 0)

    def _delivered(self, consumer: Consumer, deliveries: list[tuple[Any, ...]]) -> None:
        clients = self._clients
        now_ms = clients.now_ms()
        outgoing = self.outgoing
        subscribed: Subscribed | None = consumer.data
        queue = consumer.queue
        released: Collection[int] = ()
        if not subscribed:
            released = self._broker.queues.packet_ids.of(self.client_id).released.values()
            if released:
                released = set(released)
        for position, times, body, form, _, _ in deliveries:
            if released and position in released:
                outgoing.acknowledge(
                    queue, position
                )  # The client has it: only that was not recorded.
                continue
            publish = clients.encoder.of(body, form)
            grant = (
                self.subscriptions.grant(publish.topic, publish.publisher)
                if subscribed is None
                else subscribed.grant
            )
            is_own = subscribed is None  # Of others, it may have been another's.
            outgoing.take(
                publish, grant, queue, position, now_ms, again=is_own and times > 0, is_own=is_own
            )
        outgoing.settle()

    def _cancelled(self, consumer: Consumer, reason: str) -> None:
        self._consumers = {
            name: each for name, each in self._consumers.items() if each is not consumer
        }

    def go_on(self) -> None:
        """Send what waits, as far as the window and the connection let it."""
        outgoing = self.outgoing
        if outgoing.waits:
            outgoing.go_on(self._clients.now_ms())
            outgoing.settle()
        while self.replays and outgoing.has_room and not outgoing.turn_is_over():
            found = next(self.replays[0], None)
            if found is None:
                del self.replays[0]
            elif found[1] is not None:
                self._replay(found[0], found[1])

    def _replay(self, subscribed: Subscribed, body: bytes) -> None:
        """Send a retained message: through the session's queue, if it is to be kept."""
        content = mqtt.read(body)
        expiry_s = mqtt.expiry_s(content.properties)
        now_ms = self._clients.now_ms()
        if expiry_s is not None and content.time_ms + expiry_s * 1_000 <= now_ms:
            return
        replayed = bytes((body[0] | mqtt.REPLAYED,)) + body[1:]
        if self.is_durable and subscribed.qos and content.flags & mqtt.QOS:
            assert self._queue is not None
            try:
                self._broker.publish.routing.publish_record(
                    SELF, DEFAULT_VHOST, "", self._queue.name, replayed, _FORM, nobody
                )
            except OnelogError:
                self.outgoing.dropped += 1
        else:
            publish = self._clients.encoder.of(replayed, _FORM)
            self.outgoing.offer(publish, subscribed.grant, now_ms)

    # -- records of QoS 2, in a durable session ------------------------------------------------

    def assign(self, packet_id: int, sent: UnacknowledgedPublish) -> None:
        """Record that a message of a shared queue is this client's, and send it."""
        assert isinstance(sent.queue, WorkQueue)
        on_recorded = partial(self._assigned, packet_id, sent)
        self._broker.queues.packet_ids.assigned(
            self.client_id, packet_id, sent.queue.name, sent.position, on_recorded
        )

    def _assigned(
        self, packet_id: int, sent: UnacknowledgedPublish, error: OnelogError | None
    ) -> None:
        if error is None:
            self.outgoing.assigned(packet_id, sent)
        elif self.outgoing.in_flight.get(packet_id) is sent:
            del self.outgoing.in_flight[packet_id]
            self._broker.queues.packet_ids.completed(self.client_id, packet_id, is_shared=True)
            assert sent.queue is not None
            sent.queue.requeue([sent.position], counted=False)

    def release(self, packet_id: int, sent: UnacknowledgedPublish) -> None:
        """Record that the client has a message; it is told when that is so."""
        on_recorded = partial(self._released, packet_id)
        if sent.is_shared:
            assert sent.queue is not None
            self.outgoing.settle()
            sent.queue.when_recorded(on_recorded)
        else:
            self._broker.queues.packet_ids.released(
                self.client_id, packet_id, sent.position, on_recorded
            )

    def _released(self, packet_id: int, error: OnelogError | None) -> None:
        if error is None:
            self.outgoing.released(packet_id)

    def complete(self, packet_id: int, sent: UnacknowledgedPublish) -> None:
        """Record that an exchange is over."""
        completed = partial(
            self._broker.queues.packet_ids.completed,
            self.client_id,
            packet_id,
            is_shared=sent.is_shared,
        )
        if sent.queue is None:
            completed()
        else:
            # With the record gone before the acknowledgement is there, it would come again.
            self.outgoing.settle()
            sent.queue.when_recorded(lambda error: None if error else completed())

    def completed(self, packet_id: int) -> None:
        """PUBCOMP: the exchange is over."""
        sent = self.outgoing.got_pubcomp(packet_id)
        if sent is not None and self.is_durable:
            self.complete(packet_id, sent)
