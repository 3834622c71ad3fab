"""What goes wrong in a simulated cluster, and for how long."""

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.kernel import Kernel
from tests.simulation.member import Member
from tests.simulation.network import Network
from tests.simulation.node import Node

ETCD = -1


class Place(Protocol):
    """Where trouble is made."""

    kernel: Kernel
    nodes: Sequence[Node]
    network: Network | None
    """None where there is one node only."""
    may_lose_power: bool
    is_quiet: bool

    def start(self, node: Node) -> None:
        """Have a node come up."""
        ...

    def set_etcd_down(self, down: bool) -> None:
        """Have the registry answer nobody, or answer again."""
        ...


@dataclass(eq=False)
class Trouble:
    """Makes trouble again and again, until it is to be quiet."""

    place: Place
    pause_s: float = 0.4
    made: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Go on, for ever."""
        kernel = self.place.kernel
        delay_us = kernel.random.expovariate(1) * self.pause_s * 1e6
        kernel.after(delay_us, kernel.outside, self._make)

    def _make(self) -> None:
        place = self.place
        if place.is_quiet:
            return
        self.begin()
        random = place.kernel.random
        node = random.choice(place.nodes)
        if not node.is_up:
            place.start(node)
            return
        kinds: dict[Callable[[Node], None], int] = {
            self._kill: 3, self._kill_writing: 2, self._restart: 1, self._stand_still: 3,
            self._refuse_writes: 2, self._refuse_flushes: 1, self._slow_disk: 2,
            self._set_clock: 1,
        }  # fmt: skip
        if place.may_lose_power:
            kinds[self._lose_power] = 3
        if place.network is not None:
            kinds |= {
                self._break_connection: 3, self._cut_off: 3, self._cut_off_one_way: 3,
                self._cut_off_from_etcd: 3, self._split: 2, self._slow_network: 1,
                self._no_etcd: 1, self._hand_over: 1,
            }  # fmt: skip
        (make,) = random.choices(list(kinds), list(kinds.values()))
        self.made[make.__name__.strip("_")] += 1
        place.kernel.note(node.name, "trouble:", make.__name__)
        make(node)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        kernel = self.place.kernel
        kernel.after(kernel.random.expovariate(1) * seconds * 1e6, kernel.outside, call)

    def _up_again(self, node: Node) -> None:
        if not node.is_up:
            self.place.start(node)

    # -- processes and disks -------------------------------------------------------------------

    def _kill(self, node: Node) -> None:
        node.kill()
        self._later(1, lambda: self._up_again(node))

    def _kill_writing(self, node: Node) -> None:
        node.disk.kills_at = self.place.kernel.random.randint(1, 20)
        self._later(2, lambda: self._up_again(node))

    def _lose_power(self, node: Node) -> None:
        node.lose_power()
        self._later(1, lambda: self._up_again(node))

    def _restart(self, node: Node) -> None:
        node.stop()
        self._later(0.1, lambda: self._up_again(node))

    def _stand_still(self, node: Node) -> None:
        kernel = self.place.kernel
        spans_us = (100_000, 1_000_000, 3_000_000)
        node.life.stands_until_us = kernel.now_us + kernel.random.choice(spans_us)

    def _refuse_writes(self, node: Node) -> None:
        node.disk.refuses_writes = self.place.kernel.random.choice((errno.ENOSPC, errno.EIO))

        def heal() -> None:
            node.disk.refuses_writes = 0

        self._later(0.5, heal)

    def _refuse_flushes(self, node: Node) -> None:
        node.disk.refuses_flushes = True

        def replace() -> None:
            """A disk that failed to flush is looked after, and the node is started anew."""
            if node.is_up and self.place.may_lose_power:
                node.lose_power()
            elif node.is_up:
                node.kill()
            self._up_again(node)

        self._later(1, replace)

    def _slow_disk(self, node: Node) -> None:
        node.disk.is_slow = True

        def heal() -> None:
            node.disk.is_slow = False

        self._later(2, heal)

    def _set_clock(self, node: Node) -> None:
        steps_ms = (-3_000, 2_000, 60_000, 3_600_000)
        node.wall.offset_ms += self.place.kernel.random.choice(steps_ms)

    # -- ways ----------------------------------------------------------------------------------

    def _block(self, ways: set[tuple[int, int]], seconds: float = 2) -> None:
        network = self.place.network
        assert network is not None
        network.blocked |= ways

        def heal() -> None:
            network.blocked -= ways

        self._later(seconds, heal)

    def _break_connection(self, node: Node) -> None:
        assert self.place.network is not None
        self.place.network.reset(node)

    def _others(self, node: Node) -> set[int]:
        return {each.number for each in self.place.nodes if each is not node}

    def _cut_off(self, node: Node) -> None:
        """From the other nodes, and perhaps from etcd."""
        others = self._others(node) | ({ETCD} if self.place.kernel.chance(0.6) else set())
        one = node.number
        self._block({(one, each) for each in others} | {(each, one) for each in others})

    def _cut_off_one_way(self, node: Node) -> None:
        others = self._others(node) | ({ETCD} if self.place.kernel.chance(0.4) else set())
        one = node.number
        if self.place.kernel.chance(0.5):
            self._block({(one, each) for each in others})
        else:
            self._block({(each, one) for each in others})

    def _cut_off_from_etcd(self, node: Node) -> None:
        ways = [{(node.number, ETCD)}, {(ETCD, node.number)}]
        self._block(self.place.kernel.random.choice((*ways, ways[0] | ways[1])))

    def _split(self, node: Node) -> None:
        """Two parts, of which one has etcd."""
        everybody = [*(each.number for each in self.place.nodes), ETCD]
        sides = {each: self.place.kernel.chance(0.5) for each in everybody}
        self._block({(a, b) for a in everybody for b in everybody if sides[a] != sides[b]})

    def _slow_network(self, node: Node) -> None:
        network = self.place.network
        assert network is not None
        network.is_slow = True

        def heal() -> None:
            network.is_slow = False

        self._later(1, heal)

    def _hand_over(self, node: Node) -> None:
        for each in self.place.nodes:
            if isinstance(each, Member) and each.decides:
                each.run(each.hand_over)

    def _no_etcd(self, node: Node) -> None:
        self.place.set_etcd_down(True)
        self._later(2, lambda: self.place.set_etcd_down(False))
