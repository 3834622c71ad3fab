"""What holds for all tests, alone and in parallel, and the record of the long runs.

With `make unit` several workers share the tests. Those that need Spark all go to the same one: a
second JVM would take longer to become fast than it would save.
"""

import signal

import pytest
from hypothesis import settings

# A machine that is busy may take its time for an example.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would all its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
