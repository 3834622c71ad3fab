"""What goes wrong in a simulated cluster, and for how long."""

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from onelog.replication.identity import FILE as MEMBER_FILE
from onelog.replication.registry import MemberEntry, View
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
    """Whether a loss of power takes nothing that somebody was told of."""
    is_quiet: bool

    def start(self, node: Node) -> None:
        """Have a node come up."""
        ...

    def set_etcd_down(self, down: bool) -> None:
        """Have the registry answer nobody, or answer again."""
        ...

    def registered(self) -> View:
        """What the registry has."""
        ...

    def empty_etcd(self) -> None:
        """Have the registry lose all that it has."""
        ...


@dataclass(eq=False)
class Trouble:
    """Makes trouble again and again, until it is to be quiet."""

    place: Place
    pause_s: float = 0.4
    made: Counter[str] = field(default_factory=Counter)
    _copies: dict[int, tuple[Path, int]] = field(default_factory=dict)
    """By node, a copy of its disk, and how far its log went."""

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
            self._kill: 3,
            self._kill_writing: 2,
            self._restart: 1,
            self._stand_still: 3,
            self._refuse_writes: 2,
            self._refuse_flushes: 1,
            self._slow_disk: 2,
            self._set_clock: 1,
        }
        if place.may_lose_power:
            kinds[self._lose_power] = 3
        if place.network is not None:
            kinds |= {
                self._break_connection: 3,
                self._cut_off: 3,
                self._cut_off_one_way: 3,
                self._cut_off_from_etcd: 3,
                self._split: 2,
                self._slow_network: 1,
                self._no_etcd: 1,
                self._hand_over: 1,
                self._copy_disk: 2,
            }
            kinds |= self._losses(node)
        (make,) = random.choices(list(kinds), list(kinds.values()))
        self.made[make.__name__.strip("_")] += 1
        place.kernel.note(node.name, "trouble:", make.__name__)
        make(node)

    def _losses(self, node: Node) -> dict[Callable[[Node], None], int]:
        """What a set survives that has another member who has everything."""
        view, nodes = self.place.registered(), self.place.nodes
        assert isinstance(node, Member)
        sound = {each.number for each in nodes if isinstance(each, Member) and each.is_sound}
        kinds: dict[Callable[[Node], None], int] = {}
        if view.state is None:
            return kinds
        if sound & (set(view.state.in_sync) - {node.number}):
            kinds = {self._replace_disk: 2}
            if not self.place.may_lose_power:
                kinds |= {self._lose_power: 2, self._restart_doubtful: 2}
            if self._has_old_copy(node, view.members.get(node.number)):
                kinds[self._restore_disk] = 8
        if len(sound) == len(nodes) and all(map(_has_epochs, nodes)):
            kinds[self._empty_etcd] = 1
        return kinds

    def _has_old_copy(self, node: Node, known: MemberEntry | None) -> bool:
        """Whether there is a copy that can be told from the disk that the node has.

        One that was made moments ago cannot: nobody was told how far the node has come since.
        """
        if node.number not in self._copies or known is None:
            return False
        copy, end = self._copies[node.number]
        made = msgspec.json.decode((copy / MEMBER_FILE).read_bytes())
        is_older = made["start"] < known.start or end < known.confirmed
        return made["store"] != known.store or is_older

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

    def _restart_doubtful(self, node: Node) -> None:
        """Lose power, and be stopped cleanly before it has caught up, perhaps."""
        node.lose_power()
        self._all_others_down(node)

        def restart() -> None:
            self._up_again(node)
            node.stop()
            self._later(0.1, lambda: self._up_again(node))

        self._later(0.2, lambda: self._up_again(node))
        self._later(1, restart)

    def _all_others_down(self, node: Node) -> None:
        """Perhaps: so that it comes back first."""
        if self.place.kernel.chance(0.5):
            for each in self.place.nodes:
                if each is not node and each.is_up:
                    each.kill()
                    self._later(5, partial(self._up_again, each))

    def _replace_disk(self, node: Node) -> None:
        assert isinstance(node, Member)
        node.replace_disk()
        self._all_others_down(node)
        self._later(1, lambda: self._up_again(node))

    def _copy_disk(self, node: Node) -> None:
        folder = node.disk.folder
        if node.number not in self._copies and (folder / MEMBER_FILE).exists():
            copy = folder.with_name(f"{folder.name}-copy")
            shutil.copytree(folder, copy)
            self._copies[node.number] = copy, node.log_end()

    def _restore_disk(self, node: Node) -> None:
        assert isinstance(node, Member)
        copy, _ = self._copies.pop(node.number)
        node.replace_disk(copy)
        shutil.rmtree(copy)
        self._all_others_down(node)
        self._later(1, lambda: self._up_again(node))

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

    def _empty_etcd(self, node: Node) -> None:
        self.place.empty_etcd()


def _has_epochs(node: Node) -> bool:
    """Whether a node would know, after any fault, that it was in a set."""
    return isinstance(node, Member) and node.replica is not None and node.replica.epochs.last > 0
