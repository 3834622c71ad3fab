"""Where routed messages end: queues, whoever keeps them, and the routes that lead there.

A queue that is kept in the log has a topic, and its messages are entries in that topic's queues. A
queue in memory has none, and is handed each message at once. Routing knows no more of them.

Invariant: a route is made once and never changed; what it was made of tells whether it still holds.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onelog.message import Buffer

Group = tuple[str, int, tuple[str, ...]]
"""A topic, a queue id, and the further topics that get an entry in their queue of that id."""


class Target(Protocol):
    """A queue, as publishing sees it."""

    @property
    def name(self) -> str:
        """Its name, in its vhost."""

    @property
    def topic(self) -> str:
        """The topic that it is; empty if it is in memory."""

    @property
    def is_durable(self) -> bool:
        """Whether it is there after a restart."""

    @property
    def levels(self) -> int:
        """Its highest priority: that of a message is the id of the queue it goes to. 0: none."""

    @property
    def is_limited(self) -> bool:
        """Whether it has to be asked before it gets a message."""

    def admits(self, body: bytes, form: int) -> bool:
        """Whether it takes a message: the body of a record, and the form's flag.

        One that is in the log counts it from now on, until its entry is there.
        """

    def put(self, body: bytes, form: int, priority: int) -> None:
        """Of a queue in memory: take a message."""

    def put_all(self, bodies: Sequence[bytes], form: int) -> None:
        """The same for messages that are alike but for their payload, which has one length."""


class DeadLetter(NamedTuple):
    """A message that the broker itself sends on: a dead letter."""

    vhost: str
    exchange: str
    keys: tuple[str, ...]
    """The first is its routing key; the others count like those of CC."""
    properties: bytes
    body: Buffer
    not_to: frozenset[str] = frozenset()
    """Queues that it does not go to, whatever is bound."""
    is_authorized: bool = True
    """Whether it was asked if letters may go where this key says: not, if it is a message's own."""


class RoutedTargets:
    """All targets of a key, and how a message is appended for them."""

    __slots__ = ("groups", "head", "is_plain", "is_short", "limited", "memory", "targets")

    def __init__(self, head: bytes, targets: Sequence[Target], groups: Sequence[Group]) -> None:
        self.head = head
        """What the body of a record in AMQP's form begins with: the exchange and the key."""
        self.targets = tuple(targets)
        self.groups = tuple(groups)
        """For the log, if no priority matters and nobody refuses."""
        self.memory = tuple(target for target in targets if not target.topic)
        self.limited = any(target.is_limited or target.levels for target in targets)
        self.is_plain = len(groups) == 1 and not self.memory and not self.limited
        is_alone = self.is_plain and not groups[0][2]
        self.is_short = is_alone or bool(self.memory and not groups and not self.limited)
        """Whether messages can take it many at a time: to one queue in the log, or to memory."""
