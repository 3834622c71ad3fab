"""What there is to route with: vhosts, exchanges and bindings, as durable tables.

    table "vhosts"      {vhost: {"description": text, "tags": [text, ...]}}
    table "exchanges"   {vhost@name: {"kind", "auto_delete", "internal", "arguments"}}
    table "bindings"    {vhost@source@kind@destination@key@arguments: {"arguments"}}

Exchanges that are not durable, and bindings of which one end is not, are in memory only. The vhost
`/` and the exchanges that every vhost has are there without a record.

Everything that a change brings with it is in the same record: bindings go with what they are from
or lead to, and with the last binding from it an exchange that deletes itself.

Invariant: a binding's exchange is there. A route that is kept (`Exchange.routes`) is what the
bindings say now: whatever changes them drops the routes of every exchange that leads there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from onelog.core.durable.tables import Change, Tables, in_parts
from onelog.core.routing import arguments as argument_values
from onelog.core.routing.exchanges import (
    ALTERNATE,
    FOUND,
    Binding,
    Destination,
    DestinationKind,
    Exchange,
    matcher_of,
    predeclared,
)
from onelog.core.routing.names import DEFAULT_VHOST
from onelog.core.routing.targets import Target
from onelog.errors import (
    AccessRefusedError,
    ExchangeNotFoundError,
    InvalidRequestError,
    PreconditionFailedError,
    QueueNotFoundError,
    TopicNotFoundError,
    VhostNotFoundError,
)
from onelog.names import check_name, join_key, split_key
from onelog.record.forms.amqp_fields import Table, same

VHOSTS, EXCHANGES, BINDINGS = "vhosts", "exchanges", "bindings"
VHOSTS_MAX = 10_000
EXCHANGES_MAX = 100_000
"""In a vhost."""
BINDINGS_MAX = 1_000_000
BINDINGS_LOOKED_AT_MAX = 5_000
"""Of an exchange; and of one that looks at each of them for a message."""
_RESERVED = "amq."


@dataclass(slots=True, eq=False)
class Vhost:
    """A vhost: its exchanges, and the queues that messages are routed to."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    queues: dict[str, Target] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    """Queues that are read from topics which were there before: who sends there has to be asked."""
    to: dict[Destination, dict[tuple[str, ...], Binding]] = field(default_factory=dict)
    """Bindings by where they lead."""
    alternates: dict[str, set[str]] = field(default_factory=dict)
    """Exchanges by their alternate exchange."""

    def exchange(self, name: str) -> Exchange:
        """The exchange, or `ExchangeNotFoundError`."""
        found = self.exchanges.get(name)
        if found is None:
            raise ExchangeNotFoundError(f"no exchange '{name}' in vhost '{self.name}'")
        return found


class _Part:
    """One of the durable tables."""

    def __init__(
        self,
        name: str,
        apply: Callable[[str, Any], None],
        parts: Callable[[], Iterator[dict[str, Any]]],
    ) -> None:
        self.name = name
        self.apply = apply
        self.parts = parts


class Topology:
    """All vhosts."""

    def __init__(self, tables: Tables, random: Random, has_topic: Callable[[str], bool]) -> None:
        self._tables = tables
        self._random = random
        self._has_topic = has_topic
        self.policy_alternate: Callable[[Exchange], str | None] = lambda exchange: None
        """What policies say of an exchange."""
        self.vhosts: dict[str, Vhost] = {}
        self._add_vhost(DEFAULT_VHOST, {})
        self.tables = (
            _Part(VHOSTS, self._apply_vhost, self._vhost_parts),
            _Part(EXCHANGES, self._apply_exchange, self._exchange_parts),
            _Part(BINDINGS, self._apply_binding, self._binding_parts),
        )

    # -- the tables ----------------------------------------------------------------------------

    def _add_vhost(self, name: str, settings: Mapping[str, Any]) -> None:
        made = Vhost(name, settings.get("description", ""), tuple(settings.get("tags", ())))
        made.exchanges = {each.name: each for each in predeclared(name, self._random)}
        self.vhosts[name] = made
        self.policies_changed(name)

    def _apply_vhost(self, key: str, value: Any) -> None:
        if value is None:
            self.vhosts.pop(key, None)
        elif (found := self.vhosts.get(key)) is not None:
            found.description, found.tags = value.get("description", ""), tuple(value["tags"])
        else:
            self._add_vhost(key, value)

    def _vhost_parts(self) -> Iterator[dict[str, Any]]:
        yield {
            name: {"description": each.description, "tags": list(each.tags)}
            for name, each in self.vhosts.items()
            if name != DEFAULT_VHOST or each.description or each.tags
        }

    def _apply_exchange(self, key: str, value: Any) -> None:
        vhost_name, name = split_key(key)
        vhost = self.vhosts.get(vhost_name)
        if vhost is None:
            if value is not None:
                self._require_gone(VHOSTS, vhost_name)
            return  # It went with its vhost.
        before = vhost.exchanges.get(name)
        if before is not None:
            self._forget_routes(vhost, ("exchange", name))
        if value is None:
            if before is not None:
                del vhost.exchanges[name]
                for identity, binding in before.bindings.items():  # Those that nobody recorded.
                    _drop(vhost.to, (binding.kind, binding.destination), (name, *identity))
                if before.alternate is not None:
                    vhost.alternates.get(before.alternate, set()).discard(name)
            return
        arguments = argument_values.from_json(value["arguments"])
        made = Exchange(
            vhost_name,
            name,
            value["kind"],
            value.get("durable", True),
            value["auto_delete"],
            value["internal"],
            arguments,
            matcher_of(value["kind"], arguments, self._random),
        )
        if before is not None:  # It is told again.
            for binding in before.bindings.values():
                made.bindings[binding.identity] = binding
                made.matcher.add(binding)
        vhost.exchanges[name] = made
        made.policy_alternate = self.policy_alternate(made)
        if made.alternate is not None:
            vhost.alternates.setdefault(made.alternate, set()).add(name)
        # Somebody may lead here already: an alternate exchange need not be there first.
        self._forget_routes(vhost, ("exchange", name))

    def _require_gone(self, table: str, key: str) -> None:
        """Raises if what is missing is there: then what belongs to it waits for it."""
        if self._tables.is_aside(table, key):
            raise InvalidRequestError(f"it belongs to {key} of {table}, which cannot be read")

    def _exchange_parts(self) -> Iterator[dict[str, Any]]:
        for vhost in list(self.vhosts.values()):
            for part in in_parts(vhost.exchanges):
                yield {
                    join_key(vhost.name, name): each.as_json()
                    for name, each in part
                    if each.durable and not each.is_predeclared
                }

    def _apply_binding(self, key: str, value: Any) -> None:
        vhost_name, source, kind, destination, routing_key, _ = split_key(key, 6)
        vhost = self.vhosts.get(vhost_name)
        exchange = None if vhost is None else vhost.exchanges.get(source)
        if vhost is None or exchange is None:
            if value is not None:
                self._require_gone(VHOSTS, vhost_name)
                self._require_gone(EXCHANGES, join_key(vhost_name, source))
            return
        target: Destination = (kind, destination)  # type: ignore[assignment]
        identity = (*target, routing_key, split_key(key, 6)[5])
        before = exchange.bindings.pop(identity, None)
        if before is not None:
            exchange.matcher.remove(before)
            _drop(vhost.to, target, (source, *identity))
        if value is not None:
            arguments = argument_values.from_json(value["arguments"])
            durable = value.get("durable", True)
            made = Binding(source, *target, routing_key, arguments, durable)
            exchange.matcher.add(made)
            exchange.bindings[identity] = made
            vhost.to.setdefault(target, {})[source, *identity] = made
        self._forget_routes(vhost, ("exchange", source))

    def _binding_parts(self) -> Iterator[dict[str, Any]]:
        for vhost in list(self.vhosts.values()):
            for exchange in list(vhost.exchanges.values()):
                for part in in_parts(exchange.bindings):
                    yield {
                        each.table_key(vhost.name): {
                            "arguments": argument_values.to_json(each.arguments)
                        }
                        for _, each in part
                        if each.durable
                    }

    def _forget_routes(self, vhost: Vhost, target: Destination) -> None:
        """Something about a place has changed: whatever leads there looks anew."""
        seen, left = {target}, [target]
        while left:
            target = left.pop()
            leading = [("exchange", each.source) for each in vhost.to.get(target, {}).values()]
            if target[0] == "exchange":
                if (exchange := vhost.exchanges.get(target[1])) is not None:
                    exchange.routes.clear()
                leading += [("exchange", name) for name in vhost.alternates.get(target[1], ())]
            for each in leading:
                if each not in seen:
                    seen.add(each)  # type: ignore[arg-type]
                    left.append(each)  # type: ignore[arg-type]

    def _write(self, changes: Iterable[tuple[Change, bool]]) -> None:
        """Make changes, and record those that are durable."""
        every = list(changes)
        self._tables.write([change for change, durable in every if durable])
        self._tables.apply([change for change, durable in every if not durable])

    # -- vhosts --------------------------------------------------------------------------------

    def vhost(self, name: str) -> Vhost:
        """The vhost, or `VhostNotFoundError`."""
        found = self.vhosts.get(name)
        if found is None:
            raise VhostNotFoundError(f"vhost {name} not found")
        return found

    def declare_vhost(self, name: str, description: str, tags: Iterable[str]) -> None:
        """Make a vhost, or change what is said of it."""
        check_name(name, "vhost", PreconditionFailedError)
        if name not in self.vhosts and len(self.vhosts) >= VHOSTS_MAX:
            raise PreconditionFailedError(f"there are {VHOSTS_MAX} vhosts, which is the limit")
        settings = {"description": description, "tags": list(tags)}
        self._tables.write([(VHOSTS, name, settings)])

    def check_deletable(self, name: str) -> None:
        """`AccessRefusedError` or `VhostNotFoundError`, if a vhost cannot be deleted."""
        if name == DEFAULT_VHOST:
            raise AccessRefusedError(f"vhost '{DEFAULT_VHOST}' cannot be deleted")
        self.vhost(name)

    def delete_vhost(self, name: str) -> None:
        """Forget a vhost, whose queues are gone, with all that is in it."""
        self.check_deletable(name)
        vhost = self.vhost(name)
        changes: list[Change] = [
            (BINDINGS, binding.table_key(name), None)
            for exchange in vhost.exchanges.values()
            for binding in exchange.bindings.values()
            if binding.durable
        ]
        changes += [
            (EXCHANGES, join_key(name, each.name), None)
            for each in vhost.exchanges.values()
            if each.durable and not each.is_predeclared
        ]
        self._tables.write([*changes, (VHOSTS, name, None)])

    # -- exchanges -----------------------------------------------------------------------------

    def declare_exchange(self, declared: Exchange) -> Exchange:
        """The exchange of that name, which has to be as declared, or is made."""
        vhost = self.vhost(declared.vhost)
        check_exchange_name(declared.name, "declared again")
        found = vhost.exchanges.get(declared.name)
        if found is not None:
            _check_equivalent(found, declared)
            return found
        check_exchange_name(declared.name)
        if len(vhost.exchanges) >= EXCHANGES_MAX:
            raise PreconditionFailedError(
                f"vhost '{vhost.name}' has {EXCHANGES_MAX} exchanges, which is the limit"
            )
        alternate = declared.arguments.get(ALTERNATE)
        if alternate is not None and not isinstance(alternate, str):
            raise PreconditionFailedError(f"invalid arg '{ALTERNATE}' for exchange")
        value = declared.as_json()
        if not declared.durable:
            value["durable"] = False
        change = (EXCHANGES, join_key(vhost.name, declared.name), value)
        self._write([(change, declared.durable)])
        return vhost.exchanges[declared.name]

    def delete_exchange(self, vhost_name: str, name: str, *, if_unused: bool) -> bool:
        """Forget an exchange; False if there is none."""
        vhost = self.vhost(vhost_name)
        found = vhost.exchanges.get(name)
        check_exchange_name(name)
        if found is None:
            return False
        if if_unused and found.bindings:
            raise PreconditionFailedError(f"exchange '{name}' in vhost '{vhost.name}' in use")
        self._write(self._without_exchanges(vhost, [found]))
        return True

    def _without_exchanges(
        self, vhost: Vhost, gone: list[Exchange]
    ) -> Iterator[tuple[Change, bool]]:
        """All that goes with exchanges, and then goes with that."""
        bindings: dict[str, Binding] = {}
        exchanges: dict[str, Exchange] = {}
        while gone:
            exchange = gone.pop()
            exchanges[exchange.name] = exchange
            leading = vhost.to.get(("exchange", exchange.name), {}).values()
            for binding in (*exchange.bindings.values(), *leading):
                bindings[binding.table_key(vhost.name)] = binding
            gone += self._left_alone(vhost, bindings, exchanges)
        for key, binding in bindings.items():
            yield (BINDINGS, key, None), binding.durable
        for name, exchange in exchanges.items():
            yield (EXCHANGES, join_key(vhost.name, name), None), exchange.durable

    @staticmethod
    def _left_alone(
        vhost: Vhost, bindings: Mapping[str, Binding], known: Mapping[str, Exchange]
    ) -> list[Exchange]:
        """Exchanges that delete themselves, because they lose their last binding by these."""
        lost: dict[str, int] = {}
        for binding in bindings.values():
            lost[binding.source] = lost.get(binding.source, 0) + 1
        return [
            exchange
            for name, count in lost.items()
            if name not in known
            and (exchange := vhost.exchanges[name]).auto_delete
            and len(exchange.bindings) == count
        ]

    # -- bindings ------------------------------------------------------------------------------

    def bind(
        self,
        vhost_name: str,
        source: str,
        target: Destination,
        key: str,
        arguments: Table,
        *,
        instead: bool = False,
    ) -> None:
        """Lead from an exchange to a place; `instead` of those with the same key."""
        vhost, binding = self._binding(vhost_name, source, target, key, arguments)
        exchange = vhost.exchanges[source]
        # What is wrong with the binding shows here, before it is recorded.
        matcher_of(exchange.kind, exchange.arguments, self._random).add(binding)
        changes: list[tuple[Change, bool]] = []
        if instead:
            others = [each for each in exchange.bindings.values() if _is_rival(each, binding)]
            changes += [
                ((BINDINGS, each.table_key(vhost.name), None), each.durable) for each in others
            ]
        elif binding.identity in exchange.bindings:
            return
        most = BINDINGS_MAX if isinstance(exchange.matcher, FOUND) else BINDINGS_LOOKED_AT_MAX
        if len(exchange.bindings) >= most:
            raise PreconditionFailedError(
                f"exchange '{source}' has {most} bindings, which is the limit for its type"
            )
        value: dict[str, Any] = {"arguments": argument_values.to_json(arguments)}
        if not binding.durable:
            value["durable"] = False
        changes.append(((BINDINGS, binding.table_key(vhost.name), value), binding.durable))
        self._write(changes)

    def unbind(
        self, vhost_name: str, source: str, target: Destination, key: str, arguments: Table
    ) -> bool:
        """Lead there no more; False if nothing did."""
        vhost = self.vhost(vhost_name)
        check_exchange_name(source, "default")
        exchange = vhost.exchange(source)
        wanted = Binding(source, *target, key, arguments, False).identity
        binding = exchange.bindings.get(wanted)
        if binding is None:
            return False
        self._write(self._without_bindings(vhost, [binding]))
        return True

    def _without_bindings(
        self, vhost: Vhost, gone: Iterable[Binding]
    ) -> Iterator[tuple[Change, bool]]:
        bindings = {binding.table_key(vhost.name): binding for binding in gone}
        for key, binding in bindings.items():
            yield (BINDINGS, key, None), binding.durable
        yield from self._without_exchanges(vhost, self._left_alone(vhost, bindings, {}))

    def _binding(
        self, vhost_name: str, source: str, target: Destination, key: str, arguments: Table
    ) -> tuple[Vhost, Binding]:
        vhost = self.vhost(vhost_name)
        check_exchange_name(source, "default")
        exchange = vhost.exchange(source)
        durable = self._is_durable(vhost, *target) and exchange.durable
        return vhost, Binding(source, *target, key, arguments, durable)

    def _is_durable(self, vhost: Vhost, kind: DestinationKind, name: str) -> bool:
        """Whether a place outlives a restart; it must be there."""
        if kind == "exchange":
            check_exchange_name(name, "default")
            return vhost.exchange(name).durable
        if kind == "topic":
            if not self._has_topic(name):
                raise TopicNotFoundError(f"topic[{name}] not exist, apply first please!")
            return True
        queue = vhost.queues.get(name)
        if queue is None:
            raise QueueNotFoundError(f"no queue '{name}' in vhost '{vhost.name}'")
        return queue.is_durable

    def policies_changed(self, vhost_name: str) -> None:
        """Policies may give exchanges of a vhost other alternate exchanges now."""
        vhost = self.vhost(vhost_name)
        for name, exchange in vhost.exchanges.items():
            before = exchange.alternate
            exchange.policy_alternate = self.policy_alternate(exchange)
            after = exchange.alternate
            if before != after:
                vhost.alternates.get(before or "", set()).discard(name)
                if after is not None:
                    vhost.alternates.setdefault(after, set()).add(name)
                self._forget_routes(vhost, ("exchange", name))

    # -- queues --------------------------------------------------------------------------------

    def add_queue(self, vhost_name: str, queue: Target) -> None:
        """Messages can be routed to this queue from now on."""
        vhost = self.vhost(vhost_name)
        vhost.queues[queue.name] = queue
        self.queue_changed(vhost_name, queue.name)

    def queue_changed(self, vhost_name: str, name: str) -> None:
        """Something about a queue is not as it was: it came, went, or has other limits."""
        vhost = self.vhost(vhost_name)
        vhost.exchanges[""].routes.pop(name, None)
        self._forget_routes(vhost, ("queue", name))
        for alternate in vhost.alternates.get("", ()):
            vhost.exchanges[alternate].routes.clear()

    def topic_changed(self, name: str, config: object) -> None:
        """A topic came, went, or has other settings: the default exchange may lead there."""
        self.queue_changed(DEFAULT_VHOST, name)
        for vhost in self.vhosts.values():
            self._forget_routes(vhost, ("topic", name))

    def remove_queue(self, vhost_name: str, name: str) -> None:
        """A queue is gone, and with it what leads there."""
        vhost = self.vhosts.get(vhost_name)
        if vhost is None or vhost.queues.pop(name, None) is None:
            return
        vhost.shared.discard(name)
        bound = list(vhost.to.get(("queue", name), {}).values())
        self.queue_changed(vhost_name, name)
        if bound:
            self._write(self._without_bindings(vhost, bound))


def _drop(
    to: dict[Destination, dict[tuple[str, ...], Binding]], target: Destination, key: tuple[str, ...]
) -> None:
    bound = to.get(target, {})
    bound.pop(key, None)
    if not bound:
        to.pop(target, None)


def check_exchange_name(name: str, doing: str = "") -> None:
    """`AccessRefusedError` if nobody may declare or delete, or bind (`doing`), that exchange."""
    if not name:
        raise AccessRefusedError("operation not permitted on the default exchange")
    if not doing and name.startswith(_RESERVED):
        raise AccessRefusedError(f"exchange name '{name}' contains reserved prefix '{_RESERVED}*'")


def _is_rival(one: Binding, other: Binding) -> bool:
    return (one.kind, one.destination, one.key) == (other.kind, other.destination, other.key)


def _check_equivalent(found: Exchange, declared: Exchange) -> None:
    """`PreconditionFailedError`, in RabbitMQ's words, if an exchange is not as declared."""
    where = f"for exchange '{found.name}' in vhost '{found.vhost}'"
    for what in ("kind", "durable", "auto_delete", "internal"):
        current, received = getattr(found, what), getattr(declared, what)
        if current != received:
            name = "type" if what == "kind" else what
            raise PreconditionFailedError(
                f"inequivalent arg '{name}' {where}: received '{_said(received)}' but current is "
                f"'{_said(current)}'"
            )
    for name in (ALTERNATE, "x-delayed-type"):
        current, received = found.arguments.get(name), declared.arguments.get(name)
        if not same(current, received):
            raise PreconditionFailedError(
                f"inequivalent arg '{name}' {where}: received {_named(received)} but current is "
                f"{_named(current)}"
            )


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(value: object) -> str:
    return "none" if value is None else f"the value '{value}' of type 'longstr'"
