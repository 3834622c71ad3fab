"""The way back: the real RocketMQ goes on with a store that OneLog has worked on."""

import json
import subprocess
from pathlib import Path

import pytest

from onelog.config import StoreConfig
from onelog.wire.remoting.codes import RequestCode as Code
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import Answer, accepts_message, call, create_topic
from tests.e2e.rocketmq_peer import RocketmqPeer
from tests.e2e.watched_broker import COMMAND, WatchedBroker

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

TOPIC, GROUP = "Exported", "readers"
STORE = StoreConfig()
SETTINGS = {
    f"store__{name}": getattr(STORE, name)
    for name in ("segment_bytes", "queue_file_entries", "index_slots", "index_entries")
}
POSITION = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
MODE = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 3}


def ask(broker: str, code: Code, fields: dict[str, str], body: bytes = b"") -> Answer:
    answer = call(broker, code, fields, body, timeout_s=10)
    assert answer.code == 0, answer
    return answer


def test_rocketmq_goes_on_with_topics_groups_positions_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with WatchedBroker(folder, **SETTINGS) as onelog:
        address = f"127.0.0.1:{onelog.port}"
        create_topic(address, TOPIC, 3)
        for _ in range(10):
            assert accepts_message(address, TOPIC)
        ask(address, Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP})
        ask(address, Code.UPDATE_CONSUMER_OFFSET, {**POSITION, "commitOffset": "7"})
        ask(address, Code.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(MODE).encode())
    assert onelog.status == 0
    subprocess.run([COMMAND, "store", "export-config", folder / "store"], check=True, timeout=60)
    with RocketmqPeer(folder) as rocketmq:
        address = rocketmq.broker_address
        found = ask(address, Code.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": "false"})
        assert json.loads(found.body)["writeQueueNums"] == 3
        assert ask(address, Code.QUERY_CONSUMER_OFFSET, POSITION).fields["offset"] == "7"
        queue = {"topic": TOPIC, "queueId": "0"}
        assert ask(address, Code.GET_MAX_OFFSET, queue).fields["offset"] == "10"
        modes = json.loads(ask(address, Code.GET_ALL_MESSAGE_REQUEST_MODE, {}).body)
        assert modes["messageRequestModeMap"] == {TOPIC: {GROUP: MODE}}
        wait_until(lambda: accepts_message(address, TOPIC), "an eleventh message")
        assert ask(address, Code.GET_MAX_OFFSET, queue).fields["offset"] == "11"
