"""RabbitMQ's management API about users and their permissions, which are OneLog's own."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from onelog.server import BrokerServer
from tests.gateways.amqp.live import connected
from tests.gateways.http.live import http
from tests.gateways.http.test_management import RABBITMQADMIN, needs_rabbitmqadmin

ADMIN = httpx.BasicAuth("ann", "secret")
NONE = {"configure": "", "write": "", "read": ""}


async def _has_users(client: httpx.AsyncClient) -> None:
    """Ann is the administrator, and bob has a password."""
    ann = {"password": "secret", "tags": "administrator,monitoring"}
    assert (await client.put("/api/users/ann", json=ann)).status_code == 201
    client.auth = ADMIN
    assert (await client.put("/api/users/bob", json={"password": "b", "tags": []})).is_success


async def test_users_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        (guest,) = (await client.get("/api/users")).json()
        assert (guest["name"], guest["tags"]) == ("guest", ["administrator"])
        await _has_users(client)
        ann = (await client.get("/api/users/ann")).json()
        assert ann["tags"] == ["administrator", "monitoring"]
        assert "secret" not in str(ann)
        again = await client.put("/api/users/bob", json={"password": "b", "tags": "policymaker"})
        assert again.status_code == 204
        bob = (await client.get("/api/users/bob/")).json()
        assert (bob["name"], bob["tags"], bob["limits"]) == ("bob", ["policymaker"], {})
        (free,) = (await client.get("/api/users/without-permissions")).json()
        assert free["name"] == "bob"
        assert (await client.put("/api/users/eve", json={"password": "x"})).status_code == 400
        assert (await client.get("/api/users/eve")).status_code == 404
        assert (await client.delete("/api/users/eve")).status_code == 404
        deleted = await client.post("/api/users/bulk-delete", json={"users": ["bob", "eve"]})
        assert deleted.status_code == 204
        last = await client.delete("/api/users/ann")
        assert last.status_code == 204
        open_again = await client.get("/api/users", auth=None)
        assert [each["name"] for each in open_again.json()] == ["guest"]


async def test_a_user_without_a_password_does_not_get_in(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        assert (await client.put("/api/users/bob", json={"tags": ""})).status_code == 204
        for password in ("", "b", "x"):
            answer = await client.get("/api/whoami", auth=httpx.BasicAuth("bob", password))
            assert answer.status_code == 401


async def test_permissions_are_set_read_and_taken_back(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        path = "/api/permissions/%2F/bob"
        given = {"configure": "^q", "write": ".*", "read": ""}
        for status in (201, 204):
            assert (await client.put(path, json=given)).status_code == status
        shown = {"user": "bob", "vhost": "/", **given}
        assert (await client.get(path)).json() == shown
        assert (await client.get("/api/users/bob/permissions")).json() == [shown]
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        ann = {"user": "ann", "vhost": "/", **everything}
        for listing in ("/api/permissions", "/api/vhosts/%2F/permissions"):
            assert (await client.get(listing)).json() == [ann, shown]
        for wrong in ({**given, "read": "("}, {"configure": "q"}, {**given, "write": 7}):
            assert (await client.put(path, json=wrong)).status_code == 400
        assert (await client.put("/api/permissions/%2F/eve", json=given)).status_code == 400
        assert (await client.put("/api/permissions/none/bob", json=given)).status_code == 400
        assert [(await client.delete(path)).status_code for _ in range(2)] == [204, 404]
        assert (await client.get(path)).status_code == 404
        assert (await client.get("/api/users/without-permissions")).json()[0]["name"] == "bob"


async def _may(server: BrokerServer, vhost: str, what: str, *arguments: Any, **how: Any) -> bool:
    def attempt() -> bool:
        url = f"amqp://bob:b@127.0.0.1:{server.config.amqp.port}/{vhost}"
        try:
            with connected(url) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                getattr(channel, what)(*arguments, **how)
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code != 403:
                raise
            return False
        except pika.exceptions.ProbableAccessDeniedError:
            return False
        return True

    return await asyncio.to_thread(attempt)


async def test_a_permission_is_for_its_vhost_and_what_its_patterns_match(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, client):
        await _has_users(client)
        for vhost in ("v1", "v2"):
            assert (await client.put(f"/api/vhosts/{vhost}")).status_code == 201
            assert (await client.put(f"/api/queues/{vhost}/app.old", json={})).status_code == 201
        allowed = {"configure": "^app\\.", "write": "^(app\\..*|amq\\.default)$", "read": "old$"}
        answer = await client.put("/api/permissions/v1/bob", json=allowed)
        assert answer.status_code == 201
        assert await _may(server, "v1", "queue_declare", "app.new")
        assert not await _may(server, "v1", "queue_declare", "other")
        assert await _may(server, "v1", "basic_publish", "", "app.new", b"x")
        assert not await _may(server, "v1", "basic_publish", "amq.topic", "x", b"x")
        assert await _may(server, "v1", "basic_get", "app.old")
        assert not await _may(server, "v1", "basic_get", "app.new")
        for vhost in ("v2", "%2F"):
            assert not await _may(server, vhost, "queue_declare", "app.new")
        bob = httpx.BasicAuth("bob", "b")
        mine = await client.get("/api/queues/v1", auth=bob)
        assert [each["name"] for each in mine.json()] == ["app.old", "app.new"]
        theirs = await client.delete("/api/queues/v2/app.old", auth=bob)
        assert theirs.status_code in (403, 404)
        assert (await client.get("/api/queues/v2/app.old")).status_code == 200


async def test_who_is_no_administrator_changes_no_users(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        client.auth = httpx.BasicAuth("bob", "b")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        answers = [
            await client.put("/api/users/bob", json={"password": "b", "tags": "administrator"}),
            await client.put("/api/permissions/%2F/bob", json=everything),
            await client.delete("/api/users/ann"),
            await client.post("/api/users/bulk-delete", json={"users": ["ann"]}),
            await client.get("/api/users"),
            await client.get("/api/permissions"),
        ]
        assert [each.status_code for each in answers] == [403] * len(answers)


async def test_rules_of_other_forms_are_kept_beside_permissions(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        rule = {"actions": ["consume"], "kind": "topic", "name": "orders"}
        await client.patch("/v1/users/bob", json={"permissions": [rule]})
        path = "/api/permissions/%2F/bob"
        assert (await client.put(path, json={**NONE, "read": "^q"})).status_code == 201
        document = (await client.get("/v1/users/bob")).json()
        forms = sorted((each["kind"], each["match"]) for each in document["permissions"])
        assert forms == [
            ("exchange", "regex"),
            ("queue", "regex"),
            ("topic", "pattern"),
            ("vhost", "literal"),
        ]
        await client.delete(path)
        document = (await client.get("/v1/users/bob")).json()
        assert [each["kind"] for each in document["permissions"]] == ["topic"]


@needs_rabbitmqadmin
async def test_rabbitmqadmin_makes_users_and_permissions(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (server, client):
        await _has_users(client)

        async def run(*arguments: str) -> str:
            assert RABBITMQADMIN is not None
            login = ("-H", "127.0.0.1", "-P", str(server.config.http.port), "-u", "ann")
            process = await asyncio.create_subprocess_exec(
                RABBITMQADMIN, *login, "-p", "secret", *arguments, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
            assert process.returncode == 0
            return out.decode()

        await run("declare", "user", "name=eve", "password=e", "tags=management")
        given = ("user=eve", "configure=.*", "write=.*", "read=.*")
        await run("declare", "permission", "vhost=/", *given)
        assert "eve" in await run("list", "users")
        assert "eve" in await run("list", "permissions")
        eve = httpx.BasicAuth("eve", "e")
        assert (await client.put("/api/queues/%2F/q", json={}, auth=eve)).status_code == 201
        await run("delete", "permission", "vhost=/", "user=eve")
        assert (await client.put("/api/queues/%2F/r", json={}, auth=eve)).status_code == 403
        await run("delete", "user", "name=eve")
        assert "eve" not in await run("list", "users")


@pytest.mark.parametrize("pattern", ["(", "(?=x)", "a{1001}", "(((a{99}){99}){99})"])
async def test_patterns_that_cannot_be_are_refused(tmp_path: Path, pattern: str) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, client):
        await _has_users(client)
        given = {**NONE, "write": pattern}
        answer = await client.put("/api/permissions/%2F/bob", json=given)
        assert answer.status_code == 400
        assert (await client.get("/api/users/bob/permissions")).json() == []
