"""What a store holds, in the lines that RocketMQ's own code prints for it.

The Java program under `tests/e2e/java/store` prints each record of the log, each queue entry and
each key lookup as one JSON object. `store_lines` makes the same objects from a store that OneLog
has opened, so that to compare the two is to compare lines.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from onelog.message import Message, decode_properties
from onelog.record.decode import Broken, decode_messages
from onelog.store.message_store import MessageStore
from tests.store.log_records import scan_log

Line = dict[str, Any]
LineKey = tuple[str | int, ...]

_IDENTITY = {
    "store": (),
    "record": ("physicalOffset",),
    "queue": ("topic", "queueId"),
    "entry": ("topic", "queueId", "offset"),
    "lookup": ("topic", "key"),
    "appended": ("physicalOffset",),
}


def by_identity(lines: Iterable[Line], *kinds: str) -> dict[LineKey, Line]:
    """The lines of the given kinds (all, if none is given), by what they are about."""
    found: dict[LineKey, Line] = {}
    for line in lines:
        kind = line["kind"]
        if (kinds and kind not in kinds) or (not kinds and kind == "appended"):
            continue
        key: LineKey = (kind, *(line[name] for name in _IDENTITY[kind]))
        assert key not in found, f"twice the same: {line}"
        found[key] = line
    return found


def differences(expected: Iterable[Line], actual: Iterable[Line]) -> list[str]:
    """What is missing, too much or not the same; empty if there is nothing to tell."""
    left, right = by_identity(expected), by_identity(actual)
    found = [f"missing: {left[key]}" for key in left.keys() - right.keys()]
    found += [f"too much: {right[key]}" for key in right.keys() - left.keys()]
    for key in left.keys() & right.keys():
        for name in left[key].keys() | right[key].keys():
            wanted, got = left[key].get(name), right[key].get(name)
            if wanted != got:
                found.append(f"{key}: {name} is {got!r}, not {wanted!r}")
    return found


def assert_goes_on(before: Iterable[Line], after: Iterable[Line]) -> None:
    """All of `before` is in `after`, and several queues have grown, each at its end."""
    before, after = [*before], [*after]
    old, new = by_identity(before, "record", "entry"), by_identity(after, "record", "entry")
    assert old.keys() < new.keys()
    assert [key for key, line in old.items() if new[key] != line] == []
    queues, queues_after = by_identity(before, "queue"), by_identity(after, "queue")
    assert queues.keys() <= queues_after.keys()
    grown = 0
    for key, queue in queues.items():
        assert queues_after[key]["minOffset"] == queue["minOffset"]
        assert queues_after[key]["maxOffset"] >= queue["maxOffset"]
        grown += queues_after[key]["maxOffset"] > queue["maxOffset"]
    assert grown > 3
    keys, keys_after = by_identity(before, "lookup"), by_identity(after, "lookup")
    for key, found in keys.items():
        assert set(found["physicalOffsets"]) <= set(keys_after[key]["physicalOffsets"]), key


def store_lines(store: MessageStore) -> list[Line]:
    """Everything in a store: its log, its queues, and what each key finds."""
    records = [*_records(store)]
    lines: list[Line] = [
        {
            "kind": "store",
            "minPhysicalOffset": store.log_min,
            "maxPhysicalOffset": store.log_end,
        }
    ]
    lines += [record_line(message) for message in records]
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            lines += _queue_lines(store, topic, queue_id)
    keys = {(message.topic, key) for message in records for key in _keys(message)}
    for topic, key in keys:
        found = store.find_by_key(topic, key)
        lines.append(
            {"kind": "lookup", "topic": topic, "key": key, "physicalOffsets": sorted(found)}
        )
    return lines


def _records(store: MessageStore) -> Iterator[Message]:
    for found in scan_log(store.log, store.log_min):
        if isinstance(found, Broken):
            assert found.empty, f"the log does not end in zeros: {found}"
            return
        yield found


def record_line(message: Message) -> Line:
    """A record, field by field; like Java's, a line has no entry for what a message lacks."""
    properties = decode_properties(message.properties)
    line: Line = {
        "kind": "record",
        "physicalOffset": message.log_offset,
        "size": message.size,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_ms,
        "bornHost": message.born_host.hex(),
        "storeTimestamp": message.store_ms,
        "storeHost": message.store_host.hex(),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "bodyCrc": message.body_crc,
        "bodyBytes": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "tags": message.tags,
        "keys": properties.get("KEYS"),
        "uniqueKey": message.unique_key,
        "properties": properties,
    }
    return {name: value for name, value in line.items() if value is not None}


def _keys(message: Message) -> list[str]:
    """What a message can be found by. RocketMQ separates keys by U+0020 and nothing else."""
    keys = decode_properties(message.properties).get("KEYS", "").split(" ")
    return [key for key in [message.unique_key, *keys] if key]


def _queue_lines(store: MessageStore, topic: str, queue_id: int) -> Iterator[Line]:
    """A queue and its entries, by way of `read` and of `entries`, which must agree."""
    offset, end = int(store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)
    yield {
        "kind": "queue",
        "topic": topic,
        "queueId": queue_id,
        "minOffset": offset,
        "maxOffset": end,
    }
    while offset < end:
        result = store.read(topic, queue_id, offset)
        messages = [message for part in result.slices for message in decode_messages(part)]
        entries = [*store.entries(topic, queue_id, offset, result.next_offset - offset)]
        assert len(messages) == len(entries) > 0
        for number, (message, entry) in enumerate(zip(messages, entries, strict=True)):
            assert entry[:2] == (message.log_offset, message.size)
            yield {
                "kind": "entry",
                "topic": topic,
                "queueId": queue_id,
                "offset": offset + number,
                "physicalOffset": message.log_offset,
                "size": message.size,
                "tagsCode": entry[2],
            }
        offset = result.next_offset
