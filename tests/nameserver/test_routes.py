from collections.abc import Hashable
from typing import Any

import pytest

from onelog.nameserver.routes import Endpoint, Master, Registration, RouteTable
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicTable,
)
from onelog.wire.remoting.routes import QueueData

A = Endpoint("c", "10.0.0.1:10911")
A_SLAVE = Endpoint("c", "10.0.0.2:10911")
B = Endpoint("c", "10.0.0.3:10911")


def topic(name: str, perm: int = 6, flags: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name, perm=perm, read_queue_nums=4, write_queue_nums=4, topic_sys_flag=flags
    )


def register(
    routes: RouteTable,
    *,
    channel: Hashable = "channel",
    now_ms: int = 0,
    endpoint: Endpoint = A,
    name: str = "a",
    broker_id: int = 0,
    topics: tuple[TopicConfig, ...] = (topic("t"), topic("u")),
    version: int = 1,
    state_version: int = 0,
    mappings: dict[str, Any] | None = None,
    filter_servers: tuple[str, ...] = (),
    **options: Any,
) -> Master | None:
    body = RegisterBrokerBody(
        filter_server_list=list(filter_servers),
        topic_config_serialize_wrapper=TopicTable(
            data_version=DataVersion(counter=version, state_version=state_version),
            topic_config_table={each.topic_name: each for each in topics},
            topic_queue_mapping_info_map=mappings,
        ),
    )
    options = {"expiry_ms": 120_000} | options
    ha_address = f"ha of {endpoint.address}"
    it = Registration(endpoint, name, broker_id, ha_address, body, **options)
    return routes.register(it, channel, now_ms)


def perms(routes: RouteTable, name: str) -> dict[str, int]:
    route = routes.route(name)
    return {queue.broker_name: queue.perm for queue in route.queue_datas} if route else {}


def addresses(routes: RouteTable, name: str) -> dict[str, dict[int, str]]:
    route = routes.route(name)
    return {data.broker_name: data.broker_addrs for data in route.broker_datas} if route else {}


def is_empty(routes: RouteTable) -> bool:
    return not (routes._topics or routes._brokers or routes._clusters or routes._live)


def test_a_registered_broker_is_where_its_topics_are() -> None:
    routes = RouteTable()
    assert register(routes) == Master()
    route = routes.route("t")
    assert route is not None
    (broker,), (queues,) = route.broker_datas, route.queue_datas
    assert (broker.cluster, broker.broker_name, broker.broker_addrs) == ("c", "a", {0: A.address})
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 4, 6)
    assert routes.route("unknown") is None


def test_a_topic_is_spread_over_brokers() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, endpoint=B, name="b", topics=(topic("t"), topic("v")))
    assert addresses(routes, "t") == {"a": {0: A.address}, "b": {0: B.address}}
    assert addresses(routes, "v") == {"b": {0: B.address}}
    info = routes.cluster_info()
    assert info.cluster_addr_table == {"c": ["a", "b"]}
    assert info.broker_addr_table["b"].broker_addrs == {0: B.address}


def test_a_slave_learns_its_master_and_adds_no_topics() -> None:
    routes = RouteTable()
    register(routes)
    master = register(routes, endpoint=A_SLAVE, broker_id=1, topics=(topic("x"), topic("y")))
    assert master == Master(A.address, f"ha of {A.address}")
    assert addresses(routes, "t") == {"a": {0: A.address, 1: A_SLAVE.address}}
    assert routes.route("x") is None


def test_a_slave_without_a_master_is_told_nothing() -> None:
    assert register(RouteTable(), endpoint=A_SLAVE, broker_id=1) == Master()


def test_a_topic_changes_with_the_data_version_and_not_without() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, topics=(topic("t", perm=4), topic("u")), version=1)
    assert perms(routes, "t") == {"a": 6}
    register(routes, topics=(topic("t", perm=4), topic("new")), version=2)
    assert perms(routes, "t") == {"a": 4}
    assert perms(routes, "new") == {"a": 6}
    assert perms(routes, "u") == {"a": 6}, "not named any more, but never deleted"


def test_a_single_topic_is_taken_only_from_a_broker_that_is_known() -> None:
    routes = RouteTable()
    assert register(routes, topics=(topic("t"),)) is None
    assert is_empty(routes)
    register(routes)
    assert register(routes, topics=(topic("new"),), version=2) == Master()
    assert perms(routes, "new") == {"a": 6}


def test_topics_that_a_broker_names_no_more_are_deleted_where_that_is_wanted() -> None:
    routes = RouteTable()
    routes.delete_missing_topics = True
    register(routes)
    register(routes, endpoint=B, name="b")
    register(routes, topics=(topic("t"), topic("v")), version=2)
    assert perms(routes, "u") == {"b": 6}
    register(routes, endpoint=B, name="b", topics=(topic("t"), topic("v")), version=2)
    assert routes.route("u") is None


def test_wiped_permission_survives_repetition_but_not_a_change() -> None:
    routes = RouteTable()
    register(routes)
    assert routes.wipe_write("a") == 2
    assert perms(routes, "t") == {"a": 4}
    register(routes)
    assert perms(routes, "t") == {"a": 4}
    register(routes, version=2)
    assert perms(routes, "t") == {"a": 6}
    assert routes.wipe_write("nobody") == 0


def test_write_permission_can_be_given_back() -> None:
    routes = RouteTable()
    register(routes, topics=(topic("t", perm=7), topic("u", perm=2)))
    routes.wipe_write("a")
    assert routes.add_write("a") == 2
    assert (perms(routes, "t"), perms(routes, "u")) == ({"a": 6}, {"a": 6})


def test_the_last_broker_takes_everything_with_it() -> None:
    routes = RouteTable()
    register(routes, filter_servers=("f:1",))
    assert routes.unregister(A, "a")
    assert is_empty(routes)
    assert not routes.unregister(A, "a")


def test_when_one_broker_leaves_the_others_stay() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, endpoint=B, name="b")
    routes.unregister(A, "a")
    assert addresses(routes, "t") == {"b": {0: B.address}}
    assert routes.cluster_info().cluster_addr_table == {"c": ["b"]}


def test_when_the_master_leaves_its_slave_stays_readable() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, endpoint=A_SLAVE, broker_id=1)
    routes.unregister(A, "a")
    assert addresses(routes, "t") == {"a": {1: A_SLAVE.address}}
    assert perms(routes, "t") == {"a": 6}


def test_a_slave_acts_for_its_master_where_that_is_wanted() -> None:
    routes = RouteTable()
    register(routes, acting_master=True)
    register(routes, endpoint=A_SLAVE, broker_id=1, acting_master=True)
    routes.unregister(A, "a")
    assert perms(routes, "t") == {"a": 4}
    assert addresses(routes, "t") == {"a": {0: A_SLAVE.address}}
    routes.acting_masters = False
    assert addresses(routes, "t") == {"a": {1: A_SLAVE.address}}


def test_the_first_slave_brings_the_topics_when_there_is_no_master() -> None:
    routes = RouteTable()
    register(routes, endpoint=A_SLAVE, broker_id=1, acting_master=True)
    assert perms(routes, "t") == {"a": 4}
    other = RouteTable()
    register(other, endpoint=A_SLAVE, broker_id=1, acting_master=False)
    assert perms(other, "t") == {"a": 6}


def test_silence_drops_a_broker_after_its_expiry_time_and_not_before() -> None:
    routes = RouteTable()
    register(routes, channel="one", now_ms=1000)
    register(routes, endpoint=B, name="b", channel="two", now_ms=1000, expiry_ms=500)
    assert routes.expire(1500) == []
    assert routes.expire(1501) == [(B, "two")]
    assert addresses(routes, "t") == {"a": {0: A.address}}
    routes.heartbeat(A, 100_000)
    assert routes.expire(220_000) == []
    assert routes.expire(220_001) == [(A, "one")]
    assert is_empty(routes)


def test_a_heartbeat_of_a_stranger_changes_nothing() -> None:
    routes = RouteTable()
    routes.heartbeat(A, 5)
    assert is_empty(routes)


def test_a_closed_channel_drops_its_brokers_and_no_others() -> None:
    routes = RouteTable()
    register(routes, channel="one")
    register(routes, endpoint=B, name="b", channel="two")
    assert routes.channel_closed("one") == [A]
    assert addresses(routes, "t") == {"b": {0: B.address}}
    assert routes.channel_closed("one") == []


def test_a_broker_that_came_back_over_another_channel_survives_the_end_of_the_old_one() -> None:
    routes = RouteTable()
    register(routes, channel="old")
    register(routes, channel="new")
    assert routes.channel_closed("old") == []
    assert addresses(routes, "t") == {"a": {0: A.address}}


def test_a_slave_that_becomes_the_master_is_not_listed_twice() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, endpoint=A_SLAVE, broker_id=1)
    register(routes, endpoint=A_SLAVE, broker_id=0, state_version=1, version=2)
    assert addresses(routes, "t") == {"a": {0: A_SLAVE.address}}


def test_an_old_master_cannot_take_the_place_of_a_newer_one() -> None:
    routes = RouteTable()
    register(routes, endpoint=B, state_version=2)
    assert register(routes, endpoint=A, state_version=1) == Master()
    assert addresses(routes, "t") == {"a": {0: B.address}}
    assert routes.data_version(A) is None
    register(routes, endpoint=A, state_version=3)
    assert addresses(routes, "t") == {"a": {0: A.address}}


def test_the_data_version_is_the_one_registered_last() -> None:
    routes = RouteTable()
    assert routes.data_version(A) is None
    register(routes, version=7)
    assert routes.data_version(A) == DataVersion(counter=7)


def test_topics_can_be_deleted_everywhere_or_in_a_cluster() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, endpoint=Endpoint("d", "x:1"), name="b")
    routes.delete_topic("t", "d")
    assert addresses(routes, "t").keys() == {"a"}
    routes.delete_topic("t", "no such cluster")
    routes.delete_topic("t")
    routes.delete_topic("t")
    assert routes.route("t") is None
    assert addresses(routes, "u").keys() == {"a", "b"}


def test_a_topic_can_be_added_on_known_brokers_only() -> None:
    routes = RouteTable()
    register(routes)
    assert routes.register_topic("new", [QueueData(broker_name="a", perm=6)])
    assert perms(routes, "new") == {"a": 6}
    assert not routes.register_topic("other", [QueueData(broker_name="nobody")])
    assert not routes.register_topic("other", [])
    assert routes.route("other") is None


def test_lists_of_topics() -> None:
    routes = RouteTable()
    register(routes, topics=(topic("t"), topic("unit", flags=1), topic("sub", flags=2)))
    others = (topic("v", flags=3), topic("t"))
    register(routes, endpoint=Endpoint("d", "x:1"), name="b", topics=others)
    assert routes.topics().topic_list == ["t", "unit", "sub", "v"]
    assert routes.topics_of_cluster("d").topic_list == ["t", "v"]
    assert routes.topics_of_cluster("nowhere").topic_list == []
    assert routes.system_topics().topic_list == ["c", "a", "d", "b"]
    assert routes.system_topics().broker_addr == A.address
    assert RouteTable().system_topics().broker_addr is None
    assert routes.topics_with_flags(1).topic_list == ["unit", "v"]
    assert routes.topics_with_flags(2).topic_list == ["sub", "v"]
    assert routes.topics_with_flags(2, 1).topic_list == ["sub"]


def test_members_of_a_name() -> None:
    routes = RouteTable()
    register(routes)
    register(routes, endpoint=A_SLAVE, broker_id=1)
    assert routes.members("c", "a").broker_addrs == {0: A.address, 1: A_SLAVE.address}
    assert routes.members("c", "nobody").broker_addrs == {}


def test_a_zone_hides_the_masters_of_others() -> None:
    routes = RouteTable()
    register(routes, zone="east")
    register(routes, endpoint=B, name="b", zone="west")
    route = routes.route("t", "EAST")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["a"]
    assert [queue.broker_name for queue in route.queue_datas] == ["a"]


def test_filter_servers_and_mappings_are_passed_on() -> None:
    routes = RouteTable()
    register(routes, filter_servers=("f:1",), mappings={"t": {"topic": "t", "bname": "a"}})
    route = routes.route("t")
    assert route is not None
    assert route.filter_server_table == {A.address: ["f:1"]}
    assert route.topic_queue_mapping_by_broker == {"a": {"topic": "t", "bname": "a"}}
    register(routes)
    later = routes.route("t")
    assert later is not None
    assert later.filter_server_table == {}


@pytest.mark.parametrize("count", [1, 50])
def test_what_comes_and_goes_leaves_nothing_behind(count: int) -> None:
    routes = RouteTable()
    for number in range(count):
        endpoint = Endpoint("c", f"10.0.0.{number}:1")
        register(routes, endpoint=endpoint, name=f"b{number % 7}", broker_id=number, channel=number)
    for number in range(count):
        routes.channel_closed(number)
    assert is_empty(routes)
