"""Every operation has a command, a REST route and its place in the OpenAPI document."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from onelog.admin.openapi import document
from onelog.admin.rest import routes
from onelog.admin.table import OPERATIONS
from onelog.cli import app
from onelog.errors import NotPermittedError, RequestRefusedError
from tests.client.live_cluster import LiveCluster
from tests.commands.conftest import Run

PROGRAM = "it starts a program, or stays until it is stopped"
FILES = "it looks at files, and needs no broker"
SPARK = "it runs on Spark, which is not the broker"
STREAM = "it streams messages as a client does: /v1/topics/{topic}/produce and /consume"
NO_OPERATIONS = {
    **dict.fromkeys(("up", "broker", "nameserver", "bench", "demo", "console"), PROGRAM),
    **dict.fromkeys(("store", "config"), FILES),
    **dict.fromkeys(("lake", "job", "pipeline"), SPARK),
    **dict.fromkeys(("produce", "consume"), STREAM),
}
"""Commands, or groups of them, and why."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands, with the groups that they are in."""
    inside = getattr(command, "commands", None)
    if inside is None:
        yield " ".join(path)
        return
    for name, each in inside.items():
        yield from commands(each, (*path, name))


def test_commands_routes_and_the_document_have_the_same_operations() -> None:
    named = [each for operation in OPERATIONS for each in operation.commands]
    every = set(commands(typer.main.get_command(app)))
    assert len(named) == len(set(named))
    assert set(named) <= every
    assert {each.partition(" ")[0] for each in every - set(named)} == set(NO_OPERATIONS)
    described = {
        (each["operationId"], method.upper(), path)
        for path, methods in document(OPERATIONS)["paths"].items()
        for method, each in methods.items()
    }
    assert described == {(each.name, each.method, each.path) for each in OPERATIONS}
    routed = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in routes(None)  # type: ignore[arg-type]
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    there = {(each.method, each.path) for each in OPERATIONS}
    assert routed == there | {("GET", "/v1/openapi.json")}
    assert len(there) == len(OPERATIONS)
    assert all(each.commands for each in OPERATIONS)


async def test_a_broker_is_asked_for_operations(onelog: Run, cluster: LiveCluster) -> None:
    made = await onelog("exchange", "create", "shop", "--kind", "topic", "--no-durable", "--json")
    assert (made.code, made.document["kind"], made.document["durable"]) == (0, "topic", False)
    limit = ("--argument", "x-max-length=7")
    assert (await onelog("queue", "create", "jobs", *limit, "--json")).document["arguments"] == {
        "x-max-length": 7
    }
    assert (await onelog("exchange", "bind", "shop", "jobs", "--key", "order.*")).code == 0
    route = await onelog("exchange", "route", "--exchange", "shop", "--key", "order.new")
    assert (route.code, route.err) == (0, "")
    assert "topic exchange, binding with key 'order.*'" in route.out
    listed = await onelog("queue", "list")
    for text in ("declared queues: 1", "jobs", "ready bytes"):
        assert text in listed.out
    refused = await onelog("queue", "delete", "jobs", stdin="n\n")
    assert (refused.code, "Delete a queue: jobs?" in refused.err) == (2, True)
    assert (await onelog("queue", "delete", "jobs", "--yes", "--json")).document == {"done": True}
    assert (await onelog("queue", "list", "--json")).document["items"] == []
    sent = await onelog("message", "send", "orders", "hello")
    assert (sent.code, "there is no topic" in sent.err or "orders" in sent.err) == (1, True)
    await cluster.create_topic("orders")
    sent = await onelog("message", "send", "orders", "hello", "--key", "a", "--json")
    assert sent.document["topic"] == "orders"
    overview = await onelog("cluster", "overview")
    assert (overview.code, "put total" in overview.out) == (0, True)
    settings = await onelog("cluster", "configure", "--set", "broker.pull_count_max=7")
    assert settings.code == 0
    assert cluster.brokers[0].config.broker.pull_count_max == 7
    elsewhere = await onelog("queue", "list", "--broker", "nowhere")
    assert (elsewhere.code, "'nowhere'" in elsewhere.err) == (1, True)


async def test_a_question_changes_nothing(cluster: LiveCluster) -> None:

    async with cluster.admin() as admin:
        with pytest.raises((RequestRefusedError, NotPermittedError), match="not only asked for"):
            await admin.operations.ask("create_topic", name="orders")
        with pytest.raises(RequestRefusedError, match="has no operation"):
            await admin.operations.run("fly")
        with pytest.raises(RequestRefusedError, match="not as it should be"):
            await admin.operations.run("create_topic", nome="orders")
        made = await admin.operations.run("create_topic", name="orders", queues=3)
        assert made["queues"] == 3
