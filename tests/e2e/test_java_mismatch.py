"""Members of a group that subscribe differently: our answers about them, in RocketMQ's tools."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.net.peer import Peer
from tests.commands.running import run_beside
from tests.e2e.conftest import Server
from tests.e2e.java_clients import mqadmin
from tests.gateways.remoting.live import Client

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(200)]


@pytest.fixture
async def members(server: Server, topic: str) -> AsyncIterator[None]:
    """Two members of one group, with different filters."""
    host, port = server.broker_address.rsplit(":", 1)
    async with contextlib.AsyncExitStack() as stack:
        for client_id, expression in (("c1", "a"), ("c2", "b")):
            peer = await Peer.connect(host, int(port), on_request=lambda _, __: None)
            stack.push_async_callback(peer.close)
            member = Client(peer, [])
            assert (await member.heartbeat(client_id, f"{topic}-g", topic, expression)).code == 0
        yield


@pytest.mark.usefixtures("members")
async def test_mqadmin_reads_over_what_only_onelog_tells(
    server: Server, topic: str, tmp_path: Path
) -> None:
    printed = await asyncio.to_thread(
        mqadmin, tmp_path, server.nameservers, "consumerConnection", "-g", f"{topic}-g"
    )
    for client_id in ("c1", "c2"):
        assert re.search(rf"^{client_id}\s+127\.0\.0\.1:\d+\s", printed, re.MULTILINE), printed
    assert re.search(rf"^{topic}\s+[ab]$", printed, re.MULTILINE), printed
    ended = await run_beside("group", "describe", f"{topic}-g", "--json", "-n", server.nameservers)
    told = {"c1": {topic: "a"}, "c2": {topic: "b"}} if server.name == "onelog" else None
    assert ended.document["mismatch"] == told
