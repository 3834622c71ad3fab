"""Connections between the simulated nodes: bytes in order, late, in other pieces, or never.

A connection is TCP's: what arrives, arrives in order and once. What can happen to it: delays,
another cut of the bytes, a way that is blocked for a while (in one direction or both), and its end,
which the two sides learn of at different times, or one of them not at all for long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onelog.replication.link import Buffer, Session
from tests.simulation.kernel import Kernel, Life

USUAL_US = (50, 2_000)
BLOCKED_US = 30_000
KERNEL_BYTES = 64 << 10
DIAL_US_MAX = 1_000_000


class Machine(Protocol):
    """A node as the network sees it."""

    number: int
    name: str
    life: Life

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        ...

    def after(self, delay_us: float, call: Callable[[], None]) -> None:
        """Have a call made on it."""
        ...


@dataclass(eq=False)
class End:
    """One end of a connection: the link that a session sends on."""

    network: "Network"
    machine: Machine
    peer: "End" = field(init=False)
    session: Session | None = None
    is_closed: bool = False
    _coming: bytearray = field(default_factory=bytearray)
    """What its peer sent, and has not arrived."""
    _is_due: bool = False
    _ends: bool = False
    """Whether the peer has closed."""

    @property
    def backlog(self) -> int:
        """Bytes that were sent, and are not yet with the kernel."""
        return max(0, len(self.peer._coming) - KERNEL_BYTES)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send buffers, one after the other."""
        if not self.is_closed and not self.peer.is_closed:
            for part in parts:
                self.peer._coming += part
            self.peer._deliver_later()

    def close(self) -> None:
        """Close, once what was sent is gone."""
        if not self.is_closed:
            self.is_closed = True
            self.machine.after(0, self._tell_lost)
            self.peer._ends = True
            self.peer._deliver_later()

    def lose(self, after_us: float) -> None:
        """The connection is gone, though nobody closed it."""
        if not self.is_closed:
            self.is_closed = True
            self._coming.clear()
            self.machine.after(after_us, self._tell_lost)

    def _tell_lost(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.lost()

    def _deliver_later(self) -> None:
        if not self._is_due and not self.is_closed:
            self._is_due = True
            self.machine.after(self.network.delay_us(), self._deliver)

    def _deliver(self) -> None:
        self._is_due = False
        if self.is_closed or self.session is None:
            return
        network = self.network
        if network.is_blocked(self.peer.machine, self.machine):
            self._is_due = True
            self.machine.after(BLOCKED_US, self._deliver)
            return
        size = len(self._coming)
        if size > 1 and network.kernel.chance(0.2):
            size = network.kernel.random.randrange(1, size)
        if size:
            was_backed_up = self.peer.backlog > 0
            piece = bytes(self._coming[:size])
            del self._coming[:size]
            self.session.received(piece)
            if was_backed_up and not self.peer.backlog and not self.peer.is_closed:
                self.peer.machine.after(0, self.peer._tell_ready)
        if self._coming:
            self._deliver_later()
        elif self._ends and not self.is_closed:
            self.is_closed = True
            self._tell_lost()

    def _tell_ready(self) -> None:
        if self.session is not None and not self.is_closed:
            self.session.ready()


@dataclass(eq=False)
class Network:
    """Who can reach whom."""

    kernel: Kernel
    blocked: set[tuple[int, int]] = field(default_factory=set)
    """Ways, from one node to another, that nothing passes. -1 is etcd."""
    ends: list[End] = field(default_factory=list)
    is_slow: bool = False

    def delay_us(self) -> float:
        """How long the next piece takes."""
        usual = self.kernel.random.uniform(*USUAL_US)
        return usual * (100 if self.is_slow or self.kernel.chance(0.01) else 1)

    def is_blocked(self, one: Machine, other: Machine) -> bool:
        """Whether nothing gets from one to the other."""
        return (one.number, other.number) in self.blocked

    def connect(
        self,
        one: Machine,
        other: Machine,
        made: Callable[[End], Session | None],
        accepted: Callable[[End], Session | None],
        failed: Callable[[], None],
    ) -> None:
        """Connect one to the other; the callbacks are called on their machines."""

        life = one.life

        def tell(delay_us: float, call: Callable[[], None]) -> None:
            if one.life is life:
                one.after(delay_us, call)

        def arrive() -> None:
            if self.is_blocked(one, other) or one.life is not life:
                tell(DIAL_US_MAX, failed)
                return
            mine, theirs = End(self, one), End(self, other)
            mine.peer, theirs.peer = theirs, mine
            session = accepted(theirs)
            if session is None:
                tell(self.delay_us(), failed)
                return
            theirs.session = session
            self.ends = [end for end in self.ends if not end.is_closed] + [mine, theirs]
            tell(self.delay_us(), lambda: came_back(mine, theirs))

        def came_back(mine: End, theirs: End) -> None:
            if self.is_blocked(other, one):
                theirs.lose(DIAL_US_MAX)
                mine.is_closed = True
                failed()
                return
            if mine.is_closed:  # It was broken on its way.
                failed()
                return
            mine.session = made(mine)
            if mine.session is None:
                mine.close()
            else:
                mine._deliver_later()

        if other.is_up:
            other.after(self.delay_us(), arrive)
        else:
            tell(self.delay_us(), failed)

    def cut(self, machine: Machine, *, silently: bool) -> None:
        """A node is down: its connections are gone. Silently: its peers find out late."""
        for end in self.ends:
            if end.machine is machine and not end.is_closed:
                end.is_closed = True
                end.session = None
                end.peer.lose(self.kernel.random.uniform(0, 12e6) if silently else self.delay_us())

    def reset(self, one: Machine) -> None:
        """Break a connection of a node."""
        mine = [end for end in self.ends if end.machine is one and not end.is_closed]
        if mine:
            end = self.kernel.random.choice(mine)
            end.lose(self.delay_us())
            end.peer.lose(self.kernel.random.choice((self.delay_us(), 3e6)))
