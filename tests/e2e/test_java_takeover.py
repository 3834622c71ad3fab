"""OneLog goes on with a store of the real RocketMQ while consumers have messages of it in hand."""

import json
import signal
from pathlib import Path

import pytest

from onelog.config import StoreConfig
from onelog.record.decode import decode_messages
from onelog.wire.remoting.codes import RequestCode as Code
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import Answer, accepts_message, call, create_topic
from tests.e2e.rocketmq_peer import RocketmqPeer
from tests.e2e.watched_broker import WatchedBroker

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

TOPIC, GROUP = "TakenOver", "poppers"
STORE = StoreConfig()
SETTINGS = {
    f"store__{name}": getattr(STORE, name)
    for name in ("segment_bytes", "queue_file_entries", "index_slots", "index_entries")
}
LEASE_MS = 25_000


def pop(broker: str, count: int) -> tuple[Answer, list[int]]:
    """POP_MESSAGE from queue 0; the answer, and the queue offsets of what came."""
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "maxMsgNums": str(count),
        "invisibleTime": str(LEASE_MS),
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    answer = call(broker, Code.POP_MESSAGE, fields, timeout_s=10)
    return answer, [int(each.queue_offset) for each in decode_messages(memoryview(answer.body))]


def ack(broker: str, popped: Answer, offset: int) -> int:
    """ACK_MESSAGE with the receipt that the Java client would make."""
    first = popped.fields["startOffsetInfo"].split(" ")[2]
    receipt = (
        f"{first} {popped.fields['popTime']} {popped.fields['invisibleTime']} "
        f"{popped.fields['reviveQid']} 0 broker-a 0 {offset}"
    )
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "extraInfo": receipt,
        "offset": str(offset),
    }
    return call(broker, Code.ACK_MESSAGE, fields, timeout_s=10).code


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_messages_in_hand_can_be_acknowledged_or_come_again(
    tmp_path: Path, how: signal.Signals
) -> None:
    folder = tmp_path / "server"
    rocketmq = RocketmqPeer(folder)
    try:
        rocketmq.start()
        address = rocketmq.broker_address
        create_topic(address, TOPIC, 1)
        for _ in range(10):
            wait_until(lambda: accepts_message(address, TOPIC), "a stored message")
        group = json.dumps({"groupName": GROUP}).encode()
        assert call(address, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group).code == 0
        popped, offsets = pop(address, 6)
        assert offsets == [0, 1, 2, 3, 4, 5], popped
        assert [ack(address, popped, offset) for offset in (0, 3)] == [0, 0]
        rocketmq.stop_broker(how)
        with WatchedBroker(folder, **SETTINGS) as onelog:
            address = f"127.0.0.1:{onelog.port}"
            # What clients were given by the other broker is still theirs, and theirs alone.
            assert ack(address, popped, 1) == 0
            assert ack(address, popped, 3) == 208
            assert pop(address, 32)[1] == [6, 7, 8, 9]
            came: list[tuple[str, int]] = []

            def come_again() -> bool:
                answer, _ = pop(address, 32)
                came.extend(
                    (each.topic, each.reconsume_times)
                    for each in decode_messages(memoryview(answer.body))
                )
                return len(came) >= 3

            wait_until(come_again, "the three messages that nobody acknowledged", 60)
            assert came == [(f"%RETRY%{GROUP}_{TOPIC}", 1)] * 3
        assert onelog.bugs() == []
    finally:
        rocketmq.close()
