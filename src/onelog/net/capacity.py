"""How much the peers of a process may take together: connections, and bytes that wait in memory.

A peer makes us keep bytes in two ways: it sends a part of a request (`unread`), or it does not read
our answers (`unsent`). Each connection has its own limit. Here are the limit for all connections
together, and the time that a request may take to arrive. If there are too many bytes, the
connections that keep the most for the longest time are closed; a peer that makes progress is not
among them.

All listeners of a process share one `Capacity`. Connections leave a quarter of the process's file
descriptors to the store: the number of a new socket is the lowest that is free, so it tells how
many are in use.

Invariant: `Backlog.total` is what its peers keep, and at most `bytes_max` when `keep` returns.
"""

import logging
from collections.abc import Hashable
from heapq import nlargest
from typing import TYPE_CHECKING, Protocol

from onelog.clock import Clock, SystemClock

if TYPE_CHECKING:
    from onelog.config import NetConfig
    from onelog.config_sources import Loaded

CONNECTIONS_MAX = 20_000
UNREAD_BYTES_MAX = 256 << 20
UNSENT_BYTES_MAX = 1 << 30
CUT_AT_ONCE, WEIGHED_MS = 64, 100
"""Those who keep the most are looked for, which takes its time, once for so many that are cut off,
and again after a while: whoever makes progress is not among them any more."""
FRAME_TIMEOUT_MS = 60_000
FILES_MAX = 1 << 20
WARNINGS_MAX = 20

log = logging.getLogger(__name__)


class Peer(Hashable, Protocol):
    """A connection, as far as it matters here."""

    congested: bool

    @property
    def remote_address(self) -> str:
        """The peer's address as people write it."""

    def abort(self) -> None:
        """Close now."""

    def wait_for_turn(self) -> None:
        """Read nothing more of it before its next turn."""


class Listening(Protocol):
    """A listener, as far as it matters here."""

    @property
    def open_count(self) -> int:
        """Its sockets, whatever state they are in."""


class RepeatedWarning:
    """A warning about many peers at once: the first ones are logged, the others are counted."""

    def __init__(self, lines_max: int = 1) -> None:
        self._lines_max = lines_max
        self._said = 0
        self._count = 0

    def about(self, text: str, *arguments: object) -> None:
        """Say it, or count it if it was just said."""
        if self._said >= self._lines_max:
            self._count += 1
        else:
            self._said += 1
            log.warning(text, *arguments)

    def sweep(self, text: str) -> None:
        """Say how many there were since; to be called every now and then."""
        if self._count:
            log.warning(text, self._count)
            self._count = 0
        else:
            self._said = 0


class Backlog:
    """Bytes of one kind that peers make us keep. `setting` names the limit on them."""

    def __init__(self, kind: str, setting: str, bytes_max: int, clock: Clock) -> None:
        self._kind = kind
        self._setting = setting
        self._clock = clock
        self._kept: dict[Peer, list[int]] = {}
        """How many bytes, and since when."""
        self._warning = RepeatedWarning()
        self._heaviest: list[Peer] = []
        """Who is cut off next, the first of them last."""
        self._weighed_ms = 0
        self.bytes_max = bytes_max
        self.total = 0

    def __len__(self) -> int:
        return len(self._kept)

    def peers(self) -> list[Peer]:
        """Those who make us keep some."""
        return list(self._kept)

    def keep(self, peer: Peer, size: int, anew: bool = False) -> None:
        """So many bytes are kept for this peer now; `anew`: they are others than before."""
        kept = self._kept.get(peer)
        if kept is None:
            if not size:
                return
            self._kept[peer] = [size, self._clock.now_ms()]
            self.total += size
        elif size:
            self.total += size - kept[0]
            kept[0] = size
            if anew:
                kept[1] = self._clock.now_ms()
        else:
            del self._kept[peer]
            self.total -= kept[0]
        if self.total > self.bytes_max:
            self._relieve()

    def expire(self, age_max_ms: int) -> None:
        """Close peers whose request is not complete after that time, unless we do not read it."""
        now_ms = self._clock.now_ms()
        for peer, (size, since_ms) in list(self._kept.items()):
            if now_ms - since_ms >= age_max_ms and not peer.congested:
                self._close(peer)
                self._warning.about(
                    "%s closed: %d bytes of a request came in %d ms, and the rest did not "
                    "(net.frame_timeout_ms)",
                    peer.remote_address,
                    size,
                    now_ms - since_ms,
                )

    def sweep(self) -> None:
        """Say what was closed since; to be called every now and then."""
        self._warning.sweep(f"%d more connections closed for their {self._kind} bytes")

    def _relieve(self) -> None:
        """Make as much room as is needed; to close very many at once would hold everybody."""
        now_ms, kept = self._clock.now_ms(), self._kept

        def weight(peer: Peer) -> int:
            size, since_ms = kept[peer]
            return size * (1 + now_ms - since_ms)

        while self.total > self.bytes_max:
            if not self._heaviest or now_ms - self._weighed_ms >= WEIGHED_MS:
                self._weighed_ms = now_ms
                self._heaviest = nlargest(CUT_AT_ONCE, kept, weight)
                self._heaviest.reverse()
            peer = self._heaviest.pop()
            if peer not in kept:
                continue
            (size, since_ms), total = kept[peer], self.total
            self._close(peer)
            self._warning.about(
                "%s closed: %d of %d %s bytes of all connections are its, for %d ms; "
                "%s = %d allows no more",
                peer.remote_address,
                size,
                total,
                self._kind,
                now_ms - since_ms,
                self._setting,
                self.bytes_max,
            )

    def _close(self, peer: Peer) -> None:
        self.total -= self._kept.pop(peer)[0]
        peer.abort()


class Capacity:
    """What all listeners of a process share."""

    def __init__(
        self,
        connections_max: int = CONNECTIONS_MAX,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
        frame_timeout_ms: int = FRAME_TIMEOUT_MS,
        clock: Clock | None = None,
        files_max: int | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.connections_max = connections_max
        self.frame_timeout_ms = frame_timeout_ms
        self.files_max = file_limit() if files_max is None else files_max
        self.unread = Backlog("unread", "net.unread_bytes_max", unread_bytes_max, clock)
        self.unsent = Backlog("unsent", "net.unsent_bytes_max", unsent_bytes_max, clock)
        self.listeners: list[Listening] = []
        self.warnings = RepeatedWarning(WARNINGS_MAX)
        """About what any peer can do again and again: nobody must fill the log."""
        self._warning = RepeatedWarning()

    @property
    def files_for_connections(self) -> int:
        """File descriptors that connections may have; the others are the store's."""
        return self.files_max // 4 * 3

    def admits(self, descriptor: int | None = None) -> bool:
        """Whether there is room for one more, which has this descriptor; a refusal is said."""
        open_count = sum(listener.open_count for listener in self.listeners)
        if open_count >= self.connections_max:
            self._warning.about(
                "a connection refused: %d are open already; net.connections_max allows no more",
                open_count,
            )
            return False
        if descriptor is not None and descriptor >= self.files_for_connections:
            self._warning.about(
                "a connection refused: %d of %d files are open, %d connections among them, and the "
                "store needs the others; raise the limit of open files (ulimit -n)",
                descriptor,
                self.files_max,
                open_count,
            )
            return False
        return True

    def sweep(self) -> None:
        """Close what takes too long, and say what happened; to be called every now and then."""
        self.unread.expire(self.frame_timeout_ms)
        self.unread.sweep()
        self.unsent.sweep()
        self._warning.sweep("%d more connections refused")
        self.warnings.sweep("%d more warnings about connections, not shown")


def file_limit() -> int:
    """How many files this process may have open."""
    # Not there on Windows, where clients run, too.
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if soft == resource.RLIM_INFINITY else soft


def make_capacity(config: "NetConfig") -> Capacity:
    """What the peers of this process may take together; a broker and a name server share one."""
    return Capacity(
        config.connections_max,
        config.unread_bytes_max,
        config.unsent_bytes_max,
        config.frame_timeout_ms,
    )


def checked_capacity(loaded: "Loaded") -> Capacity:
    """`make_capacity`; who asked for more connections than there are files is told."""
    config = loaded.config.net
    capacity = make_capacity(config)
    if config.connections_max > capacity.files_for_connections:
        is_wanted = loaded.sources["net.connections_max"] != "default"
        log.log(
            logging.WARNING if is_wanted else logging.INFO,
            "net.connections_max = %d does not fit the limit of %d open files, of which the store "
            "needs some: from %d open files on, connections are refused; raise it (ulimit -n)",
            config.connections_max,
            capacity.files_max,
            capacity.files_for_connections,
        )
    return capacity
