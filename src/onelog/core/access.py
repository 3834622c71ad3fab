"""Who asks, and whether they may.

Everything that is done for a peer is done for a `Principal`. Without users everybody may do
everything; `core.users` decides once there are some.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

from onelog.core.catalog.settings import Named
from onelog.errors import NotPermittedError
from onelog.names import INTERNAL_PREFIXES, OWN_PREFIX

if TYPE_CHECKING:
    from onelog.core.catalog.names import Naming

_Named = TypeVar("_Named", bound=Named)

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


EVERYBODYS: Resource = ("broker", "names")
"""Who may describe this, may see the names and the messages of everybody."""
ADMINISTRATION = frozenset(("create", "alter", "delete"))
"""What is noted, whoever does it."""


SENDERS_MAX = 100_000


class Senders:
    """Who may send where, as far as that was asked: looked at for each message.

    A client sends many at a time, so that mostly it is the `last` one, and to look for the place
    among his (`places`) is all there is to do.
    """

    __slots__ = ("_count", "_known", "last", "scopes")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Something has changed: everything is to be asked anew."""
        self.last: Principal | None = None
        self.scopes: set[str] = set()
        self._known: dict[Principal, set[str]] = {}
        self._count = 0

    def turn_to(self, principal: Principal, scope: str) -> bool:
        """Make him the last one; whether it is known that he may send there."""
        places = self._known.get(principal)
        if places is None:
            return False
        self.last, self.scopes = principal, places
        return scope in places

    def remember(self, principal: Principal, scope: str) -> None:
        """Somebody may send there, until something changes."""
        if self._count >= SENDERS_MAX:
            self.forget()
        self._count += 1
        self._known.setdefault(principal, set()).add(scope)
        self.turn_to(principal, scope)


class Auditor(Protocol):
    """Who notes what administrators do."""

    def decided(self, principal: Principal, action: str, resource: Resource, allowed: bool) -> None:
        """Somebody wants to make, change or delete something, and may or may not."""

    def note(self, principal: Principal, action: str, thing: str, result: str) -> None:
        """Something else to be noted."""


class Access:
    """Lets everybody do everything, but read what the broker keeps for itself.

    What holds whatever the permissions are is decided here, once for all protocols.
    """

    audit: Auditor | None = None

    def __init__(self) -> None:
        self.senders = Senders()
        self.shared_topics: set[str] = set()
        """Topics that were there before a queue was declared that is read from them."""

    is_open = True
    """Whether that is so: who is in a hurry need not ask then."""

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        if principal is SELF:
            return True
        kind, name = resource
        if kind == "topic" and action == "consume" and name.startswith(INTERNAL_PREFIXES):
            # Tables are nobody's. Where messages wait, those may look who may see everything.
            sees_all = self.permits(principal, "describe", EVERYBODYS)
            return (
                sees_all
                and not name.startswith(OWN_PREFIX)
                and self.permits(principal, action, resource)
            )
        if kind == "queue" and name in self.shared_topics:
            # Its messages are the topic's. Who declares it again does not make it.
            done: Action = "consume" if action == "create" else action
            if not self.may(principal, done, ("topic", name)):
                return False
        return self.permits(principal, action, resource)

    def forbids(self, principal: Principal, action: Action, resource: Resource) -> bool:
        """Whether a permission denies it, whatever others allow."""
        return False

    def permits(self, principal: Principal, action: Action, resource: Resource) -> bool:
        """What permissions say of it."""
        return True

    def may_some(self, principal: Principal, kinds: Sequence[Kind]) -> bool:
        """Whether they may do anything to things of these kinds."""
        return True

    def check_consumer(
        self, principal: Principal, group: str | None, topic: str, naming: "Naming"
    ) -> None:
        """They must be allowed the group, and the topic; a group's retry topic is its own."""
        if not self.is_open or topic.startswith(OWN_PREFIX):
            if group is not None:
                self.check(principal, "consume", ("group", group))
            if group is None or topic != naming.retry_topic(group):
                self.check(principal, "consume", ("topic", topic))

    def check_group_topic(
        self, principal: Principal, group: str, topic: str, naming: "Naming"
    ) -> None:
        """They must be allowed to know of the topic; a group's retry topic is its own."""
        if topic != naming.retry_topic(group):
            self.check(principal, "describe", ("topic", topic))

    def seen(self, principal: Principal, kind: Kind, found: list[_Named]) -> list[_Named]:
        """Those that they may know of."""
        if self.is_open:
            return found
        return [each for each in found if self.may(principal, "describe", (kind, each.name))]

    def known(self, principal: Principal, kind: Kind, names: list[str]) -> list[str]:
        """Those of some names that they may know of."""
        if self.is_open:
            return names
        return [each for each in names if self.may(principal, "describe", (kind, each))]

    def check(self, principal: Principal, action: Action, resource: Resource) -> None:
        """`NotPermittedError` if they may not."""
        kind, name = resource
        # Most of what is asked, answered without a call: `may` says the same.
        is_open = self.is_open and (
            kind == "group"
            or (kind == "topic" and (action != "consume" or not name.startswith(INTERNAL_PREFIXES)))
        )
        allowed = is_open or self.may(principal, action, resource)
        if action in ADMINISTRATION and self.audit is not None:
            self.audit.decided(principal, action, resource, allowed)
        if not allowed:
            raise not_permitted(principal, action, kind, f"{kind} {name}")


def not_permitted(principal: Principal, action: Action, kind: str, thing: str) -> NotPermittedError:
    """What somebody is told who may not do that to a thing of a kind."""
    error = NotPermittedError(f"{principal.name or principal.address} may not {action} {thing}")
    error.kind = kind
    return error
