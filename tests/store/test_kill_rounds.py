"""A writer is killed at any moment, again and again: nothing that it acknowledged is lost."""

import subprocess
import sys
import time
from pathlib import Path

import pytest


def kill(folder: Path, rounds: int, seed: int) -> None:
    """In a process of its own: it forks, which a process with threads had better not do."""
    command = [sys.executable, "-m", "tests.store.kill_rounds", str(folder), str(rounds), str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    kill(tmp_path, rounds=75, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_what_was_acknowledged_survives_kill_9_ten_thousand_times(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    kill(tmp_path, rounds=10_000, seed=seed)
