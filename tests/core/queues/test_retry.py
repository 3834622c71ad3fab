from dataclasses import replace
from typing import Any

import msgspec
import pytest

from onelog.core.access import SELF
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.publish import Intent
from onelog.errors import (
    GroupNotFoundError,
    InvalidGroupError,
    OffsetOutOfRangeError,
    TopicPermissionError,
)
from onelog.message import Message, NewMessage, decode_properties, encode_properties
from onelog.names import SCHEDULE_TOPIC
from tests.core.world import World


@pytest.fixture
def orders(world: World) -> World:
    world.topic("orders", 4)
    return world


def send_back(world: World, log_offset: int, level: int = 0, **how: Any) -> None:
    world.broker.publish.send_back(
        SELF, "readers", log_offset, level, world.on_stored, "token", **how
    )
    world.end_tick()
    told = world.told.pop()
    assert (told.token, told.error) == ("token", None)


def waiting_message(world: World, level: int) -> Message:
    return world.messages(SCHEDULE_TOPIC, level - 1)[-1]


def failed(world: World, times: int) -> int:
    """A message of the retry topic that has failed so often; its log offset."""
    world.core.topics.ensure(TopicConfig("%RETRY%readers", 1, 1))
    message = NewMessage(
        "%RETRY%readers", 0, b"body", encode_properties({"TAGS": "a"}), reconsume_times=times
    )
    return world.store.append([message])[0].log_offset


def test_a_failed_message_comes_again_after_ten_seconds_with_everything_it_had(
    orders: World,
) -> None:
    stored = orders.store.append(
        [
            NewMessage(
                "orders",
                2,
                b"body",
                encode_properties({"TAGS": "a", "KEYS": "k"}),
                flag=7,
                sys_flag=1,
                born_ms=123,
                born_host=b"\x0a\x00\x00\x01\x00\x00\x00\x09",
            )
        ]
    )[0]
    original = orders.store.message_at(stored.log_offset)
    send_back(orders, stored.log_offset)
    assert orders.messages("%RETRY%readers") == []
    orders.advance(9_999)
    assert orders.messages("%RETRY%readers") == []
    orders.advance(1)
    (again,) = orders.messages("%RETRY%readers")
    assert bytes(again.body) == b"body"
    assert (again.flag, again.sys_flag, again.born_ms) == (7, 1, 123)
    assert again.born_host == original.born_host
    assert again.reconsume_times == 1
    properties = decode_properties(again.properties)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == original.message_id
    assert (properties["TAGS"], properties["KEYS"]) == ("a", "k")
    assert "DELAY" not in properties


@pytest.mark.parametrize(("times", "level"), [(0, 3), (1, 4), (14, 17), (15, 18)])
def test_the_delay_grows_with_each_failure(orders: World, times: int, level: int) -> None:
    send_back(orders, failed(orders, times))
    waiting = waiting_message(orders, level)
    assert waiting.reconsume_times == times + 1
    assert decode_properties(waiting.properties)["REAL_TOPIC"] == "%RETRY%readers"


def test_the_consumer_may_name_the_delay_and_no_delay_is_longer_than_the_last(
    orders: World,
) -> None:
    send_back(orders, failed(orders, 0), 5)
    assert waiting_message(orders, 5).reconsume_times == 1
    send_back(orders, failed(orders, 0), 99)
    assert waiting_message(orders, 18).reconsume_times == 1


EXPONENTIAL = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 250, "max": 900, "multiplier": 2},
}
CUSTOMIZED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 250, 500, 900]}}


@pytest.mark.parametrize("policy", [EXPONENTIAL, CUSTOMIZED])
def test_the_delay_is_what_the_policy_of_the_group_says(
    orders: World, policy: dict[str, Any]
) -> None:
    orders.broker.groups.put(SELF, GroupConfig("readers", retry_policy=policy))
    log_offset = orders.send("orders", TAGS="a").log_offset
    for times, delay_ms in enumerate((250, 500, 900, 900)):
        send_back(orders, log_offset)
        orders.advance(delay_ms - 1)
        assert len(orders.messages("%RETRY%readers")) == times
        orders.advance(60)
        again = orders.messages("%RETRY%readers")[-1]
        assert (again.reconsume_times, again.tags) == (times + 1, "a")
        log_offset = again.log_offset


def test_a_level_that_the_consumer_names_goes_before_the_policy(orders: World) -> None:
    orders.broker.groups.put(SELF, GroupConfig("readers", retry_policy=EXPONENTIAL))
    send_back(orders, failed(orders, 0), 2)
    orders.advance(4_999)
    assert orders.store.max_offset("%RETRY%readers", 0) == 1
    orders.advance(1)
    assert orders.store.max_offset("%RETRY%readers", 0) == 2


def test_retries_by_a_policy_end_with_the_dead_letters_too(orders: World) -> None:
    group = GroupConfig("readers", retry_policy=EXPONENTIAL, retry_times_max=1)
    orders.broker.groups.put(SELF, group)
    send_back(orders, orders.send("orders").log_offset)
    orders.advance(1_000)
    send_back(orders, orders.messages("%RETRY%readers")[0].log_offset)
    orders.advance(1_000)
    (letter,) = orders.messages("%DLQ%readers")
    assert letter.reconsume_times == 2
    assert len(orders.messages("%RETRY%readers")) == 1


def test_a_policy_that_makes_no_sense_is_refused_and_one_that_is_there_means_levels(
    orders: World, caplog: pytest.LogCaptureFixture
) -> None:
    nonsense = GroupConfig("readers", retry_policy={"type": "LINEAR"})
    with pytest.raises(InvalidGroupError, match="LINEAR"):
        orders.broker.groups.put(SELF, nonsense)
    # As it would be after taking over the files of another broker.
    orders.core.tables.write([("groups", "readers", msgspec.to_builtins(nonsense))])
    send_back(orders, failed(orders, 0))
    assert waiting_message(orders, 3).reconsume_times == 1
    assert "readers retries by delay levels" in caplog.text


@pytest.mark.parametrize("wish", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("level", [0, -1])
def test_a_timed_message_is_not_timed_again_when_it_fails(
    orders: World, wish: str, level: int
) -> None:
    due_ms = orders.clock.now_ms() + 5_000
    given: Any = {
        "TIMER_DELAY_MS": "5000",
        "TIMER_DELAY_SEC": "5",
        "TIMER_DELIVER_MS": str(due_ms),
    }
    orders.send("orders", **{wish: given[wish]})
    assert orders.messages("orders") == []
    orders.advance(5_100)
    (message,) = orders.messages("orders")
    send_back(orders, message.log_offset, level)
    if level == 0:
        orders.advance(10_000)
    (again,) = orders.messages("%RETRY%readers" if level == 0 else "%DLQ%readers")
    assert wish not in decode_properties(again.properties)


@pytest.mark.parametrize(
    ("times", "level", "retries_max", "dead"),
    [
        (15, 0, None, False),
        (16, 0, None, True),
        (0, -1, None, True),
        (3, 0, 3, True),
        (2, 0, 3, False),
        (0, 0, 0, True),
    ],
)
def test_too_many_failures_or_a_consumer_that_gives_up_make_a_dead_letter(
    orders: World, times: int, level: int, retries_max: int | None, dead: bool
) -> None:
    send_back(orders, failed(orders, times), level, retries_max=retries_max)
    letters = orders.messages("%DLQ%readers")
    assert len(letters) == int(dead)
    if dead:
        assert letters[0].reconsume_times == times + 1
        assert "DELAY" not in decode_properties(letters[0].properties)
        assert orders.core.topics.require("%DLQ%readers") == TopicConfig("%DLQ%readers", 1, 1)


def test_the_origin_of_a_message_that_fails_again_stays_the_first(orders: World) -> None:
    first = orders.send("orders")
    original = orders.store.message_at(first.log_offset)
    send_back(orders, first.log_offset, 1)
    orders.advance(1_000)
    second = orders.messages("%RETRY%readers")[0]
    send_back(orders, second.log_offset, -1)
    properties = decode_properties(orders.messages("%DLQ%readers")[0].properties)
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == original.message_id


def test_retries_spread_over_the_retry_queues_of_the_group(orders: World) -> None:
    orders.broker.groups.put(SELF, GroupConfig("readers", retry_queues=3))
    stored = orders.send("orders")
    for _ in range(30):
        send_back(orders, stored.log_offset, 1)
    orders.advance(1_000)
    counts = [orders.store.max_offset("%RETRY%readers", queue_id) for queue_id in range(3)]
    assert sum(counts) == 30
    assert all(counts)


def test_a_group_without_retry_queues_drops_what_it_sends_back(orders: World) -> None:
    orders.broker.groups.put(SELF, GroupConfig("readers", retry_queues=0))
    stored = orders.send("orders")
    send_back(orders, stored.log_offset)
    assert orders.core.topics.get("%RETRY%readers") is None


def test_what_cannot_be_sent_back_is_an_error_and_changes_nothing(orders: World) -> None:
    stored = orders.send("orders")
    with pytest.raises(OffsetOutOfRangeError):
        orders.broker.publish.send_back(SELF, "readers", 1 << 40, 0, orders.on_stored)
    with pytest.raises(OffsetOutOfRangeError):
        orders.broker.publish.send_back(SELF, "readers", -1, 0, orders.on_stored)
    orders.core.reconfigure(replace(orders.broker_config, auto_create_groups=False))
    with pytest.raises(GroupNotFoundError):
        orders.broker.publish.send_back(SELF, "strangers", stored.log_offset, 0, orders.on_stored)
    orders.core.topics.ensure(TopicConfig("%RETRY%readers", 1, 1, perm=4))
    with pytest.raises(TopicPermissionError):
        orders.broker.publish.send_back(SELF, "readers", stored.log_offset, 0, orders.on_stored)
    assert orders.soon == []


def test_what_is_sent_back_is_counted(orders: World) -> None:
    stored = orders.send("orders")
    send_back(orders, stored.log_offset)
    assert orders.broker.admin.statistic(SELF, "SNDBCK_PUT_NUMS", "orders@readers")[0].total == 1


def own_retry(world: World, times: int, retries_max: int | None = None) -> None:
    """What a consumer does when sending back fails: an ordinary send to its retry topic."""
    world.broker.topics.create_for_send(SELF, "%RETRY%readers", "TBW102", 1)
    message = NewMessage(
        "%RETRY%readers", 0, b"x", encode_properties({"DELAY": "3"}), reconsume_times=times
    )
    intent = Intent(delay_level=3, retries_max=retries_max)
    world.broker.publish.send(SELF, message, world.on_stored, None, intent)
    world.end_tick()


def test_a_consumers_own_retry_waits_like_any_other(orders: World) -> None:
    own_retry(orders, 1)
    assert waiting_message(orders, 3).reconsume_times == 1


def test_a_consumers_own_retry_beyond_the_limit_is_a_dead_letter(orders: World) -> None:
    own_retry(orders, 16)
    assert orders.messages("%DLQ%readers") == []
    own_retry(orders, 17)
    own_retry(orders, 3, retries_max=2)
    letters = orders.messages("%DLQ%readers")
    assert [letter.reconsume_times for letter in letters] == [17, 3]
    assert "DELAY" not in decode_properties(letters[0].properties)


def test_the_retry_of_an_orderly_consumer_is_a_dead_letter_at_once(orders: World) -> None:
    orders.core.locks.lock("readers", "client", [("orders", 0)])
    own_retry(orders, 1)
    assert len(orders.messages("%DLQ%readers")) == 1
    orders.advance(60_001)
    own_retry(orders, 1)
    assert len(orders.messages("%DLQ%readers")) == 1


def test_plain_sends_to_a_retry_topic_keep_the_rules_too(orders: World) -> None:
    orders.broker.topics.create_for_send(SELF, "%RETRY%readers", "TBW102", 1)
    message = NewMessage("%RETRY%readers", 0, b"x", reconsume_times=17)
    for _ in range(2):
        orders.broker.publish.send(SELF, message, orders.on_stored)
    orders.end_tick()
    assert len(orders.messages("%DLQ%readers")) == 2
