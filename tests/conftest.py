"""What holds for all tests, alone and in parallel, and the record of the long runs."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, settings

from tests import disk

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

ROOT = Path(__file__).resolve().parent.parent

# A machine that is busy may take its time for an example. The same source has the same examples, so
# that a change is not refused for what it did not touch; `--hypothesis-profile=seeking` has others.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", _PATIENT, derandomize=True)
settings.register_profile("seeking", _PATIENT)
settings.load_profile("patient")

_began = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="SUITE", help="keep the result in benchmarks/results")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would all its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    disk.spare()


@cache
def group_of(file: str) -> str:
    """What tests of this file one worker must have; empty if anybody may have any of them.

    All that need a Spark session go to the same one: a second JVM would take longer to become fast
    than it would save.
    """
    text = (ROOT / file).read_text()
    if "SparkSession" in text:
        return "spark"
    # Two workers that build the same Java program would be in each other's way.
    return file if 'scope="module"' in text or "java_clients" in text else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling":
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out tests one by one, groups as a whole and first."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0]) or nodeid

    return Scheduler(config, log)


FILES_MAX = 200
_left_open: WeakSet[Any] = WeakSet()


@pytest.fixture(autouse=True)
def few_files_stay_open() -> Iterator[None]:
    """What tests leave open, as a crash does, or to the collector, is closed when it is much.

    A store keeps its files and its threads, and who only reads one its files. With more than 1,024
    files in a process, clients of other tests that wait by `select` cannot connect any more. Stores
    that were open before the test, as those of a module's fixtures, stay so.
    """
    before = _open_stores()
    yield
    _left_open.update(_open_stores() - before)
    if len(os.listdir("/proc/self/fd")) > FILES_MAX:
        for store in list(_left_open):
            with contextlib.suppress(Exception):  # Its disk may be one that fails.
                store.close()
        _left_open.clear()
        gc.collect()


def _open_stores() -> WeakSet[Any]:
    module = sys.modules.get("onelog.store.message_store")
    return WeakSet() if module is None else WeakSet(module._open_stores)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    suite = config.getoption("--record")
    if suite:
        from tests import run_record

        ended = run_record.result(terminalreporter.stats, time.monotonic() - _began)
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            ended = f"interrupted: {ended}"
        run_record.add(suite, ended)
        terminalreporter.write_line(f"{suite}: kept in {run_record.FILE.name}")
