"""Counting durations by size."""

import random

import pytest

from onelog_bench.worker import Latencies


def counted(*nanoseconds: int) -> Latencies:
    latencies = Latencies()
    for each in nanoseconds:
        latencies.add(each)
    return latencies


def test_percentiles_are_true_to_about_a_percent() -> None:
    random_ = random.Random(1)
    durations = sorted(int(random_.lognormvariate(12, 2)) + 1 for _ in range(200_000))
    found = counted(*durations)
    for percent in (50, 90, 99, 99.9, 100):
        exact = durations[min(len(durations) - 1, int(len(durations) * percent / 100))] / 1e6
        assert found.percentile_ms(percent) == pytest.approx(exact, rel=0.02)


def test_what_processes_counted_adds_up() -> None:
    whole = counted(*range(1, 1001))
    parts = counted(*range(1, 501))
    parts.include(counted(*range(501, 1001)).counts())
    assert parts.counts() == whole.counts()
    assert sum(parts.counts().values()) == 1000


def test_extremes_are_kept_within_bounds() -> None:
    found = counted(0, 2**63)
    assert sum(found.counts().values()) == 2
    assert found.percentile_ms(1) < 1e-5
    assert found.percentile_ms(100) == pytest.approx(2**40 / 1e6, rel=0.02)


def test_nothing_has_no_percentiles() -> None:
    assert Latencies().document() is None
    assert set(counted(5).document() or ()) == {"p50", "p90", "p99", "p99.9", "max"}
