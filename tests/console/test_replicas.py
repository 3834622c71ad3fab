"""Replica sets by REST and in the console: who is there, who is master, and handing over."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.commands.test_serving import SMALL, Program
from tests.console.browser import Watched, browser, needs_chromium
from tests.gateways.http.live import SECONDS, http
from tests.ports import free_port


async def test_a_broker_without_replicas_says_so(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        assert (await web.get("/v1/cluster/replicas")).json()["items"] == []
        for action in ("promote", "drain", "join", "elect", "truncate"):
            refused = await web.post(f"/v1/cluster/{action}", json={"node": 1})
            assert refused.status_code == 400
            assert "no replicas" in refused.json()["detail"]


class Nodes:
    """The HTTP ports of a set, of which some node answers."""

    def __init__(self, first: int) -> None:
        self.ports = range(first, first + 3)

    async def ask(self, method: str, path: str, **body: Any) -> Any:
        for port in self.ports:
            at = f"http://127.0.0.1:{port}"
            try:
                async with httpx.AsyncClient(base_url=at, timeout=SECONDS) as client:
                    answer = await client.request(method, path, json=body or None)
            except httpx.HTTPError:
                continue  # A node that changes its role hangs up.
            if answer.status_code == 200:
                return answer.json()
        return None

    async def until(self, holds: Callable[[dict[int, Any]], bool]) -> dict[int, Any]:
        async with asyncio.timeout(120):
            while True:
                found = await self.ask("GET", "/v1/cluster/replicas")
                nodes = {each["node"]: each for each in found["items"]} if found else {}
                if nodes and holds(nodes):
                    return nodes
                await asyncio.sleep(0.3)


def master_of(nodes: dict[int, Any]) -> int:
    return next((node for node, each in nodes.items() if each["role"] == "master"), -1)


@pytest.mark.e2e
@pytest.mark.timeout(400)
@needs_chromium
async def test_masters_hand_over_and_nodes_leave_and_come_back(tmp_path: Path) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd on this machine (Debian: apt-get install etcd-server)")
    names, first, web = free_port(), free_port(50), free_port()
    program = Program(
        *("up", "--data", str(tmp_path), "--nameserver-port", str(names), "--kafka-port", "0"),
        *("--broker-port", str(first), "--replicas", "3", *SMALL, "--http-port", str(web)),
    )
    try:
        await asyncio.to_thread(program.wait_for, "^ready in")
        set_ = Nodes(web)
        nodes = await set_.until(lambda nodes: sum(each["in_sync"] for each in nodes.values()) == 3)
        before = master_of(nodes)
        target = next(node for node in nodes if node != before)
        async with browser() as chromium:
            seen = Watched(await chromium.new_page(), f"http://127.0.0.1:{web}")
            await seen.open("cluster")
            row = seen.page.get_by_role("row").filter(has_text="Make master").first
            await row.wait_for()
        await set_.ask("POST", "/v1/cluster/promote", node=target)
        nodes = await set_.until(lambda nodes: master_of(nodes) == target)
        other = next(node for node in nodes if node not in (before, target))
        await set_.until(lambda nodes: nodes[other]["in_sync"])
        await set_.ask("POST", "/v1/cluster/drain", node=other)
        await set_.until(lambda nodes: other not in nodes or not nodes[other]["in_sync"])
    finally:
        await asyncio.to_thread(program.stop)
