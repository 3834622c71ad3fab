"""HTTP: no route of any of its APIs tells a user anything about what he has no permission for."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from onelog.admin import openapi
from onelog.admin.table import OPERATIONS
from onelog.gateways.http.app import make_app
from onelog.gateways.http.logins import OPEN
from onelog.server import BrokerServer
from tests.gateways.http.live import SECONDS, url
from tests.security.secrets import ABSENT, NOBODY, OWNER, SECRET, TRACE, context, hidden, state

GIVEN: dict[str, Any] = {
    "type": "topic",
    "durable": True,
    "password": "p",
    "tags": "",
    "configure": ".*",
    "read": ".*",
    "write": ".*",
    "routing_key": "k",
    "payload": "x",
    "payload_encoding": "string",
    "count": 1,
    "properties": {},
    "ackmode": "ack_requeue_true",
    "encoding": "auto",
    "arguments": {},
}
"""A body that every request of RabbitMQ's API understands."""
_RECEIPTS = {"receipts": ["0-0-1"]}
BODIES: dict[str, Any] = {
    "/v1/topics/{topic}/produce-json": {"messages": [{"json": 1}]},
    "/v1/topics/{topic}/groups/{group}/ack": _RECEIPTS,
    "/v1/topics/{topic}/groups/{group}/nack": _RECEIPTS,
    "/v1/topics/{topic}/groups/{group}/extend": _RECEIPTS,
    "/v1/groups/{group}/reset": {"topic": "x", "to": "earliest", "dry_run": False},
    "/api/policies/{vhost}/{name}": {"pattern": ".*", "definition": {"max-length": 1}},
    "/api/operator-policies/{vhost}/{name}": {"pattern": ".*", "definition": {"max-length": 1}},
    "/api/definitions": {"vhosts": [{"name": "x"}]},
    "/api/definitions/{vhost}": {"vhosts": [{"name": "x"}]},
}
"""Bodies of requests that the one for all is not enough for."""
NAMED = (
    "name",
    "topic",
    "group",
    "queue",
    "exchange",
    "source",
    "destination",
    "user",
    "vhost",
    "key",
    "id",
    "consumer",
    "client",
    "to",
    "from",
)
STATIC = re.compile(r"/console/|/v1/openapi.json|/$")
EXAMPLES = {(each.path, each.method): openapi.EXAMPLES.get(each.name) for each in OPERATIONS}
VARYING = re.compile(
    rb'"(\w*(time|ms|bytes|seconds|date|rate|memory|at|offset|free|used)\w*)":[^,}]+'
)


def about(value: Any, name: str, key: str = "") -> Any:
    """An example of a body, about one thing."""
    if isinstance(value, dict):
        return {each: about(inner, name, each) for each, inner in value.items()}
    if isinstance(value, list):
        return [about(each, name, key) for each in value]
    return name if isinstance(value, str) and key in NAMED else value


def body_about(method: str, path: str, name: str) -> Any:
    """The body of a request, about one thing."""
    if method in ("GET", "DELETE"):
        return None
    made = about(BODIES.get(path) or EXAMPLES.get((path, method)) or GIVEN, name)
    return {**made, "to": "earliest"} if path.endswith("/reset") else made


def requests(server: BrokerServer) -> Iterator[tuple[str, str]]:
    """Every method of every route."""
    for route in make_app(server.context).routes:
        if isinstance(route, Route) and not STATIC.match(route.path):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield method, route.path


def filled(path: str, name: str, vhost: str) -> str:
    """A path with names in it."""
    fixed = {"vhost": vhost, "end": "source", "kind": "q", "queue": name, "partition": "0"}

    def value(found: re.Match[str]) -> str:
        key = found[1].partition(":")[0]
        return "0" if found[1].endswith(":int") else fixed.get(key, name)

    return re.sub(r"\{([^}]+)\}", value, path)


def flat(answer: httpx.Response, name: str) -> bytes:
    """What an answer says, but for the name and what changes all the time."""
    text = hidden(VARYING.sub(b"", answer.content), name)
    if answer.request.url.path == "/v1/overview":
        text = re.sub(rb"[0-9.]+", b"N", text)
    return b"%d %s" % (answer.status_code, text)


async def compare(client: httpx.AsyncClient, method: str, path: str, vhost: str) -> str:
    """What is wrong with the answers to a request."""
    answers = []
    for name in (SECRET, ABSENT):
        sent = body_about(method, path, name)
        query = "?key=" + name if path.endswith("/messages") and method == "GET" else ""
        place = vhost.replace("NAME", name)
        async with client.stream(method, filled(path, name, place) + query, json=sent) as answer:
            if answer.status_code == 200 and "event-stream" in answer.headers["content-type"]:
                return "tells what comes"
            await answer.aread()
        answers.append(flat(answer, name))
    if any(TRACE in each for each in answers):
        return f"tells a name: {answers}"
    if answers[0] != answers[1] and path != "/metrics":
        return f"tells that something is there: {answers}"
    return "" if not answers[0].startswith(b"500") else f"fails: {answers}"


@pytest.mark.parametrize("login", [NOBODY, OWNER], ids=["nobody", "owner"])
async def test_no_route_tells_what_is_there(tmp_path: Path, login: tuple[str, str]) -> None:
    wrong: dict[str, str] = {}
    async with (
        context(tmp_path) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS, auth=login) as client,
    ):
        before = state(server)
        for method, path in requests(server):
            for vhost in ("%2F", "NAME") if "{vhost}" in path else ("%2F",):
                if found := await compare(client, method, path, vhost):
                    wrong[f"{method} {path} {vhost}"] = found
            if state(server) != before:
                wrong[f"{method} {path}"] = "changes something"
                before = state(server)
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


async def test_who_has_not_logged_in_gets_401(tmp_path: Path) -> None:
    async with (
        context(tmp_path) as server,
        httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as client,
    ):
        for method, path in requests(server):
            if path not in OPEN:
                answer = await client.request(method, filled(path, SECRET, "%2F"))
                assert answer.status_code == 401, f"{method} {path}"
                assert TRACE not in answer.content
