import ast
import asyncio
import contextlib
import inspect
import logging
import zlib
from collections.abc import AsyncIterator

import pytest

from onelog import errors
from onelog.clock import SystemClock
from onelog.config import NameserverConfig
from onelog.nameserver import kv, routes, session
from onelog.nameserver.server import NameServer, serve_nameserver
from onelog.nameserver.session import ERROR_CODES, HANDLERS, NameserverSession
from onelog.net.connection import Connection
from onelog.net.listener import Listener
from onelog.net.peer import Peer
from onelog.wire.remoting import body as body_module
from onelog.wire.remoting import fastjson, fields, registration
from onelog.wire.remoting.administration import KINDS, RequestKind
from onelog.wire.remoting.codes import RequestCode as Code
from onelog.wire.remoting.codes import ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicTable,
    encode_registration,
)
from onelog.wire.remoting.routes import (
    BrokerMemberGroupAnswer,
    ClusterInfo,
    KVTable,
    QueueData,
    TopicList,
    TopicRouteData,
)
from tests.net.sessions import Client
from tests.wire.remoting import captured

BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "c",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
}
BODY = RegisterBrokerBody(
    topic_config_serialize_wrapper=TopicTable(
        data_version=DataVersion(counter=1, timestamp=7),
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)
            for name in ("TBW102", "orders")
        },
    )
)


async def ask(peer: Peer, code: Code, body: bytes = b"", **ext: str) -> Command:
    return await peer.ask(code, ext, body)


async def register(peer: Peer, **ext: str) -> Command:
    is_compressed = ext.get("compressed") == "true"
    content = encode_registration(BODY, is_compressed)
    return await peer.ask(Code.REGISTER_BROKER, BROKER | ext, content)


async def test_a_route_is_what_brokers_registered(peer: Peer) -> None:
    assert (await register(peer)).code == 0
    answer = await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert answer.code == 0
    assert answer.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":['
        b'{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )


async def test_an_unknown_topic_has_no_route(peer: Peer) -> None:
    answer = await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: nowhere"


@pytest.mark.parametrize("compressed", ["true", "false"])
async def test_registrations_come_compressed_and_with_a_checksum(
    peer: Peer, compressed: str
) -> None:
    content = encode_registration(BODY, compressed == "true")
    crc = str(zlib.crc32(content) & 0x7FFFFFFF)
    assert (await register(peer, compressed=compressed, bodyCrc32=crc)).code == 0
    assert (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0


async def test_a_wrong_checksum_is_refused(peer: Peer) -> None:
    answer = await register(peer, bodyCrc32="1")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code != 0


async def test_what_a_real_broker_and_real_clients_send_is_answered(
    server: NameServer, peer: Peer
) -> None:
    client = Client(*await asyncio.open_connection(*server.address))
    await client.send(captured.REGISTER_JSON_550)
    refused = await client.receive_command()
    # It was captured after the first registration, which names all topics and must come before.
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    await register(peer, brokerName="broker-a", brokerAddr="127.0.0.1:30911")
    for frame in (captured.REGISTER_JSON_550, captured.ROUTE_JSON_498):
        await client.send(frame)
        answer = await client.receive_command()
        assert (answer.code, answer.serialize) == (0, 0)
    await client.send(captured.ROUTE_COMPACT_550)
    answer = await client.receive_command()
    assert (answer.code, answer.serialize) == (ResponseCode.TOPIC_NOT_EXIST, 1)
    client.close()


async def test_a_slave_is_told_its_master(peer: Peer) -> None:
    await register(peer)
    answer = await register(peer, brokerId="1", brokerAddr="10.0.0.2:10911")
    assert answer.ext == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


async def test_a_broker_that_says_goodbye_is_gone(peer: Peer) -> None:
    await register(peer)
    assert (await peer.ask(Code.UNREGISTER_BROKER, BROKER)).code == 0
    assert (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code != 0


async def test_a_broker_learns_whether_it_must_register_again(peer: Peer) -> None:
    version = BODY.topic_config_serialize_wrapper.data_version
    unknown = await peer.ask(Code.QUERY_DATA_VERSION, BROKER, version.encode())
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    await register(peer)
    same = await peer.ask(Code.QUERY_DATA_VERSION, BROKER, version.encode())
    assert same.ext == {"changed": "false"}
    assert DataVersion.decode(same.body) == version
    other = await peer.ask(Code.QUERY_DATA_VERSION, BROKER, DataVersion(counter=2).encode())
    assert other.ext == {"changed": "true"}


async def test_heartbeats_are_accepted(peer: Peer) -> None:
    assert (await peer.ask(Code.BROKER_HEARTBEAT, BROKER)).code == 0


async def test_clusters_members_and_lists_are_told(peer: Peer) -> None:
    await register(peer)
    info = ClusterInfo.decode((await ask(peer, Code.GET_BROKER_CLUSTER_INFO)).body)
    assert info.cluster_addr_table == {"c": ["broker-a"]}
    members = await ask(peer, Code.GET_BROKER_MEMBER_GROUP, clusterName="c", brokerName="broker-a")
    group = BrokerMemberGroupAnswer.decode(members.body).broker_member_group
    assert group.broker_addrs == {0: "10.0.0.1:10911"}
    expected: list[tuple[Code, dict[str, str], list[str]]] = [
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, ["TBW102", "orders"]),
        (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, ["TBW102", "orders"]),
        (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, ["c", "broker-a"]),
        (Code.GET_UNIT_TOPIC_LIST, {}, []),
        (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, []),
        (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, []),
    ]
    for code, ext, topics in expected:
        answer = await peer.ask(code, ext)
        assert TopicList.decode(answer.body).topic_list == topics


async def test_topics_are_added_and_deleted(peer: Peer) -> None:
    await register(peer)
    queues = [QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)]
    content = TopicRouteData(queue_datas=queues).encode()
    assert (await ask(peer, Code.REGISTER_TOPIC_IN_NAMESRV, content, topic="new")).code == 0
    assert (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="new")).code == 0
    assert (await ask(peer, Code.DELETE_TOPIC_IN_NAMESRV, topic="new")).code == 0
    assert (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="new")).code != 0
    assert (await ask(peer, Code.REGISTER_TOPIC_IN_NAMESRV, b"{}", topic="new")).code == 0


async def test_write_permission_is_taken_and_given(peer: Peer) -> None:
    await register(peer)
    wiped = await ask(peer, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert wiped.ext == {"wipeTopicCount": "2"}
    route = await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert TopicRouteData.decode(route.body).queue_datas[0].perm == 4
    added = await ask(peer, Code.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert added.ext == {"addTopicCount": "2"}


async def test_keys_are_kept(peer: Peer) -> None:
    key = {"namespace": "ns", "key": "k"}
    missing = await peer.ask(Code.GET_KV_CONFIG, key)
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert missing.remark == "No config item, Namespace: ns Key: k"
    assert (await peer.ask(Code.PUT_KV_CONFIG, key | {"value": "v"})).code == 0
    assert (await peer.ask(Code.GET_KV_CONFIG, key)).ext == {"value": "v"}
    table = await ask(peer, Code.GET_KVLIST_BY_NAMESPACE, namespace="ns")
    assert KVTable.decode(table.body).table == {"k": "v"}
    known = await ask(
        peer, Code.GET_KVLIST_BY_NAMESPACE, namespace="ns", known=table.ext["version"]
    )
    assert (known.ext, known.body) == (table.ext, b"")
    refused = await peer.ask(Code.PUT_KV_CONFIG, key | {"value": "w", "expected": ""})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert (await peer.ask(Code.DELETE_KV_CONFIG, key)).code == 0
    assert (await peer.ask(Code.GET_KV_CONFIG, key)).code == ResponseCode.QUERY_NOT_FOUND
    nothing = await ask(peer, Code.GET_KVLIST_BY_NAMESPACE, namespace="none")
    assert (nothing.code, nothing.remark) == (22, "No config item, Namespace: none")


async def test_ordered_topics_are_told_to_brokers_and_if_wanted_to_clients(
    server: NameServer, peer: Peer
) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}
    await peer.ask(Code.PUT_KV_CONFIG, order)
    assert (await register(peer)).body == b'{"table":{"orders":"broker-a:4"}}'
    route = await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert TopicRouteData.decode(route.body).order_topic_conf is None
    server.registry.config_updates = True
    properties = (
        b"# a comment\norderMessageEnable=true\nreturnOrderTopicConfigToBroker = false\nx=1"
    )
    assert (await ask(peer, Code.UPDATE_NAMESRV_CONFIG, properties)).code == 0
    route = await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    assert TopicRouteData.decode(route.body).order_topic_conf == "broker-a:4"
    assert (await register(peer)).body == b""


async def test_nobody_may_change_the_configuration_unless_allowed(peer: Peer) -> None:
    before = (await ask(peer, Code.GET_NAMESRV_CONFIG)).body
    answer = await ask(peer, Code.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "switched off" in str(answer.remark)
    assert (await ask(peer, Code.GET_NAMESRV_CONFIG)).body == before
    assert b"orderMessageEnable=false\n" in bytes(before)


@pytest.mark.parametrize("name", ["kvConfigPath", "configStorePath", "configBlackList"])
async def test_nobody_may_change_where_files_are_even_if_allowed(
    server: NameServer, peer: Peer, name: str
) -> None:
    server.registry.config_updates = True
    answer = await ask(peer, Code.UPDATE_NAMESRV_CONFIG, f"{name}=/etc/passwd".encode())
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (await ask(peer, Code.UPDATE_NAMESRV_CONFIG, b"\xff")).code == ResponseCode.SYSTEM_ERROR


async def test_switches_reach_the_routes(server: NameServer, peer: Peer) -> None:
    server.registry.config_updates = True
    await ask(peer, Code.UPDATE_NAMESRV_CONFIG, b"supportActingMaster=true")
    assert server.registry.routes.acting_masters
    assert not server.registry.routes.delete_missing_topics


REQUIRED: dict[Code, tuple[str, ...]] = {
    Code.REGISTER_BROKER: tuple(BROKER),
    Code.UNREGISTER_BROKER: ("brokerName", "brokerAddr", "clusterName", "brokerId"),
    Code.BROKER_HEARTBEAT: ("clusterName", "brokerAddr"),
    Code.QUERY_DATA_VERSION: ("clusterName", "brokerAddr"),
    Code.GET_BROKER_MEMBER_GROUP: ("clusterName", "brokerName"),
    Code.WIPE_WRITE_PERM_OF_BROKER: ("brokerName",),
    Code.ADD_WRITE_PERM_OF_BROKER: ("brokerName",),
    Code.GET_ROUTEINFO_BY_TOPIC: ("topic",),
    Code.DELETE_TOPIC_IN_NAMESRV: ("topic",),
    Code.REGISTER_TOPIC_IN_NAMESRV: ("topic",),
    Code.GET_TOPICS_BY_CLUSTER: ("cluster",),
    Code.PUT_KV_CONFIG: ("namespace", "key", "value"),
    Code.GET_KV_CONFIG: ("namespace", "key"),
    Code.DELETE_KV_CONFIG: ("namespace", "key"),
    Code.GET_KVLIST_BY_NAMESPACE: ("namespace",),
}


@pytest.mark.parametrize("code", list(REQUIRED), ids=lambda code: code.name)
async def test_a_missing_field_is_named_and_the_connection_lives_on(peer: Peer, code: Code) -> None:
    for name in REQUIRED[code]:
        ext = {key: "1" for key in REQUIRED[code] if key != name}
        answer = await peer.ask(code, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"the custom field <{name}> is null"


async def test_wrong_numbers_and_bodies_are_refused_and_the_connection_lives_on(peer: Peer) -> None:
    wrong: list[tuple[Code, dict[str, str], bytes]] = [
        (Code.REGISTER_BROKER, BROKER | {"brokerId": "x"}, b""),
        (Code.REGISTER_BROKER, BROKER, b"{garbage"),
        (Code.REGISTER_BROKER, BROKER | {"compressed": "true"}, b"garbage"),
        (Code.REGISTER_BROKER, BROKER | {"heartbeatTimeoutMillis": "soon"}, b""),
        (Code.QUERY_DATA_VERSION, BROKER, b"[]"),
        (Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t"}, b"\xff"),
    ]
    await register(peer)
    for code, ext, content in wrong:
        answer = await peer.ask(code, ext, content)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark


async def test_an_unknown_code_is_not_supported(peer: Peer) -> None:
    answer = await ask(peer, Code.SEND_MESSAGE_V2)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 310 not supported"


async def test_a_broker_whose_connection_ends_is_gone(
    server: NameServer, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = await Peer.connect(*server.address)
    await register(broker)
    assert (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0
    await broker.close()
    while (await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0:
        pass
    assert "broker '10.0.0.1:10911' of 'c' left: its connection closed" in caplog.text


def test_every_error_that_can_be_raised_has_its_code() -> None:
    raised = set()
    for module in (session, routes, kv, fields, body_module, fastjson, registration):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                raised.add(getattr(errors, ast.unparse(node.exc.func)))
    # Only raised on start, when the file cannot be read.
    raised.remove(errors.ConfigError)
    # Made by the server when the file cannot be written.
    raised.add(errors.NotSavedError)
    assert raised == ERROR_CODES.keys()


def test_handlers_cover_what_clients_and_brokers_ask_name_servers() -> None:
    asked = {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313}
    assert HANDLERS.keys() == asked | {318, 319, 322, 327, 901, 904}


# -- peers on other machines ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def far_peer(server: NameServer, host: str) -> AsyncIterator[Peer]:
    """A peer that the name server takes for one on another machine."""

    def make_session(connection: Connection) -> NameserverSession:
        connection.remote = (host, connection.remote[1])
        return NameserverSession(connection, server.registry)

    listener = await Listener.open("127.0.0.1", 0, make_session, clock=SystemClock())
    peer = await Peer.connect(*listener.address)
    try:
        yield peer
    finally:
        await peer.close()
        await listener.close()


async def test_what_administers_is_refused_from_other_machines(
    server: NameServer, peer: Peer
) -> None:
    codes = [Code(code) for code in HANDLERS if KINDS[code] is RequestKind.ADMINISTRATION]
    assert len(codes) == 7
    async with far_peer(server, "10.1.2.3") as far:
        await register(far)
        for code in codes:
            refused = await ask(far, code, topic="orders", brokerName="broker-a")
            assert refused.code == ResponseCode.NO_PERMISSION, code
            assert "set security.remote_admin=true" in str(refused.remark)
        assert (await ask(far, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders")).code == 0
        answer = await ask(peer, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.code == 0


async def test_other_machines_administer_if_they_are_allowed_to(config: NameserverConfig) -> None:
    server = await serve_nameserver(config, remote_admin=True)
    async with far_peer(server, "10.1.2.3") as far:
        answer = await ask(far, Code.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        assert answer.code == 0
    await server.close()


async def test_brokers_on_other_machines_come_and_go_but_do_not_send_one_another_away(
    server: NameServer, peer: Peer
) -> None:
    def is_there() -> bool:
        return server.registry.routes.route("orders") is not None

    async with (
        far_peer(server, "10.0.0.1") as own,
        far_peer(server, "10.0.0.1") as again,
        far_peer(server, "10.0.0.2") as other,
    ):
        assert (await register(own)).code == 0
        for disguise in ({}, {"clusterName": "another"}, {"brokerName": "another"}):
            refused = await other.ask(Code.UNREGISTER_BROKER, BROKER | disguise)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "was registered by another machine than 10.0.0.2" in str(refused.remark)
        assert is_there()
        # A broker whose connection broke says goodbye over a new one.
        assert (await again.ask(Code.UNREGISTER_BROKER, BROKER)).code == 0
        assert not is_there()
        assert (await register(own)).code == 0
        # An administrator on the name server's machine may send any broker away.
        assert (await peer.ask(Code.UNREGISTER_BROKER, BROKER)).code == 0
        assert not is_there()
        # Nobody is there: nothing to refuse.
        assert (await other.ask(Code.UNREGISTER_BROKER, BROKER)).code == 0


async def test_brokers_on_other_machines_change_the_register_of_their_cluster_and_nothing_else(
    server: NameServer,
) -> None:
    where = {"namespace": "GRPC_c", "key": "broker-a", "value": "10.0.0.1 8081", "expected": ""}
    async with far_peer(server, "10.0.0.1") as own, far_peer(server, "10.0.0.2") as other:
        refused = await own.ask(Code.PUT_KV_CONFIG, where)
        assert refused.code == ResponseCode.NO_PERMISSION  # It has not registered yet.
        assert (await register(own)).code == 0
        async with far_peer(server, "10.0.0.1") as again:  # The register has its own connection.
            assert (await again.ask(Code.PUT_KV_CONFIG, where)).code == 0
            kafka = where | {"namespace": "KAFKA_c", "key": "node 0"}
            assert (await again.ask(Code.PUT_KV_CONFIG, kafka)).code == 0
            assert (await again.ask(Code.DELETE_KV_CONFIG, kafka)).code == 0
        assert server.registry.kv.get("GRPC_c", "broker-a") == "10.0.0.1 8081"
        for namespace in ("GRPC_another", "ORDER_TOPIC_CONFIG", "GRPC_", "c"):
            refused = await own.ask(Code.PUT_KV_CONFIG, where | {"namespace": namespace})
            assert refused.code == ResponseCode.NO_PERMISSION, namespace
            assert "only the register of a cluster" in str(refused.remark)
        refused = await ask(other, Code.DELETE_KV_CONFIG, namespace="GRPC_c", key="broker-a")
        assert refused.code == ResponseCode.NO_PERMISSION


async def test_a_registration_whose_references_grow_without_end_is_refused(peer: Peer) -> None:
    references = ",".join(['{"$ref":"$.a"}'] * 1_000)
    body = f"{{'a':[{'0,' * 9_999}0],'b':[{references}]}}".encode()
    answer = await ask(peer, Code.REGISTER_BROKER, body, **BROKER)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "references counted as what they stand for" in str(answer.remark)
