"""`onelog user`: the first one, and its roles."""

import pytest

from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run


async def test_the_role_admin_makes_an_administrator_as_the_flag_does(
    onelog: Run, cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = await onelog("user", "create", "root", "--password", "hush", "--role", "readers")
    assert refused.code == 2
    assert "the first user must have the role admin" in refused.err
    made = await onelog("user", "create", "root", "--password", "hush", "--role", "admin")
    assert (made.code, made.err) == (0, "")
    monkeypatch.setenv("ONELOG_ACCESS_KEY", "root")
    monkeypatch.setenv("ONELOG_SECRET_KEY", "hush")
    assert (await onelog("user", "create", "bob", "--password", "hush")).code == 0
    assert (await onelog("user", "update", "bob", "--role", "admin")).code == 0
    found = (await onelog("user", "list", "--json")).document
    assert [each["roles"] for each in found] == [["admin"], ["admin"]]
    (last,) = (await onelog("user", "audit", "root", "--count", "1", "--json")).document
    assert (last["user"], last["thing"], last["result"]) == ("root", "user bob changed", "done")
    assert "actions: " in (await onelog("user", "audit")).out
    assert (await onelog("user", "audit", "nobody", "--json")).document == []
