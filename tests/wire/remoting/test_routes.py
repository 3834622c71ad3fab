from onelog.wire.remoting.routes import (
    BrokerData,
    BrokerMemberGroup,
    BrokerMemberGroupAnswer,
    ClusterInfo,
    KVTable,
    QueueData,
    TopicList,
    TopicRouteData,
)

BROKER = BrokerData(broker_addrs={0: "127.0.0.1:1"}, broker_name="b", cluster="c")


def test_a_route_is_written_as_rocketmq_writes_it_for_new_clients() -> None:
    route = TopicRouteData(
        broker_datas=[BROKER],
        queue_datas=[
            QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=4),
        ],
    )
    assert route.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:1"},"brokerName":"b","cluster":"c",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert TopicRouteData.decode(route.encode()) == route


def test_a_route_with_bare_numbers_as_keys_is_read() -> None:
    route = TopicRouteData.decode(
        b'{"brokerDatas":[{"brokerAddrs":{0:"x:1",1:"x:2"},"brokerName":"b","cluster":"c"}]}'
    )
    assert route.broker_datas[0].broker_addrs == {0: "x:1", 1: "x:2"}


def test_cluster_info_survives_the_round_trip() -> None:
    info = ClusterInfo(broker_addr_table={"b": BROKER}, cluster_addr_table={"c": ["b"]})
    assert ClusterInfo.decode(info.encode()) == info


def test_lists_and_tables_have_the_names_that_clients_read() -> None:
    assert TopicList(topic_list=["a"]).encode() == b'{"topicList":["a"]}'
    assert (
        TopicList(broker_addr="x", topic_list=[]).encode() == b'{"brokerAddr":"x","topicList":[]}'
    )
    assert KVTable(table={"k": "v"}).encode() == b'{"table":{"k":"v"}}'
    members = BrokerMemberGroup(broker_addrs={0: "x"}, broker_name="b", cluster="c")
    assert BrokerMemberGroupAnswer(broker_member_group=members).encode() == (
        b'{"brokerMemberGroup":{"brokerAddrs":{"0":"x"},"brokerName":"b","cluster":"c"}}'
    )
