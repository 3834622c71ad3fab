import pytest

from tests.core.routing.queues import Routed
from tests.core.world import World


@pytest.fixture
def routed(world: World) -> Routed:
    return Routed(world)
