from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()
