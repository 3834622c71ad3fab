"""Messages over HTTP: sent, consumed by groups, looked at and followed; with nothing but HTTP."""

import asyncio
import base64
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateways.http.live import http, url

T = "/v1/topics/orders"
G = f"{T}/groups/billing"


async def consumed(client: httpx.AsyncClient, **parameters: Any) -> list[dict[str, Any]]:
    answer = await client.post(f"{G}/consume", params={"count": 10, "wait_ms": 10_000} | parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def test_a_body_is_a_message(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        headers = {"onelog-header-color": "red", "content-type": "text/x"}
        sent = await client.post(f"{T}/produce?key=k1", content=b"\x00\xff", headers=headers)
        assert sent.status_code == 200
        assert sent.json()["topic"] == "orders"
        (message,) = await consumed(client)
        assert message["key"] == "k1"
        assert base64.b64decode(message["body_base64"]) == b"\x00\xff"
        assert message["headers"] == {"color": "red", "content-type": "text/x"}
        assert message["id"] == sent.json()["id"]
        assert message["times"] == 0


async def test_many_messages_as_json(tmp_path: Path) -> None:
    messages = [
        {"key": "a", "body": "one", "headers": {"n": "1", "none": None}, "queue": 0},
        {"body_base64": base64.b64encode(b"\xff").decode(), "key_base64": "/w==", "queue": 0},
        {"json": {"x": [1, 2]}, "queue": 0},
        {"body": None, "queue": 0},
    ]
    async with http(tmp_path) as (_, client):
        sent = await client.post(f"{T}/produce-json", json={"messages": messages})
        assert [each["offset"] for each in sent.json()["messages"]] == [0, 1, 2, 3]
        peeked = (await client.get(f"{T}/peek")).json()["messages"]
        found = await consumed(client)
        assert [each["offset"] for each in peeked] == [each["offset"] for each in found]
    assert (found[0]["key"], found[0]["body"]) == ("a", "one")
    assert found[0]["headers"] == {"n": "1", "none": None}
    assert (found[1]["body_base64"], found[1]["key_base64"]) == ("/w==", "/w==")
    assert json.loads(found[2]["body"]) == {"x": [1, 2]}
    assert found[3]["body"] is None


async def test_what_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        await client.post(f"{T}/produce", content="x")
        (first,) = await consumed(client, lease_ms=60_000)
        assert await consumed(client, wait_ms=0) == []
        back = await client.post(f"{G}/nack", params={"receipt": first["receipt"]})
        assert back.json() == {"done": 1, "not_leased": 0}
        (second,) = await consumed(client, lease_ms=60_000)
        assert second["times"] == 1
        longer = await client.post(
            f"{G}/extend", params={"receipt": second["receipt"], "lease_ms": 90_000}
        )
        receipts = longer.json()["receipts"]
        done = await client.post(f"{G}/ack", json={"receipts": receipts})
        assert done.json() == {"done": 1, "not_leased": 0}
        late = await client.post(f"{G}/ack", json={"receipts": receipts})
        assert late.status_code == 404
        assert await consumed(client, wait_ms=0) == []


async def test_a_consumer_waits_until_something_comes(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        await client.post(f"{T}/produce", content="first")
        (first,) = await consumed(client)
        await client.post(f"{G}/ack", params={"receipt": first["receipt"]})
        waiting = asyncio.create_task(consumed(client, wait_ms=20_000))
        await asyncio.sleep(0.1)
        await client.post(f"{T}/produce", content="second")
        assert [each["body"] for each in await waiting] == ["second"]


async def test_a_raw_message(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        empty = await client.post(f"{T}/produce?key=schl%C3%BCssel", content=b"raw \xff")
        assert empty.status_code == 200
        got = await client.post(f"{G}/consume?raw=true")
        assert got.content == b"raw \xff"
        assert got.headers["onelog-key"] == "schl%C3%BCssel"
        receipt = got.headers["onelog-receipt"]
        assert (await client.post(f"{G}/ack?receipt={receipt}")).status_code == 200
        assert (await client.post(f"{G}/consume?raw=true")).status_code == 204


async def test_a_delayed_message(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        sent = await client.post(f"{T}/produce?delay_ms=1500", content="later")
        assert "deliver_at_ms" in sent.json()
        assert await consumed(client, wait_ms=0) == []
        assert [each["body"] for each in await consumed(client, wait_ms=20_000)] == ["later"]


async def test_following_a_topic(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        await client.post(f"{T}/produce?queue=0", content="old")
        found: list[str] = []
        ident = ""
        async with client.stream("GET", f"{T}/follow?from=earliest") as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            async for line in events.aiter_lines():
                if line.startswith("id: "):
                    ident = line.removeprefix("id: ")
                if line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: "))["body"])
                    if len(found) == 1:
                        await client.post(f"{T}/produce?queue=0", content="new")
                    else:
                        break
        assert found == ["old", "new"]
        await client.post(f"{T}/produce?queue=0", content="newest")
        again = {"last-event-id": ident}
        async with client.stream("GET", f"{T}/follow", headers=again) as events:
            async for line in events.aiter_lines():
                if line.startswith("data: "):
                    assert json.loads(line.removeprefix("data: "))["body"] == "newest"
                    break


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/topics/no%20name/produce", 422),
        ("POST", f"{T}/produce?delay_ms=soon", 400),
        ("POST", f"{T}/produce-json", 400),
        ("POST", "/v1/topics/missing/groups/g/consume", 404),
        ("POST", f"{G}/ack?receipt=what", 400),
        ("POST", f"{G}/ack?receipt=0-0-1", 404),
        ("POST", f"{G}/consume?count=1000000", 400),
        ("POST", f"{G}/consume?from=nowhere", 400),
        ("GET", f"{T}/peek?from=nowhere", 400),
        ("GET", f"{T}/peek?queue=99", 400),
        ("GET", "/v1/topics/missing/follow", 404),
        ("GET", "/api/message/a?type=heap", 400),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with http(tmp_path) as (_, client):
        await client.post(f"{T}/produce", content="x")
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["detail"]


async def test_queues_in_the_way_of_activemq(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        path = "/api/message/work?type=queue"
        sent = await client.post(path, data={"body": "by form", "color": "red", "JMSPriority": "7"})
        assert sent.text == "Message sent"
        await client.post(path, content="raw", headers={"content-type": "text/xml"})
        first = await client.get(path)
        assert (first.status_code, first.text) == (200, "by form")
        assert first.headers["onelog-header-color"] == "red"
        second = await client.delete(path)
        assert second.text == "raw"
        assert second.headers["content-type"].startswith("text/xml")
        assert (await client.get(f"{path}&readTimeout=50")).status_code == 204


async def test_topics_in_the_way_of_activemq(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, client):
        path = "/api/message/news?type=topic"
        waiting = asyncio.create_task(client.get(f"{path}&clientId=me"))
        await asyncio.sleep(0.3)
        await client.post(path, content="one")
        await client.post(path, content="two")
        assert (await waiting).text == "one"
        assert (await client.get(f"{path}&clientId=me")).text == "two"
        assert (await client.get(f"{path}&readTimeout=50")).status_code == 204


async def test_curl_is_enough(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")

    async def curl(*words: str) -> str:
        child = await asyncio.create_subprocess_exec(
            "curl", "-sS", "--fail-with-body", *words, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(child.communicate(), 30)
        assert child.returncode == 0, out
        return out.decode()

    async with http(tmp_path) as (server, _):
        base = url(server)
        await curl("-d", "hello", f"{base}{T}/produce?key=k")
        found = json.loads(await curl("-X", "POST", f"{base}{G}/consume?wait_ms=5000"))
        assert found["messages"][0]["body"] == "hello"
        receipt = found["messages"][0]["receipt"]
        assert json.loads(await curl("-X", "POST", f"{base}{G}/ack?receipt={receipt}"))["done"] == 1
