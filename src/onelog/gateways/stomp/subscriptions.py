"""SUBSCRIBE and what follows from it: deliveries, ACK, NACK, UNSUBSCRIBE.

A subscription to queues shares them with others. One to topics or exchanges has a queue of its own:
in memory, and gone with the connection, unless it is durable. Durable ones are asked for in the way
of RabbitMQ (`durable:true`, `auto-delete:false` and an `id`) or of ActiveMQ (`client-id` of CONNECT
and `activemq.subscriptionName`).

Invariants: what was delivered and not acknowledged is back in its queue when the subscription ends;
the id of a message is the connection's, the subscription's and its own number.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

from onelog.core.filters.selectors import Selector, compile_selector
from onelog.core.queues.deliveries import in_amqp_form
from onelog.core.queues.session import (
    ConsumerSession,
    Settlement,
    by_queue,
    settle,
    when_recorded,
)
from onelog.errors import InvalidRequestError, OnelogError
from onelog.gateways.stomp.destinations import (
    TEMPORARY,
    TOPIC_EXCHANGE,
    Destination,
    binding_key,
    destination_of,
    destinations,
    queue_pattern,
)
from onelog.gateways.stomp.headers import (
    arguments_of,
    is_true,
    is_wanted,
    is_wanted_record,
    number,
    shown,
)
from onelog.gateways.stomp.session import StompSession, required
from onelog.record.forms import amqp
from onelog.wire.stomp.frame import Frame, header_lines

if TYPE_CHECKING:
    from onelog.core.queues.consumers import Consumer
    from onelog.core.queues.deliveries import Delivery
    from onelog.core.queues.queue import WorkQueue

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one connection."""
BROWSED_MAX = 2_000
"""Messages of one queue that a browser is shown, from the first one on."""
BROWSED_AT_ONCE = 100
_PREFETCHES = ("prefetch-count", "activemq.prefetchSize", "consumer-window-size")
_PRIORITIES = ("x-priority", "activemq.priority")
_NAMES = ("activemq.subscriptionName", "durable-subscription-name", "durable-subscriber-name")

Mode = Literal["auto", "client", "client-individual"]
_MODES: dict[str, Mode] = {
    "auto": "auto",
    "client": "client",
    "client-individual": "client-individual",
}


class Subscription(ConsumerSession):
    """One SUBSCRIBE."""

    def __init__(self, session: StompSession, ident: str, mode: Mode) -> None:
        super().__init__()
        self._session = session
        self.ident = ident
        self.mode: Mode = mode
        session.last_number += 1
        self.number = session.last_number
        self.matches: Selector | None = None
        """Of a selector, on a queue that is this subscription's alone."""
        self.consumers: list[Consumer] = []
        self.watching: Callable[[WorkQueue], None] | None = None
        """Of a pattern: called with queues that come later."""
        self.durable_name = ""
        """Of its queue, if it outlives the connection."""
        self._first_lines = b"MESSAGE\n" + header_lines([("subscription", ident)], session.version)

    def deliver(self, consumer: "Consumer", deliveries: "Sequence[Delivery]") -> None:
        """Messages of a queue, for this subscription."""
        connection = self._session.connection
        unwanted = self.show(consumer.queue, deliveries)
        if unwanted and self.mode != "auto":
            consumer.queue.ack(unwanted)
        if connection.congested:
            consumer.pause()

    def show(self, queue: "WorkQueue", deliveries: "Sequence[Delivery]") -> list[int]:
        """Send messages to the client; the places of those that it does not want."""
        frames: list[bytes] = []
        unwanted: list[int] = []
        version, needs_ack = self._session.version, self.mode != "auto"
        head = b"%b-%d-" % (self._session.session_id.encode(), self.number)
        for position, times, record, form, _stored_ms, _size in deliveries:
            exchange, key, properties, body = amqp.read(in_amqp_form(record, form))
            if self.matches is not None and not is_wanted(self.matches, properties):
                unwanted.append(position)
                continue
            tag = self.next_tag()
            ident = b"%b%d" % (head, tag)
            # With the default exchange, the key of one that went to several is the first queue's.
            where = _where(exchange, key if exchange else queue.name, version)
            ack = b""
            if needs_ack:
                ack = b"ack:%b\n" % ident
                self.unacked[tag] = (queue, position)
            frames.append(
                b"%bmessage-id:%b\n%b%b%b%bcontent-length:%d\n\n%b\0"
                % (
                    self._first_lines,
                    ident,
                    ack,
                    where,
                    b"redelivered:true\n" if times else b"",
                    _header_lines(properties, version),
                    len(body),
                    bytes(body),
                )
            )
        self._session.connection.send(frames)
        return unwanted

    def resume(self) -> None:
        """The client reads again."""
        for consumer in self.consumers:
            consumer.resume()

    def unknown(self, tag: int) -> OnelogError:
        return InvalidRequestError(f"message {tag} of subscription {self.ident!r} is not out")

    @property
    def is_cumulative(self) -> bool:
        """Whether an ACK is for all messages before, too."""
        return self.mode == "client"

    def positions(self, tag: int) -> "dict[WorkQueue, list[int]]":
        """Where the messages are that an ACK of one of them is for."""
        return by_queue(self.unacked[each] for each in self.meant(tag, self.is_cumulative))

    def end(self, *, counted: bool) -> None:
        """Take no more, and give back what was not acknowledged."""
        for _ in self.ending(counted=counted):
            pass

    def ending(self, *, counted: bool) -> Iterator[None]:
        """The same in steps, for one that may consume from very many queues."""
        workqueues = self._session.broker.queues.declared
        if self.watching is not None:
            workqueues.on_declared.remove(self.watching)
            self.watching = None
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            workqueues.cancel(consumer)
            yield
        yield from self.giving_back(counted=counted)


@lru_cache(maxsize=4096)
def _where(exchange: str, key: str, version: str) -> bytes:
    return header_lines([("destination", destination_of(exchange, key))], version)


@lru_cache(maxsize=4096)
def _header_lines(properties: bytes, version: str) -> bytes:
    return header_lines(shown(properties), version)


# -- SUBSCRIBE -------------------------------------------------------------------------------------


def subscribe(session: StompSession, frame: Frame) -> None:
    headers = frame.headers
    text = required(frame, "destination")
    positions = destinations(text)
    ident = headers.get("id", text) if session.version == "1.0" else required(frame, "id")
    if ident in session.subscriptions:
        raise InvalidRequestError(f"there is a subscription with id {ident[:100]!r} already")
    if len(session.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise InvalidRequestError(f"the limit is {SUBSCRIPTIONS_MAX} subscriptions of a connection")
    mode = _MODES.get(headers.get("ack", "auto"))
    if mode is None:
        raise InvalidRequestError(f"ack:{headers['ack'][:40]} is none of {', '.join(_MODES)}")
    wants = compile_selector(headers["selector"]) if headers.get("selector") else None
    subscription = Subscription(session, ident, mode)
    if is_true(headers.get("browser")):
        browse(session, frame, subscription, positions, wants)
        return
    session.subscriptions[ident] = session.numbered[subscription.number] = subscription
    session.work(_consume_all(session, frame, subscription, positions, wants))


def _consume_all(
    session: StompSession,
    frame: Frame,
    subscription: Subscription,
    positions: Sequence[Destination],
    wants: Selector | None,
) -> Iterator[None]:
    receipt = frame.headers.get("receipt")
    try:
        yield from _consume_each(session, frame, subscription, positions, wants)
    except OnelogError as error:
        subscription.end(counted=False)
        del session.subscriptions[subscription.ident], session.numbered[subscription.number]
        session.fail(error, receipt)
    else:
        session.receipt(receipt)


def _consume_each(
    session: StompSession,
    frame: Frame,
    subscription: Subscription,
    positions: Sequence[Destination],
    wants: Selector | None,
) -> Iterator[None]:
    bound = [
        position for position in positions if position.kind in ("topic", "exchange", "temp-topic")
    ]
    if bound:
        queue = _own_queue(session, frame, subscription, bound)
        subscription.matches = wants
        _consume(session, frame, subscription, queue, None)
    for position in positions:
        if position in bound:
            continue
        if position.is_pattern:
            yield from _consume_matching(session, frame, subscription, position.name, wants)
        else:
            queue = _queue_of(session, frame, position)
            _consume(session, frame, subscription, queue, wants)


def _consume(
    session: StompSession,
    frame: Frame,
    subscription: Subscription,
    queue: "WorkQueue",
    wants: Selector | None,
) -> None:
    headers = frame.headers
    prefetch = next((number(headers, each, 65_535) for each in _PREFETCHES if each in headers), 0)
    priority = next(
        (number(headers, each, 1 << 31, -(1 << 31)) for each in _PRIORITIES if each in headers), 0
    )
    consumer = session.broker.queues.declared.consume(
        session.principal,
        session.vhost,
        queue.name,
        subscription.deliver,
        partial(_cancelled, session, subscription),
        tag=subscription.ident,
        no_ack=subscription.mode == "auto",
        priority=priority,
        prefetch=prefetch,
        owner=session,
        wants=None if wants is None else partial(is_wanted_record, wants),
    )
    subscription.consumers.append(consumer)
    if session.connection.congested:
        consumer.pause()


def _cancelled(
    session: StompSession, subscription: Subscription, consumer: "Consumer", reason: str
) -> None:
    """The broker ends a subscription, or its part of one queue of many."""
    if consumer in subscription.consumers:  # Else it is ending as it is.
        subscription.consumers.remove(consumer)
    subscription.unacked = {
        tag: each for tag, each in subscription.unacked.items() if each[0] is not consumer.queue
    }
    if not subscription.consumers and subscription.watching is None:
        error = InvalidRequestError(
            f"subscription {subscription.ident!r} is over: queue {consumer.queue.name} ({reason})"
        )
        session.fail(error)


def _queue_of(session: StompSession, frame: Frame, position: Destination) -> "WorkQueue":
    from onelog.gateways.stomp.sending import ensure_queue

    if position.kind == "temp-queue":
        name = f"{TEMPORARY}{position.name}"
        # Whoever asks for it himself wants its messages by his own id.
        automatic = session.subscriptions.pop(name, None)
        if automatic is not None:
            del session.numbered[automatic.number]
            automatic.end(counted=False)
        return temporary_queue(session, name)
    if position.kind == "queue":
        ensure_queue(session, frame, position.name)
    return session.broker.queues.declared.find(
        session.principal, session.vhost, position.name, owner=session
    )


def _consume_matching(
    session: StompSession,
    frame: Frame,
    subscription: Subscription,
    pattern: str,
    wants: Selector | None,
) -> Iterator[None]:
    """Every queue that matches, and will."""
    compare = queue_pattern(pattern).fullmatch
    workqueues = session.broker.queues.declared

    def declared(queue: "WorkQueue") -> None:
        if queue.vhost == session.vhost and queue.durable and compare(queue.name):
            _consume(session, frame, subscription, queue, wants)

    subscription.watching = declared
    workqueues.on_declared.append(declared)
    for queue in workqueues.queues(session.principal, session.vhost):
        if not queue.is_deleted:
            declared(queue)
        yield


# -- queues of subscriptions -----------------------------------------------------------------------


def _own_queue(
    session: StompSession,
    frame: Frame,
    subscription: Subscription,
    positions: Sequence[Destination],
) -> "WorkQueue":
    """The queue of a subscription to topics and exchanges, bound to them and to nothing else."""
    principal, vhost, broker = session.principal, session.vhost, session.broker
    subscription.durable_name = name = _durable_name(session, frame)
    queue = broker.queues.declared.declare(
        principal,
        vhost,
        name or frame.headers.get("x-queue-name", ""),
        durable=bool(name),
        exclusive=not name,
        auto_delete=not name,
        arguments=arguments_of(frame.headers),
        owner=session,
    )
    wanted = {_binding(session, position) for position in positions}
    for binding in broker.publish.routing.bindings(
        principal, vhost, destination=("queue", queue.name)
    ):
        # The default exchange's cannot be undone.
        if binding.source and (binding.source, binding.key) not in wanted:
            broker.publish.routing.unbind(
                principal, vhost, binding.source, "queue", queue.name, binding.key
            )
    for exchange, key in wanted:
        broker.publish.routing.bind(principal, vhost, exchange, "queue", queue.name, key)
    return queue


def _binding(session: StompSession, position: Destination) -> tuple[str, str]:
    if position.kind == "temp-topic":
        return TOPIC_EXCHANGE, temporary_topic(session, position.name)
    return position.name, binding_key(position.key) if position.kind == "topic" else position.key


def _durable_name(session: StompSession, frame: Frame) -> str:
    """The name of the queue of a durable subscription; empty, if it is none."""
    headers = frame.headers
    name = next((headers[each] for each in _NAMES if each in headers), "")
    if name:
        client_id = headers.get("client-id", session.client_id)
        if not client_id:
            raise InvalidRequestError(
                f"durable subscription {name[:100]!r} is a client's: CONNECT with a client-id"
            )
        return f"stomp-subscription-{client_id}.{name}"
    is_durable = is_true(headers.get("durable")) or is_true(headers.get("persistent"))
    if not is_durable or is_true(headers.get("auto-delete")):
        return ""
    if headers.get("x-queue-name"):
        return headers["x-queue-name"]
    what = f"{required(frame, 'id')}\0{headers.get('destination', '')}".encode()
    return f"stomp-subscription-{hashlib.sha256(what).hexdigest()[:24]}"


def temporary_queue(session: StompSession, name: str, *, subscribe: bool = False) -> "WorkQueue":
    """A queue of this connection alone, which may be subscribed to by its name, as RabbitMQ does
    for everybody who names it in `reply-to`."""
    queue = session.temporary.get(name)
    if queue is None:
        if len(session.temporary) >= SUBSCRIPTIONS_MAX:
            raise InvalidRequestError(f"the limit is {SUBSCRIPTIONS_MAX} temporary queues")
        queue = session.broker.queues.declared.declare(
            session.principal, session.vhost, "", exclusive=True, owner=session
        )
        session.temporary[name] = queue
        if subscribe:
            subscription = Subscription(session, name, "auto")
            session.subscriptions[name] = session.numbered[subscription.number] = subscription
            _consume(session, Frame("SUBSCRIBE", {}, b""), subscription, queue, None)
    return queue


def temporary_topic(session: StompSession, name: str) -> str:
    """The routing key of a topic of this connection."""
    return f"temporary.{session.session_id}.{name}"


# -- browsing --------------------------------------------------------------------------------------


def browse(
    session: StompSession,
    frame: Frame,
    subscription: Subscription,
    positions: Sequence[Destination],
    wants: Selector | None,
) -> None:
    """Show what is in queues, and leave it there."""
    subscription.mode = "auto"
    subscription.matches = wants
    if any(position.kind in ("topic", "exchange", "temp-topic") for position in positions):
        raise InvalidRequestError("a browser looks into queues: topics keep nothing")
    queues = [_queue_of(session, frame, position) for position in positions]
    session.receipt(frame.headers.get("receipt"))
    for queue in queues:
        at = 0
        while found := queue.browse(at, BROWSED_AT_ONCE):
            subscription.show(queue, found)
            at += len(found)
            if at >= BROWSED_MAX:
                break
    end = [
        ("subscription", subscription.ident),
        ("message-id", f"{session.session_id}-{subscription.number}-end"),
        ("destination", frame.headers["destination"]),
        ("browser", "end"),
    ]
    session.say("MESSAGE", end)


# -- UNSUBSCRIBE, ACK, NACK ------------------------------------------------------------------------


def unsubscribe(session: StompSession, frame: Frame) -> None:
    """UNSUBSCRIBE; of a durable subscription that is named as such, for good."""
    headers = frame.headers
    ident = headers.get("id")
    if ident is None:
        ident = (
            required(frame, "destination") if session.version == "1.0" else required(frame, "id")
        )
    subscription = session.subscriptions.pop(ident, None)
    is_named = any(each in headers for each in _NAMES)
    if subscription is None and not is_named:
        raise InvalidRequestError(f"there is no subscription with id {ident[:100]!r}")
    if subscription is not None:
        del session.numbered[subscription.number]
    session.work(_unsubscribed(session, frame, subscription, is_named=is_named))


def _unsubscribed(
    session: StompSession, frame: Frame, subscription: Subscription | None, *, is_named: bool
) -> Iterator[None]:
    headers = frame.headers
    receipt = headers.get("receipt")
    name = ""
    if subscription is not None:
        yield from subscription.ending(counted=False)
        name = subscription.durable_name
    try:
        if is_named:
            name = _durable_name(session, frame)
        if name and (
            is_named or is_true(headers.get("durable")) or is_true(headers.get("persistent"))
        ):
            session.broker.queues.declared.delete(
                session.principal, session.vhost, name, owner=session
            )
    except OnelogError as error:
        session.fail(error, receipt)
    else:
        session.receipt(receipt)


def acknowledge(session: StompSession, frame: Frame) -> None:
    _settle(session, frame, None)


def refuse(session: StompSession, frame: Frame) -> None:
    """NACK: back to the queue, or with `requeue:false` to the dead letters."""
    _settle(session, frame, frame.headers.get("requeue", "true").lower() != "false")


def _settle(session: StompSession, frame: Frame, requeue: bool | None) -> None:
    headers = frame.headers
    subscription, tag = _named(session, frame)
    if subscription.mode == "auto":
        raise InvalidRequestError(f"subscription {subscription.ident!r} needs no {frame.command}")
    if "transaction" in headers:
        transaction = session.transactions.get(headers["transaction"])
        if transaction is None:
            raise InvalidRequestError(f"no transaction {headers['transaction'][:100]!r}: BEGIN it")
        transaction.settle(subscription, tag, requeue)
        session.receipt(headers.get("receipt"))
        return
    queues = settle_one(subscription, tag, requeue)
    receipt = headers.get("receipt")
    if receipt is not None:
        when_settled(session, queues, partial(session.settled, receipt))


def settle_one(subscription: Subscription, tag: int, requeue: bool | None) -> "list[WorkQueue]":
    """Acknowledge (`requeue` None), give back or reject; the queues that this is recorded for."""
    how: Settlement = "ack" if requeue is None else "requeue" if requeue else "reject"
    return settle(how, subscription.ended(tag, subscription.is_cumulative))


def when_settled(
    session: StompSession,
    queues: "Sequence[WorkQueue]",
    done: Callable[[OnelogError | None], None],
) -> None:
    """Call when what was settled in these queues is in the log; it is pending meanwhile."""
    session.pending += 1
    when_recorded(queues, done)


def _named(session: StompSession, frame: Frame) -> tuple[Subscription, int]:
    """The subscription and the number of the message that an ACK or NACK names."""
    name = "id" if session.version == "1.2" else "message-id"
    ident = frame.headers.get(name) or frame.headers.get("message-id")
    if ident is None:
        raise InvalidRequestError(f"{frame.command} needs the header {name!r}")
    owner, _, rest = ident.partition("-")
    number_, _, tag = rest.partition("-")
    if owner == session.session_id and number_.isdecimal() and tag.isdecimal():
        subscription = session.numbered.get(int(number_[:18]))
        if subscription is not None:
            return subscription, int(tag[:18])
    raise InvalidRequestError(
        f"{frame.command} of {ident[:100]!r}: no message with that id is out on this connection"
    )
