"""The registry of a simulated cluster: one that is always right, and that not everybody reaches."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.replication.fake_etcd import FakeEtcd, FakeRegistry, Timeline
from tests.simulation.kernel import Kernel
from tests.simulation.network import Machine, Network

NUMBER = -1
"""What the network calls it."""
TIMEOUT_MS = 700


class _Time(Timeline):
    """The kernel's time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @property
    def now_ms(self) -> float:  # type: ignore[override]
        return self._kernel.now_us / 1000

    def after(self, delay_ms: float, call: Callable[[], None]) -> None:
        self._kernel.after(delay_ms * 1000 + 2, self._kernel.outside, call)


@dataclass(eq=False)
class Etcd:
    """The simulated etcd."""

    kernel: Kernel
    network: Network
    is_down: bool = False

    def __post_init__(self) -> None:
        self.time = _Time(self.kernel)
        self.keys = FakeEtcd(self.time, self.kernel.random.choice((0, 0, 500)))

    def _delay_ms(self, way: tuple[int, int]) -> float | None:
        if self.is_down or way in self.network.blocked or self.kernel.chance(0.003):
            return None
        return self.network.delay_us() / 1000

    def registry(self, machine: Machine) -> FakeRegistry:
        """A node's way to it, for one life of the node."""
        there, back = (machine.number, NUMBER), (NUMBER, machine.number)
        registry = FakeRegistry(
            self.keys,
            self.time,
            lambda: self._delay_ms(there),
            lambda: self._delay_ms(back),
            TIMEOUT_MS,
        )
        life = machine.life

        def run(call: Callable[[], None]) -> None:
            if machine.life is life:
                machine.after(0, call)

        registry.run = run
        return registry
