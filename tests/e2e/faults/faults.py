"""What can be done to a cluster, and what a seed chooses of it.

A fault has a beginning and an end; in between it is held for some time. After it the cluster must
become whole again by itself: a master, and all replicas in sync.
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from tests.e2e.faults.servers import BROKERS, CLIENTS, ETCD, NAMESERVERS, Cluster

HOUR_S = 3_600
FULL_DISK = "full disk"


@dataclass(frozen=True, slots=True)
class Fault:
    """One round: what happens, to whom, for how long, and whether enough is left to go on."""

    kind: str
    target: str
    hit: str
    seconds: float
    alive: bool


Hold = Callable[[Cluster, str], AbstractContextManager[None]]


@contextmanager
def kill(cluster: Cluster, target: str) -> Iterator[None]:
    """SIGKILL; then it is started again on what it left."""
    broker = cluster.brokers[target]
    broker.kill()
    yield
    broker.start()


@contextmanager
def kill_all(cluster: Cluster, target: str) -> Iterator[None]:
    """All brokers at once, in the order of their numbers."""
    with ExitStack() as stack:
        for each in BROKERS:
            stack.enter_context(kill(cluster, each))
        yield


@contextmanager
def pause(cluster: Cluster, target: str) -> Iterator[None]:
    """SIGSTOP: it holds its connections and believes that no time has passed."""
    broker = cluster.brokers[target]
    broker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.send_signal(signal.SIGCONT)


@contextmanager
def _cuts(cluster: Cluster, ways: list[tuple[str, str]]) -> Iterator[None]:
    for begin, end in ways:
        cluster.net.cut(begin, end)
    try:
        yield
    finally:
        for begin, end in ways:
            cluster.net.mend(begin, end)


def _all_but(target: str) -> list[str]:
    return [each for each in (*BROKERS, *NAMESERVERS, ETCD, CLIENTS) if each != target]


def _both_ways(target: str, others: list[str]) -> list[tuple[str, str]]:
    return [way for each in others for way in ((target, each), (each, target))]


def cut_off(cluster: Cluster, target: str) -> AbstractContextManager[None]:
    """Nobody hears it, and it hears nobody."""
    return _cuts(cluster, _both_ways(target, _all_but(target)))


def mute(cluster: Cluster, target: str) -> AbstractContextManager[None]:
    """It hears everybody, and nobody hears it."""
    return _cuts(cluster, [(target, each) for each in _all_but(target)])


def deaf(cluster: Cluster, target: str) -> AbstractContextManager[None]:
    """Everybody hears it, and it hears nobody."""
    return _cuts(cluster, [(each, target) for each in _all_but(target)])


def cut_off_etcd(cluster: Cluster, target: str) -> AbstractContextManager[None]:
    """It talks to everybody but the judge."""
    return _cuts(cluster, _both_ways(target, [ETCD]))


def cut_off_brokers(cluster: Cluster, target: str) -> AbstractContextManager[None]:
    """It keeps its lease and its clients, but no replica."""
    return _cuts(cluster, _both_ways(target, [each for each in BROKERS if each != target]))


def lose_acks(cluster: Cluster, target: str) -> AbstractContextManager[None]:
    """What other brokers send it does not arrive; what it sends does."""
    return _cuts(cluster, [(each, target) for each in BROKERS if each != target])


@contextmanager
def fill_disk(cluster: Cluster, target: str) -> Iterator[None]:
    """Not a byte is left; later all of it is."""
    disk = cluster.brokers[target].disk
    disk.fill()
    try:
        yield
    finally:
        disk.empty()
        # Who gave up on a full disk is started again, as its operator would.
        broker = cluster.brokers[target]
        if not broker.is_running:
            broker.kill()
            broker.start()


@contextmanager
def clock_forward(cluster: Cluster, target: str) -> Iterator[None]:
    """Its time of day is an hour ahead, and then it is not."""
    cluster.brokers[target].clock.set(HOUR_S)
    try:
        yield
    finally:
        cluster.brokers[target].clock.set(0)


@contextmanager
def clock_back(cluster: Cluster, target: str) -> Iterator[None]:
    """Its time of day is an hour behind, and then it is not."""
    cluster.brokers[target].clock.set(-HOUR_S)
    try:
        yield
    finally:
        cluster.brokers[target].clock.set(0)


@contextmanager
def etcd_down(cluster: Cluster, target: str) -> Iterator[None]:
    """SIGKILL; then it is started again on what it left."""
    cluster.etcd.kill()
    yield
    cluster.etcd.start()


@contextmanager
def names_down(cluster: Cluster, target: str) -> Iterator[None]:
    """All name servers are killed, and come back without memory."""
    for server in cluster.names.values():
        server.kill()
    yield
    for server in cluster.names.values():
        server.start()


@contextmanager
def names_half_dead(cluster: Cluster, target: str) -> Iterator[None]:
    """One is killed, one accepts connections and never answers."""
    first, second, _ = cluster.names.values()
    first.kill()
    second.send_signal(signal.SIGSTOP)
    yield
    second.send_signal(signal.SIGCONT)
    first.start()


@dataclass(frozen=True, slots=True)
class Kind:
    """How a fault is held, how long (in seconds, one of these), and whether work can go on.

    `alive` is for a broker that is the master; what hits a follower never stops the others.
    """

    hold: Hold
    seconds: tuple[float, ...]
    alive: bool = True
    target: str = "broker"


KINDS = {
    "kill -9": Kind(kill, (0.5, 2, 6)),
    "kill -9 of all": Kind(kill_all, (0.5, 3), alive=False, target="brokers"),
    "SIGSTOP": Kind(pause, (1, 4, 8, 30)),
    "cut off": Kind(cut_off, (4, 10)),
    "mute": Kind(mute, (4, 10)),
    "deaf": Kind(deaf, (4, 10)),
    "cut off etcd": Kind(cut_off_etcd, (8, 12)),
    "cut off brokers": Kind(cut_off_brokers, (6, 12)),
    "acks lost": Kind(lose_acks, (6, 12)),
    FULL_DISK: Kind(fill_disk, (6, 12)),
    "clock +1 h": Kind(clock_forward, (4, 8)),
    "clock -1 h": Kind(clock_back, (4, 8)),
    "etcd down": Kind(etcd_down, (1, 5, 10), alive=False, target="etcd"),
    "name servers down": Kind(names_down, (5, 10), target="name servers"),
    "name servers half dead": Kind(names_half_dead, (5, 10), target="name servers"),
}


class Choice:
    """The faults of a seed, one after the other; each kind comes before one comes twice."""

    def __init__(self, seed: int, kinds: list[str]) -> None:
        self._random = random.Random(seed)
        self._kinds = kinds
        self._left: list[str] = []

    def next(self, master: str | None) -> Fault:
        """What comes next; a broker that is hit is the master more often than not."""
        if not self._left:
            self._left = list(self._kinds)
            self._random.shuffle(self._left)
        name = self._left.pop()
        kind = KINDS[name]
        seconds = self._random.choice(kind.seconds)
        wants_master = self._random.random() < 0.7
        followers = [each for each in BROKERS if each != master]
        follower = followers[self._random.randrange(2)]
        if kind.target != "broker":
            return Fault(name, kind.target, "all", seconds, kind.alive)
        if wants_master and master is not None:
            return Fault(name, master, "master", seconds, kind.alive)
        return Fault(name, follower, "follower", seconds, True)
