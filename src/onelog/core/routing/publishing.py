"""Publishing to an exchange: found queues get the message, by one append, or by none.

A message is looked at (size, expiration, who says to have sent it), led to its queues, and put to
the tick's list of the writer as one record with an entry for each queue in the log. Queues in
memory are handed the same bytes at once. Where all are in memory, or there are none, nothing is
appended.

What has to wait (x-delayed-message, or a time that the publisher names) waits with the timers, as
a message to the topic `onelog_sys_routed`, which nobody reads: when it is due it becomes what it
would have become without the wait, in the append that says so (`due`).

    property   VHOST, and EXCHANGE: where it goes on from

The way of a message whose exchange and key were seen before is a look-up; see `walk` for others.

Invariant: whoever publishes is answered once, unless there is no queue (the answer is 0) or what is
wrong with the message is raised. Whoever is told of success has it in every queue that took it.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from struct import Struct
from typing import Any

from onelog.core.access import SELF, Principal
from onelog.core.catalog.topics import Topics
from onelog.core.cursors.forms import MarkedTopics
from onelog.core.durable.durability import Acks
from onelog.core.durable.storage import Storage
from onelog.core.durable.writer import OnStored, nobody
from onelog.core.routing.exchanges import Exchange, RoutingKeys
from onelog.core.routing.targets import DeadLetter, RoutedTargets, Target
from onelog.core.routing.topology import Topology
from onelog.core.routing.walk import (
    NO_HEADERS,
    ROUTES_MAX,
    TopicTarget,
    groups_of,
    headers_reader,
    is_topic,
    log_queue_of,
    route_of,
    walk,
)
from onelog.core.schedule.timers import Timers
from onelog.core.transactions.staged import Alongside, StagedTransactions
from onelog.errors import (
    AccessRefusedError,
    MessageError,
    MessageTooLargeError,
    OnelogError,
    PreconditionFailedError,
    QueueFullError,
    VhostNotFoundError,
    WireError,
)
from onelog.message import Buffer, NewMessage, NewRun, encode_properties, property_value
from onelog.names import OWN_PREFIX
from onelog.record.forms import FORM_MASK, Form, amqp
from onelog.record.forms.amqp_fields import (
    NO_PROPERTIES,
    REMOVE,
    headers_of,
    property_of,
    with_headers,
)

log = logging.getLogger(__name__)

ROUTED_TOPIC = OWN_PREFIX + "routed"
"""Where messages are said to go that are routed when their time has come."""
HELD_AT_ONCE = 2_000
"""Messages of a transaction that queues in memory get before others have their turn."""
HANDED_AT_ONCE = 1_000
"""Queues in memory that get a message before anything else has its turn."""
ENTRIES_AT_ONCE = 4_000
"""Of queues in the log: after so many the tick's messages are appended, in the turn of whoever
publishes them."""
LATE_MAX = 100
"""Messages that may wait for that."""
_RUN_MIN = 2
"""Messages that are alike are stored as a run, if there are so many, or more, for a queue."""
EXPIRATION_MS_MAX = 315_360_000_000
"""Ten years, as in RabbitMQ."""
DELAY_MS_MAX = (1 << 32) - 1
_AMQP = Form.AMQP.sys_flag
_U32 = Struct(">I")
_HAS_HEADERS, _HAS_EXPIRATION, _HAS_USER_ID = 0x20, 0x01, 0x10
"""In the first byte of the flags of properties, and the last one in the second."""
_CARBON = ("CC", "BCC")
_DELAY = "x-delay"
_VHOST, _EXCHANGE = "VHOST", "EXCHANGE"
Held = tuple[Target, bytes, int, int]
"""What a queue in memory gets when a transaction is committed."""


@dataclass(eq=False)
class Publishing:
    """The way of a message from its publisher to its queues."""

    _storage: Storage
    _topology: Topology
    _topics: Topics
    _marked: MarkedTopics
    _timers: Timers
    _staged: StagedTransactions
    body_bytes_max: int

    def __post_init__(self) -> None:
        runtime, self._writer = self._storage.runtime, self._storage.writer
        self._clock, self._host, self._call_soon = runtime.clock, runtime.host, runtime.call_soon
        self.check: Callable[[Principal, str, str, str], None] | None = None
        """Whether somebody may publish to an exchange of a vhost with a key; None: anybody may."""
        self._messages, self._receipts = self._writer.messages, self._writer.receipts
        self._vhosts = self._topology.vhosts
        self.find_topic = self._topics.get
        self.late: deque[tuple[Iterator[Target], bytes, int, int]] = deque()
        """Messages that some queues in memory have to wait for, because there are so many."""
        self._entries = 0
        self._held: dict[tuple[Hashable, str], list[Held]] = {}
        self._refused: set[tuple[Hashable, str]] = set()
        """Transactions of which a queue has refused a message."""
        self._timers.becomes[ROUTED_TOPIC] = self.due
        self._topics.on_change.append(self._topology.topic_changed)

    def mark(self, topic: str) -> None:
        """To be called before the first message goes to a topic; it may write a record."""
        self._marked.mark(topic, batches=False)

    # -- the usual case ------------------------------------------------------------------------

    def publish(
        self,
        principal: Principal,
        vhost: str,
        exchange: str,
        key: str,
        properties: bytes,
        body: Buffer,
        on_stored: OnStored,
        token: Any = None,
        deliver_at_ms: int | None = None,
    ) -> int:
        """Publish a message in AMQP's form; how many queues it goes to, 0: nobody is told."""
        if self.check is not None:
            self.check(principal, vhost, exchange, key)
        try:
            found = self._vhosts[vhost].exchanges[exchange]
        except KeyError:
            self._refuse(vhost, exchange)
            raise
        if found.internal:
            raise AccessRefusedError(
                f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'"
            )
        if len(body) > self.body_bytes_max:
            self._refuse_size(len(body))
        flags = properties[0]
        if (
            flags & _HAS_EXPIRATION
            or properties[1] & _HAS_USER_ID
            or (flags & _HAS_HEADERS and b"CC" in properties)
        ):
            properties, query = self._routing_keys(principal, vhost, exchange, key, properties)
            route = found.routes.get(key) if len(query.keys) == 1 else None
        else:
            query = None
            route = found.routes.get(key)
        if route is None or deliver_at_ms is not None:
            if query is None:
                query = RoutingKeys((key,), properties, headers_reader(properties))
            return self._lead(found, query, properties, body, on_stored, token, deliver_at_ms)
        record = b"".join((route.head, _U32.pack(len(properties)), properties, body))
        if not route.is_plain:
            return self._spread(route, record, _AMQP, properties, on_stored, token)
        # From here on this is `Writer.put`, without its call.
        topic, queue_id, extra = route.groups[0]
        host = self._host
        if not self._messages:
            self._writer.begin_tick()
        now_ms = self._clock.now_ms()
        message = topic, queue_id, record, b"", 0, _AMQP, now_ms, host, host, 0, 0, 1, extra
        self._messages.append(tuple.__new__(NewMessage, message))
        self._receipts.append((on_stored, token, 0, Acks.DURABLE))
        return len(route.targets)

    def publish_all(
        self,
        principal: Principal,
        vhost: str,
        exchange: str,
        key: str,
        properties: bytes,
        bodies: list[bytes],
        on_stored: OnStored,
        token: Any = None,
    ) -> bool:
        """Publish messages that differ in their bodies only, which have one length.

        Whoever published is told once, of all. False, and nothing is done, if they have to be
        published one by one: their way is not known, or something about them has to be looked at.
        """
        if self.check is not None:
            self.check(principal, vhost, exchange, key)
        found = [(key, bodies)]
        return not self._publish_short(vhost, exchange, properties, found, on_stored, token)

    def publish_scattered(
        self,
        vhost: str,
        exchange: str,
        properties: bytes,
        found: list[tuple[str, list[bytes]]],
        on_stored: OnStored,
    ) -> list[tuple[str, list[bytes]]]:
        """`publish_all` for several keys; returns those whose messages were not published.

        Where anybody has to be asked about, that is all of them: each key is another question.
        """
        if self.check is not None:
            return found
        return self._publish_short(vhost, exchange, properties, found, on_stored, None)

    def _publish_short(
        self,
        vhost: str,
        exchange: str,
        properties: bytes,
        found: list[tuple[str, list[bytes]]],
        on_stored: OnStored,
        token: Any,
    ) -> list[tuple[str, list[bytes]]]:
        known = self._vhosts.get(vhost)
        at = None if known is None else known.exchanges.get(exchange)
        if at is None or at.internal or len(found[0][1][0]) > self.body_bytes_max:
            return found
        flags = properties[0]
        if (
            flags & _HAS_EXPIRATION
            or properties[1] & _HAS_USER_ID
            or (flags & _HAS_HEADERS and b"CC" in properties)
        ):
            return found
        tail = _U32.pack(len(properties)) + properties
        now_ms, routes, host = self._clock.now_ms(), at.routes, self._host
        left = []
        # All of them, or none: what follows each other and is of one kind is appended together.
        as_runs = sum([len(bodies) for _, bodies in found]) >= _RUN_MIN * len(found)
        for each in found:
            route = routes.get(each[0])
            if route is None or not route.is_short:
                left.append(each)
                continue
            lead = route.head + tail
            if not route.groups:
                records = [lead + body for body in each[1]]
                for target in route.memory:
                    target.put_all(records, _AMQP)
                on_stored(token, None, None)
            elif as_runs:
                topic, queue_id, _ = route.groups[0]
                parts = [(0, lead + body, b"") for body in each[1]]
                run = topic, queue_id, parts, b"", b"", _AMQP, now_ms, host, host, 0
                self._writer.put(tuple.__new__(NewRun, run), on_stored, token)
            else:
                self._put_alike(route, lead, each[1], now_ms, on_stored, token)
        return left

    def _put_alike(
        self,
        route: RoutedTargets,
        lead: bytes,
        bodies: list[bytes],
        now_ms: int,
        on_stored: OnStored,
        token: Any,
    ) -> None:
        """Put messages that begin alike to the one queue of a route that is in the log."""
        topic, queue_id, _ = route.groups[0]
        host = self._host
        # From here on this is `Writer.put_together`, without its call.
        if not self._messages:
            self._writer.begin_tick()
        new = tuple.__new__
        self._messages += [
            new(
                NewMessage,
                (topic, queue_id, lead + body, b"", 0, _AMQP, now_ms, host, host, 0, 0, 1, ()),
            )
            for body in bodies
        ]
        self._receipts.append((on_stored, token, len(bodies), Acks.DURABLE))

    def _refuse(self, vhost: str, exchange: str) -> None:
        """Raise why there is no such exchange."""
        self._topology.vhost(vhost).exchange(exchange)

    def _refuse_size(self, body_bytes: int) -> None:
        raise MessageTooLargeError(
            f"message size {body_bytes} is larger than configured max size {self.body_bytes_max}"
        )

    # -- closer looks --------------------------------------------------------------------------

    def _routing_keys(
        self, principal: Principal, vhost: str, exchange: str, key: str, properties: bytes
    ) -> tuple[bytes, RoutingKeys]:
        """The properties as consumers get them, and what decides where the message goes."""
        try:
            if properties[0] & _HAS_EXPIRATION:
                check_expiration(property_of(properties, "expiration"))
            if properties[1] & _HAS_USER_ID:
                _check_user(principal, property_of(properties, "user_id"))
            # Few messages have these headers; for the others no table is read.
            if not properties[0] & _HAS_HEADERS or b"CC" not in properties:
                return properties, RoutingKeys((key,), properties, headers_reader(properties))
            headers = headers_of(properties)
        except WireError as error:
            raise PreconditionFailedError(f"the properties cannot be read: {error}") from None
        keys = [key]
        for name in _CARBON:
            named = headers.get(name)
            if named is None:
                continue
            if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
                raise PreconditionFailedError(f"unacceptable type in '{name}' header")
            keys += map(str, named)
        if self.check is not None:
            for each in keys[1:]:
                self.check(principal, vhost, exchange, each)
        if "BCC" in headers:
            properties = with_headers(properties, {"BCC": REMOVE})
        return properties, RoutingKeys(tuple(dict.fromkeys(keys)), properties, lambda: headers)

    def _lead(
        self,
        exchange: Exchange,
        query: RoutingKeys,
        properties: bytes,
        body: Buffer,
        on_stored: OnStored,
        token: Any,
        deliver_at_ms: int | None,
    ) -> int:
        """Publish a message whose way is not known, or that may have to wait."""
        key = query.keys[0]
        record = amqp.encode(exchange.name, key, properties, body)
        if deliver_at_ms is not None and deliver_at_ms > self._clock.now_ms():
            if not exchange.name and is_topic(self._vhosts[exchange.vhost], key, self.find_topic):
                self.mark(key)
            waiting = self._waiting(exchange, record, _AMQP, deliver_at_ms)
            self._writer.put(waiting, on_stored, token)
            return 1
        messages, route = self._route(exchange, query, record, _AMQP)
        if not messages:
            return self._spread(route, record, _AMQP, properties, on_stored, token)
        if route.targets:
            self._spread(route, record, _AMQP, properties, nobody)
        self._writer.put_together(messages, on_stored, token)
        return len(route.targets) + len(messages)

    def _route(
        self, exchange: Exchange, query: RoutingKeys, record: bytes, form: int
    ) -> tuple[list[NewMessage], RoutedTargets]:
        """What has to wait of a message on its way, and where the rest goes."""
        vhost = self._vhosts[exchange.vhost]
        delay_ms = _delay_ms(query)
        found = walk(vhost, exchange, query, self.find_topic, delayed=delay_ms > 0, to_topics=True)
        for target in found.targets:
            if isinstance(target, TopicTarget):
                self.mark(target.topic)
        key = query.keys[0]
        route = route_of(exchange.name, key, found.targets)
        if found.by_key and found.targets and not found.delaying and len(query.keys) == 1:
            if len(exchange.routes) >= ROUTES_MAX:
                exchange.routes.clear()
            exchange.routes[key] = route
        if not found.delaying:
            return [], route
        due_ms = self._clock.now_ms() + delay_ms
        delivered = _delayed_record(record, delay_ms)
        return [self._waiting(at, delivered, form, due_ms) for at in found.delaying], route

    # -- to the queues -------------------------------------------------------------------------

    def publish_record(
        self,
        principal: Principal,
        vhost: str,
        exchange: str,
        key: str,
        record: bytes,
        form: int,
        on_stored: OnStored,
        token: Any = None,
        *,
        priority: int = 0,
        topics: Sequence[str] = (),
        records: Sequence[NewMessage] = (),
    ) -> int:
        """Publish the body of a record of any form; `form` is the form's sys flag.

        It has an entry in these `topics`, too, and further `records` are in the same append: with
        any of those there is an answer also if there is no queue.
        """
        if self.check is not None and principal is not SELF:
            self.check(principal, vhost, exchange, key)
        try:
            found = self._vhosts[vhost].exchanges[exchange]
        except KeyError:
            self._refuse(vhost, exchange)
            raise
        if len(record) > self.body_bytes_max:
            self._refuse_size(len(record))
        route = found.routes.get(key)
        if route is None:
            query = RoutingKeys((key,), NO_PROPERTIES, NO_HEADERS)
            _, route = self._route(found, query, record, form)
        if not topics and not records:
            return self._spread(route, record, form, NO_PROPERTIES, on_stored, token, priority)
        for topic in topics:
            self.mark(topic)
        destinations = self._taking(route.targets, record, form, priority)
        messages = self._made([*destinations, *((topic, 0) for topic in topics)], record, form)
        self._writer.put_together([*messages, *records], on_stored, token)
        return len(route.targets)

    def _spread(
        self,
        route: RoutedTargets,
        record: bytes,
        form: int,
        properties: bytes,
        on_stored: OnStored,
        token: Any = None,
        priority: int = -1,
    ) -> int:
        """Give a message to all targets of a route; how many there are."""
        targets = route.targets
        if not targets:
            return 0
        if not route.limited:
            if route.memory:
                self._hand(route.memory, record, form, 0)
            if not route.groups:
                on_stored(token, None, None)
                return len(targets)
            messages = [self._message(group, record, form) for group in route.groups]
            self._put(messages, on_stored, token)
            return len(targets)
        if priority < 0:
            priority = property_of(properties, "priority") or 0
        admitting = [
            target for target in targets if not target.is_limited or target.admits(record, form)
        ]
        messages = self._made(self._handed(admitting, record, form, priority), record, form)
        if len(admitting) == len(targets):
            self._put(messages, on_stored, token)
        else:
            # The others have it, and its publisher is told all the same.
            self._put(messages, partial(_report_full, on_stored), token)
        return len(targets)

    def _taking(
        self, targets: Sequence[Target], record: bytes, form: int, priority: int
    ) -> list[tuple[str, int]]:
        """Give a message to those in memory that take it; where it goes of those in the log."""
        taking = [each for each in targets if not each.is_limited or each.admits(record, form)]
        return self._handed(taking, record, form, priority)

    def _handed(
        self, targets: Sequence[Target], record: bytes, form: int, priority: int
    ) -> list[tuple[str, int]]:
        self._hand([each for each in targets if not each.topic], record, form, priority)
        return [log_queue_of(each, priority) for each in targets if each.topic]

    def _hand(self, targets: Sequence[Target], record: bytes, form: int, priority: int) -> None:
        """Give a message to queues in memory; if they are many, some at a time, in order."""
        if self.late or len(targets) > HANDED_AT_ONCE:
            if len(self.late) >= LATE_MAX:  # Their publisher does not wait.
                others, body, its_form, level = self.late.popleft()
                for target in others:
                    target.put(body, its_form, level)
            if not self.late:
                self._call_soon(self._hand_some)
            self.late.append((iter(targets), record, form, priority))
            return
        for target in targets:
            target.put(record, form, priority)

    def _hand_some(self) -> None:
        left = HANDED_AT_ONCE
        while self.late and left:
            targets, record, form, priority = self.late[0]
            count = 0
            for target in islice(targets, left):
                target.put(record, form, priority)
                count += 1
            if count < left:
                self.late.popleft()
            left -= count
        if self.late:
            self._call_soon(self._hand_some)

    def _put(self, messages: list[NewMessage], on_stored: OnStored, token: Any) -> None:
        if len(messages) == 1:
            self._writer.put(messages[0], on_stored, token)
        elif messages:
            self._writer.put_together(messages, on_stored, token)
        else:
            on_stored(token, None, None)
        self._entries += sum([len(each.extra_queues) for each in messages])
        if self._entries > ENTRIES_AT_ONCE:
            self._entries = 0
            self._writer.append_so_far()

    def _made(
        self, destinations: Sequence[tuple[str, int]], record: bytes, form: int
    ) -> list[NewMessage]:
        return [self._message(group, record, form) for group in groups_of(destinations)]

    def _message(
        self, group: tuple[str, int, tuple[str, ...]], record: bytes, form: int
    ) -> NewMessage:
        topic, queue_id, extra = group
        return NewMessage(
            topic,
            queue_id,
            record,
            sys_flag=form,
            born_ms=self._clock.now_ms(),
            born_host=self._host,
            store_host=self._host,
            extra_queues=extra,
        )

    # -- what waits ----------------------------------------------------------------------------

    def _waiting(self, exchange: Exchange, record: bytes, form: int, due_ms: int) -> NewMessage:
        where = encode_properties({_VHOST: exchange.vhost, _EXCHANGE: exchange.name or "\x03"})
        message = self._message((ROUTED_TOPIC, 0, ()), record, form)._replace(properties=where)
        try:
            return self._timers.postpone(message, due_ms)
        except MessageError as error:
            raise PreconditionFailedError(str(error)) from None

    def due(self, waited: NewMessage) -> list[NewMessage]:
        """What becomes of a message whose time has come; queues in memory have it already."""
        name = property_value(waited.properties, _EXCHANGE) or ""
        vhost = self._vhosts.get(property_value(waited.properties, _VHOST) or "")
        exchange = None if vhost is None else vhost.exchanges.get(name.replace("\x03", ""))
        if vhost is None or exchange is None:
            return []  # It went while the message waited.
        record, form = bytes(waited.body), waited.sys_flag & FORM_MASK
        try:
            content = amqp.read(record)
            headers = headers_of(content.properties)
        except WireError as error:
            log.error("a message that has waited cannot be read, and is dropped: %s", error)
            return []
        carbon = headers.get("CC")
        keys = (content.key, *(map(str, carbon) if isinstance(carbon, list) else ()))
        query = RoutingKeys(keys, content.properties, lambda: headers)
        found = walk(vhost, exchange, query, self.find_topic, to_topics=True)
        priority = property_of(content.properties, "priority") or 0
        destinations = self._taking(found.targets, record, form, priority)
        return self._made(destinations, record, form)

    # -- dead letters --------------------------------------------------------------------------

    def deliver(
        self, dead_letters: Sequence[DeadLetter], records: Sequence[NewMessage]
    ) -> list[int]:
        """Send messages on, in one append with these records; to how many queues each goes.

        Queues in memory get theirs when that is written.
        """
        messages: list[NewMessage] = []
        counts: list[int] = []
        later: list[tuple[Target, bytes, int]] = []
        for dead_letter in dead_letters:
            record = amqp.encode(
                dead_letter.exchange, dead_letter.keys[0], dead_letter.properties, dead_letter.body
            )
            targets = [
                each
                for each in self._dead_letter_targets(dead_letter)
                if not each.is_limited or each.admits(record, _AMQP)
            ]
            counts.append(len(targets))
            if targets:
                priority = property_of(dead_letter.properties, "priority") or 0
                later += [(each, record, priority) for each in targets if not each.topic]
                destinations = [log_queue_of(each, priority) for each in targets if each.topic]
                messages += self._made(destinations, record, _AMQP)
        self._writer.write_now(messages, records)
        for target, record, priority in later:
            target.put(record, _AMQP, priority)
        return counts

    def _dead_letter_targets(self, dead_letter: DeadLetter) -> list[Target]:
        try:
            vhost = self._topology.vhost(dead_letter.vhost)
        except VhostNotFoundError:
            return []
        exchange = vhost.exchanges.get(dead_letter.exchange)
        if exchange is None:
            return []
        query = RoutingKeys(
            dead_letter.keys, dead_letter.properties, headers_reader(dead_letter.properties)
        )
        found = walk(
            vhost, exchange, query, self.find_topic, is_authorized=dead_letter.is_authorized
        )
        return [each for each in found.targets if each.name not in dead_letter.not_to]

    # -- transactions --------------------------------------------------------------------------

    def stage(
        self,
        principal: Principal,
        owner: Hashable,
        name: str,
        vhost: str,
        exchange: str,
        key: str,
        properties: bytes,
        body: Buffer,
    ) -> int:
        """Publish in a transaction: its queues are those of now, and get it with the commit."""
        if self.check is not None:
            self.check(principal, vhost, exchange, key)
        found = self._topology.vhost(vhost).exchange(exchange)
        if found.internal:
            raise AccessRefusedError(
                f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'"
            )
        if len(body) > self.body_bytes_max:
            self._refuse_size(len(body))
        properties, query = self._routing_keys(principal, vhost, exchange, key, properties)
        record = amqp.encode(exchange, key, properties, body)
        messages, route = self._route(found, query, record, _AMQP)
        priority = property_of(properties, "priority") or 0
        held = self._held.setdefault((owner, name), [])
        destinations = []
        for target in route.targets:
            if target.is_limited and not target.admits(record, _AMQP):
                self._refused.add((owner, name))
            elif target.topic:
                destinations.append(log_queue_of(target, priority))
            else:
                self._staged.reserve(owner, name, 1, len(record))
                held.append((target, record, _AMQP, priority))
        staged = [*messages, *self._made(destinations, record, _AMQP)]
        if staged:
            self._staged.stage(owner, name, staged, checked=True)
        return len(route.targets) + len(messages)

    def commit(
        self,
        principal: Principal,
        owner: Hashable,
        name: str,
        on_committed: OnStored,
        token: Any = None,
        alongside: Alongside | None = None,
    ) -> None:
        """Give everything to its queues, in one append with what else belongs to it."""
        held = self._held.pop((owner, name), [])
        is_partial = (owner, name) in self._refused
        self._refused.discard((owner, name))

        def committed(token: Any, where: Any, error: OnelogError | None) -> None:
            if error is not None:
                on_committed(token, where, error)
                return
            if is_partial:
                error = PreconditionFailedError("partial tx completion")
            self._hand_held(iter(held), partial(on_committed, token, where, error))

        self._staged.commit(owner, name, committed, token, alongside)

    def _hand_held(self, held: Iterator[Held], then: Callable[[], None]) -> None:
        """Give messages of a transaction to queues in memory, some at a time."""
        some = list(islice(held, HELD_AT_ONCE))
        for target, record, form, priority in some:
            if not getattr(target, "is_deleted", False):
                target.put(record, form, priority)
        if len(some) < HELD_AT_ONCE:
            then()
        else:
            self._call_soon(partial(self._hand_held, held, then))

    def abort(self, principal: Principal, owner: Hashable, name: str = "") -> None:
        self._forget(owner, name)
        self._staged.abort(owner, name)

    def owner_gone(self, owner: Hashable) -> None:
        """Forget what an owner has published and not committed."""
        for held_owner, name in [each for each in self._held if each[0] == owner]:
            self._forget(held_owner, name)

    def _forget(self, owner: Hashable, name: str) -> None:
        self._held.pop((owner, name), None)
        self._refused.discard((owner, name))


def check_expiration(text: str) -> None:
    """`PreconditionFailedError` if that is no time to live in milliseconds."""
    if not (text.isascii() and text.isdigit()):
        raise PreconditionFailedError(f"invalid expiration '{text}': no_integer")
    if len(text) > 18 or int(text) > EXPIRATION_MS_MAX:
        raise PreconditionFailedError(f"invalid expiration '{text}': value_too_large")


def _delay_ms(query: RoutingKeys) -> int:
    """How long a message waits at exchanges that delay."""
    if _DELAY.encode() not in query.properties:
        return 0
    wanted = query.headers().get(_DELAY)
    if isinstance(wanted, str) and wanted.isascii() and wanted.isdigit():
        wanted = int(wanted[:20])
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        return 0
    return max(0, min(wanted, DELAY_MS_MAX))


def _check_user(principal: Principal, user: str) -> None:
    if user != principal.name:
        raise PreconditionFailedError(
            f"user_id property set to '{user}' but authenticated user was '{principal.name}'"
        )


def _delayed_record(record: bytes, delay_ms: int) -> bytes:
    """The record as consumers get it: the delay is negative then, as RabbitMQ's plugin has it."""
    content = amqp.read(record)
    properties = with_headers(content.properties, {_DELAY: -delay_ms})
    return amqp.encode(content.exchange, content.key, properties, content.body)


def _report_full(on_stored: OnStored, token: Any, where: Any, error: OnelogError | None) -> None:
    on_stored(token, where, error or QueueFullError("a queue that the message is for is full"))
