"""The package `onelog.client`: what importing it brings, and what it costs."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import onelog.client

NOT_NEEDED = (
    "cryptography lz4 zstandard numpy opentelemetry redis sqlite3 uvloop rich typer tempfile "
    "onelog.config onelog.core onelog.store onelog.gateways onelog.server "
    "onelog.client.admin.admin onelog.client.consumer.push.popping"
).split()


def test_every_public_name_is_there() -> None:
    assert sorted(onelog.client.__all__) == onelog.client.__all__
    for name in onelog.client.__all__:
        assert getattr(onelog.client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Produser'"):
        onelog.client.Produser  # noqa: B018


def test_importing_it_loads_nothing_that_most_programs_do_not_need() -> None:
    code = (
        "import sys, onelog.client\n"
        f"print([name for name in {NOT_NEEDED!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_it_takes_little_more_than_what_it_stands_on(tmp_path: Path) -> None:
    """In processor time, and compared: so other jobs of the machine matter little.

    Where this was written, the import took 0.10 s while little else ran.
    """
    standing_on = "import asyncio, inspect, logging, msgspec, ssl"
    codes = (standing_on, "import onelog.client")
    for code in codes:
        cpu_seconds(code, tmp_path)  # Compiled once, as after an installation.
    # In turns, so that a machine that grows busier slows both down.
    rounds = [[cpu_seconds(code, tmp_path) for code in codes] for _ in range(5)]
    below, all_of_it = map(min, zip(*rounds, strict=True))
    assert all_of_it < 3 * below


def cpu_seconds(code: str, cache: Path) -> float:
    environment = {name: os.environ[name] for name in os.environ if "BYTECODE" not in name}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPYCACHEPREFIX": str(cache)},
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
