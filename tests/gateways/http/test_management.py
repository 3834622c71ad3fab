"""RabbitMQ's management API, by RabbitMQ's own tool."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest

from onelog.clock import ManualClock
from onelog.gateways.http.rates import Rates
from onelog.server import BrokerServer
from tests.gateways.http.live import http

RABBITMQADMIN = shutil.which("rabbitmqadmin")
needs_rabbitmqadmin = pytest.mark.skipif(
    RABBITMQADMIN is None, reason="there is no rabbitmqadmin: apt-get install rabbitmq-server"
)


class Counted:
    """Something that has counters."""


class Tool:
    """rabbitmqadmin, on one broker."""

    def __init__(self, server: BrokerServer) -> None:
        self._port = str(server.config.http.port)

    async def run(self, *arguments: str) -> str:
        """What it prints; it must be content."""
        assert RABBITMQADMIN is not None
        process = await asyncio.create_subprocess_exec(
            RABBITMQADMIN,
            "-H",
            "127.0.0.1",
            "-P",
            self._port,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
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
            "delete",
            "binding",
            "source=shop",
            "destination_type=queue",
            "destination=orders",
            "properties_key=order.*",
        )
        await tool.run("delete", "queue", "name=orders")
        await tool.run("delete", "exchange", "name=shop")
        assert [each["name"] for each in await tool.listed("list", "queues")] == []


@needs_rabbitmqadmin
@pytest.mark.parametrize(
    ("declared", "hint"),
    [
        (("user", "name=ann", "password=x", "tags="), "must have the role admin"),
        (("user", "name=ann", "password_hash=x", "tags=administrator"), "give the password"),
        (("vhost_limit", "vhost=/", "name=max-queues", "value=3"), "a policy"),
        (("parameter", "component=shovel", "name=s", "value={}"), "no plugins"),
        (
            (
                "policy",
                "name=p",
                "pattern=.*",
                "apply-to=people",
                'definition={"alternate-exchange": "a"}',
            ),
            "apply-to should be",
        ),
    ],
)
async def test_rabbitmqadmin_is_told_what_is_done_elsewhere(
    tmp_path: Path, declared: tuple[str, ...], hint: str
) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, _):
        with pytest.raises(AssertionError, match=hint):
            await Tool(server).run("declare", *declared)


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
async def test_rabbitmqadmin_declares_and_deletes_policies_which_count_at_once(
    tmp_path: Path,
) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, _):
        tool = Tool(server)
        await tool.run("declare", "queue", "name=orders")
        for number in range(4):
            await tool.run("publish", "routing_key=orders", f"payload={number}")
        await tool.run(
            "declare",
            "policy",
            "name=short",
            "pattern=^ord",
            'definition={"max-length": 2}',
            "priority=1",
            "apply-to=queues",
        )
        limit = ("name=limit", "pattern=.*", 'definition={"max-length": 1}')
        await tool.run("declare", "operator_policy", *limit)
        (queue,) = await tool.listed("list", "queues")
        assert (queue["policy"], queue["operator_policy"]) == ("short", "limit")
        assert queue["effective_policy_definition"] == {"max-length": 1}
        got = await tool.listed("get", "queue=orders", "count=5")
        assert [each["payload"] for each in got] == ["3"]
        assert [each["name"] for each in await tool.listed("list", "policies")] == ["short"]
        await tool.run("delete", "operator_policy", "name=limit")
        await tool.run("delete", "policy", "name=short")
        assert await tool.listed("list", "policies") == []


async def test_definitions_of_rabbitmq_3_10_are_taken_over(tmp_path: Path) -> None:
    given = json.loads(Path(__file__).with_name("rabbitmq_3_10_definitions.json").read_text())
    async with http(tmp_path, amqp__port=-1) as (_, web):
        told = await web.post("/api/definitions", json=given)
        assert told.status_code == 204, told.text
        assert (await web.post("/api/definitions", json=given)).status_code == 204
        mine = (await web.get("/api/definitions")).json()
        for what in ("queues", "policies", "bindings", "exchanges"):
            names = [set(given[what][0])] * len(given[what])
            theirs = [{key: each[key] for key in sorted(names[0])} for each in given[what]]
            ours = [{key: each[key] for key in sorted(names[0])} for each in mine[what]]
            assert sorted(ours, key=repr) == sorted(theirs, key=repr)
        orders = (await web.get("/api/queues/%2F/orders")).json()
        assert orders["policy"] == "short-lived"
        kinds = {each["name"]: each["type"] for each in (await web.get("/api/queues")).json()}
        assert kinds == {"orders": "classic", "payments": "quorum", "events": "stream"}


async def test_clients_are_listed_with_their_channels_and_consumers(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, web):
        address = f"amqp://guest:guest@127.0.0.1:{server.config.amqp.port}/"
        connection = await aio_pika.connect(address, client_properties={"connection_name": "me"})
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(7)
            queue = await channel.declare_queue("work", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(b"one"), "work")
            got: asyncio.Queue[object] = asyncio.Queue()
            await queue.consume(got.put, consumer_tag="taker")
            await asyncio.wait_for(got.get(), 20)
            (client,) = (await web.get("/api/connections")).json()
            assert (client["user"], client["vhost"], client["channels"]) == ("guest", "/", 1)
            assert client["client_properties"]["connection_name"] == "me"
            name = client["name"]
            assert (await web.get(f"/api/connections/{quote(name, '')}")).json() == client
            path = f"/api/connections/{quote(name, '')}/channels"
            for listed in ("/api/channels", path, "/api/vhosts/%2F/channels"):
                (shown,) = (await web.get(listed)).json()
                assert shown["name"] == f"{name} (1)"
                assert (shown["prefetch_count"], shown["confirm"]) == (7, True)
                assert (shown["consumer_count"], shown["messages_unacknowledged"]) == (1, 1)
                assert shown["message_stats"]["publish"] == 1
            (consumer,) = (await web.get("/api/consumers")).json()
            assert (consumer["consumer_tag"], consumer["prefetch_count"]) == ("taker", 7)
            assert consumer["channel_details"]["name"] == f"{name} (1)"
            overview = (await web.get("/api/overview")).json()
            counts = overview["object_totals"]
            assert (counts["connections"], counts["channels"], counts["consumers"]) == (1, 1, 1)
            assert overview["message_stats"]["publish"] == 1
            assert overview["message_stats"]["publish_details"]["rate"] >= 0
            told = await web.get("/api/channels/none")
            assert told.status_code == 404


async def test_lists_are_sorted_cut_and_paged_as_asked(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        for name in ("b", "c", "a"):
            assert (await web.put(f"/api/queues/%2F/{name}", json={})).status_code == 201
        told = await web.get("/api/queues?sort=name&sort_reverse=true&columns=name,state")
        assert told.json() == [{"name": each, "state": "running"} for each in "cba"]
        page = (await web.get("/api/queues?page=2&page_size=2&sort=name&columns=name")).json()
        assert (page["items"], page["page_count"], page["total_count"]) == ([{"name": "c"}], 2, 3)
        for wrong in ("page=0", "page=99", "page=1&name=(&use_regex=true"):
            assert (await web.get(f"/api/queues?{wrong}")).status_code == 400
        found = (await web.get("/api/queues?page=1&name=[ab]&use_regex=true")).json()
        assert {each["name"] for each in found["items"]} == {"a", "b"}


async def test_listeners_are_told_and_checked(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, web):
        port = server.config.amqp.port
        told = (await web.get("/api/overview")).json()["listeners"]
        assert {each["protocol"]: each["port"] for each in told}["amqp"] == port
        for check in (f"port-listener/{port}", "protocol-listener/amqp091"):
            told = await web.get(f"/api/health/checks/{check}/")
            assert (told.status_code, told.json()["status"]) == (200, "ok")
        assert (await web.get("/api/connections/username/nobody")).json() == []
        assert (await web.get("/api/parameters/shovel/%2F")).json() == []


def test_rates_are_what_counters_grow_by_between_looks() -> None:
    clock = ManualClock()
    rates, counted = Rates(clock), Counted()
    assert rates.of(counted, {"publish": 10})["publish_details"] == {"rate": 0.0}
    clock.advance(2_000)
    assert rates.of(counted, {"publish": 30})["publish_details"] == {"rate": 10.0}
    clock.advance(8_000)
    assert rates.of(counted, {"publish": 110})["publish_details"] == {"rate": 10.0}
    clock.advance(1_000)
    assert rates.of(counted, {"publish": 110})["publish_details"]["rate"] < 10.0
    clock.advance(10_000)
    rates.of(counted, {"publish": 110})
    clock.advance(1_000)
    assert rates.of(counted, {"publish": 110}) == {
        "publish": 110,
        "publish_details": {"rate": 0.0},
    }


@needs_rabbitmqadmin
async def test_everything_can_be_listed(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, _):
        tool = Tool(server)
        for what in (
            "connections",
            "channels",
            "consumers",
            "exchanges",
            "queues",
            "bindings",
            "users",
            "vhosts",
            "permissions",
            "nodes",
            "parameters",
            "policies",
            "operator_policies",
            "vhost_limits",
        ):
            await tool.run("list", what)
        assert "OneLog" in (await tool.run("-f", "raw_json", "show", "overview"))


async def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        for method, path, body, status in (
            ("GET", "/api/queues/%2F/none", None, 404),
            ("GET", "/api/exchanges/%2F/none", None, 404),
            ("GET", "/api/queues/nowhere", None, 404),
            ("PUT", "/api/exchanges/%2F/x", {"type": "no-such"}, 400),
            ("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": "many"}}, 400),
            ("PUT", "/api/queues/%2F/q", {"arguments": 1}, 400),
            ("PUT", "/api/queues/%2F/q", {"arguments": {"x": [1 << 70]}}, 400),
            ("POST", "/api/exchanges/%2F/amq.default/publish", {"payload": 1}, 400),
            ("POST", "/api/exchanges/%2F/none/publish", {"payload": "x", "routing_key": ""}, 404),
            ("POST", "/api/queues/%2F/none/get", {"count": 1}, 404),
            ("POST", "/api/queues/%2F/none/get", {"count": "x"}, 400),
            ("POST", "/api/queues/%2F/none/get", {"ackmode": "ack"}, 400),
            ("PUT", "/api/queues/%2F/amq.mine", {}, 403),
            (
                "POST",
                "/api/exchanges/%2F/amq.fanout/publish",
                {"payload": "!!", "payload_encoding": "base64"},
                400,
            ),
            (
                "POST",
                "/api/exchanges/%2F/amq.fanout/publish",
                {"payload": "x", "payload_encoding": "utf8"},
                400,
            ),
            ("POST", "/api/definitions/none", {}, 404),
            ("GET", "/api/vhost-limits/none", None, 404),
            ("GET", "/api/parameters/shovel/none", None, 404),
            ("GET", "/api/health/checks/port-listener/1", None, 503),
            ("GET", "/api/health/checks/port-listener/x", None, 400),
            ("GET", "/api/health/checks/protocol-listener/gopher", None, 503),
            ("POST", "/api/definitions", {"queues": [1]}, 400),
            ("POST", "/api/definitions", {"queues": [{}]}, 400),
            ("DELETE", "/api/queues/%2F/none", None, 404),
            ("DELETE", "/api/policies/%2F/none", None, 404),
            ("PUT", "/api/policies/%2F/p", {"pattern": "(", "definition": {"max-length": 1}}, 400),
            ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {"nonsense": 1}}, 400),
            ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {"max-length": -1}}, 400),
            ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {}}, 400),
            ("PUT", "/api/policies/%2F/p", {"definition": {"max-length": 1}}, 400),
        ):
            told = await web.request(method, path, json=body)
            assert told.status_code == status, (method, path, told.text)
        for properties in (
            {"expiration": 5},
            {"timestamp": -1},
            {"priority": 300},
            {"headers": {"x": 1 << 70}},
            {"headers": 5},
        ):
            message = {"payload": "x", "routing_key": "q", "properties": properties}
            told = await web.post("/api/exchanges/%2F/amq.default/publish", json=message)
            assert told.status_code == 400, (properties, told.text)
            assert "64 bits" in told.text or f"{next(iter(properties))} is to be" in told.text


async def test_the_broker_itself_is_told_of(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, web):
        (node,) = (await web.get("/api/nodes")).json()
        assert node["mem_used"] > 1 << 20
        assert (await web.get(f"/api/nodes/{node['name']}")).json()["name"] == node["name"]
        memory = (await web.get(f"/api/nodes/{node['name']}/memory")).json()["memory"]
        parts = {name: part for name, part in memory.items() if isinstance(part, int)}
        assert sum(parts.values()) == memory["total"]["rss"] > 1 << 20
        relative = (await web.get(f"/api/nodes/{node['name']}/memory/relative")).json()["memory"]
        assert relative["total"] == 100
        for path in ("nodes/none", "nodes/none/memory", "global-parameters/none"):
            assert (await web.get(f"/api/{path}")).status_code == 404
        name = server.config.broker.cluster
        assert (await web.get("/api/cluster-name")).json() == {"name": name}
        parameter = {"name": "cluster_name", "value": name}
        assert (await web.get("/api/global-parameters")).json() == [parameter]
        assert (await web.get("/api/global-parameters/cluster_name")).json() == parameter
        assert (await web.get("/api/auth")).json()["enable_uaa"] is False


async def test_a_vhost_is_an_object_and_nothing_is_in_one_that_is_not_there(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        said = {"description": "shop", "tags": "a,b"}
        made = [await web.put("/api/vhosts/shop", json=body) for body in (said, said)]
        assert [each.status_code for each in made] == [201, 204]
        assert (await web.put("/api/vhosts/shop")).status_code == 204
        shop = (await web.get("/api/vhosts/shop")).json()
        assert (shop["name"], shop["description"], shop["tags"]) == ("shop", "shop", ["a", "b"])
        assert (await web.get("/api/vhosts/%2F")).json()["name"] == "/"
        kinds = ("queues", "exchanges", "bindings", "policies", "consumers", "aliveness-test")
        under = ("permissions", "connections", "channels")
        for path in (
            "vhosts/none",
            *(f"{kind}/none" for kind in kinds),
            *(f"vhosts/none/{x}" for x in under),
        ):
            assert (await web.get(f"/api/{path}")).status_code == 404, path
        for path in ("queues/none/q", "exchanges/none/e"):
            assert (await web.put(f"/api/{path}", json={})).status_code == 404, path


async def test_paths_may_end_in_a_slash(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        assert (await web.put("/api/queues/%2F/q/", json={})).status_code == 201
        for path in (
            "overview",
            "connections",
            "channels",
            "queues",
            "queues/%2F",
            "queues/%2F/q",
            "vhosts/%2F",
            "users",
            "nodes",
            "exchanges/%2F/amq.topic",
            "whoami",
            "health/checks/alarms",
        ):
            with_slash, without = await web.get(f"/api/{path}/"), await web.get(f"/api/{path}")
            assert (with_slash.status_code, without.status_code) == (200, 200), path
            assert type(with_slash.json()) is type(without.json()), path
        assert (await web.get("/api/connections/")).json() == []


async def test_what_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        await web.put("/api/queues/%2F/q", json={})
        for path in (
            "vhosts/none",
            "queues/%2F/none",
            "queues/none/q",
            "queues/%2F/none/contents",
            "exchanges/%2F/none",
            "exchanges/none/e",
            "connections/none",
            "policies/%2F/none",
            "operator-policies/%2F/none",
            "bindings/%2F/e/amq.direct/q/q/none",
            "bindings/none/e/amq.direct/q/q/none",
            "users/none",
            "permissions/%2F/none",
            "parameters/shovel/%2F/none",
            "global-parameters/none",
            "vhost-limits/%2F/max-queues",
            "topic-permissions/%2F/none",
        ):
            told = await web.delete(f"/api/{path}")
            assert (told.status_code, told.json()["error"]) == (404, "Object Not Found"), path


async def test_what_is_there_already_is_not_created(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        policy = {"pattern": "x", "definition": {"max-length": 1}}
        for path, body in (
            ("queues/%2F/q", {}),
            ("exchanges/%2F/e", {"type": "fanout"}),
            ("vhosts/v", {}),
            ("policies/%2F/p", policy),
            ("operator-policies/%2F/p", policy),
        ):
            made = [await web.put(f"/api/{path}", json=body) for _ in range(2)]
            assert [each.status_code for each in made] == [201, 204], path
        bound = [
            await web.post("/api/bindings/%2F/e/e/q/q", json={"routing_key": "k"}) for _ in range(2)
        ]
        assert [each.status_code for each in bound] == [201, 201]
        assert (await web.get("/api/bindings/%2F/e/e/q/q/k")).json()["routing_key"] == "k"
        assert (await web.get("/api/bindings/%2F/e/e/q/q/none")).status_code == 404


async def test_json_need_not_say_so_where_no_browser_can_have_sent_it(tmp_path: Path) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"durable": True})
    async with http(tmp_path, amqp__port=-1) as (server, web):
        for number, headers in enumerate((form, {"content-type": "text/plain"}, {})):
            told = await web.put(f"/api/queues/%2F/q{number}", content=body, headers=headers)
            assert told.status_code == 201
        told = await web.put("/api/queues/%2F/none", content="durable=true", headers=form)
        assert (told.status_code, told.json()["error"]) == (400, "bad_request")
        own = f"http://127.0.0.1:{server.config.http.port}"
        for name, value in (
            ("origin", own),
            ("referer", own),
            ("sec-fetch-site", "none"),
            ("sec-fetch-mode", "no-cors"),
            ("cookie", "a=b"),
        ):
            told = await web.put(
                "/api/queues/%2F/none", content=body, headers={**form, name: value}
            )
            assert told.status_code == 400, name
        told = await web.put("/api/queues/%2F/none", content=body, headers={**form, "origin": "x"})
        assert told.status_code == 403
        assert (await web.get("/api/queues/%2F/none")).status_code == 404


async def test_http_and_amqp_tell_the_same_version(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, web):
        overview = (await web.get("/api/overview")).json()
        where = f"amqp://127.0.0.1:{server.config.amqp.port}/"
        connection = await aio_pika.connect(where)
        async with connection:
            assert connection.transport is not None
            said = connection.transport.connection.server_properties
        version = overview["rabbitmq_version"]
        assert said["version"] == version == overview["management_version"]
        assert version.startswith("3.")  # 4.x would offer ANONYMOUS, and no global prefetch.


async def test_a_policy_of_an_exchange_is_shown_with_it(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        await web.put("/api/exchanges/%2F/shop", json={"type": "fanout"})
        policy = {
            "pattern": "^shop$",
            "definition": {"alternate-exchange": "amq.fanout"},
            "apply-to": "exchanges",
        }
        assert (await web.put("/api/policies/%2F/lost", json=policy)).status_code == 201
        assert (await web.get("/api/exchanges/%2F/shop")).json()["policy"] == "lost"
        assert "policy" not in (await web.get("/api/exchanges/%2F/amq.topic")).json()
        await web.put("/api/queues/%2F/caught", json={})
        await web.post("/api/bindings/%2F/e/amq.fanout/q/caught", json={})
        sent = {"routing_key": "x", "payload": "lost", "properties": {}}
        published = await web.post("/api/exchanges/%2F/shop/publish", json=sent)
        assert published.json() == {"routed": True}
