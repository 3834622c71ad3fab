"""The picture of speed shows what was measured, and nothing else."""

from benchmarks import plot


def test_the_picture_in_the_docs_is_drawn_from_the_results() -> None:
    assert plot.TARGET.read_text() == plot.draw()


def test_a_peer_that_is_ahead_is_drawn_to_the_left() -> None:
    behind = [bar for bar in plot.BARS if plot.ratio(bar) < 1]
    assert behind, "choose one: a picture without any would not be believed"
    assert plot.draw().count(plot.SLOWER) == len(behind)
