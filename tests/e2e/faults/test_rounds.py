"""A replicated cluster under faults and under load; what came of it, the checker says.

The short round is for every run of the tests; the long ones are two hundred, of all kinds.
"""

from pathlib import Path

import pytest

from tests.e2e.faults import servers
from tests.e2e.faults.campaign import run, run_all
from tests.e2e.faults.checker import FAIL_OVER_S_MAX
from tests.e2e.faults.faults import KINDS, Choice
from tests.e2e.faults.servers import BROKERS

SEEDS = range(1, 11)
ROUNDS = 20
PATIENT_S = 30.0
"""A fail-over on a machine that runs other tests, too."""

needs_cluster = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not() or "-")


@needs_cluster
def test_a_master_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    outcome = run(
        tmp_path / "cluster",
        seed=5,
        rounds=1,
        only=["kill -9"],
        clients=("sdk", "kafka"),
        fail_over_s=PATIENT_S,
    )
    assert outcome.is_good, outcome.said
    nemesis = (tmp_path / "cluster" / "histories" / "nemesis.jsonl").read_text()
    assert '"hit":"master"' in nemesis


@needs_cluster
@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_two_hundred_rounds_of_faults_lose_nothing(tmp_path: Path) -> None:
    total = run_all(tmp_path, SEEDS, ROUNDS)
    print("\n".join(total.told()))
    assert not total.broken
    assert not total.violations
    assert total.rounds == len(SEEDS) * ROUNDS
    assert total.fail_over_s(99) < FAIL_OVER_S_MAX


def test_a_seed_chooses_the_same_faults_each_time_and_every_kind() -> None:
    chosen = [Choice(7, list(KINDS)) for _ in range(2)]
    first, again = ([choice.next(BROKERS[1]) for _ in range(2 * len(KINDS))] for choice in chosen)
    assert first == again
    assert {fault.kind for fault in first[: len(KINDS)]} == set(KINDS)
    other = Choice(8, list(KINDS))
    assert [other.next(BROKERS[1]) for _ in KINDS] != first[: len(KINDS)]
    hit = [fault for fault in first if fault.target in BROKERS]
    assert all((fault.target == BROKERS[1]) == (fault.hit == "master") for fault in hit)
