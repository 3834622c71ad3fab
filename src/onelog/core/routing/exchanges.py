"""Exchanges, and how each kind of them chooses among its bindings.

    direct              the binding's key is the message's
    fanout              all
    topic               the binding's key is a pattern of words: `*` is one, `#` any number
    headers             the binding's arguments name headers: x-match says how many must be there
    x-consistent-hash   one of them, by a hash of the key (or of a header, or a property); the
                        binding's key is its weight
    x-modulus-hash      one of them, by a hash of the key
    x-random            one of them
    x-delayed-message   as x-delayed-type says, after the milliseconds in the header x-delay

A topic binding with an argument `x-mqtt` is one of MQTT's: there keys that begin with `$` are not
matched by patterns that begin with a wildcard.

Invariant: `match` answers from the bindings that were added and not removed, and from nothing else.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from onelog.core.routing import arguments as argument_values
from onelog.core.routing.targets import RoutedTargets
from onelog.core.routing.topic_trie import TopicTrie
from onelog.errors import PreconditionFailedError
from onelog.names import join_key
from onelog.record.forms.amqp_fields import (
    PROPERTIES,
    Table,
    Value,
    is_number,
    property_of,
    same,
)

DestinationKind = Literal["queue", "exchange", "topic"]
Destination = tuple[DestinationKind, str]
Headers = Callable[[], Table]
"""Reads the headers of a message, which most exchanges never look at."""
DELAYED = "x-delayed-message"
DELAYED_TYPE = "x-delayed-type"
ALTERNATE = "alternate-exchange"
WEIGHT_MAX = 10_000
_MQTT = "x-mqtt"
_WILD = ("*", "#")
_MATCHES = ("all", "any", "all-with-x", "any-with-x")


class Binding(NamedTuple):
    """What leads from an exchange to a queue, another exchange, or a topic."""

    source: str
    kind: DestinationKind
    destination: str
    key: str
    arguments: Table
    durable: bool

    @property
    def identity(self) -> tuple[DestinationKind, str, str, str]:
        """What no other binding of the same exchange has."""
        return self.kind, self.destination, self.key, argument_values.identity(self.arguments)

    def table_key(self, vhost: str) -> str:
        """Its key in the durable table."""
        return join_key(vhost, self.source, *self.identity)

    @property
    def properties_key(self) -> str:
        """What RabbitMQ's HTTP API calls it among those between the same two."""
        if not self.arguments:
            return self.key or "~"
        return f"{self.key}~{zlib.crc32(self.identity[3].encode()):08x}"


class RoutingKeys(NamedTuple):
    """What of a message decides where it goes."""

    keys: tuple[str, ...]
    """Its own, and those of CC and BCC."""
    properties: bytes
    headers: Headers


class Matcher(Protocol):
    """How a kind of exchange chooses."""

    by_key: bool
    """Whether the keys decide alone, so that the choice can be remembered."""

    def add(self, binding: Binding) -> None:
        """Take a binding in."""

    def remove(self, binding: Binding) -> None:
        """Take it out."""

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        """Where a message goes; the same place may come more than once."""


class DirectMatcher:
    """The binding's key is the message's."""

    by_key = True

    def __init__(self) -> None:
        self._bound: dict[str, dict[Destination, int]] = {}

    def add(self, binding: Binding) -> None:
        bound = self._bound.setdefault(binding.key, {})
        destination = binding.kind, binding.destination
        bound[destination] = bound.get(destination, 0) + 1

    def remove(self, binding: Binding) -> None:
        bound = self._bound[binding.key]
        destination = binding.kind, binding.destination
        bound[destination] -= 1
        if not bound[destination]:
            del bound[destination]
        if not bound:
            del self._bound[binding.key]

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        """Those bound with one of the keys."""
        for key in query.keys:
            yield from self._bound.get(key, ())


class Fanout(DirectMatcher):
    """All bindings."""

    def add(self, binding: Binding) -> None:
        super().add(binding._replace(key=""))

    def remove(self, binding: Binding) -> None:
        super().remove(binding._replace(key=""))

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        yield from self._bound.get("", ())


class TopicMatcher:
    """The binding's key is a pattern."""

    by_key = True

    def __init__(self) -> None:
        self._trie: TopicTrie[tuple[Destination, str, bool]] = TopicTrie()

    @staticmethod
    def _entry(binding: Binding) -> tuple[Destination, str, bool]:
        is_shy = _MQTT in binding.arguments and binding.key.startswith(_WILD)
        return (binding.kind, binding.destination), binding.identity[3], is_shy

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.key, self._entry(binding))

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding.key, self._entry(binding))

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        """Those whose pattern one of the keys matches."""
        for key in query.keys:
            for destination, _, is_shy in self._trie.match(key):
                if not is_shy or not key.startswith("$"):
                    yield destination


class HeadersMatch:
    """The binding's arguments name headers, and say how many of them have to be there."""

    by_key = False

    def __init__(self) -> None:
        self._bound: dict[tuple[str, ...], tuple[Binding, bool, list[tuple[str, Value]]]] = {}

    def add(self, binding: Binding) -> None:
        how = binding.arguments.get("x-match", "all")
        if how not in _MATCHES:
            raise PreconditionFailedError(
                f"Invalid x-match field value {how!r}; expected all, any, all-with-x or any-with-x"
            )
        with_x = str(how).endswith("-with-x")
        wanted = [
            (name, value)
            for name, value in binding.arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        ]
        self._bound[binding.identity] = binding, str(how).startswith("all"), wanted

    def remove(self, binding: Binding) -> None:
        del self._bound[binding.identity]

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        """Those whose headers the message has."""
        if not self._bound:
            return
        headers = query.headers()
        for binding, wants_all, wanted in self._bound.values():
            # No value in the binding asks for the header, whatever its value.
            found = (
                name in headers and (value is None or _matches(value, headers[name]))
                for name, value in wanted
            )
            if all(found) if wants_all else any(found):
                yield binding.kind, binding.destination


def _matches(wanted: Value, value: Value) -> bool:
    """To match headers, RabbitMQ compares numbers of any class: 10 is 10.0 here."""
    if is_number(wanted) and is_number(value):
        return wanted == value
    return same(wanted, value)


class ConsistentHash:
    """One of the bindings, by a hash: few keys move when a binding comes or goes."""

    def __init__(self, arguments: Table) -> None:
        self._header, self._property = arguments.get("hash-header"), arguments.get("hash-property")
        if self._header and self._property:
            raise PreconditionFailedError("hash-header and hash-property are mutually exclusive")
        known = {"correlation_id", "message_id", "timestamp"}
        if self._property is not None and self._property not in known:
            raise PreconditionFailedError(
                f"Unsupported property: {self._property!r}; expected one of {sorted(known)}"
            )
        assert known <= dict(PROPERTIES).keys()
        self.by_key = self._header is None and self._property is None
        self._weights: dict[tuple[str, ...], tuple[Destination, int]] = {}

    @staticmethod
    def _weight(binding: Binding) -> int:
        key = binding.key
        if not (key.isascii() and key.isdigit() and 0 <= int(key) <= WEIGHT_MAX):
            raise PreconditionFailedError(
                f"The binding key must be an integer from 0 to {WEIGHT_MAX}: {key!r}"
            )
        return int(key)

    def add(self, binding: Binding) -> None:
        weight = self._weight(binding)
        self._weights[binding.identity] = (binding.kind, binding.destination), weight

    def remove(self, binding: Binding) -> None:
        del self._weights[binding.identity]

    def _hashed(self, query: RoutingKeys) -> str:
        if self._header is not None:
            return repr(query.headers().get(str(self._header)))
        if self._property is not None:
            return repr(property_of(query.properties, str(self._property)))
        return query.keys[0]

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        """The one that scores best: rendezvous hashing, with weights."""
        text = self._hashed(query).encode("utf-8", "surrogateescape")
        best: Destination | None = None
        best_score = -1.0
        for destination, weight in self._weights.values():
            if weight:
                seed = f"{destination[0]}@{destination[1]}".encode("utf-8", "surrogateescape")
                score = _unit(seed, text) ** (1.0 / weight)
                if score > best_score:
                    best, best_score = destination, score
        if best is not None:
            yield best


class OneOf:
    """One of the bindings: by a hash of the key, or at random."""

    def __init__(self, random: Random | None) -> None:
        self.by_key = random is None
        self._random = random
        self._bound: dict[tuple[str, ...], Destination] = {}

    def add(self, binding: Binding) -> None:
        self._bound[binding.identity] = binding.kind, binding.destination

    def remove(self, binding: Binding) -> None:
        del self._bound[binding.identity]

    def match(self, query: RoutingKeys) -> Iterator[Destination]:
        """One, if there is any."""
        if self._bound:
            destinations = list(self._bound.values())
            text = query.keys[0].encode("utf-8", "surrogateescape")
            at = (
                zlib.crc32(text)
                if self._random is None
                else self._random.randrange(len(destinations))
            )
            yield destinations[at % len(destinations)]


def _unit(seed: bytes, text: bytes) -> float:
    """A number between 0 and 1 that looks random, and is the same for the same bytes."""
    mixed = zlib.crc32(text, zlib.crc32(seed))
    # A CRC is linear: without this, neighbours would score alike.
    mixed = (mixed ^ mixed >> 16) * 0x45D9F3B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return ((mixed ^ mixed >> 16) + 0.5) / 4_294_967_296


FOUND = (DirectMatcher, TopicMatcher)
"""Those that find bindings without a look at each of them."""
MATCHERS: dict[str, Callable[[Table, Random], Matcher]] = {
    "direct": lambda arguments, random: DirectMatcher(),
    "fanout": lambda arguments, random: Fanout(),
    "topic": lambda arguments, random: TopicMatcher(),
    "headers": lambda arguments, random: HeadersMatch(),
    "x-consistent-hash": lambda arguments, random: ConsistentHash(arguments),
    "x-modulus-hash": lambda arguments, random: OneOf(None),
    "x-random": lambda arguments, random: OneOf(random),
    "x-local-random": lambda arguments, random: OneOf(random),
}


def matcher_of(kind: str, arguments: Table, random: Random) -> Matcher:
    """How an exchange of this kind chooses; `PreconditionFailedError` if there is no such kind."""
    if kind == DELAYED:
        inner = arguments.get(DELAYED_TYPE)
        if not isinstance(inner, str) or inner not in MATCHERS:
            raise PreconditionFailedError(
                f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
            )
        kind = inner
    make = MATCHERS.get(kind)
    if make is None:
        raise PreconditionFailedError(f"invalid exchange type '{kind}'")
    return make(arguments, random)


@dataclass(slots=True, eq=False)
class Exchange:
    """An exchange: what was declared, its bindings, and the routes of keys that were seen."""

    vhost: str
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    matcher: Matcher
    bindings: dict[tuple[str, ...], Binding] = field(default_factory=dict)
    """Those from it, by identity."""
    routes: dict[str, RoutedTargets] = field(default_factory=dict)
    """What publishing looks at: where a key leads to, as long as nothing changes."""
    is_predeclared: bool = False
    policy_alternate: str | None = None
    """The alternate exchange that a policy gives it, where it was declared with none."""

    @property
    def alternate(self) -> str | None:
        """Where messages go that no binding wants."""
        found = self.arguments.get(ALTERNATE)
        return found if isinstance(found, str) else self.policy_alternate

    @property
    def delays(self) -> bool:
        """Whether messages may have to wait here."""
        return self.kind == DELAYED

    def as_json(self) -> dict[str, Any]:
        """What the durable table keeps."""
        return {
            "kind": self.kind,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": argument_values.to_json(self.arguments),
        }


def predeclared(vhost: str, random: Random) -> Sequence[Exchange]:
    """The exchanges that every vhost has."""
    kinds = {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }
    return [
        Exchange(
            vhost,
            name,
            kind,
            True,
            False,
            name == "amq.rabbitmq.trace",
            {},
            matcher_of(kind, {}, random),
            is_predeclared=True,
        )
        for name, kind in kinds.items()
    ]
