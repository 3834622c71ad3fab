import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """The collector does not come between those who measure how long something takes."""
    gc.disable()
    yield
    gc.enable()
