"""What holds for all tests, alone and in parallel, and the record of the long runs.

With `make unit` several workers share the tests. Those that need Spark all go to the same one: a
second JVM would take longer to become fast than it would save.
"""

import signal
import time

import pytest
from hypothesis import settings

# A machine that is busy may take its time for an example.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


_began = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="SUITE", help="keep the result in benchmarks/results")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would all its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


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
