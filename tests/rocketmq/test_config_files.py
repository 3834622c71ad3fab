from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.membership.assignment import RequestMode
from onelog.errors import StoreCorruptError
from onelog.message import NewMessage
from onelog.names import SCHEDULE_TOPIC, TABLES_FILE
from onelog.rocketmq import config_files
from onelog.rocketmq.config_files import load, read, with_quoted_keys
from onelog.store.message_store import MessageStore
from onelog.wire.remoting.registration import TopicTable
from tests.core.world import SMALL_STORE, World

TOPICS = """{
	"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1690000000000},
	"topicConfigTable":{
		"TBW102":{"attributes":{},"order":false,"perm":7,"readQueueNums":8,"topicFilterType":
			"SINGLE_TAG","topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8},
		"orders":{"attributes":{"+message.type":"NORMAL"},"order":true,"perm":6,"readQueueNums":4,
			"topicFilterType":"MULTI_TAG","topicName":"orders","topicSysFlag":1,"writeQueueNums":3}
	}
}"""
GROUPS = """{
	"dataVersion":{"counter":5,"timestamp":1690000000001},
	"forbiddenTable":{},
	"subscriptionGroupTable":{
		"readers":{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,
			"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,
			"groupName":"readers","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,
			"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":5,"retryQueueNums":2,
			"whichBrokerWhenConsumeSlowly":1}
	}
}"""
OFFSETS = """{
	"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},
	"offsetTable":{
		"orders@readers":{0:12,1:7 , 2 :0
		},
		"%RETRY%readers@readers":{0:1},
		"no group":{0:1}
	}
}"""
DELAY = """{"dataVersion":{"counter":1},"offsetTable":{3:2,4:0}}"""


def leave_behind(folder: Path, suffix: str = "") -> None:
    """The config folder of a store that RocketMQ wrote."""
    config = folder / "config"
    config.mkdir(parents=True)
    for name, text in {
        "topics.json": TOPICS,
        "subscriptionGroup.json": GROUPS,
        "consumerOffset.json": OFFSETS,
        "delayOffset.json": DELAY,
    }.items():
        (config / (name + suffix)).write_text(text)


def parse(text: str) -> object:
    return msgspec.json.decode(with_quoted_keys(text))


def test_number_keys_need_no_quotes() -> None:
    assert parse('{"a":{0:1, -1 :2,\n3:{"b":[4,5,6]}}}') == {
        "a": {"0": 1, "-1": 2, "3": {"b": [4, 5, 6]}}
    }


def test_what_looks_like_a_key_inside_a_text_is_left_alone() -> None:
    assert parse(r'{"a":"{0:1,2:3}","b":"\",4:\"","5":"x"}') == {
        "a": "{0:1,2:3}",
        "b": '",4:"',
        "5": "x",
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=10,
)


@given(json_values)
def test_ordinary_json_is_read_as_ever(value: object) -> None:
    assert parse(msgspec.json.encode(value).decode()) == value


def fill(folder: Path, **counts: int) -> None:
    """Messages in queues, which are named "topic@queue id"."""
    with MessageStore.open(folder, SMALL_STORE) as store:
        for name, count in counts.items():
            topic, _, queue_id = name.partition("@")
            store.append([NewMessage(topic, int(queue_id), b"x")] * count)


def test_a_store_of_rocketmq_is_taken_over_once(tmp_path: Path) -> None:
    leave_behind(tmp_path / "store")
    counts = {"orders@0": 12, "orders@1": 9, "%RETRY%readers@0": 1, f"{SCHEDULE_TOPIC}@2": 2}
    fill(tmp_path / "store", **counts)
    world = World(tmp_path / "store")
    topics = world.core.topics
    assert topics.require("orders") == TopicConfig(
        "orders", 4, 3, 6, "MULTI_TAG", True, 1, {"+message.type": "NORMAL"}
    )
    assert (topics.version.counter, topics.version.timestamp_ms) == (3, 1_690_000_000_000)
    assert world.core.groups.require("readers").retry_times_max == 5
    assert world.core.offsets.of("readers", "orders") == {0: 12, 1: 7, 2: 0}
    assert world.core.offsets.of("readers", "%RETRY%readers") == {0: 1}
    assert len(world.core.offsets.all()) == 2
    assert world.core.delay.progress()[3] == (2, 2)
    assert (world.folder / "config" / TABLES_FILE).exists()
    world.broker.topics.delete(SELF, "orders")
    world.crash()
    assert world.core.topics.get("orders") is None, "the old files do not count any more"
    world.close()


def test_the_backup_counts_where_the_file_is_missing_empty_or_broken(tmp_path: Path) -> None:
    leave_behind(tmp_path / "store", ".bak")
    config = tmp_path / "store" / "config"
    (config / "topics.json").write_text("")
    (config / "subscriptionGroup.json").write_text('{"dataVersion":')
    world = World(tmp_path / "store")
    assert world.core.topics.get("orders") is not None
    assert world.core.groups.get("readers") is not None
    assert world.core.offsets.of("readers", "orders")
    world.close()


def test_files_that_cannot_be_understood_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text("garbage")
    with pytest.raises(StoreCorruptError, match=r"topics\.json"):
        read(path, TopicTable)
    path.write_text('{"topicConfigTable": {"orders": [1]}}')
    with pytest.raises(StoreCorruptError, match=r"topics\.json"):
        load(tmp_path)
    path.write_text('{"topicConfigTable": {"orders": {"perm": "x"}}}')
    with pytest.raises(StoreCorruptError, match=r"topics\.json"):
        load(tmp_path)


def test_no_files_are_no_changes(tmp_path: Path) -> None:
    assert load(tmp_path) == []


def test_what_is_exported_can_be_taken_over_again(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.topic("orders", 4, order=True, attributes={"k": "v"})
    world.broker.groups.put(SELF, GroupConfig("readers", retry_queues=3, consume_enable=False))
    for _ in range(9):
        world.send("orders", 1)
    world.commit("readers", "orders", 1, 9)
    world.core.request_modes.set("readers", "orders", RequestMode("POP", 2))
    world.send("orders", DELAY="1")
    world.advance(1_000)
    config_files.export(world.core)
    config_files.export(world.core)
    config = world.folder / "config"
    assert (config / "topics.json.bak").exists()
    assert '"orders@readers": {\n   1: 9' in (config / "consumerOffset.json").read_text()
    other = tmp_path / "other" / "config"
    other.mkdir(parents=True)
    names = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "messageRequestMode")
    for name in names:
        (other / f"{name}.json").write_bytes((config / f"{name}.json").read_bytes())
    fill(tmp_path / "other", **{"orders@1": 9, f"{SCHEDULE_TOPIC}@0": 1})
    again = World(tmp_path / "other")
    assert again.core.topics.all() == world.core.topics.all()
    assert again.core.topics.version.counter == world.core.topics.version.counter
    assert again.core.groups.require("readers") == GroupConfig(
        "readers", retry_queues=3, consume_enable=False
    )
    assert again.core.offsets.all() == world.core.offsets.all()
    assert again.core.delay.progress()[1][0] == 1
    assert again.core.request_modes.all() == {("orders", "readers"): RequestMode("POP", 2)}
    again.close()
    world.close()
