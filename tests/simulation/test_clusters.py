"""Clusters with faults, from a seed: `python -m tests.simulation SEED --steps N` replays one."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.cluster import Cluster
from tests.simulation.kernel import BrokenError

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS, STEPS = 220, 5_000
"""What `make soak` simulates: 1,100,000 steps, and what it takes until all is well again."""


def simulate(seed: int, steps: int) -> Cluster:
    with Cluster(seed) as cluster:
        try:
            cluster.run(steps)
        except Exception:
            print(cluster.kernel.told())
            print(f"to see it again: python -m tests.simulation {seed} --steps {steps} --aloud")
            raise
        return cluster


@pytest.mark.parametrize("seed", [3, 4, 7, 11, 16, 21])
def test_a_cluster_keeps_what_it_promised(seed: int) -> None:
    assert simulate(seed, 4_000).clients.answers


def test_a_seed_tells_the_same_story_each_time() -> None:
    one, two = (simulate(5, 1_500) for _ in range(2))
    assert one.kernel.digest == two.kernel.digest
    assert one.settled.log == two.settled.log


@pytest.mark.parametrize(
    "bug", ["acknowledge_before_confirm", "apply_before_record", "act_while_the_log_is_read"]
)
def test_a_bug_that_is_put_in_is_found(bug: str) -> None:
    def try_some() -> None:
        for seed in range(4, 12):
            with Cluster(seed) as cluster:
                cluster.run(2_000)

    with BUGS[bug](), pytest.raises(BrokenError):
        try_some()


# -- long runs -----------------------------------------------------------------------------------


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.simulation", *map(str, words)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(runs: Sequence[subprocess.Popen[str]]) -> list[str]:
    return [run.communicate()[0] for run in runs]


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_many_clusters_keep_what_they_promised() -> None:
    parts = os.cpu_count() or 1
    size = -(-SEEDS // parts)
    firsts = range(1, SEEDS + 1, size)
    runs = [
        start(first, "--to", min(first + size - 1, SEEDS), "--steps", STEPS) for first in firsts
    ]
    texts = ended(runs)
    print(*texts, sep="\n")
    assert [run.returncode for run in runs] == [0] * len(runs)
    assert sum(text.count("steps with faults") for text in texts) == SEEDS


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_that_is_put_in_is_found_within_a_hundred_seeds(bug: str) -> None:
    run = start(1, "--to", 100, "--steps", STEPS, "--bug", bug, "--lines", 20)
    (text,) = ended([run])
    print(text)
    # A program that could not even start ends with 1, too.
    assert run.returncode == 1, "it was not found"
    assert "failed at step" in text
