"""The record of the long runs has what anybody must know of one, and no more."""

import socket
import subprocess
from pathlib import Path

from tests import run_record


def test_a_result_says_how_many_did_what_and_how_long_it_took() -> None:
    stats = {"passed": [1] * 12, "skipped": [1], "deselected": [1] * 99, "": [1]}
    assert run_record.result(stats, 1234.4) == "12 passed, 1 skipped in 0:20:34"
    assert run_record.result({"failed": [1], "passed": [1]}, 3) == "1 failed, 1 passed in 0:00:03"
    assert run_record.result({}, 3) == "nothing run in 0:00:03"


def test_runs_are_lines_of_one_table(tmp_path: Path) -> None:
    file = tmp_path / "runs.md"
    run_record.add("make soak", "1 passed in 0:00:01", file)
    run_record.add("make e2e", "2 passed in 0:00:02", file)
    first, second = file.read_text().splitlines()[-2:]
    assert "| make soak | 1 passed in 0:00:01 |" in first
    assert "| make e2e | 2 passed in 0:00:02 |" in second
    assert first.count("|") == file.read_text().splitlines()[-3].count("|")
    assert "cores" in first
    assert "CPython" in first
    assert socket.gethostname() not in first
    assert str(Path.home()) not in first


def test_what_was_changed_is_marked_unless_it_is_a_result(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for file in (tmp_path / "code.py", results / "runs.md"):
        file.write_text("first\n")
    author = ["-c", "user.name=A", "-c", "user.email=a@localhost"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (results / "runs.md").write_text("second\n")
    (results / "other.json").write_text("{}")
    name = run_record.commit(results)
    assert name
    assert not name.endswith("+")
    (tmp_path / "code.py").write_text("second\n")
    assert run_record.commit(results) == f"{name}+"
