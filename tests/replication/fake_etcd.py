"""etcd in memory, on a clock that is moved by hand, with a network that delays and loses."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import TypeVar

from onelog.replication.registry import Entry, Lease, Put, Snapshot

Answer = TypeVar("Answer")


class Timeline:
    """What happens, in order of time: the true time of a world."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._counter = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_ms: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._counter), call))

    def run(self, ms: float) -> None:
        """Let time go on."""
        end = self.now_ms + ms
        while self._events and self._events[0][0] <= end:
            at, _, call = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, at)
            call()
        self.now_ms = end

    def run_until(self, holds: Callable[[], bool], ms_max: float = 60_000) -> None:
        end = self.now_ms + ms_max
        while not holds():
            assert self._events, "nothing happens any more"
            assert self._events[0][0] <= end, "it did not come to that in time"
            self.run(max(0.0, self._events[0][0] - self.now_ms))


class FakeEtcd:
    """Keys, revisions and leases. A lease is over a while after its time, as with the real one."""

    def __init__(self, time: Timeline, late_ms: float = 0) -> None:
        self._time = time
        self._late_ms = late_ms
        self.revision = 1
        self.keys: dict[str, Entry] = {}
        self.leases: dict[int, tuple[int, float]] = {}
        self.watchers: list[Callable[[], None]] = []
        self.history: list[tuple[float, Mapping[str, Put | None]]] = []
        self._numbers = itertools.count(1)

    def lose_all(self) -> None:
        """Begin anew, with nothing: as an etcd whose folder was deleted."""
        self.revision = 1
        self.keys.clear()
        self.leases.clear()

    def grant(self, ttl_ms: int) -> Lease:
        lease = Lease(next(self._numbers), ttl_ms)
        self.leases[lease.number] = (ttl_ms, self._time.now_ms + ttl_ms)
        self._expire_later(lease.number)
        return lease

    def _expire_later(self, lease: int) -> None:
        def expire() -> None:
            if lease in self.leases and self.leases[lease][1] <= self._time.now_ms - self._late_ms:
                self.revoke(lease)

        self._time.after(self.leases[lease][0] + self._late_ms, expire)

    def keep_alive(self, lease: int) -> bool:
        if lease not in self.leases:
            return False
        ttl_ms, _ = self.leases[lease]
        self.leases[lease] = (ttl_ms, self._time.now_ms + ttl_ms)
        self._expire_later(lease)
        return True

    def revoke(self, lease: int) -> None:
        if self.leases.pop(lease, None) is not None:
            gone = [key for key, entry in self.keys.items() if entry.lease == lease]
            if gone:
                self._apply(dict.fromkeys(gone))

    def read(self) -> Snapshot:
        return Snapshot(self.revision, dict(self.keys))

    def write(self, expected: Mapping[str, int], puts: Mapping[str, Put | None]) -> int:
        for key, revision in expected.items():
            entry = self.keys.get(key)
            if (entry.revision if entry else 0) != revision:
                return 0
        if any(put and put.lease and put.lease not in self.leases for put in puts.values()):
            return 0
        return self._apply(puts)

    def _apply(self, puts: Mapping[str, Put | None]) -> int:
        self.revision += 1
        self.history.append((self._time.now_ms, puts))
        for key, put in puts.items():
            if put is None:
                self.keys.pop(key, None)
            else:
                self.keys[key] = Entry(put.value, self.revision, put.lease)
        for watcher in self.watchers:
            watcher()
        return self.revision


class FakeRegistry:
    """One node's way to it. `travel` says how long a message takes; None: it is lost."""

    def __init__(
        self,
        etcd: FakeEtcd,
        time: Timeline,
        travel: Callable[[], float | None] = lambda: 1,
        travel_back: Callable[[], float | None] = lambda: 1,
        timeout_ms: float = 750,
    ) -> None:
        self._etcd = etcd
        self._time = time
        self._travel = travel
        self._travel_back = travel_back
        self._timeout_ms = timeout_ms
        self.run: Callable[[Callable[[], None]], None] = lambda call: call()
        """How the node is called; one that is stopped or dead hears nothing, or later."""

    def _ask(self, work: Callable[[], Answer], done: Callable[[Answer | None], None]) -> None:
        answered = False

        def tell(answer: Answer | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.run(lambda: done(answer))

        def arrive() -> None:
            answer = work()
            back = self._travel_back()
            if back is not None:
                self._time.after(back, lambda: tell(answer))

        there = self._travel()
        if there is not None:
            self._time.after(there, arrive)
        self._time.after(self._timeout_ms, lambda: tell(None))

    def grant(self, ttl_ms: int, done: Callable[[Lease | None], None]) -> None:
        self._ask(lambda: self._etcd.grant(ttl_ms), done)

    def keep_alive(self, lease: int, done: Callable[[bool | None], None]) -> None:
        self._ask(lambda: self._etcd.keep_alive(lease), done)

    def revoke(self, lease: int) -> None:
        self._ask(lambda: self._etcd.revoke(lease), lambda _: None)

    def read(self, done: Callable[[Snapshot | None], None]) -> None:
        self._ask(self._etcd.read, done)

    def write(
        self,
        expected: Mapping[str, int],
        puts: Mapping[str, Put | None],
        done: Callable[[int | None], None],
    ) -> None:
        self._ask(lambda: self._etcd.write(expected, puts), done)

    def watch(self, changed: Callable[[], None]) -> None:
        def tell() -> None:
            delay = self._travel_back()
            if delay is not None:
                self._time.after(delay, lambda: self.run(changed))

        self._etcd.watchers.append(tell)
