import logging
from collections.abc import Hashable

import pytest

from onelog.clock import ManualClock
from onelog.core.filters.tags import subscribe
from onelog.core.membership.members import Client, ConsumerData, LiveGroup, Member, Members


class Crowd:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.members = Members(self.clock)
        self.notified: list[tuple[str, list[str]]] = []
        self.members.on_group_change.append(self.note)

    def note(self, group: str, members: list[Member]) -> None:
        self.notified.append((group, [member.client.client_id for member in members]))

    def live(self) -> LiveGroup:
        found = self.members.group("g")
        assert found is not None
        return found

    def beat(self, client_id: str, *expressions: str, version: int = 1, **data: object) -> bool:
        """A heartbeat of group g on the client's own channel; `topic:expression` per topic."""
        pairs = [each.partition(":") for each in expressions or ("orders:*",)]
        subscriptions = tuple(
            subscribe(topic, expression or "*", "TAG", version) for topic, _, expression in pairs
        )
        return self.members.consumer_seen(
            Client(client_id, f"channel of {client_id}"),
            ConsumerData("g", subscriptions=subscriptions, **data),  # type: ignore[arg-type]
        )


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_a_new_member_is_told_to_all_and_a_known_one_to_none(crowd: Crowd) -> None:
    assert crowd.beat("a") is True
    assert crowd.beat("b") is True
    assert crowd.beat("a") is False
    assert crowd.notified == [("g", ["a"]), ("g", ["a", "b"])]
    assert crowd.live().client_ids() == ["a", "b"]


def test_who_leaves_is_told_to_those_who_stay(crowd: Crowd) -> None:
    crowd.beat("a")
    crowd.beat("b")
    crowd.notified.clear()
    crowd.members.consumer_left("channel of a", "g")
    assert crowd.notified == [("g", ["b"])]
    crowd.members.consumer_left("channel of b", "g")
    assert crowd.members.group("g") is None
    assert crowd.members.group("g") is None


def test_a_closed_channel_leaves_all_its_groups(crowd: Crowd) -> None:
    client = Client("a", "c1")
    for group in ("g", "h"):
        crowd.members.consumer_seen(client, ConsumerData(group))
    crowd.members.producer_seen(client, "p")
    crowd.beat("b")
    crowd.notified.clear()
    crowd.members.channel_closed("c1")
    crowd.members.channel_closed("c1")
    assert crowd.notified == [("g", ["b"])]
    assert [group.name for group in crowd.members.live_groups()] == ["g"]
    assert crowd.members.producer_groups() == []


def test_a_group_without_a_name_is_a_group_of_its_kind_only(crowd: Crowd) -> None:
    client = Client("a", "c1")
    crowd.members.consumer_seen(client, ConsumerData("g"))
    crowd.members.producer_seen(client, "")
    crowd.members.consumer_left("c1", "g")
    assert crowd.members.producer_groups() == [""]
    crowd.clock.advance(120_001)
    assert crowd.members.expire() == ["c1"]
    assert crowd.members.producer_groups() == []


def test_silence_for_longer_than_the_expiry_drops_a_member(crowd: Crowd) -> None:
    crowd.beat("a")
    crowd.members.producer_seen(Client("p1", "producer channel"), "p")
    crowd.clock.advance(60_000)
    crowd.beat("b")
    crowd.clock.advance(60_000)
    assert crowd.members.expire() == []
    crowd.clock.advance(1)
    assert crowd.members.expire() == ["channel of a", "producer channel"]
    assert crowd.live().client_ids() == ["b"]
    assert crowd.members.producers("p") == []
    assert crowd.notified[-1] == ("g", ["b"])


def test_a_heartbeat_without_subscriptions_keeps_a_member_alive(crowd: Crowd) -> None:
    crowd.beat("a", "orders:x")
    crowd.clock.advance(100_000)
    assert crowd.members.refresh_consumer(Client("a", "channel of a"), "g") is True
    assert crowd.members.refresh_consumer(Client("b", "channel of b"), "g") is False
    crowd.clock.advance(100_000)
    assert crowd.members.expire() == []
    found = crowd.members.subscription("g", "orders")
    assert found is not None
    assert found.expression == "x"


def test_topics_that_come_or_go_are_told(crowd: Crowd) -> None:
    crowd.beat("a", "orders:*")
    crowd.notified.clear()
    assert crowd.beat("a", "orders:*", "bills:*", version=2) is True
    assert crowd.beat("a", "orders:*", version=3) is True
    assert crowd.notified == [("g", ["a"]), ("g", ["a"])]
    assert crowd.members.subscription("g", "bills") is None


def test_a_new_version_of_a_subscription_counts_but_is_no_change_of_the_group(crowd: Crowd) -> None:
    crowd.beat("a", "orders:x")
    assert crowd.beat("a", "orders:y", version=2) is False
    found = crowd.members.subscription("g", "orders", "channel of a")
    assert found is not None
    assert (found.expression, found.version) == ("y", 2)


def test_a_group_that_broadcasts_is_not_told_of_its_members(crowd: Crowd) -> None:
    assert crowd.beat("a", message_model="BROADCASTING") is True
    crowd.members.consumer_left("channel of a", "g")
    assert crowd.notified == []


def test_members_can_be_taken_in_silently(crowd: Crowd) -> None:
    crowd.members.consumer_seen(Client("a", 1), ConsumerData("g"), notify=False)
    crowd.members.consumer_left(1, "g", notify=False)
    assert crowd.notified == []


def test_members_that_differ_each_keep_their_own_subscription(crowd: Crowd) -> None:
    crowd.beat("a", "orders:x", version=1)
    crowd.beat("b", "orders:y", version=2)
    crowd.beat("a", "orders:x", version=1)
    crowd.beat("b", "orders:y", version=2)
    own = {
        channel: crowd.members.subscription("g", "orders", channel)
        for channel in ("channel of a", "channel of b", "a stranger's")
    }
    assert {channel: sub and sub.expression for channel, sub in own.items()} == {
        "channel of a": "x",
        "channel of b": "y",
        "a stranger's": "y",
    }
    assert len(crowd.notified) == 2, (
        "alternating heartbeats must not make the group rebalance for ever"
    )


def test_a_difference_is_logged_once_and_can_be_asked_for(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    crowd.beat("a", "orders:x")
    crowd.beat("b", "orders:x")
    group = crowd.members.group("g")
    assert group is not None
    assert group.mismatch == {}
    for _ in range(3):
        crowd.beat("b", "orders:y", version=2)
        crowd.beat("a", "orders:x")
    assert group.mismatch == {
        "a": frozenset({("orders", "TAG", "x")}),
        "b": frozenset({("orders", "TAG", "y")}),
    }
    assert caplog.text.count("subscribe differently") == 1
    assert crowd.members.mismatched_groups() == ["g"]
    crowd.beat("b", "orders:x", version=3)
    assert group.mismatch == {}
    assert crowd.members.mismatched_groups() == []
    assert crowd.members.mismatches_total == 1


def test_members_who_join_a_difference_make_no_more_noise(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    crowd.beat("a", "orders:x")
    crowd.beat("b", "orders:y")
    crowd.beat("c", "orders:y")
    crowd.members.channel_closed("channel of b")
    assert caplog.text.count("subscribe differently") == 1
    crowd.beat("d", "orders:z")
    assert caplog.text.count("subscribe differently") == 2
    crowd.members.channel_closed("channel of a")
    crowd.members.channel_closed("channel of d")
    assert caplog.text.count("subscribe to the same again") == 1
    crowd.beat("e", "orders:x")
    assert crowd.members.mismatches_total == 2


def test_tags_in_another_order_are_the_same(crowd: Crowd) -> None:
    crowd.beat("a", "orders:x || y")
    crowd.beat("b", "orders:y||x")
    assert crowd.members.mismatched_groups() == []
    assert crowd.members.mismatches_total == 0


def test_who_consumes_a_topic_is_known_while_they_live(crowd: Crowd) -> None:
    crowd.beat("a", "orders:*", "bills:*")
    assert crowd.members.groups_of_topic("bills") == {"g"}
    crowd.members.channel_closed("channel of a")
    assert crowd.members.groups_of_topic("bills") == set()


def test_a_member_and_a_producer_are_found_by_id(crowd: Crowd) -> None:
    crowd.beat("a")
    crowd.members.producer_seen(Client("p1", "pc"), "p")
    found = crowd.live().find("a")
    assert found is not None
    assert found.client.channel == "channel of a"
    assert crowd.live().find("z") is None
    producer = crowd.members.producer_by_id("p1")
    assert producer is not None
    assert crowd.members.producer_by_id("p2") is None
    crowd.members.producer_left("pc", "p")
    assert crowd.members.producer_by_id("p1") is None


def test_a_channel_that_changes_its_client_id_is_one_member(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    channel: Hashable = "c"
    crowd.members.consumer_seen(Client("old", channel), ConsumerData("g"))
    crowd.members.consumer_seen(Client("new", channel), ConsumerData("g"))
    assert crowd.live().client_ids() == ["new"]
    assert "changed its client id" in caplog.text


@pytest.mark.timeout(30)
def test_ten_thousand_members_cost_each_no_more_than_ten(crowd: Crowd) -> None:
    members = crowd.members
    for number in range(10_000):
        client = Client(str(number), number, is_notified=number % 1_000 == 0)
        wanted = subscribe("orders", "x" if number % 2 else "y")
        assert members.consumer_seen(client, ConsumerData("g", subscriptions=(wanted,)))
    assert len(crowd.notified[-1][1]) == 10, "only those who want to hear it"
    assert members.mismatches_total == 1
    assert len(crowd.live().mismatch) == 10_000
    crowd.clock.advance(120_001)
    dropped = 0
    while silent := members.expire():
        dropped += len(silent)
    assert dropped == 10_000
    assert not members.live_groups()


def test_the_youngest_subscription_of_those_who_stay_is_the_group_s(crowd: Crowd) -> None:
    for number, version in enumerate((3, 9, 5)):
        crowd.beat(str(number), f"orders:v{version}", version=version)
    crowd.members.channel_closed("channel of 1")
    assert crowd.live().subscriptions["orders"].expression == "v5"
    crowd.members.channel_closed("channel of 0")
    assert crowd.live().subscriptions["orders"].expression == "v5"


def test_a_queue_is_pulled_as_long_as_a_member_keeps_it(crowd: Crowd) -> None:
    members = crowd.members
    crowd.beat("a")
    assert members.pulled("g", "orders", 0, "channel of a") is False
    assert members.pulled("g", "orders", 1, "channel of a") is False
    assert members.pulled("g", "orders", 2, "a stranger's") is False
    assert [members.is_pulled("g", "orders", each) for each in range(3)] == [True, True, False]
    members.consumer_seen(Client("b", "leases", is_notified=False), ConsumerData("g"))
    assert members.pulled("g", "orders", 0, "channel of a") is True, "it is to come again soon"
    crowd.clock.advance(29_999)
    assert members.is_pulled("g", "orders", 1)
    crowd.clock.advance(1)
    assert members.is_pulled("g", "orders", 0)
    assert not members.is_pulled("g", "orders", 1), "nobody has pulled it since it was shared out"
    members.channel_closed("leases")
    crowd.clock.advance(7_000)
    assert not members.is_pulled("g", "orders", 0)
    members.pulled("g", "orders", 0, "channel of a")
    crowd.beat("c")
    members.channel_closed("channel of a")
    assert not members.is_pulled("g", "orders", 0)
