"""What becomes of a message that is published, and what its publisher is told."""

from typing import Any

import pytest

from onelog.config import StoreConfig
from onelog.core.access import SELF
from onelog.core.routing import publishing
from onelog.core.routing.publishing import DELAY_MS_MAX
from onelog.core.routing.targets import DeadLetter
from onelog.core.transactions.staged import Alongside
from onelog.errors import (
    AccessRefusedError,
    ExchangeNotFoundError,
    MessageTooLargeError,
    PreconditionFailedError,
    QueueFullError,
    StoreFullError,
)
from onelog.message import NewMessage
from onelog.record.forms import Form, amqp, form_of
from onelog.record.forms.amqp_fields import NO_PROPERTIES, encode_properties, headers_of
from tests.core.routing.queues import GUEST, Routed
from tests.core.world import World


def contents(routed: Routed, topic: str, queue_id: int = 0) -> list[amqp.Content]:
    return [amqp.read(message.body) for message in routed.world.messages(topic, queue_id)]


def test_a_record_says_where_its_message_was_published(routed: Routed) -> None:
    routed.queue("q")
    routed.bind("amq.topic", "q", "#")
    raw = encode_properties({"content_type": "text/plain", "headers": {"a": 1}})
    routed.publish("amq.topic", "a.b", b"body", content_type="text/plain", headers={"a": 1})
    (message,) = routed.world.messages("q")
    assert form_of(message.sys_flag) == Form.AMQP
    assert amqp.read(message.body) == amqp.Content("amq.topic", "a.b", raw, b"body")
    assert "q" in routed.world.core.marked.names


def test_messages_for_many_keys_take_the_short_way_where_there_is_one(routed: Routed) -> None:
    for key in ("a", "b"):
        routed.queue(key)
    memory = routed.memory_queue("memory")
    routed.queue("full", is_limited=True)
    routed.queue("levels", levels=2)
    for key in ("a", "b", "memory", "full", "levels"):
        routed.publish("", key, b"0")
    routed.told.clear()
    few, many = [b"1", b"2"], [b"%d" % each for each in range(9)]
    found = [("a", few), ("full", few), ("memory", few), ("unknown", few), ("b", many)]
    found.append(("levels", few))
    publish = routed.routing.publish_scattered
    left = publish("/", "", NO_PROPERTIES, found, routed.on_stored)
    assert left == [("full", few), ("unknown", few), ("levels", few)]
    routed.world.end_tick()
    assert routed.bodies("a") == [b"0", *few]
    assert routed.bodies("b") == [b"0", *many]
    assert memory.bodies == [b"0", *few]
    assert routed.told == [(None, None)] * 3
    for odd in ({"expiration": "1"}, {"user_id": "guest"}, {"headers": {"CC": ["b"]}}):
        assert publish("/", "", encode_properties(odd), found, routed.on_stored) == found
    assert publish("/", "no such", NO_PROPERTIES, found, routed.on_stored) == found
    assert publish("no such", "", NO_PROPERTIES, found, routed.on_stored) == found
    routed.routing.guard(True)
    assert publish("/", "", NO_PROPERTIES, found, routed.on_stored) == found
    routed.world.end_tick()
    assert routed.bodies("a") == [b"0", *few]


def test_a_publisher_is_told_when_the_disk_has_it(tmp_path: Any) -> None:
    world = World(tmp_path / "store", StoreConfig(segment_bytes=1 << 20, flush="sync"))
    routed = Routed(world)
    routed.queue("q")
    routed.publish("", "q", b"one")
    assert routed.told == []
    world.run_posted()
    assert routed.told == [(b"one", None)]
    world.close()


@pytest.mark.parametrize("text", ["-1", "abc", "1.5", "", "9" * 30, "315360000001", "\u0661"])
def test_an_expiration_that_is_no_time_is_refused(routed: Routed, text: str) -> None:
    routed.queue("q")
    with pytest.raises(PreconditionFailedError, match="expiration"):
        routed.publish("", "q", expiration=text)
    assert routed.publish("", "q", expiration="0") == 1


def test_nobody_sends_in_anothers_name(routed: Routed) -> None:
    routed.queue("q")
    with pytest.raises(PreconditionFailedError, match="user_id"):
        routed.publish("", "q", user_id="root")
    assert routed.publish("", "q", user_id="guest") == 1


def test_a_body_that_is_too_large_is_refused(routed: Routed) -> None:
    routed.queue("q")
    with pytest.raises(MessageTooLargeError):
        routed.publish("", "q", bytes(routed.world.broker.admin.config.routed_body_bytes_max + 1))


def test_properties_that_cannot_be_read_are_refused(routed: Routed) -> None:
    routed.queue("q")
    for raw in (b"\x20\0\0\0\1\0CC", b"\x01\x00\x09"):
        with pytest.raises(PreconditionFailedError):
            routed.routing.publish(GUEST, "/", "", "q", raw, b"x", routed.on_stored)


def test_copies_go_by_their_own_keys_and_blind_ones_are_not_shown(routed: Routed) -> None:
    for name in "abc":
        routed.queue(name)
    headers = {"CC": ["b", "a"], "BCC": ["c"], "other": 1}
    assert routed.publish("", "a", b"x", headers=headers) == 3
    for name in "abc":
        (content,) = contents(routed, name)
        assert headers_of(content.properties) == {"CC": ["b", "a"], "other": 1}
        assert content.key == "a"
    for wrong in ("b", [1], {"x": 1}):
        with pytest.raises(PreconditionFailedError, match="CC"):
            routed.publish("", "a", headers={"CC": wrong})


def test_a_full_queue_refuses_and_the_others_have_the_message(routed: Routed) -> None:
    routed.queue("q")
    routed.queue("small", is_limited=True, room=1)
    for name in ("q", "small"):
        routed.bind("amq.fanout", name)
    assert routed.publish("amq.fanout", "", b"one") == 2
    assert routed.publish("amq.fanout", "", b"two") == 2
    assert routed.bodies("q") == [b"one", b"two"]
    assert routed.bodies("small") == [b"one"]
    assert [type(error) for _, error in routed.told] == [type(None), QueueFullError]
    routed.publish("", "small", b"three")
    assert isinstance(routed.told[-1][1], QueueFullError)


def test_a_message_goes_to_the_queue_of_its_priority(routed: Routed) -> None:
    routed.queue("ranked", levels=3)
    routed.queue("plain")
    memory = routed.memory_queue("m", levels=9)
    for name in ("ranked", "plain", "m"):
        routed.bind("amq.fanout", name)
    for priority in (0, 2, 200):
        routed.publish("amq.fanout", "", b"%d" % priority, priority=priority)
    routed.publish("amq.fanout", "", b"none")
    assert [routed.bodies("ranked", level) for level in range(4)] == [
        [b"0", b"none"],
        [],
        [b"2"],
        [b"200"],
    ]
    assert routed.bodies("plain") == [b"0", b"2", b"200", b"none"]
    assert [priority for _, _, priority in memory.kept] == [0, 2, 200, 0]


def test_an_append_that_fails_is_told(routed: Routed) -> None:
    routed.queue("q")
    routed.world.store.refuse_writes(StoreFullError("disk is full"))
    assert routed.publish("", "q") == 1
    assert isinstance(routed.told[-1][1], StoreFullError)


def test_a_record_of_another_form_has_entries_beside_its_queues(routed: Routed) -> None:
    routed.queue("q")
    routed.world.topic("retained", queues=1)
    routed.world.topic("notes", queues=1)
    routed.bind("amq.topic", "q", "#")
    note = NewMessage("notes", 0, b"packet 7")
    publish = routed.routing.publish_record
    count = publish(
        GUEST,
        "/",
        "amq.topic",
        "a",
        b"raw",
        3 << 16,
        routed.on_stored,
        "t",
        topics=["retained"],
        records=[note],
    )
    assert (
        publish(
            GUEST, "/", "amq.direct", "a", b"raw", 3 << 16, routed.on_stored, "u", records=[note]
        )
        == 0
    )
    routed.world.end_tick()
    assert count == 1
    assert routed.told == [("t", None), ("u", None)]
    assert routed.world.bodies("q") == routed.world.bodies("retained") == [b"raw"]
    assert routed.world.bodies("notes") == [b"packet 7"] * 2
    (message,) = routed.world.messages("q")
    assert message.sys_flag == 3 << 16


# -- delays -------------------------------------------------------------------------------------


def delayed_exchange(routed: Routed) -> None:
    routed.routing.declare_exchange(
        SELF, "/", "later", "x-delayed-message", arguments={"x-delayed-type": "topic"}
    )
    routed.queue("q")
    routed.bind("later", "q", "a.*")


def test_a_delayed_message_is_routed_when_its_time_has_come(routed: Routed) -> None:
    delayed_exchange(routed)
    assert routed.publish("later", "a.b", b"late", headers={"x-delay": 5_000, "n": 1}) == 1
    assert routed.publish("later", "a.b", b"now") == 1
    assert routed.told == [(b"late", None), (b"now", None)]
    routed.world.advance(4_900)
    assert routed.bodies("q") == [b"now"]
    memory = routed.memory_queue("m")
    routed.bind("later", "m", "#")
    routed.world.advance(200)
    assert routed.bodies("q") == [b"now", b"late"]
    assert memory.bodies == [b"late"]
    last = contents(routed, "q")[-1]
    assert (last.exchange, last.key) == ("later", "a.b")
    assert headers_of(last.properties) == {"x-delay": -5_000, "n": 1}


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_delayed_message_outlives_a_restart(routed: Routed, how: str) -> None:
    delayed_exchange(routed)
    routed.publish("later", "a.b", b"late", headers={"x-delay": 5_000})
    getattr(routed.world, how)()
    routed.come_back()
    routed.world.advance(4_000)
    assert routed.bodies("q") == []
    getattr(routed.world, how)()
    routed.come_back()
    routed.world.advance(2_000)
    assert routed.bodies("q") == [b"late"]
    getattr(routed.world, how)()
    routed.come_back()
    routed.world.advance(10_000)
    assert routed.bodies("q") == [b"late"]


def test_what_is_no_delay_does_not_delay(routed: Routed) -> None:
    delayed_exchange(routed)
    for number, value in enumerate([0, -5, "soon", None, True]):
        routed.publish("later", "a.b", b"%d" % number, headers={"x-delay": value})
    assert len(routed.bodies("q")) == 5
    limit = routed.world.core.timers.delay_max_ms
    assert limit < DELAY_MS_MAX
    with pytest.raises(PreconditionFailedError, match="delay"):
        routed.publish("later", "a.b", headers={"x-delay": limit + 1})


def test_a_message_is_delayed_on_its_way_through_other_exchanges(routed: Routed) -> None:
    delayed_exchange(routed)
    routed.queue("at-once")
    routed.bind("amq.topic", "at-once", "#")
    routed.routing.bind(SELF, "/", "amq.topic", "exchange", "later", "#")
    routed.publish("amq.topic", "a.b", b"first")
    assert routed.publish("amq.topic", "a.b", b"x", headers={"x-delay": 1_000}) == 2
    assert (routed.bodies("at-once"), routed.bodies("q")) == ([b"first", b"x"], [b"first"])
    routed.world.advance(1_100)
    assert routed.bodies("q") == [b"first", b"x"]


def test_any_message_can_be_published_for_later(routed: Routed) -> None:
    routed.queue("q")
    due_ms = routed.world.clock.now_ms() + 3_000
    publish = routed.routing.publish
    assert publish(GUEST, "/", "", "q", NO_PROPERTIES, b"x", routed.on_stored, None, due_ms) == 1
    routed.world.end_tick()
    routed.world.advance(2_900)
    assert routed.bodies("q") == []
    routed.world.advance(200)
    assert routed.bodies("q") == [b"x"]
    assert contents(routed, "q")[0].exchange == ""


def test_a_delayed_message_without_its_exchange_is_dropped(routed: Routed) -> None:
    delayed_exchange(routed)
    routed.publish("later", "a.b", headers={"x-delay": 1_000})
    routed.routing.delete_exchange(SELF, "/", "later")
    routed.world.advance(2_000)
    assert routed.bodies("q") == []


# -- dead letters -------------------------------------------------------------------------------


def test_letters_and_records_are_one_append(routed: Routed) -> None:
    routed.queue("dead")
    routed.queue("copy")
    memory = routed.memory_queue("m")
    routed.routing.declare_exchange(SELF, "/", "dlx", "direct")
    for name in ("dead", "copy", "m"):
        routed.bind("dlx", name, "k")
    routed.world.topic("done", queues=1)
    letters = [
        DeadLetter("/", "dlx", ("k",), NO_PROPERTIES, b"one"),
        DeadLetter("/", "dlx", ("k",), NO_PROPERTIES, b"two", frozenset({"copy"})),
        DeadLetter("/", "gone", ("k",), NO_PROPERTIES, b"three"),
        DeadLetter("/", "dlx", ("x", "k"), NO_PROPERTIES, b"four"),
    ]
    counts = routed.routing.deliver(letters, [NewMessage("done", 0, b"source ended")])
    assert counts == [3, 2, 0, 3]
    assert routed.bodies("dead") == [b"one", b"two", b"four"]
    assert routed.bodies("copy") == [b"one", b"four"]
    assert memory.bodies == [b"one", b"two", b"four"]
    assert routed.world.bodies("done") == [b"source ended"]


def test_letters_that_cannot_be_written_change_nothing(routed: Routed) -> None:
    routed.queue("dead")
    memory = routed.memory_queue("m")
    for name in ("dead", "m"):
        routed.bind("amq.fanout", name)
    routed.world.store.refuse_writes(StoreFullError("disk is full"))
    with pytest.raises(StoreFullError):
        routed.routing.deliver([DeadLetter("/", "amq.fanout", ("k",), NO_PROPERTIES, b"one")], [])
    assert memory.kept == []


# -- transactions -------------------------------------------------------------------------------


def stage(routed: Routed, exchange: str, key: str, body: bytes, **properties: Any) -> int:
    raw = encode_properties(properties)
    return int(routed.routing.stage(GUEST, "me", "", "/", exchange, key, raw, body))


def test_a_transaction_shows_all_its_messages_with_the_commit(routed: Routed) -> None:
    for name in "ab":
        routed.queue(name)
        routed.bind("amq.fanout", name)
    memory = routed.memory_queue("m")
    routed.bind("amq.fanout", "m")
    routed.world.topic("acks", queues=1)
    routed.world.broker.transactions.begin(GUEST, "me")
    assert stage(routed, "amq.fanout", "", b"one") == 3
    assert stage(routed, "", "a", b"two") == 1
    assert stage(routed, "", "nobody", b"three") == 0
    assert (routed.bodies("a"), memory.kept) == ([], [])
    acks = [NewMessage("acks", 0, b"acknowledged")]
    routed.routing.commit(
        GUEST, "me", "", routed.on_stored, "tx", Alongside(lambda: acks, lambda: None)
    )
    routed.world.end_tick()
    assert routed.told == [("tx", None)]
    assert routed.bodies("a") == [b"one", b"two"]
    assert routed.bodies("b") == [b"one"]
    assert memory.bodies == [b"one"]
    assert routed.world.bodies("acks") == [b"acknowledged"]


def test_a_transaction_of_acknowledgements_alone_is_written(routed: Routed) -> None:
    routed.world.topic("acks", queues=1)
    routed.world.broker.transactions.begin(GUEST, "me")
    acks = [NewMessage("acks", 0, b"acknowledged")]
    routed.routing.commit(
        GUEST, "me", "", routed.on_stored, "tx", Alongside(lambda: acks, lambda: None)
    )
    assert routed.told == [("tx", None)]
    assert routed.world.bodies("acks") == [b"acknowledged"]


@pytest.mark.parametrize("how", ["abort", "gone"])
def test_a_transaction_that_is_not_committed_is_forgotten(routed: Routed, how: str) -> None:
    routed.queue("a")
    memory = routed.memory_queue("m")
    routed.world.broker.transactions.begin(GUEST, "me")
    stage(routed, "", "a", b"one")
    stage(routed, "", "m", b"two")
    if how == "abort":
        routed.routing.abort(GUEST, "me")
    else:
        routed.world.broker.groups.channel_closed("me")
    routed.world.broker.transactions.begin(GUEST, "me")
    routed.routing.commit(GUEST, "me", "", routed.on_stored, "tx")
    routed.world.end_tick()
    assert (routed.bodies("a"), memory.kept, routed.told) == ([], [], [("tx", None)])


def test_what_is_wrong_in_a_transaction_is_said_at_once(routed: Routed) -> None:
    routed.routing.declare_exchange(SELF, "/", "inner", "fanout", internal=True)
    routed.world.broker.transactions.begin(GUEST, "me")
    with pytest.raises(ExchangeNotFoundError):
        stage(routed, "nothing", "a", b"x")
    with pytest.raises(AccessRefusedError):
        stage(routed, "inner", "a", b"x")
    with pytest.raises(PreconditionFailedError):
        stage(routed, "", "a", b"x", expiration="never")
    with pytest.raises(MessageTooLargeError):
        stage(routed, "", "a", bytes(routed.world.broker.admin.config.routed_body_bytes_max + 1))


def test_a_refused_message_of_a_transaction_is_told_with_the_commit(routed: Routed) -> None:
    routed.queue("small", is_limited=True, room=1)
    routed.world.broker.transactions.begin(GUEST, "me")
    stage(routed, "", "small", b"one")
    stage(routed, "", "small", b"two")
    routed.routing.commit(GUEST, "me", "", routed.on_stored, "tx")
    routed.world.end_tick()
    ((_, error),) = routed.told
    assert isinstance(error, PreconditionFailedError)
    assert routed.bodies("small") == [b"one"]


def test_a_delayed_message_of_a_transaction_waits_from_the_commit_on(routed: Routed) -> None:
    delayed_exchange(routed)
    routed.world.broker.transactions.begin(GUEST, "me")
    assert stage(routed, "later", "a.b", b"late", headers={"x-delay": 1_000}) == 1
    routed.routing.commit(GUEST, "me", "", routed.on_stored, "tx")
    routed.world.end_tick()
    assert routed.told == [("tx", None)]
    routed.world.advance(1_500)
    assert routed.bodies("q") == [b"late"]


def test_very_many_queues_in_memory_get_a_message_some_at_a_time_and_in_order(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "HANDED_AT_ONCE", 3)
    monkeypatch.setattr(publishing, "LATE_MAX", 2)
    queues = [routed.memory_queue(f"m{number}") for number in range(7)]
    for queue in queues:
        routed.bind("amq.fanout", queue.name)
    routed.bind("amq.direct", "m6", "k")
    for body in (b"1", b"2"):
        routed.routing.publish(GUEST, "/", "amq.fanout", "", NO_PROPERTIES, body, routed.on_stored)
    assert [len(each.kept) for each in queues] == [0] * 7
    routed.routing.publish(GUEST, "/", "amq.direct", "k", NO_PROPERTIES, b"3", routed.on_stored)
    assert [len(each.kept) for each in queues] == [1] * 7, "not more wait than may"
    assert routed.routing.late
    while routed.world.soon:
        routed.world.end_tick()
    assert queues[6].bodies == [b"1", b"2", b"3"]
    assert [len(each.kept) for each in queues[:6]] == [2] * 6
    assert not routed.routing.late


def test_the_default_exchange_leads_to_topics_of_others_and_dead_letters_do_not(
    routed: Routed,
) -> None:
    assert routed.publish("", "bills") == 0
    routed.world.topic("bills", queues=1)
    assert routed.publish("", "bills", b"one") == 1
    assert routed.publish("", "bills", b"two") == 1  # By the route that is remembered.
    assert routed.bodies("bills") == [b"one", b"two"]
    # A queue's owner need not be one who may write to topics.
    letter = DeadLetter("/", "", ("bills",), NO_PROPERTIES, b"dead")
    assert routed.routing.deliver([letter], []) == [0]
    routed.world.broker.topics.delete(SELF, "bills")
    assert routed.publish("", "bills") == 0
