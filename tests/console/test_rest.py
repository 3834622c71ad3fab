"""REST at /v1: everything that the command line can do."""

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from onelog.admin.operations import paged
from onelog.admin.table import OPERATIONS
from onelog.server import BrokerServer
from tests.client.letters import give_up
from tests.console.live import cluster
from tests.console.test_views import seen
from tests.gateways.http.live import http
from tests.gateways.remoting.live import client as remoting
from tests.waiting import eventually


async def done(answer: Any, status: int = 200) -> Any:
    """What came of a request."""
    given = await answer
    assert given.status_code == status, given.text
    return given.json()


async def test_topics_are_made_shown_changed_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        made = await done(web.post("/v1/topics", json={"name": "orders", "queues": 3}), 201)
        assert (made["queues"], made["permission"], made["kind"]) == (3, "rw", "normal")
        again = await done(web.post("/v1/topics", json={"name": "orders"}), 409)
        assert again["type"] == "urn:onelog:topic-exists"
        change = {"queues": 5, "permission": "r", "attributes": {"reserve.time": "4"}}
        changed = await done(web.patch("/v1/topics/orders", json=change))
        assert (changed["queues"], changed["permission"]) == (5, "r")
        assert len((await done(web.get("/v1/topics/orders/queues")))["items"]) == 5
        listed = await done(web.get("/v1/topics", params={"q": "ORD"}))
        assert [each["name"] for each in listed["items"]] == ["orders"]
        await done(web.delete("/v1/topics/orders"))
        await done(web.get("/v1/topics/orders"), 404)
        await done(web.delete("/v1/topics/orders"), 404)
        odd = "a/b %2F?#é<b>"
        await done(web.post("/v1/topics", json={"name": odd, "queues": 1}), 201)
        shown = await done(web.get(f"/v1/topics/{quote(odd, safe='')}"))
        assert shown["name"] == odd
        assert (await done(web.get(f"/v1/topics/{quote(odd, safe='')}/queues")))["total"] == 1
        await done(web.post("/v1/topics", json={"name": "bad\u0001name"}), 422)
        await done(web.post("/v1/topics", json={"name": "x", "quueues": 1}), 400)


async def test_pages_follow_each_other(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        for number in range(7):
            await done(web.post("/v1/topics", json={"name": f"t{number}", "queues": 1}), 201)
        seen, after = [], ""
        while True:
            ask: dict[str, Any] = {"limit": 3, "after": after, "kind": "normal"}
            page = await done(web.get("/v1/topics", params=ask))
            seen += [each["name"] for each in page["items"]]
            assert page["total"] == 7
            after = page["next"]
            if after is None:
                break
        assert seen == [f"t{number}" for number in range(7)]
    assert paged(["a", "b", "c"], 2, "") == (["a", "b"], "b")
    assert paged(["a", "b", "c"], 2, "b") == (["c"], None)
    assert paged([], 2, "b") == ([], None)


async def test_what_did_not_change_is_not_sent_again_and_what_did_is_not_overwritten(
    tmp_path: Path,
) -> None:
    async with http(tmp_path) as (_, web):
        await done(web.post("/v1/topics", json={"name": "orders"}), 201)
        first = await web.get("/v1/topics/orders")
        etag = first.headers["etag"]
        same = await web.get("/v1/topics/orders", headers={"if-none-match": etag})
        assert (same.status_code, same.content) == (304, b"")
        change = {"permission": "r"}
        ok = await web.patch("/v1/topics/orders", json=change, headers={"if-match": etag})
        assert ok.status_code == 200
        late = await web.patch("/v1/topics/orders", json=change, headers={"if-match": etag})
        assert (late.status_code, late.json()["type"]) == (412, "urn:onelog:changed")


async def test_messages_are_sent_browsed_and_found(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        await done(web.post("/v1/topics", json={"name": "orders", "queues": 2}), 201)
        sent = []
        for number in range(40):
            message = {
                "body": f'{{"number": {number}}}',
                "keys": [f"key-{number}"],
                "queue": number % 2,
                "tags": "even" if number % 2 == 0 else "odd",
                "properties": {"n": str(number)},
            }
            sent.append(await done(web.post("/v1/topics/orders/messages", json=message), 201))
        base = "/v1/topics/orders/messages"

        async def numbers(**ask: Any) -> list[int]:
            found = await done(web.get(base, params=ask))
            return [int(each["properties"]["n"]) for each in found["items"]]

        assert await numbers(limit=5) == [39, 38, 37, 36, 35]
        assert await numbers(queue=1, offset=0, limit=3) == [1, 3, 5]
        assert await numbers(queue=1, offset=18, limit=30) == [37, 39]
        assert await numbers(key="key-7") == [7]
        assert await numbers(key=sent[9]["unique_key"]) == [9]
        assert await numbers(tag="odd", limit=2) == [39, 37]
        assert await numbers(sql="n > 30 AND n < 34") == [33, 32, 31]
        assert await numbers(sql="n > 100") == []
        whole = await done(web.get(f"/v1/messages/{sent[3]['id']}"))
        assert whole["message"]["body"] == '{"number": 3}'
        assert seen(whole, "kafka")["key"] == "key-3"
        assert seen(whole, "rocketmq")["TAGS"] == "odd"
        back, to_ms = [], None
        while True:
            ask = {"limit": 7} | ({"to_ms": to_ms} if to_ms else {})
            page = await done(web.get(base, params=ask))
            back += [int(each["properties"]["n"]) for each in page["items"]]
            to_ms = page["next_to_ms"]
            if to_ms is None:
                break
        assert back == list(reversed(range(40)))
        await done(web.get(base, params={"sql": "n >"}), 422)
        await done(web.get(base, params={"offset": 3}), 400)
        await done(web.get("/v1/messages/zzz"), 422)
        await done(web.get("/v1/messages/7F00000100002A9F00000000FFFFFFFF"), 404)
        await done(web.delete(base))
        assert await numbers() == []


async def test_bodies_are_text_or_base64(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        await done(web.post("/v1/topics", json={"name": "raw", "queues": 1}), 201)
        raw = bytes(range(256))
        message = {"body": base64.b64encode(raw).decode(), "body_encoding": "base64"}
        sent = await done(web.post("/v1/topics/raw/messages", json=message), 201)
        found = (await done(web.get(f"/v1/messages/{sent['id']}")))["message"]
        assert base64.b64decode(found["body"]) == raw
        long = {"body": "é" * 2_000}
        await done(web.post("/v1/topics/raw/messages", json=long), 201)
        newest = (await done(web.get("/v1/topics/raw/messages")))["items"][0]
        assert (newest["body"], newest["body_is_cut"], newest["body_bytes"]) == (
            "é" * 512,
            True,
            4_000,
        )
        bad = {"body": "?", "body_encoding": "base64"}
        await done(web.post("/v1/topics/raw/messages", json=bad), 400)


async def test_groups_are_shown_moved_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, web), remoting(server) as peer:
        for number in range(10):
            await peer.send("orders", b"x", e=number % 2)
        settings = {"name": "billing", "retry_times_max": 3}
        made = await done(web.post("/v1/groups", json=settings), 201)
        assert made["settings"]["retry_times_max"] == 3
        from onelog.core.access import SELF

        for queue in (0, 1):
            server.broker.cursors.commit(SELF, "billing", "orders", queue, 4)
        listed = await done(web.get("/v1/groups", params={"sort": "lag", "limit": 1}))
        assert (listed["items"][0]["name"], listed["items"][0]["lag"]) == ("billing", 2)
        ask = {"topic": "orders", "to": "earliest", "dry_run": True}
        preview = await done(web.post("/v1/groups/billing/reset", json=ask))
        assert (preview["read_again"], preview["skipped"]) == (8, 0)
        assert (await done(web.get("/v1/groups/billing")))["lag"] == 2
        ask |= {"dry_run": False}
        await done(web.post("/v1/groups/billing/reset", json=ask))
        assert (await done(web.get("/v1/groups/billing")))["lag"] == 10
        ask |= {"to": "latest"}
        skipped = await done(web.post("/v1/groups/billing/reset", json=ask))
        assert skipped["skipped"] == 10
        await done(web.post("/v1/groups/billing/reset", json={"topic": "orders"}), 400)
        await done(web.post("/v1/groups/nobody/reset", json=ask), 404)
        await done(web.patch("/v1/groups/billing", json={"consume_enable": False}))
        assert (await done(web.get("/v1/topics/orders/groups")))["items"] == ["billing"]
        await done(web.delete("/v1/groups/billing"))
        await done(web.get("/v1/groups/billing"), 404)


async def test_the_broker_its_connections_and_settings(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, web), remoting(server) as peer:
        await peer.send("orders", b"x")
        found = await done(web.get("/v1/overview"))
        assert (found["put_total"], found["role"], found["may_change"]) == (1, "master", True)
        assert found["connections"]["rocketmq"] == 1
        assert found["ports"]["http"] == server.config.http.port
        listed = await done(web.get("/v1/connections", params={"protocol": "rocketmq"}))
        assert listed["total"] == 1
        await done(web.delete(f"/v1/connections/{listed['items'][0]['id']}"))

        async def gone() -> bool:
            return bool((await done(web.get("/v1/connections")))["total"] == 1)

        await eventually(gone)
        await done(web.delete("/v1/connections/nobody"), 502)
        settings = {each["key"]: each for each in (await done(web.get("/v1/config")))["items"]}
        assert settings["http.port"]["source"] == "flag"
        change = {"broker.trace": False, "broker.pull_count_max": 7}
        await done(web.patch("/v1/config", json=change))
        assert server.config.broker.pull_count_max == 7
        assert not server.config.broker.trace
        refused = await done(web.patch("/v1/config", json={"http.port": 1}), 422)
        assert "restart" in refused["detail"]
        await done(web.patch("/v1/config", json={"no.such": 1}), 422)
        cluster = await done(web.get("/v1/cluster"))
        assert (cluster["brokers"], cluster["epoch"]) == ([], 0)
        assert "broker.nameservers" in cluster["trouble"]


async def test_traces_delays_and_dead_letters(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, web, _):
        await done(web.post("/v1/topics", json={"name": "orders", "queues": 1}), 201)
        later = {"body": "later", "deliver_at_ms": 4_000_000_000_000, "keys": ["k"]}
        refused = await done(web.post("/v1/topics/orders/messages", json=later), 422)
        assert "delay" in refused["detail"].lower() or "tim" in refused["detail"].lower()
        now_ms = (await done(web.get("/v1/overview")))["now_ms"]
        later["deliver_at_ms"] = now_ms + 3_600_000
        sent = await done(web.post("/v1/topics/orders/messages", json=later), 201)
        assert sent["offset"] is None

        async def waiting() -> Any:
            return (await done(web.get("/v1/delays")))["items"]

        (delayed,) = await eventually(waiting)
        assert (delayed["topic"], delayed["unique_key"]) == ("orders", sent["unique_key"])
        await done(web.delete(f"/v1/delays/{delayed['handle']}"))

        async def cancelled() -> bool:
            return not await waiting()

        await eventually(cancelled)
        sent = await done(web.post("/v1/topics/orders/messages", json={"body": "now"}), 201)
        trace = await done(web.get(f"/v1/messages/{sent['id']}/trace"))
        assert trace["topic"] == "orders"
        assert "stored" in [each["step"] for each in trace["steps"]]
        await _dead_letters(web, server)
        known = await done(web.get("/v1/cluster"))
        assert [each["is_this"] for each in known["brokers"]] == [True]


async def _dead_letters(web: httpx.AsyncClient, server: BrokerServer) -> None:
    await done(web.post("/v1/groups", json={"name": "g"}), 201)

    async def dead() -> Any:
        boxes = (await done(web.get("/v1/dead-letters")))["items"]
        return [each for each in boxes if each["count"]]

    async with remoting(server) as peer:
        for number in range(3):
            message = {"body": "never", "keys": [f"dead-{number}"]}
            sent = await done(web.post("/v1/topics/orders/messages", json=message), 201)
            await give_up(peer, sent["id"], "g")
        await eventually(dead)
    letters = (await done(web.get("/v1/dead-letters/g")))["items"]
    assert {each["origin_topic"] for each in letters} == {"orders"}
    some = {"ids": [letters[0]["message"]["id"]], "dry_run": True}
    assert (await done(web.post("/v1/dead-letters/g/resend", json=some)))["resent"] == 1
    resent = await done(web.post("/v1/dead-letters/g/resend", json={}))
    assert (resent["resent"], resent["failures"]) == (len(letters), [])
    assert not await dead()
    await done(web.delete("/v1/dead-letters/g"))


async def test_transactions_that_hang_are_listed_and_aborted(tmp_path: Path) -> None:
    async with http(tmp_path, kafka__port=-1) as (server, web):
        from confluent_kafka import Producer

        at = f"127.0.0.1:{server.config.kafka.port}"

        def begin() -> Any:
            producer = Producer({"bootstrap.servers": at, "transactional.id": "hangs"})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("orders", b"x")
            producer.flush(30)
            return producer

        kept = await asyncio.to_thread(begin)
        (found,) = (await done(web.get("/v1/transactions")))["items"]
        assert (found["id"], found["state"]) == ("hangs", "Ongoing")
        await done(web.delete("/v1/transactions/hangs"))

        async def over() -> bool:
            (found,) = (await done(web.get("/v1/transactions")))["items"]
            return bool(found["state"] == "CompleteAbort")

        await eventually(over)
        await done(web.delete("/v1/transactions/hangs"), 400)
        del kept


async def test_exchanges_queues_and_routes(tmp_path: Path) -> None:
    async with http(tmp_path, amqp__port=-1) as (_, web):
        ask: dict[str, Any] = {"name": "shop", "kind": "topic"}
        ask["arguments"] = {"alternate-exchange": "rest"}
        await done(web.post("/v1/exchanges", json=ask), 201)
        await done(web.post("/v1/exchanges", json={"name": "rest", "kind": "fanout"}), 201)
        for name in ("jobs", "lost"):
            await done(web.post("/v1/queues", json={"name": name}), 201)
        bound = {"source": "shop", "destination": "jobs", "key": "order.*"}
        await done(web.post("/v1/bindings", json=bound))
        await done(web.post("/v1/bindings", json={"source": "rest", "destination": "lost"}))

        async def route(**ask: str) -> tuple[list[str], int]:
            found = await done(web.get("/v1/route", params=ask))
            return found["queues"], len(found["hops"])

        assert await route(exchange="shop", key="order.new") == (["jobs"], 1)
        assert await route(exchange="shop", key="other") == (["lost"], 2)
        assert await route(key="jobs") == (["jobs"], 1)
        assert (await done(web.get("/v1/queues")))["items"][0]["topic"] == "jobs"
        assert (await done(web.get("/v1/bindings", params={"source": "shop"})))["total"] == 1
        await done(web.post("/v1/bindings", json={**bound, "remove": True}))
        assert await route(exchange="shop", key="order.new") == (["lost"], 2)
        await done(web.delete("/v1/queues/jobs/messages"))
        await done(web.delete("/v1/queues/jobs"))
        await done(web.delete("/v1/queues/jobs"), 404)
        await done(web.delete("/v1/exchanges/shop"))
        await done(web.delete("/v1/exchanges/shop"), 404)


async def test_only_who_is_near_may_change_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.gateways.http.requests.is_here", lambda remote, local: False)
    async with http(tmp_path) as (_, web):
        assert not (await done(web.get("/v1/overview")))["may_change"]
        for operation in OPERATIONS:
            path = operation.path.format(topic="t", group="g", id="i", name="n")
            if operation.changes:
                refused = await done(web.request(operation.method, path, json={}), 403)
                assert "security.remote_admin" in refused["detail"]
    async with http(tmp_path / "open", security__remote_admin=True) as (_, web):
        await done(web.post("/v1/topics", json={"name": "t"}), 201)


async def test_what_changes_something_must_be_json(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        text = {"content-type": "text/plain"}
        form = await web.post("/v1/topics", content=b'{"name": "t"}', headers=text)
        assert form.status_code == 400
        await done(web.get("/v1/topics/t"), 404)
