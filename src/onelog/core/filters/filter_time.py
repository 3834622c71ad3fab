"""How long SQL-92 filters may hold the loop: so many milliseconds of a tick, all of them together.

A pull, a POP or a look for a held pull tests messages as long as there is time `left`. Then it
answers with what it has, and says where to go on. What comes when nothing is left waits for its
turn (`later`), first come, first served: a consumer with an expensive filter, or with a thousand
requests at once, takes its time from other filters and from nobody else.

Invariant: as long as anybody waits, no one who came later tests a message.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from onelog.errors import BrokerBusyError

WAITING_MAX = 1_000

Turn = Callable[[], None]


@dataclass(eq=False)
class FilterTime:
    """The time of one broker's filters. `seconds` is a clock that never goes back."""

    _call_soon: Callable[[Turn], None]
    seconds: Callable[[], float]
    _look: Callable[[str, int], None]
    budget_ms: int

    def __post_init__(self) -> None:
        self.deadline = 0.0
        """When the time of this tick is used up, once `left` has been asked in it. A loop over
        many messages compares it with `seconds` itself, which costs less than a call."""
        self._has_begun = False
        self._waiting: deque[Turn] = deque()
        self._queues: set[tuple[str, int]] = set()
        """Whose held pulls wait to be looked at."""
        self._in_turn = False

    def left(self) -> bool:
        """Whether another message may be tested now."""
        if not self._has_begun:
            self._begin()
            return True
        if self._waiting and not self._in_turn:
            return False
        return self.seconds() < self.deadline

    def later(self, turn: Turn) -> None:
        """Call when there is time again; `BrokerBusyError` if too many wait for that."""
        if len(self._waiting) >= WAITING_MAX:
            raise BrokerBusyError(
                f"{WAITING_MAX} pulls wait for their SQL-92 filters: use tags or IN, "
                "or raise broker.filter_budget_ms"
            )
        self._wait(turn)

    def look_later(self, topic: str, queue_id: int) -> None:
        """Look at the held pulls of a queue again when there is time."""
        if (topic, queue_id) not in self._queues:
            self._queues.add((topic, queue_id))
            self._wait(lambda: self._look_now(topic, queue_id))

    def _look_now(self, topic: str, queue_id: int) -> None:
        self._queues.discard((topic, queue_id))
        self._look(topic, queue_id)

    def _wait(self, turn: Turn) -> None:
        if not self._has_begun:
            self._begin()
        self._waiting.append(turn)

    def _begin(self) -> None:
        self._has_begun = True
        self.deadline = self.seconds() + self.budget_ms / 1000
        self._call_soon(self._next_tick)

    def _next_tick(self) -> None:
        self._has_begun = False
        if not self._waiting:
            return
        self._begin()
        self._in_turn = True
        try:
            # Those who got no time again are now last in the line.
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if not self.left():
                    break
        finally:
            self._in_turn = False
