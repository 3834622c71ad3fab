"""RocketMQ's own gRPC client for Java: the same program on OneLog and on RocketMQ's proxy."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.proxy_peer import ProxyPeer
from tests.e2e.java_toolchain import build
from tests.e2e.remoting_probe import call
from tests.gateways.grpc.live import address, grpc_broker, in_thread

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(400)]

CLIENT = "5.1.0"
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
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


def prepare(served: Served) -> None:
    changes = b"recallMessageEnable=true\ntransactionTimeOut=3000\ntransactionCheckInterval=2000\n"
    if served.is_rocketmq:
        assert call(served.broker_address, UPDATE_BROKER_CONFIG, {}, changes).code == 0
    for kind in TYPES:
        topic = f"java-{kind}"
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "attributes": f"+message.type={kind.upper()}",
        }  # fmt: skip
        assert call(served.broker_address, UPDATE_AND_CREATE_TOPIC, ext, b"").code == 0
        group = {"groupName": f"{topic}-group", "consumeMessageOrderly": kind == "fifo"}
        body = json.dumps(group).encode()
        answer = call(served.broker_address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert answer.code == 0


async def test_the_java_client_sends_and_receives_every_type(
    served: Served, tmp_path: Path
) -> None:
    def work() -> dict[str, list[str]]:
        prepare(served)
        program = build("grpc", CLIENT, "onelog.grpc.Main", tmp_path)
        lines = program.run(served.endpoints, "java", timeout_s=300)
        return {line["name"]: line["got"] for line in lines}

    got = await in_thread(work)
    assert got["normal"] == sorted(f"n{each} t k{each} v" for each in range(20))
    assert got["fifo"] == [f"f{each}" for each in range(20)]
    assert got["delay"] == ["late 1", "in time"]
    assert got["transaction"] == ["asked about 1", "committed 1"]
