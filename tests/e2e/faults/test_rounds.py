"""A replicated cluster under faults and under load; what came of it, the checker says.

The short round is for every run of the tests; the long ones are two hundred, of all kinds.
"""

import json
from pathlib import Path

import pytest

from tests.e2e.faults import servers
from tests.e2e.faults.campaign import CLIENT_KINDS, run
from tests.e2e.faults.checker import FAIL_OVER_S_MAX, VIOLATIONS, percentile
from tests.e2e.faults.faults import KINDS, Choice
from tests.e2e.faults.servers import BROKERS
from tests.e2e.processes import ChildError

SEEDS = range(1, 11)
ROUNDS = 20
PATIENT_S = 30.0
"""A fail-over on a machine that runs other tests, too."""

needs_cluster = pytest.mark.skipif(bool(servers.why_not()), reason=servers.why_not() or "-")


@needs_cluster
def test_a_master_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    outcome = run(
        tmp_path / "cluster", seed=5, rounds=1, only=["kill -9"], clients=("sdk", "kafka"),
        fail_over_s=PATIENT_S,
    )  # fmt: skip
    assert outcome.is_good, outcome.said
    nemesis = (tmp_path / "cluster" / "histories" / "nemesis.jsonl").read_text()
    assert '"hit":"master"' in nemesis


@needs_cluster
@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_two_hundred_rounds_of_faults_lose_nothing(tmp_path: Path) -> None:
    rounds, counts, times, bad = 0, dict.fromkeys((*VIOLATIONS, "acknowledged"), 0), [], []
    duplicates = {"duplicates in the log": 0, "duplicates delivered": 0}
    for seed in SEEDS:
        try:
            outcome = run(tmp_path / f"seed-{seed}", seed, ROUNDS, clients=CLIENT_KINDS)
        except ChildError as error:
            bad.append(f"seed {seed}: {error}")
            continue
        rounds += outcome.rounds
        verdict = json.loads((outcome.folder / "verdict.json").read_text())
        for counted in (counts, duplicates):
            for name in counted:
                counted[name] += verdict.get(name, 0)
        times += [
            seconds
            for _, _, hit, who, seconds in verdict["outages"]
            if who == "any" and hit != "follower"
        ]
    print(f"{rounds} rounds: {counts}, {duplicates}")
    print(f"fail-over: p50 {percentile(times, 50):.2f} s, p99 {percentile(times, 99):.2f} s")
    assert not bad, "\n".join(bad)
    assert {name: counts[name] for name in VIOLATIONS} == dict.fromkeys(VIOLATIONS, 0)
    assert counts["acknowledged"] > 0
    assert percentile(times, 99) < FAIL_OVER_S_MAX


def test_a_seed_chooses_the_same_faults_each_time_and_every_kind() -> None:
    chosen = [Choice(7, list(KINDS)) for _ in range(2)]
    first, again = ([choice.next(BROKERS[1]) for _ in range(2 * len(KINDS))] for choice in chosen)
    assert first == again
    assert {fault.kind for fault in first[: len(KINDS)]} == set(KINDS)
    other = Choice(8, list(KINDS))
    assert [other.next(BROKERS[1]) for _ in KINDS] != first[: len(KINDS)]
    hit = [fault for fault in first if fault.target in BROKERS]
    assert all((fault.target == BROKERS[1]) == (fault.hit == "master") for fault in hit)
