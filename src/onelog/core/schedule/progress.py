"""Which timed messages have been delivered: a staircase over their queue.

Timed messages wait in one queue, in the order in which they came, and leave it in the order of due
times. A step (end, due, offset) says: of the messages below queue offset `end`, all that are due
before (due, offset), or just then, have left. One step is the rule. There are more for a moment
when a message comes that is due before the last one that left, and for as long as a clock that was
set back needs to catch up:

    due time
       ^      | step 1 |          everything under the stairs has left; what comes now is entered at
       |      |        |_ step 2  the right, and is pending even if it is due before step 1
       |      |        | |
       +-----------------+-----> queue offset

An entry with a negative offset is no message: `~offset` is the message that it cancels. It sorts
before all messages of the same due time, and leaves like them.

Invariant: from step to step `end` grows and (due, offset) falls; else the earlier one says nothing.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Entry = tuple[int, int]
"""When something is due, and the queue offset of the message, or `~offset` to cancel it."""


class DeliveryStep(NamedTuple):
    """All messages below queue offset `end` that are due up to (due_ms, offset) have left."""

    end: int
    due_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """The staircase; at first nothing has left."""

    steps: tuple[DeliveryStep, ...] = ()

    def covers(self, due_ms: int, offset: int) -> bool:
        """Whether an entry has left."""
        message = offset if offset >= 0 else ~offset
        return any(
            message < step.end and (due_ms, offset) <= (step.due_ms, step.offset)
            for step in self.steps
        )

    def covered(self, dues: Numbers, offsets: Numbers) -> npt.NDArray[np.bool_]:
        """`covers`, for many entries at once."""
        found = np.zeros(len(dues), np.bool_)
        messages = np.where(offsets < 0, ~offsets, offsets)
        for end, due_ms, offset in self.steps:
            before = (dues < due_ms) | ((dues == due_ms) & (offsets <= offset))
            found |= before & (messages < end)
        return found

    def after(self, due_ms: int, offset: int, end: int) -> "DeliveryProgress":
        """The progress when everything below `end` that is due up to this entry has left too."""
        higher = [step for step in self.steps if (step.due_ms, step.offset) > (due_ms, offset)]
        if higher and higher[-1].end >= end:
            return self
        return DeliveryProgress((*higher, DeliveryStep(end, due_ms, offset)))

    def up_to(self, end: int) -> "DeliveryProgress":
        """The progress as far as it is about messages below `end`."""
        return DeliveryProgress(tuple(step._replace(end=min(step.end, end)) for step in self.steps))

    def as_json(self) -> list[list[int]]:
        """The steps, as they are recorded."""
        return [list(step) for step in self.steps]

    @staticmethod
    def from_json(value: Any) -> "DeliveryProgress":
        """The inverse of `as_json`."""
        return DeliveryProgress(
            tuple(DeliveryStep(int(end), int(due), int(at)) for end, due, at in value)
        )
