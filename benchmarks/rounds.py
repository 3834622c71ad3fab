"""Rounds in which the servers take turns, so that a machine that drifts is nobody's advantage.

Invariant: A B, then B A, and so on: over two rounds each has been first once, and whatever grows
or shrinks steadily meanwhile has met both alike. What counts is the median of a server's rounds.
"""

from collections.abc import Iterator, Sequence
from statistics import median


def turns(rounds: int, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Who is next, and in which round, counted from 1."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number + 1, name


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """One by the other, round for round."""
    return [one / other if other else 0.0 for one, other in zip(ones, others, strict=True)]


def told(ours: Sequence[float], theirs: Sequence[float], *, less_is_better: bool = False) -> str:
    """Every round, for the note of a row that shows the medians; its ratios are as the row's."""
    digits = 0 if min(median(ours), median(theirs)) >= 100 else 2
    better = ratios(theirs, ours) if less_is_better else ratios(ours, theirs)
    return (
        f"rounds {_listed(ours, digits)} against {_listed(theirs, digits)}, "
        f"ratios {_listed(better, 3)}"
    )


def _listed(values: Sequence[float], digits: int) -> str:
    return " ".join(f"{value:,.{digits}f}" for value in values)
