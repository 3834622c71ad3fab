"""RocketMQ's own gRPC clients for Java and Go: the same steps on OneLog and on its own proxy."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.proxy_peer import ProxyPeer
from tests.e2e.java_clients import PEER_VERSION, Scenario
from tests.e2e.java_toolchain import build
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import spawn, stop, wait_until
from tests.e2e.remoting_probe import call, create_topic, has_route
from tests.gateways.grpc.live import address, grpc_broker, in_thread

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

CLIENT = "5.1.0"
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
GET_CONSUMER_LIST_BY_GROUP = 38
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
GO_PROGRAM = Path(__file__).resolve().parent / "go" / "grpc"
TYPES = ("normal", "fifo", "delay", "transaction")


class Served(NamedTuple):
    """A broker, and where gRPC clients begin."""

    endpoints: str
    broker_address: str
    is_rocketmq: bool


@pytest.fixture(params=["onelog", "rocketmq"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    if request.param == "onelog":
        settings = {
            "broker__transaction_timeout_ms": 3_000,
            "broker__transaction_check_interval_ms": 1_000,
        }
        async with grpc_broker(tmp_path, **settings) as server:
            yield Served(address(server), server.address, False)
    else:
        peer = await in_thread(lambda: ProxyPeer(tmp_path / "peer").__enter__())
        try:
            yield Served(peer.endpoints, peer.broker_address, True)
        finally:
            await in_thread(lambda: peer.__exit__(None, None, None))


def prepare(served: Served, language: str) -> None:
    changes = b"recallMessageEnable=true\ntransactionTimeOut=3000\ntransactionCheckInterval=2000\n"
    if served.is_rocketmq:
        assert call(served.broker_address, UPDATE_BROKER_CONFIG, {}, changes).code == 0
    for kind in TYPES:
        topic = f"{language}-{kind}"
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={kind.upper()}",
        }
        assert call(served.broker_address, UPDATE_AND_CREATE_TOPIC, ext, b"").code == 0
        group = {"groupName": f"{topic}-group", "consumeMessageOrderly": kind == "fifo"}
        body = json.dumps(group).encode()
        answer = call(served.broker_address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert answer.code == 0


async def test_the_java_client_sends_and_receives_every_type(
    served: Served, tmp_path: Path
) -> None:
    def work() -> dict[str, list[str]]:
        prepare(served, "java")
        program = build("grpc", CLIENT, "onelog.grpc.Main", tmp_path)
        lines = program.run(served.endpoints, "java", timeout_s=300)
        return {line["name"]: line["got"] for line in lines}

    check(await in_thread(work))


def check(got: dict[str, list[str]]) -> None:
    assert got["normal"] == sorted(f"n{each} t k{each} v" for each in range(20))
    assert got["fifo"] == [f"f{each}" for each in range(20)]
    assert got["delay"] == ["late 1", "in time"]
    assert got["transaction"] == ["asked about 1", "committed 1"]


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
async def test_the_go_client_sends_and_receives_every_type(served: Served, tmp_path: Path) -> None:
    program = tmp_path / "program"

    def build_go() -> None:
        built = subprocess.run(
            ["go", "build", "-o", str(program), "."],
            cwd=GO_PROGRAM,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if "dial tcp" in built.stderr or "403 Forbidden" in built.stderr:
            pytest.skip("the Go client cannot be downloaded here")
        assert built.returncode == 0, built.stderr

    def work() -> dict[str, list[str]]:
        prepare(served, "go")
        ended = subprocess.run(
            [str(program), served.endpoints, "go", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr + ended.stdout
        lines = map(json.loads, ended.stdout.splitlines())
        return {line["name"]: line["got"] for line in lines}

    await asyncio.to_thread(build_go)
    check(await in_thread(work))


async def test_members_that_pull_and_members_over_grpc_share_what_a_topic_has(
    tmp_path: Path,
) -> None:
    count, topic = 200, "shared"
    group = f"{topic}-java"

    def work() -> tuple[list[str], list[str], list[str]]:
        with OnelogPeer(tmp_path / "peer", grpc=True, may_stall=True) as peer:
            create_topic(peer.broker_address, topic, 4)
            wait_until(lambda: has_route(peer.nameservers, topic), "the route of the topic")
            program = build("grpc", CLIENT, "onelog.grpc.Sharing", tmp_path)
            command = program.command(peer.endpoints, topic, group, count)
            leasing = spawn(command, tmp_path / "leasing.log", pipes=True)
            try:
                assert leasing.stdin is not None
                assert leasing.stdout is not None
                assert json.loads(leasing.stdout.readline())["event"] == "ready"
                with Scenario(
                    tmp_path,
                    PEER_VERSION,
                    "interop-read",
                    peer.nameservers,
                    topic=topic,
                    messages=1_000_000,
                ) as pulling:
                    wait_until(lambda: _members(peer, group) == 2, "both members", 60)
                    time.sleep(5)  # Until each knows of the other, and has the queues it keeps.
                    leasing.stdin.write(b"\n")
                    leasing.stdin.flush()
                    done = json.loads(leasing.stdout.readline())
                    pulled = [
                        pulling.wait_for("read")["id"]
                        for _ in range(len(done["sent"]) - len(done["heard"]))
                    ]
                    return done["sent"], done["heard"], pulled
            finally:
                stop(leasing)

    sent, heard, pulled = await in_thread(work)
    assert len(sent) == count
    assert heard
    assert pulled
    assert sorted([*heard, *pulled]) == sorted(sent)


def _members(peer: OnelogPeer, group: str) -> int:
    answer = call(peer.broker_address, GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return len(json.loads(answer.body)["consumerIdList"]) if answer.code == 0 else 0
