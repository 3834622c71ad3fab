"""Who asks, and whether they may.

Everything that is done for a peer is done for a `Principal`. Without users everybody may do
everything; `core.users` decides once there are some.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from onelog.errors import NotPermittedError

Action = Literal["publish", "consume", "create", "alter", "delete", "describe"]
"""Whoever lets somebody do one of the others should let him describe the same thing, too: clients
have to find out what they work with. The retry topics of a group come with the group."""
Kind = Literal["topic", "group", "broker", "exchange", "queue", "vhost", "transaction", "mqtt"]
Resource = tuple[Kind, str]
"""What something is done to, and its name: for `mqtt` a topic, or a filter that stands for many."""


class Principal(NamedTuple):
    """Somebody who asks: who they say they are, in which protocol, and from where."""

    name: str
    protocol: str
    address: str = ""


SELF = Principal("broker", "none")
"""The broker, when it does something of its own accord."""


ADMINISTRATION = frozenset(("create", "alter", "delete"))
"""What is noted, whoever does it."""


SENDERS_MAX = 100_000


class Senders:
    """Who may send where, as far as that was asked: looked at for each message.

    A client sends many at a time, so that mostly it is the `last` one, and to look for the place
    among his (`places`) is all there is to do.
    """

    __slots__ = ("_count", "_known", "last", "places")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Something has changed: everything is to be asked anew."""
        self.last: Principal | None = None
        self.places: set[str] = set()
        self._known: dict[Principal, set[str]] = {}
        self._count = 0

    def turn_to(self, who: Principal, place: str) -> bool:
        """Make him the last one; whether it is known that he may send there."""
        places = self._known.get(who)
        if places is None:
            return False
        self.last, self.places = who, places
        return place in places

    def remember(self, who: Principal, place: str) -> None:
        """Somebody may send there, until something changes."""
        if self._count >= SENDERS_MAX:
            self.forget()
        self._count += 1
        self._known.setdefault(who, set()).add(place)
        self.turn_to(who, place)


class Auditor(Protocol):
    """Who notes what administrators do."""

    def asked(self, who: Principal, action: str, resource: Resource, allowed: bool) -> None:
        """Somebody wants to make, change or delete something, and may or may not."""

    def note(self, who: Principal, action: str, thing: str, result: str) -> None:
        """Something else to be noted."""


class Access:
    """Lets everybody do everything."""

    audit: Auditor | None = None

    def __init__(self) -> None:
        self.senders = Senders()

    is_open = True
    """Whether that is so: who is in a hurry need not ask then."""

    def may(self, who: Principal, action: Action, resource: Resource) -> bool:
        """Whether they may."""
        return True

    def may_some(self, who: Principal, kinds: Sequence[Kind]) -> bool:
        """Whether they may do anything to things of these kinds."""
        return True

    def check(self, who: Principal, action: Action, resource: Resource) -> None:
        """`NotPermittedError` if they may not."""
        allowed = self.is_open or self.may(who, action, resource)
        if action in ADMINISTRATION and self.audit is not None:
            self.audit.asked(who, action, resource, allowed)
        if not allowed:
            error = NotPermittedError(
                f"{who.name or who.address} may not {action} {resource[0]} {resource[1]}"
            )
            error.kind = resource[0]
            raise error
