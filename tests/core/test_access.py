"""Who may do what."""

import pytest

from onelog.core.access import SELF, Access, Action, Principal, Resource
from onelog.errors import NotPermittedError
from tests.core.world import World

ALICE = Principal("alice", "remoting", "10.0.0.1:5")


class Strict(Access):
    is_open = False

    def may(self, principal: Principal, action: Action, resource: Resource) -> bool:
        return principal == ALICE and action == "publish" and resource == ("topic", "orders")


def test_everybody_may_do_everything_for_now(world: World) -> None:
    access = world.broker.users
    for principal in (ALICE, SELF, Principal("", "kafka", "10.0.0.2:7")):
        assert access.may(principal, "delete", ("topic", "orders"))
        access.check(principal, "delete", ("topic", "orders"))


def test_another_access_decides_otherwise() -> None:
    access = Strict()
    access.check(ALICE, "publish", ("topic", "orders"))
    with pytest.raises(NotPermittedError, match="alice may not consume topic orders"):
        access.check(ALICE, "consume", ("topic", "orders"))
    with pytest.raises(NotPermittedError, match=r"10\.0\.0\.2:7 may not publish group g"):
        access.check(Principal("", "kafka", "10.0.0.2:7"), "publish", ("group", "g"))
