"""What a verification found: problems, each with its place, and notes on what is odd but right."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as the format says it must be."""

    where: str
    """File, and the log offset, queue entry or index entry in it."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Findings:
    """Collects problems; keeps the first ones and counts all."""

    def __init__(self, problems_max: int) -> None:
        self._problems_max = problems_max
        self.problems: list[Problem] = []
        self.total = 0
        self.notes: list[str] = []

    @property
    def full(self) -> bool:
        """Whether further problems are only counted, so that finding out more would be wasted."""
        return len(self.problems) >= self._problems_max

    def add(self, where: str, what: str, count: int = 1) -> None:
        """A problem, or `count` of them that one line can tell."""
        self.total += count
        if not self.full:
            self.problems.append(Problem(where, what))

    def note(self, text: str) -> None:
        """Something worth knowing that is no problem."""
        self.notes.append(text)
