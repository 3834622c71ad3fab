"""HTTP with users: who may do what, and what they learn."""

from pathlib import Path
from typing import Any

import httpx

from onelog.core.access import SELF
from onelog.core.users.passwords import prove
from onelog.core.users.permissions import Rule
from onelog.server import BrokerServer
from tests.client.letters import give_up
from tests.console.live import cluster
from tests.gateways.http.live import SECONDS, url
from tests.gateways.remoting.live import client as remoting

ANN, BOB = ("ann", "secret"), ("bob", "b")


def people(server: BrokerServer) -> None:
    """An administrator, and one who reads one topic."""
    users = server.broker.users
    users.create_user(SELF, "ann", prove("secret", signing=True), ("admin",))
    users.create_user(SELF, "bob", prove("b", signing=True))
    users.set_rules(SELF, "bob", (Rule(("consume",), "topic", "orders"),))


def caller(server: BrokerServer, login: tuple[str, str] | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url(server), timeout=SECONDS, auth=login)


async def test_who_has_not_logged_in_is_asked_to(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, web, _):
        people(server)
        for path in ("/", "/v1/overview", "/metrics", "/v1/topics", "/nothing"):
            asked = await web.get(path)
            assert asked.status_code == 401, path
            assert asked.headers["www-authenticate"].startswith("Basic")
        assert (await web.get("/healthz")).status_code == 200
        assert (await web.get("/readyz")).status_code == 200
        for login in (("ann", "wrong"), ("nobody", "secret"), ("ann", "")):
            async with caller(server, login) as stranger:
                assert (await stranger.get("/v1/overview")).status_code == 401
        for given in ("Basic ???", "Basic", "Bearer x.y.z", "Digest a"):
            asked = await web.get("/v1/overview", headers={"authorization": given})
            assert asked.status_code == 401, given


async def test_an_administrator_may_do_everything_and_others_what_they_may(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, web, _):
        for name in ("orders", "payroll"):
            await web.post("/v1/topics", json={"name": name, "queues": 1})
        sent = (await web.post("/v1/topics/orders/messages", json={"body": "x"})).json()
        await web.post("/v1/groups", json={"name": "g"})
        async with remoting(server) as peer:
            await give_up(peer, sent["id"], "g")
        people(server)
        async with caller(server, ANN) as ann, caller(server, BOB) as bob:
            assert (await ann.post("/v1/topics", json={"name": "new"})).status_code == 201
            assert (await ann.get("/metrics")).status_code == 200
            boxes = (await ann.get("/v1/dead-letters")).json()
            assert [each["group"] for each in boxes["items"]] == ["g"]
            resent = (await ann.post("/v1/dead-letters/g/resend", json={})).json()
            assert resent["resent"] == 1
            assert (await ann.get("/v1/config")).status_code == 200

            async def names(path: str) -> list[Any]:
                return [each["name"] for each in (await bob.get(path)).json()["items"]]

            assert await names("/v1/topics") == ["orders"]
            assert await names("/v1/groups") == []
            assert (await bob.get("/v1/overview")).status_code == 200
            found = await bob.get("/v1/topics/orders/messages")
            assert [each["body"] for each in found.json()["items"]] == ["x", "x"]
            for method, path, body in (
                ("GET", "/v1/topics/payroll", None),
                ("GET", "/v1/topics/payroll/messages", None),
                ("POST", "/v1/topics/orders/messages", {"body": "x"}),
                ("POST", "/v1/topics", {"name": "t"}),
                ("DELETE", "/v1/topics/orders", None),
                ("PATCH", "/v1/config", {"broker.trace": False}),
                ("GET", "/v1/config", None),
                ("GET", "/v1/connections", None),
                ("GET", "/v1/delays", None),
                ("GET", "/v1/dead-letters", None),
                ("GET", "/v1/dead-letters/g", None),
                ("GET", "/metrics", None),
            ):
                refused = await bob.request(method, path, json=body)
                assert refused.status_code == 403, (method, path, refused.text)
            server.broker.users.delete_user(SELF, "bob")
            assert (await bob.get("/v1/topics")).status_code == 401
