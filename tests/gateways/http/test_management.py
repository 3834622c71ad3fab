"""RabbitMQ's management API, by RabbitMQ's own tool."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from onelog.server import BrokerServer
from tests.gateways.http.live import http

RABBITMQADMIN = shutil.which("rabbitmqadmin")
needs_rabbitmqadmin = pytest.mark.skipif(
    RABBITMQADMIN is None, reason="there is no rabbitmqadmin: apt-get install rabbitmq-server"
)


class Tool:
    """rabbitmqadmin, on one broker."""

    def __init__(self, server: BrokerServer) -> None:
        self._port = str(server.config.http.port)

    async def run(self, *arguments: str) -> str:
        """What it prints; it must be content."""
        assert RABBITMQADMIN is not None
        process = await asyncio.create_subprocess_exec(
            RABBITMQADMIN, "-H", "127.0.0.1", "-P", self._port, *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await process.communicate()
        assert process.returncode == 0, (arguments, out, error)
        return out.decode()

    async def listed(self, *arguments: str) -> Any:
        """What it lists, as JSON."""
        return json.loads(await self.run("-f", "raw_json", *arguments))


@needs_rabbitmqadmin
async def test_rabbitmqadmin_declares_publishes_gets_purges_and_deletes(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, _):
        tool = Tool(server)
        await tool.run("declare", "exchange", "name=shop", "type=topic")
        arguments = 'arguments={"x-max-length": 10}'
        await tool.run("declare", "queue", "name=orders", "durable=true", arguments)
        bound = ("source=shop", "destination=orders", "routing_key=order.*")
        await tool.run("declare", "binding", *bound)
        for number in range(3):
            sent = ("exchange=shop", "routing_key=order.new", f"payload=order {number}")
            assert "Message published" in await tool.run("publish", *sent)
        lost = ("exchange=shop", "routing_key=other", "payload=x")
        assert "NOT routed" in await tool.run("publish", *lost)
        queues = {each["name"]: each for each in await tool.listed("list", "queues")}
        assert (queues["orders"]["messages"], queues["orders"]["durable"]) == (3, True)
        got = await tool.listed("get", "queue=orders", "count=2")
        assert [each["payload"] for each in got] == ["order 0", "order 1"]
        taken = await tool.listed("get", "queue=orders", "ackmode=ack_requeue_false")
        assert [each["payload"] for each in taken] == ["order 0"]
        exchanges = {each["name"]: each["type"] for each in await tool.listed("list", "exchanges")}
        assert exchanges["shop"] == "topic"
        assert exchanges["amq.topic"] == "topic"
        bindings = await tool.listed("list", "bindings")
        mine = [each for each in bindings if each["source"] == "shop"]
        assert [(each["destination"], each["routing_key"]) for each in mine] == [
            ("orders", "order.*")
        ]
        await tool.run("purge", "queue", "name=orders")
        assert await tool.listed("get", "queue=orders") == []
        await tool.run(
            "delete", "binding", "source=shop", "destination_type=queue", "destination=orders",
            "properties_key=order.*",
        )  # fmt: skip
        await tool.run("delete", "queue", "name=orders")
        await tool.run("delete", "exchange", "name=shop")
        assert [each["name"] for each in await tool.listed("list", "queues")] == []


@needs_rabbitmqadmin
async def test_definitions_go_from_one_broker_to_another(tmp_path: Path) -> None:
    kept = str(tmp_path / "definitions.json")
    async with http(tmp_path / "one", amqp__port=-1) as (server, _):
        tool = Tool(server)
        await tool.run("declare", "vhost", "name=other/one")
        await tool.run("declare", "exchange", "name=e", "type=fanout")
        await tool.run("declare", "queue", "name=a/b")
        await tool.run("declare", "binding", "source=e", "destination=a/b")
        await tool.run("--vhost", "other/one", "declare", "queue", "name=q")
        await tool.run("export", kept)
    async with http(tmp_path / "two", amqp__port=-1) as (server, _):
        tool = Tool(server)
        await tool.run("import", kept)
        queues = {(each["vhost"], each["name"]) for each in await tool.listed("list", "queues")}
        assert queues == {("/", "a/b"), ("other/one", "q")}
        bindings = [each for each in await tool.listed("list", "bindings") if each["source"]]
        assert [(each["source"], each["destination"]) for each in bindings] == [("e", "a/b")]


@needs_rabbitmqadmin
async def test_everything_can_be_listed(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, _):
        tool = Tool(server)
        for what in (
            "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users",
            "vhosts", "permissions", "nodes", "parameters", "policies", "operator_policies",
            "vhost_limits",
        ):  # fmt: skip
            await tool.run("list", what)
        assert "OneLog" in (await tool.run("-f", "raw_json", "show", "overview"))


async def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        for method, path, body, status in (
            ("GET", "/api/queues/%2F/none", None, 404),
            ("GET", "/api/exchanges/%2F/none", None, 404),
            ("GET", "/api/queues/nowhere", None, 200),
            ("PUT", "/api/exchanges/%2F/x", {"type": "no-such"}, 400),
            ("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": "many"}}, 400),
            ("PUT", "/api/queues/%2F/q", {"arguments": 1}, 400),
            ("POST", "/api/exchanges/%2F/amq.default/publish", {"payload": 1}, 400),
            ("POST", "/api/exchanges/%2F/none/publish", {"payload": "x", "routing_key": ""}, 404),
            ("POST", "/api/queues/%2F/none/get", {"count": 1}, 404),
            ("POST", "/api/queues/%2F/none/get", {"count": "x"}, 400),
            ("POST", "/api/definitions", {"queues": [1]}, 400),
            ("POST", "/api/definitions", {"queues": [{}]}, 400),
            ("DELETE", "/api/queues/%2F/none", None, 404),
        ):
            told = await web.request(method, path, json=body)
            assert told.status_code == status, (method, path, told.text)
