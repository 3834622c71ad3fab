"""Exactly once under fire: whatever is killed while a topic is copied, each message arrives once.

A round copies a topic to another one, or to a lake table, in many small batches. At a random moment
in the middle it kills the driver, a Python worker or the broker, starts again what was killed, and
lets the copy come to its end. The seed of a round is printed; FIRE_SEED repeats it.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.e2e.processes import ChildError, wait_until
from tests.spark.copying_driver import Copy
from tests.spark.fire import Cluster, Driver, table_bodies

ROWS_PER_BATCH = 1_000
ROUNDS, ROUNDS_SOAK = 3, 30
BATCHES, BATCHES_SOAK = 9, 20
TRIES = 3
"""A shot that came when everything had been copied says nothing, and is tried again."""
DELAY_SECONDS_MAX = 0.5
"""About the time of a batch, so that every part of it is hit."""
LIMIT_SECONDS = 240
WORKERS_SHOT, WORKERS_SHOT_SOAK = 1, 3

Victim = Literal["driver", "worker", "broker"]
Target = Literal["topic", "table"]
CASES: tuple[tuple[Victim, Target], ...] = (
    ("driver", "topic"),
    ("worker", "table"),
    ("broker", "topic"),
    ("driver", "table"),
    ("worker", "topic"),
    ("broker", "table"),
)

pytestmark = pytest.mark.timeout(900)


class Range(NamedTuple):
    """What there is to shoot at."""

    cluster: Cluster
    driver: Driver
    folder: Path


@pytest.fixture(scope="module")
def shooting_range(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    """One for all rounds: what survives a round is used in the next one."""
    folder = tmp_path_factory.mktemp("fire")
    driver = Driver(folder)
    with Cluster(folder) as cluster:
        yield Range(cluster, driver, folder)
        driver.close()


def fire_round(shooting: Range, victim: Victim, target: Target, seed: int, long: bool) -> bool:
    """Copy under fire, and check; False if everything had been copied before the first shot."""
    chance = random.Random(seed)
    batches = BATCHES_SOAK if long else BATCHES
    workers_shot = WORKERS_SHOT_SOAK if long else WORKERS_SHOT
    cluster, driver, _ = shooting
    source = f"in-{seed}"
    folder = shooting.folder / f"copy-{seed}"
    folder.mkdir()
    out = f"out-{seed}" if target == "topic" else ""
    copy = Copy(cluster.nameservers, source, out, str(folder), ROWS_PER_BATCH)
    cluster.create(source)
    sent = cluster.fill(source, batches * ROWS_PER_BATCH, chance)
    if out:
        cluster.create(out)
    driver.begin(copy)
    in_time = all(
        shoot(shooting, copy, victim, chance, after=first + chance.randrange(4))
        for first in range(1, 1 + 4 * (workers_shot if victim == "worker" else 1), 4)
    )
    try:
        wait_until(lambda: driver.is_done(copy), "the end of the copy", LIMIT_SECONDS)
    except ChildError as error:
        raise ChildError(f"{error}\n{driver.log()}") from None
    print(f"  the query was started again {copy.done.read_text()} times by its driver")
    there = cluster.bodies(out) if out else table_bodies(copy)
    assert differences(sent, there) == ""
    return in_time


def shoot(
    shooting: Range, copy: Copy, victim: Victim, chance: random.Random, *, after: int
) -> bool:
    """Kill somebody soon after a batch has begun; False if the copy was through by then."""
    cluster, driver, _ = shooting
    wait_until(
        lambda: driver.batches(copy) > after or driver.is_done(copy), "batches", LIMIT_SECONDS
    )
    delay = chance.uniform(0, DELAY_SECONDS_MAX)
    time.sleep(delay)
    begun, late = driver.batches(copy), driver.is_done(copy)
    what = ""
    if victim == "driver":
        with_jvm = chance.random() < 0.5
        driver.kill(with_jvm=with_jvm)
        driver.begin(copy)
        what = " with its JVM" if with_jvm else " alone"
    elif victim == "worker":
        what = f", {driver.kill_worker(chance)}"
    else:
        cluster.kill_broker()
    print(f"  killed the {victim}{what}, when {begun} batches had begun")
    return not late


def differences(sent: list[bytes], there: list[bytes]) -> str:
    """What is missing, or there more than once, or was never sent; empty if all is well."""
    wanted, found = Counter(sent), Counter(there)
    missing, extra = wanted - found, found - wanted
    if not missing and not extra:
        return ""
    return (
        f"{missing.total()} missing, {extra.total()} too many: "
        f"{[body[:8] for body in missing][:5]}, {[body[:8] for body in extra][:5]}"
    )


def fire(shooting: Range, number: int, *, long: bool = False) -> None:
    """One round, whose shot has hit."""
    victim, target = CASES[number % len(CASES)]
    for _ in range(TRIES):
        seed = int(os.environ.get("FIRE_SEED") or random.randrange(1 << 31))
        print(f"round {number}: {victim}, topic -> {target}, FIRE_SEED={seed}")
        if fire_round(shooting, victim, target, seed, long):
            return
    pytest.fail(f"in {TRIES} tries everything was copied before the shot")


@pytest.mark.parametrize("number", range(ROUNDS))
def test_every_message_is_there_once_whoever_was_killed(shooting_range: Range, number: int) -> None:
    fire(shooting_range, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS_SOAK))
def test_every_message_is_there_once_in_many_rounds(shooting_range: Range, number: int) -> None:
    fire(shooting_range, number, long=True)


def test_what_is_lost_or_there_twice_is_noticed() -> None:
    assert differences([b"a", b"b"], [b"b", b"a"]) == ""
    assert "1 missing, 0 too many" in differences([b"a", b"b"], [b"a"])
    assert "0 missing, 1 too many" in differences([b"a"], [b"a", b"a"])
    assert "1 missing, 1 too many" in differences([b"a"], [b"c"])
