"""The same requests to RabbitMQ's management API and to ours: the statuses are the same."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.onelog_amqp import OnelogAmqp
from tests.e2e.processes import wait_until
from tests.e2e.rabbitmq_peer import MISSING, RabbitmqPeer
from tests.ports import free_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.timeout(400),
]
POLICY = {"pattern": "^x$", "definition": {"max-length": 1}}
ALTERNATE = {
    "pattern": "^te$",
    "definition": {"alternate-exchange": "amq.fanout"},
    "apply-to": "exchanges",
}
ADMIN = {"password": "guest", "tags": "administrator"}
PERMISSION = {"configure": "^q", "write": ".*", "read": ""}
BINDING = "/bindings/%2F/e/te/q/tq"
MESSAGE = {"routing_key": "", "payload": "!!", "payload_encoding": "string", "properties": {}}
STEPS: list[tuple[str, str, Any]] = [
    *(
        ("GET", path, None)
        for path in (
            "/overview",
            "/cluster-name",
            "/cluster-name/",
            "/global-parameters",
            "/auth",
            "/whoami",
            "/global-parameters/none",
            "/vhosts",
            "/vhosts/%2F",
            "/vhosts/none",
            "/vhosts/%2F/permissions",
            "/vhosts/none/permissions",
            "/users",
            "/users/",
            "/users/guest",
            "/users/none",
            "/users/guest/permissions",
            "/users/none/permissions",
            "/users/without-permissions",
            "/user-limits",
            "/permissions",
            "/permissions/%2F/guest",
            "/permissions/%2F/none",
            "/permissions/none/guest",
            "/topic-permissions",
            "/connections",
            "/connections/",
            "/connections/none",
            "/channels/",
            "/channels/none",
            "/queues",
            "/queues/",
            "/queues/%2F/",
            "/queues/none",
            "/queues/%2F/none",
            "/exchanges/none",
            "/exchanges/%2F/none",
            "/exchanges/%2F/amq.topic",
            "/exchanges/%2F/amq.topic/",
            "/bindings/none",
            "/policies/none",
            "/policies/%2F/none",
            "/consumers/none",
            "/vhost-limits",
            "/vhost-limits/%2F",
            "/parameters",
            "/parameters/shovel",
            "/nodes",
            "/nodes/",
            "/nodes/none/memory",
            "/aliveness-test/none",
            "/health/checks/alarms",
            "/health/checks/port-listener/1",
            "/health/checks/protocol-listener/amqp",
            "/health/checks/protocol-listener/none",
            "/parameters/shovel/%2F",
            "/parameters/shovel/none",
            "/connections/username/guest",
            "/connections/username/none",
            "/user-limits/guest",
            "/user-limits/none",
            "/vhost-limits/none",
            "/queues?page=99",
            "/exchanges?page=1&name=(&use_regex=true",
            "/healthchecks/node",
            "/none",
            "/definitions",
        )
    ),
    *(
        ("DELETE", path, None)
        for path in (
            "/vhosts/none",
            "/queues/%2F/none",
            "/queues/none/q",
            "/queues/%2F/none/contents",
            "/exchanges/%2F/none",
            "/exchanges/none/e",
            "/bindings/%2F/e/amq.direct/q/none/key",
            "/connections/none",
            "/policies/%2F/none",
            "/users/none",
            "/permissions/%2F/none",
            "/parameters/shovel/%2F/none",
            "/global-parameters/none",
        )
    ),
    ("PUT", "/vhosts/v1", None),
    ("PUT", "/vhosts/v1", None),
    ("GET", "/vhosts/v1", None),
    ("PUT", "/vhosts/v2", {"description": "d", "tags": "a,b"}),
    ("GET", "/vhosts/v2", None),
    ("DELETE", "/vhosts/v2", None),
    ("DELETE", "/vhosts/v2", None),
    ("PUT", "/queues/%2F/tq", {}),
    ("PUT", "/queues/%2F/tq", {}),
    ("GET", "/queues/%2F/tq/", None),
    ("PUT", "/queues/none/tq", {}),
    ("PUT", "/exchanges/%2F/te", {"type": "topic"}),
    ("PUT", "/exchanges/%2F/te", {"type": "topic"}),
    ("PUT", "/exchanges/%2F/te", {"type": "fanout"}),
    ("POST", BINDING, {"routing_key": "k"}),
    ("POST", BINDING, {"routing_key": "k"}),
    ("POST", "/bindings/%2F/e/te/q/none", {"routing_key": "k"}),
    ("GET", f"{BINDING}/k", None),
    ("GET", f"{BINDING}/none", None),
    ("DELETE", f"{BINDING}/none", None),
    ("PUT", "/policies/%2F/a", ALTERNATE),
    ("PUT", "/policies/%2F/a", ALTERNATE),
    ("PUT", "/policies/%2F/b", {**ALTERNATE, "definition": {"alternate-exchange": 7}}),
    ("PUT", "/operator-policies/%2F/a", ALTERNATE),
    ("DELETE", "/policies/%2F/a", None),
    ("DELETE", f"{BINDING}/k", None),
    ("DELETE", f"{BINDING}/k", None),
    ("DELETE", "/queues/%2F/tq", None),
    ("DELETE", "/queues/%2F/tq", None),
    ("DELETE", "/exchanges/%2F/te", None),
    ("PUT", "/policies/%2F/p", POLICY),
    ("PUT", "/policies/%2F/p", POLICY),
    ("DELETE", "/policies/%2F/p", None),
    ("POST", "/definitions", {}),
    ("POST", "/definitions/none", {}),
    ("PUT", "/permissions/%2F/none", PERMISSION),
    ("PUT", "/permissions/none/guest", PERMISSION),
    ("POST", "/exchanges/%2F/amq.fanout/publish", {**MESSAGE, "payload_encoding": "none"}),
    ("POST", "/exchanges/%2F/amq.fanout/publish", {**MESSAGE, "payload_encoding": "base64"}),
    ("PUT", "/users/u1", {"password": "pw", "tags": "management"}),
    ("PUT", "/users/u1", {"password": "pw", "tags": "policymaker"}),
    ("GET", "/users/u1", None),
    ("PUT", "/users/u2", {"password": "x"}),
    ("PUT", "/users/u3", {"password": "x", "tags": ["a"]}),
    ("GET", "/users/without-permissions", None),
    ("GET", "/permissions/%2F/u1", None),
    ("PUT", "/permissions/%2F/u1", PERMISSION),
    ("PUT", "/permissions/%2F/u1", PERMISSION),
    ("GET", "/permissions/%2F/u1", None),
    ("GET", "/users/u1/permissions", None),
    ("PUT", "/permissions/%2F/u1", {**PERMISSION, "read": "("}),
    ("PUT", "/permissions/%2F/u1", {"configure": "x"}),
    ("DELETE", "/permissions/%2F/u1", None),
    ("DELETE", "/permissions/%2F/u1", None),
    ("DELETE", "/users/u1", None),
    ("POST", "/users/bulk-delete", {"users": ["u3"]}),
    ("DELETE", "/users/u3", None),
    ("DELETE", "/vhosts/v1", None),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """OneLog's API and RabbitMQ's."""
    folder: Path = tmp_path_factory.mktemp("management")
    ours_at, theirs_at = free_port(), free_port()
    listening = f"management.tcp.port = {theirs_at}\nmanagement.tcp.ip = 127.0.0.1\n"
    plugins = ("rabbitmq_management",)
    with (
        OnelogAmqp(folder / "onelog", {"http.port": ours_at}),
        RabbitmqPeer(folder / "rabbitmq", listening, plugins),
        _client(ours_at) as ours,
        _client(theirs_at) as theirs,
    ):
        theirs.auth = ("guest", "guest")
        for each in (ours, theirs):
            wait_until(partial(_answers, each), "the management API", 60)
        yield ours, theirs


def _client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}/api", timeout=30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/overview").status_code == 200
    except httpx.TransportError:
        return False


def test_statuses_and_kinds_of_answers_are_the_same(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    ours, theirs = both
    # The same administrator on both sides, where RabbitMQ has one from the beginning.
    assert ours.put("/users/guest", json=ADMIN).status_code == 201
    ours.auth = ("guest", "guest")
    others = []
    for method, path, body in STEPS:
        said = [each.request(method, path, json=body) for each in (theirs, ours)]
        kinds = [type(each.json()) if each.is_success and each.content else None for each in said]
        if said[0].status_code != said[1].status_code or kinds[0] is not kinds[1]:
            seen = [each.status_code for each in said]
            others.append((method, path, body, seen, kinds, said[1].text[:200]))
    assert others == []


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_json_that_does_not_say_so_is_understood(
    both: tuple[httpx.Client, httpx.Client], kind: str
) -> None:
    for client in both:
        if client is both[0]:
            client.put("/users/guest", json=ADMIN)
            client.auth = ("guest", "guest")
        headers = {"content-type": kind}
        made = client.put("/queues/%2F/curl", content=b'{"durable": true}', headers=headers)
        assert made.status_code in (201, 204)
        wrong = client.put("/queues/%2F/curl", content=b"durable=true", headers=headers)
        assert wrong.status_code == 400
        assert client.delete("/queues/%2F/curl").status_code == 204


@pytest.mark.parametrize("part", ["", "/relative"])
def test_the_memory_of_a_node_has_the_same_parts(
    both: tuple[httpx.Client, httpx.Client], part: str
) -> None:
    names = []
    for client in both:
        if client is both[0]:
            client.put("/users/guest", json=ADMIN)
            client.auth = ("guest", "guest")
        (node,) = client.get("/nodes").json()
        memory = client.get(f"/nodes/{node['name']}/memory{part}").json()["memory"]
        names.append(set(memory))
    assert names[0] == names[1]
