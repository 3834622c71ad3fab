"""Every program in docs/client.md runs, ends, and prints what the page says."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onelog
from tests.complaints import complaints
from tests.docs.markdown import DOCS, Snippet, snippets

PAGE = (DOCS / "client.md").read_text()
PROGRAMS = [each for each in snippets(PAGE) if each.kind == "python"]
TESTS = [each for each in snippets(PAGE) if each.kind == "python pytest"]


@pytest.fixture(scope="module")
def nameserver() -> Iterator[str]:
    """A broker that other processes reach through sockets."""
    with onelog.embedded(port=0) as mq:
        yield mq.nameserver


def run(code: str, folder: Path, nameserver: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(code)
    return subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env={**os.environ, "ONELOG_NAMESERVER": nameserver},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("snippet", PROGRAMS, ids=lambda each: each.heading)
def test_a_program_prints_what_the_page_says(
    snippet: Snippet, nameserver: str, tmp_path: Path
) -> None:
    ended = run(snippet.code, tmp_path, nameserver)
    assert (complaints(ended.stderr), ended.returncode) == ("", 0)
    assert ended.stdout == snippet.printed


@pytest.mark.parametrize("snippet", TESTS, ids=lambda each: each.heading)
def test_a_test_passes(snippet: Snippet, tmp_path: Path) -> None:
    (tmp_path / "test_snippet.py").write_text(snippet.code)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_snippet.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "1 passed" in ended.stdout, ended.stdout


def test_the_program_in_the_readme_goes_on_until_it_is_interrupted(
    nameserver: str, tmp_path: Path
) -> None:
    (snippet,) = snippets((DOCS.parent / "README.md").read_text())
    (tmp_path / "program.py").write_text(snippet.code)
    with subprocess.Popen(
        [sys.executable, "-u", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "ONELOG_NAMESERVER": nameserver},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        line = program.stdout.readline()
        program.send_signal(signal.SIGINT)
        try:
            _, err = program.communicate(timeout=60)
        finally:
            program.kill()
    assert line.startswith(b"b'three lamps'")
    assert (err, program.returncode) == (b"", 0)


def test_the_programs_are_right_to_type_checkers(tmp_path: Path) -> None:
    for number, snippet in enumerate(PROGRAMS + TESTS):
        (tmp_path / f"snippet_{number}.py").write_text(snippet.code)
    cache = DOCS.parent / ".mypy_cache" / "user-program"
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-error-summary"),
            *(f"--cache-dir={cache}", "."),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (checked.stdout, checked.returncode) == ("", 0)


def test_the_page_has_what_it_should() -> None:
    assert len(PROGRAMS) >= 10
    assert len(TESTS) == 1
    assert [each.heading for each in PROGRAMS if each.printed is None] == []


def test_a_program_that_is_wrong_would_be_found(tmp_path: Path) -> None:
    page = "# A\n```python\nprint(1)\n```\n\n```text\n2\n```\n## B\n```python\n1/0\n```\n\ntext\n"
    first, second = snippets(page)
    assert (first.heading, first.printed) == ("A", "2\n")
    assert run(first.code, tmp_path, "").stdout == "1\n"
    assert (second.heading, second.printed) == ("B", None)
    assert "ZeroDivisionError" in run(second.code, tmp_path, "").stderr
