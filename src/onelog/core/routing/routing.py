"""The door to routing: what gateways declare, bind and publish to.

It is a part of the door of the broker: who asks is the first argument, and whether they may is
decided here. Permissions name them as their topics are named (`names`).
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random

from onelog.core.access import Access, Action, Kind, Principal, Resource, not_permitted
from onelog.core.routing.exchanges import (
    ALTERNATE,
    Binding,
    DestinationKind,
    Exchange,
    RoutingKeys,
    matcher_of,
)
from onelog.core.routing.names import DEFAULT_VHOST, named_for_access
from onelog.core.routing.publishing import Publishing
from onelog.core.routing.targets import Target
from onelog.core.routing.topology import Topology, Vhost
from onelog.core.routing.walk import is_topic, walk
from onelog.record.forms.amqp_fields import NO_PROPERTIES, Table, Value

_DEAD_LETTER = ("exchange", "routing-key")


class Routing:
    """Vhosts, exchanges, bindings, and publishing to them."""

    def __init__(
        self, access: Access, topology: Topology, publishing: Publishing, random: Random
    ) -> None:
        self._access = access
        self._senders = access.senders
        self._topology = topology
        self._publishing = publishing
        self._random = random
        self.on_vhost_deleted: list[Callable[[str], None]] = []
        """Called with a vhost that is about to go: its queues have to go first."""
        self.late = publishing.late
        """Not empty while queues in memory wait for messages: who publishes much waits, too."""
        # Nothing of the door's costs the path that is taken for each message: publishing asks back.
        self.publish = publishing.publish
        self.publish_all = publishing.publish_all
        self.publish_scattered = publishing.publish_scattered
        self.publish_record = publishing.publish_record
        self.deliver = publishing.deliver
        self.stage = publishing.stage
        self.commit = publishing.commit
        self.abort = publishing.abort
        self.queue_changed = topology.queue_changed
        self.policies_changed = topology.policies_changed
        self.owner_gone = publishing.owner_gone
        self.guard(not access.is_open)

    def guard(self, is_on: bool) -> None:
        """Whether anybody has to be asked about; its owner keeps that true."""
        self._guarded = is_on
        self._publishing.check = self._check_publish if is_on else None

    def _check(
        self, principal: Principal, action: Action, kind: Kind, vhost: str, name: str
    ) -> None:
        if self._guarded:
            self._access.check(principal, action, (kind, named_for_access(vhost, name)))

    def _sees(self, principal: Principal, kind: Kind, vhost: str, name: str) -> bool:
        """Whether they may know of an exchange, a queue or a topic."""
        if not self._guarded:
            return True
        known_as = name if kind == "topic" else named_for_access(vhost, name)
        return self._access.may(principal, "describe", (kind, known_as))

    # -- vhosts --------------------------------------------------------------------------------

    def follow_policies(self, alternate: Callable[[Exchange], str | None]) -> None:
        """Ask this what alternate exchange a policy gives an exchange."""
        self._topology.policy_alternate = alternate

    def vhosts(self, principal: Principal) -> list[Vhost]:
        """Those that they may know of."""
        found = list(self._topology.vhosts.values())
        if not self._guarded:
            return found
        return [
            each for each in found if self._access.may(principal, "describe", ("vhost", each.name))
        ]

    def has_vhost(self, vhost: str) -> bool:
        """Whether there is such a vhost; to be told only who may know."""
        return vhost in self._topology.vhosts

    def has_exchange(self, vhost: str, name: str) -> bool:
        return self.has_vhost(vhost) and name in self._topology.vhosts[vhost].exchanges

    def is_open_to(self, principal: Principal, vhost: str) -> bool:
        """Whether there is such a vhost, and they may know of it."""
        is_seen = self._access.is_open or self._access.may(principal, "describe", ("vhost", vhost))
        return is_seen and vhost in self._topology.vhosts

    def enter(self, principal: Principal, vhost: str) -> bool:
        """Whether there is a vhost that they may work in; `NotPermittedError` if they may not.

        The default one is for everybody who may do something in it.
        """
        if vhost != DEFAULT_VHOST or not self._access.may_some(principal, ("exchange", "queue")):
            self._access.check(principal, "describe", ("vhost", vhost))
        return vhost in self._topology.vhosts

    def declare_vhost(
        self, principal: Principal, name: str, description: str = "", tags: Iterable[str] = ()
    ) -> None:
        """Make a vhost, or change what is said of it."""
        self._access.check(principal, "create", ("vhost", name))
        self._topology.declare_vhost(name, description, tags)

    def delete_vhost(self, principal: Principal, name: str) -> None:
        """Forget a vhost, with its exchanges, bindings and queues."""
        self._access.check(principal, "delete", ("vhost", name))
        self._topology.check_deletable(name)
        for gone in self.on_vhost_deleted:
            gone(name)
        self._topology.delete_vhost(name)

    # -- exchanges -----------------------------------------------------------------------------

    def exchange(self, principal: Principal, vhost: str, name: str) -> Exchange:
        """An exchange, or `ExchangeNotFoundError`; what a passive declaration asks."""
        self._check(principal, "describe", "exchange", vhost, name)
        return self._topology.vhost(vhost).exchange(name)

    def exchanges(self, principal: Principal, vhost: str) -> list[Exchange]:
        self._access.check(principal, "describe", ("vhost", vhost))
        found = list(self._topology.vhost(vhost).exchanges.values())
        return [each for each in found if self._sees(principal, "exchange", vhost, each.name)]

    def declare_exchange(
        self,
        principal: Principal,
        vhost: str,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Value] | None = None,
    ) -> Exchange:
        """An exchange with these settings; one of that name that has others is an error."""
        self._check(principal, "create", "exchange", vhost, name)
        given = dict(arguments or {})
        if (alternate := given.get(ALTERNATE)) is not None:
            self._check(principal, "consume", "exchange", vhost, name)
            self._check(principal, "publish", "exchange", vhost, str(alternate))
        matcher = matcher_of(kind, given, self._random)
        return self._topology.declare_exchange(
            Exchange(vhost, name, kind, durable, auto_delete, internal, given, matcher)
        )

    def delete_exchange(
        self, principal: Principal, vhost: str, name: str, *, if_unused: bool = False
    ) -> bool:
        """Forget an exchange and its bindings; False if there is none."""
        self._check(principal, "delete", "exchange", vhost, name)
        return self._topology.delete_exchange(vhost, name, if_unused=if_unused)

    # -- bindings ------------------------------------------------------------------------------

    def bind(
        self,
        principal: Principal,
        vhost: str,
        source: str,
        kind: DestinationKind,
        destination: str,
        key: str,
        arguments: Mapping[str, Value] | None = None,
        *,
        instead: bool = False,
    ) -> None:
        """Lead messages from an exchange to a queue, an exchange, or a topic.

        `instead` of bindings between the same two with the same key, whatever their arguments.
        """
        self._check_binding(principal, vhost, source, kind, destination)
        if kind == "topic" and self._publishing.find_topic(destination) is not None:
            self._publishing.mark(destination)
        self._topology.bind(
            vhost, source, (kind, destination), key, dict(arguments or {}), instead=instead
        )

    def unbind(
        self,
        principal: Principal,
        vhost: str,
        source: str,
        kind: DestinationKind,
        destination: str,
        key: str,
        arguments: Mapping[str, Value] | None = None,
    ) -> bool:
        """Lead them there no more; False if nothing did."""
        self._check_binding(principal, vhost, source, kind, destination)
        return self._topology.unbind(vhost, source, (kind, destination), key, dict(arguments or {}))

    def _check_binding(
        self, principal: Principal, vhost: str, source: str, kind: DestinationKind, destination: str
    ) -> None:
        if self._guarded:
            self._check(principal, "consume", "exchange", vhost, source)
            if kind == "topic":
                self._access.check(principal, "publish", ("topic", destination))
            else:
                self._check(principal, "publish", kind, vhost, destination)

    def bindings(
        self,
        principal: Principal,
        vhost: str,
        source: str | None = None,
        destination: tuple[DestinationKind, str] | None = None,
    ) -> list[Binding]:
        """Bindings of a vhost: all, those from an exchange, those to a place, or between two.

        Every queue has one from the default exchange, which nobody made.
        """
        self._access.check(principal, "describe", ("vhost", vhost))
        if source:
            self._check(principal, "describe", "exchange", vhost, source)
        found = self._topology.vhost(vhost)
        names: Iterable[str] = ()
        if destination is None:
            names = found.queues if source in (None, "") else ()
            given = [found.exchange(source)] if source else found.exchanges.values()
            bound = [binding for exchange in given for binding in exchange.bindings.values()]
        else:
            kind, name = destination
            if kind == "queue" and name in found.queues and source in (None, ""):
                names = [name]
            bound = [
                each
                for each in found.to.get(destination, {}).values()
                if source in (None, each.source)
            ]
        implied = [
            Binding("", "queue", name, name, {}, found.queues[name].is_durable) for name in names
        ]
        return [
            each
            for each in (*implied, *bound)
            if (not each.source or self._sees(principal, "exchange", vhost, each.source))
            and self._sees(principal, each.kind, vhost, each.destination)
        ]

    def route(
        self,
        principal: Principal,
        vhost: str,
        exchange: str,
        key: str,
        headers: Table | None = None,
    ) -> list[Target]:
        """The queues that a message with this key and these headers would go to."""
        found = self.exchange(principal, vhost, exchange)
        query = RoutingKeys((key,), NO_PROPERTIES, lambda: headers or {})
        scope = self._topology.vhost(vhost)
        find_topic = self._publishing.find_topic
        targets = walk(scope, found, query, find_topic, to_topics=True).targets
        return [each for each in targets if self._sees(principal, "queue", vhost, each.name)]

    def is_topic(self, name: str) -> bool:
        """Whether there is a topic of that name, somebody's queue or not."""
        return self._publishing.find_topic(name) is not None

    def add_queue(self, vhost: str, queue: Target, *, is_shared: bool = False) -> None:
        """Messages can be routed to this queue from now on; on each start, too.

        One that `is_shared` is read from a topic that was there before.
        """
        if queue.topic:
            self._publishing.mark(queue.topic)
        self._topology.add_queue(vhost, queue)
        if is_shared:
            self._topology.vhost(vhost).shared.add(queue.name)
            self._access.shared_topics.add(queue.topic)
            self._senders.forget()

    def remove_queue(self, vhost: str, name: str) -> None:
        """A queue is gone, and with it what leads there."""
        found = self._topology.vhosts.get(vhost)
        if found is not None and name in found.shared:
            self._access.shared_topics.discard(found.queues[name].topic)
        self._topology.remove_queue(vhost, name)

    def check_dead_letters(
        self, principal: Principal, vhost: str, queue: str, arguments: Mapping[str, object]
    ) -> None:
        """They must be allowed what a queue with these arguments does with its dead letters.

        As in RabbitMQ: what may be read there is what may be written where it ends.
        """
        exchange, key = (arguments.get(f"x-dead-letter-{each}") for each in _DEAD_LETTER)
        if exchange is None or not self._guarded:
            return
        self._check(principal, "consume", "queue", vhost, queue)
        self._check(principal, "publish", "exchange", vhost, str(exchange))
        if not exchange and key is not None:
            self._check_key(principal, vhost, str(key))

    # -- publishing ----------------------------------------------------------------------------

    def _check_publish(self, principal: Principal, vhost: str, exchange: str, key: str) -> None:
        """They must be allowed to send there; of an exchange that is known from then on."""
        scope, senders = f"{vhost}\0{exchange}", self._senders
        is_known = (
            scope in senders.scopes
            if principal is senders.last
            else senders.turn_to(principal, scope)
        )
        if not is_known:
            self._check(principal, "publish", "exchange", vhost, exchange)
            senders.remember(principal, scope)
        if not exchange:
            self._check_key(principal, vhost, key)

    def _check_key(self, principal: Principal, vhost: str, key: str) -> None:
        """They must be allowed to send where the default exchange leads from that key.

        Its permission is for all queues, but not for topics, nor for what is denied by name.
        """
        found, scope = self._topology.vhost(vhost), f"{vhost}\0\0{key}"
        queue = found.queues.get(key)
        if queue is None:
            if is_topic(found, key, self._publishing.find_topic):
                self._access.check(principal, "publish", ("topic", key))
        elif scope not in self._senders.scopes or principal is not self._senders.last:
            resource: Resource = ("queue", named_for_access(vhost, key))
            if key in found.shared:
                self._access.check(principal, "publish", ("topic", queue.topic))
            elif self._access.forbids(principal, "publish", resource):
                raise not_permitted(principal, "publish", "queue", " ".join(resource))
            self._senders.remember(principal, scope)
