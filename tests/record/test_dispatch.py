"""Which queues a record belongs to."""

import pytest

from onelog.errors import ConfigError, MessageError
from onelog.message import (
    Message,
    NewMessage,
    SysFlag,
    encode_properties,
    property_value,
    tags_code,
)
from onelog.record.decode import decode_message
from onelog.record.dispatch import (
    TagsCodes,
    Target,
    is_dispatched,
    parse_delay_levels,
    targets,
    with_dispatch_properties,
)
from onelog.record.encode import encode


def stored(message: NewMessage, queue_offset: int = 7) -> Message:
    head, body, tail, _ = encode(message, queue_offset, 0, 1000, False)
    return decode_message(memoryview(head + bytes(body) + tail))


def test_a_plain_record_goes_to_its_own_queue() -> None:
    assert list(targets(stored(NewMessage("t", 2, b"")))) == [Target("t", 2, 7, 1)]


@pytest.mark.parametrize(
    ("flags", "goes"),
    [(0, True), (SysFlag.COMMITTED, True), (SysFlag.PREPARED, False), (SysFlag.ROLLED_BACK, False)],
)
def test_half_and_rolled_back_messages_go_nowhere(flags: int, goes: bool) -> None:
    assert is_dispatched(flags) is goes
    assert bool(list(targets(stored(NewMessage("t", 0, b"", sys_flag=flags))))) is goes


def test_a_batch_takes_an_offset_for_each_message_in_every_queue() -> None:
    message = NewMessage("t", 3, b"", inner_count=5, extra_queues=("%LMQ%a", "other"))
    taken: list[tuple[str, int, int]] = []

    def reserve(topic: str, queue_id: int, count: int) -> int:
        taken.append((topic, queue_id, count))
        return 100 * len(taken)

    full = with_dispatch_properties(message, reserve)
    assert taken == [("%LMQ%a", 0, 5), ("other", 3, 5)]
    assert property_value(full.properties, "INNER_MULTI_QUEUE_OFFSET") == "100,200"
    assert list(targets(stored(full))) == [
        Target("t", 3, 7, 5),
        Target("%LMQ%a", 0, 100, 5),
        Target("other", 3, 200, 5),
    ]


def test_properties_without_a_closing_separator_stay_apart_from_what_is_added() -> None:
    message = NewMessage("t", 0, b"", b"TAGS\x01x", inner_count=2)
    full = with_dispatch_properties(message, lambda *_: 0)
    assert property_value(full.properties, "TAGS") == "x"
    assert property_value(full.properties, "INNER_NUM") == "2"


@pytest.mark.parametrize(
    "bad",
    [
        NewMessage("t", 0, b"", inner_count=0),
        NewMessage("t", 0, b"", inner_count=1_000_001),
        NewMessage("t", 0, b"", extra_queues=("q",) * 1001),
    ],
)
def test_impossible_batches_and_names_are_refused(bad: NewMessage) -> None:
    with pytest.raises(MessageError):
        with_dispatch_properties(bad, lambda *_: 0)


def test_extra_queues_may_have_commas_in_their_names() -> None:
    names = ("a,b", "%LMQ%c,", "d")
    full = with_dispatch_properties(NewMessage("t", 0, b"", extra_queues=names), lambda *_: 7)
    assert [each.topic for each in targets(stored(full))] == ["t", *names]


def test_damaged_counts_and_offsets_are_read_as_what_they_can_mean() -> None:
    properties = encode_properties(
        {"INNER_NUM": "many", "INNER_MULTI_DISPATCH": "a,,b", "INNER_MULTI_QUEUE_OFFSET": "1,2,-3"}
    )
    message = stored(NewMessage("t", 0, b"", properties, sys_flag=int(SysFlag.INNER_BATCH)))
    assert list(targets(message)) == [Target("t", 0, 7, 1), Target("a", 0, 1, 1)]


def test_the_tags_code_is_the_hash_of_the_tags_and_zero_without() -> None:
    codes = TagsCodes("1s 5s")
    assert codes.of("t", encode_properties({"TAGS": "TagA"}), 0) == tags_code("TagA") == 2598919
    assert codes.of("t", encode_properties({"XTAGS": "TagA"}), 0) == 0
    assert codes.of("t", b"", 0) == 0


def test_a_delayed_message_has_its_due_time_for_a_tags_code() -> None:
    codes = TagsCodes("1s 5s")

    def level(number: str) -> bytes:
        return encode_properties({"DELAY": number, "TAGS": "x"})

    assert codes.of("SCHEDULE_TOPIC_XXXX", level("2"), 1000) == 6000
    assert codes.of("SCHEDULE_TOPIC_XXXX", level("99"), 1000) == 6000
    assert codes.of("SCHEDULE_TOPIC_XXXX", level("0"), 1000) == tags_code("x")
    assert codes.of("t", level("2"), 1000) == tags_code("x")


def test_delay_levels_have_units() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
    with pytest.raises(ConfigError, match="'5x'"):
        parse_delay_levels("1s 5x")
