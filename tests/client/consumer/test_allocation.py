"""The expected shares come from the strategies of the Java client 5.5.0: see Vectors.java."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.consumer.allocation import (
    AllocationStrategy,
    ByConfig,
    ByConsistentHash,
    ByNearbyRoom,
    ByRoom,
    average,
    circle,
    strategy_name,
)
from onelog.client.message import Queue

VECTORS = Path(__file__).resolve().parents[2] / "fixtures" / "allocation" / "vectors.json"


def queue_room(queue: Queue) -> str:
    return client_room(queue.broker)


def client_room(name: str) -> str:
    return name.split("@")[0].split("-")[0]


STRATEGIES: dict[str, AllocationStrategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": circle,
    "MACHINE_ROOM": ByRoom({"idc1", "idc3"}),
    "CONSISTENT_HASH": ByConsistentHash(),
    "CONSISTENT_HASH(3)": ByConsistentHash(3),
    "MACHINE_ROOM_NEARBY-AVG": ByNearbyRoom(queue_room, client_room),
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH": ByNearbyRoom(
        queue_room, client_room, ByConsistentHash()
    ),
}
SHARING_ALL = [name for name in STRATEGIES if name != "MACHINE_ROOM"]


def queues_of(brokers: Sequence[str], count: int) -> list[Queue]:
    return [Queue("订单", broker, number) for broker in brokers for number in range(count)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_member_gets_the_queues_that_the_java_client_gives_it(name: str) -> None:
    vectors: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))
    checked = [vector for vector in vectors if vector["strategy"] == name]
    assert len(checked) == 36
    for vector in checked:
        queues = queues_of(vector["brokers"], vector["queues"])
        members = vector["members"]
        shares = [
            [queues.index(queue) for queue in STRATEGIES[name]("g", member, queues, members)]
            for member in members
        ]
        assert shares == vector["shares"], vector


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_the_name_that_the_java_client_calls_it_by(name: str) -> None:
    assert strategy_name(STRATEGIES[name]) == name.removesuffix("(3)")


def test_a_strategy_of_the_user_has_a_name_too() -> None:
    assert strategy_name(lambda group, me, queues, members: list(queues)) == "CUSTOM"
    assert strategy_name(ByConfig(())) == "CONFIG"


@given(
    name=st.sampled_from(SHARING_ALL),
    brokers=st.lists(st.sampled_from(["idc1@a", "idc2@b", "x", "y"]), max_size=4, unique=True),
    count=st.integers(0, 9),
    members=st.lists(
        st.sampled_from([f"idc{n % 3}-{n}" for n in range(12)]), min_size=1, unique=True
    ),
)
def test_together_the_members_get_all_queues_and_none_twice(
    name: str, brokers: list[str], count: int, members: list[str]
) -> None:
    queues = queues_of(brokers, count)
    members.sort()
    shares = [
        queue for member in members for queue in STRATEGIES[name]("g", member, queues, members)
    ]
    assert sorted(shares) == sorted(queues)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_client_that_is_no_member_gets_nothing(name: str) -> None:
    queues = queues_of(["idc1@a"], 4)
    assert STRATEGIES[name]("g", "idc1-stranger", queues, ["idc1-1", "idc1-2"]) == []
    assert STRATEGIES[name]("g", "idc1-stranger", queues, []) == []


def test_configured_queues_are_taken_as_far_as_the_topic_has_them() -> None:
    queues = queues_of(["a"], 2)
    wanted = (Queue("订单", "a", 1), Queue("订单", "a", 7))
    assert ByConfig(wanted)("g", "me", queues, ["me", "you"]) == [queues[1]]


def test_a_broker_without_a_room_in_its_name_is_in_no_room() -> None:
    queues = queues_of(["idc1", "idc1@", "idc1@a@b", "@a", "idc1@a"], 1)
    assert ByRoom({"idc1", ""})("g", "me", queues, ["me"]) == [queues[3], queues[4]]


def test_a_ring_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="1 point per member at least, not 0"):
        ByConsistentHash(0)


def test_a_room_without_a_name_is_refused_and_says_whose() -> None:
    strategy = ByNearbyRoom(lambda queue: "", client_room)
    with pytest.raises(ValueError, match=r"no machine room is named for queue .*broker='a'"):
        strategy("g", "idc1-1", queues_of(["a"], 1), ["idc1-1"])
    strategy = ByNearbyRoom(queue_room, lambda member: "")
    with pytest.raises(ValueError, match="no machine room is named for client me"):
        strategy("g", "me", queues_of(["a"], 1), ["me"])


def test_when_a_member_leaves_a_ring_the_others_keep_what_they_have() -> None:
    queues = queues_of(["a", "b", "c"], 16)
    members = [f"10.0.0.{n}@1" for n in range(6)]
    allocate = ByConsistentHash()
    before = {member: set(allocate("g", member, queues, members)) for member in members}
    members.remove("10.0.0.3@1")
    for member in members:
        assert before[member] <= set(allocate("g", member, queues, members))
