"""What RocketMQ had handed out by POP when it stopped."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from onelog.clock import ManualClock
from onelog.core.catalog.topics import TopicConfig
from onelog.core.schedule.records import scheduled
from onelog.errors import LeaseNotFoundError
from onelog.message import NewMessage, encode_properties
from onelog.rocketmq.names import REVIVE_GROUP
from onelog.store.message_store import MessageStore
from tests.core.leasing import GROUP, TOPIC, Reader, bodies
from tests.core.world import SMALL_STORE, World

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
BEGIN_MS = ManualClock().now_ms()
LEASE_MS = 60_000
POPPED_MS = BEGIN_MS - 10_000
DUE_MS = POPPED_MS + LEASE_MS
CHECKPOINT: dict[str, Any] = {
    "bm": 0,
    "bn": "broker-a",
    "c": GROUP,
    "d": [0, 1, 2],
    "it": LEASE_MS,
    "n": 3,
    "pt": POPPED_MS,
    "q": 0,
    "ro": 0,
    "so": 2,
    "t": TOPIC,
}
ACK: dict[str, Any] = {"c": GROUP, "pt": POPPED_MS, "q": 0, "so": 2, "t": TOPIC}


def message(tag: str, said: dict[str, Any] | bytes) -> NewMessage:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    return NewMessage(REVIVE, 0, body, encode_properties({"TAGS": tag}))


def waiting(tag: str, said: dict[str, Any]) -> NewMessage:
    """The same, while it waits for its time."""
    plain = message(tag, said)
    properties = encode_properties({"TAGS": tag, "TIMER_DELIVER_MS": str(DUE_MS)})
    return scheduled(plain._replace(properties=properties), DUE_MS)


def taken_over(folder: Path, *records: NewMessage, position: int = 6, read: int = -1) -> Reader:
    """OneLog on a store of RocketMQ with ten messages, of which a group was given some."""
    with MessageStore.open(folder, SMALL_STORE, ManualClock()) as store:
        store.append([NewMessage(TOPIC, 0, b"%d" % number) for number in range(10)])
        if records:
            store.append(list(records))
    config = folder / "config"
    config.mkdir(exist_ok=True)
    topics = {TOPIC: {"topicName": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    groups = {"subscriptionGroupTable": {GROUP: {"groupName": GROUP}}}
    (config / "subscriptionGroup.json").write_text(json.dumps(groups))
    offsets = {f"{TOPIC}@{GROUP}": {"0": position}}
    if read >= 0:
        offsets[f"{REVIVE}@{REVIVE_GROUP}"] = {"0": read}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    return Reader(World(folder))


@pytest.mark.parametrize("where", [message, waiting])
def test_what_was_not_acknowledged_comes_again_when_its_time_is_up(
    tmp_path: Path, where: Any
) -> None:
    records = [where("ck", CHECKPOINT), where("ack", {**ACK, "ao": 3})]
    reader = taken_over(tmp_path / "store", *records)
    assert reader.cursor() == 2
    assert len(reader.leases) == 2
    assert bodies(reader.pop(invisible_ms=10 * LEASE_MS)) == [b"6", b"7", b"8", b"9"]
    reader.world.advance(DUE_MS - reader.world.clock.now_ms() - 1)
    assert reader.pop() == []
    reader.world.advance(1_000)
    again = reader.pop()
    assert bodies(again) == [b"2", b"4"]
    assert {each.topic for each in again} == {f"%RETRY%{GROUP}_{TOPIC}"}
    reader.world.close()


def test_receipts_that_clients_have_stay_good(tmp_path: Path) -> None:
    reader = taken_over(tmp_path / "store", message("ck", CHECKPOINT))
    for offset in (2, 3, 4):
        reader.leases.acknowledge(GROUP, TOPIC, 0, offset, POPPED_MS)
    with pytest.raises(LeaseNotFoundError):
        reader.leases.acknowledge(GROUP, TOPIC, 0, 5, POPPED_MS)
    reader.end_tick()
    assert reader.cursor() == 6
    reader.world.close()


def test_batches_of_acknowledgements_and_bits_count_too(tmp_path: Path) -> None:
    records = [
        message("bAck", {**ACK, "aol": [2, 4]}),
        message("ck", CHECKPOINT),
        message("ck", {**CHECKPOINT, "so": 0, "d": [0, 1], "n": 2, "bm": 1}),
    ]
    reader = taken_over(tmp_path / "store", *records)
    assert reader.cursor() == 1
    assert len(reader.leases) == 2
    reader.world.close()


def test_a_message_that_got_another_time_is_leased_for_that(tmp_path: Path) -> None:
    later = {**CHECKPOINT, "so": 3, "d": [0], "n": 1, "pt": POPPED_MS + 5, "it": 2 * LEASE_MS}
    records = [
        message("ck", CHECKPOINT),
        message("ck", later),
        message("ack", {**ACK, "ao": 3}),
    ]
    reader = taken_over(tmp_path / "store", *records)
    assert len(reader.leases) == 3
    reader.leases.acknowledge(GROUP, TOPIC, 0, 3, POPPED_MS + 5)
    reader.world.close()


def test_what_was_looked_after_already_stays_that_way(tmp_path: Path) -> None:
    old = {**CHECKPOINT, "so": 0, "d": [0, 1], "n": 2}
    reader = taken_over(tmp_path / "store", message("ck", old), message("ck", CHECKPOINT), read=0)
    assert reader.cursor() == 2
    assert len(reader.leases) == 3
    reader.world.close()


def test_a_position_that_was_saved_too_early_is_not_believed(tmp_path: Path) -> None:
    done = message("ack", {**ACK, "ao": 4})
    reader = taken_over(tmp_path / "store", message("ck", CHECKPOINT), done, position=2)
    assert bodies(reader.pop()) == [b"5", b"6", b"7", b"8", b"9"]
    reader.world.close()


def test_it_happens_once(tmp_path: Path) -> None:
    reader = taken_over(tmp_path / "store", message("ck", CHECKPOINT))
    for offset in (2, 3, 4):
        reader.leases.acknowledge(GROUP, TOPIC, 0, offset, POPPED_MS)
    reader.end_tick()
    for again in (reader.world.crash, reader.world.restart):
        again()
        assert len(reader.leases) == 0
        assert reader.cursor() == 6
    reader.world.close()


def test_leases_that_were_taken_over_survive_a_crash(tmp_path: Path) -> None:
    reader = taken_over(tmp_path / "store", message("ck", CHECKPOINT))
    reader.world.crash()
    assert len(reader.leases) == 3
    assert reader.cursor() == 2
    reader.world.close()


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'{"c": 1', json.dumps({**CHECKPOINT, "so": "x"}).encode()]
)
def test_a_record_that_makes_no_sense_is_skipped_and_said(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    broken = message("ck", body or b"?")
    reader = taken_over(tmp_path / "store", broken, message("ck", CHECKPOINT))
    assert len(reader.leases) == 3
    assert caplog.text.count("record of RocketMQ's POP") == 1
    reader.world.close()


def test_what_is_gone_is_not_leased(tmp_path: Path) -> None:
    beyond = {**CHECKPOINT, "so": 8, "d": [0, 1, 2, 3], "n": 4}
    strange = {**CHECKPOINT, "t": "no-such-topic"}
    reader = taken_over(tmp_path / "store", message("ck", beyond), message("ck", strange))
    assert len(reader.leases) == 2
    assert reader.world.core.topics.get(TOPIC) == TopicConfig(TOPIC, 1, 1)
    reader.world.close()
