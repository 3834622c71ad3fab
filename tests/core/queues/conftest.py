from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.queues.yard import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "store")
    yield made
    made.close()
