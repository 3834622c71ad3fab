"""One real request of every code that the name server answers: as brokers and clients ask."""

import msgspec

from onelog.wire.remoting.codes import RequestCode as Code
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.registration import DataVersion
from tests.wire.remoting import captured
from tests.wire.remoting.mutation import commands

_TOPIC = {"topic": "samples"}
_BROKER = {"clusterName": "DefaultCluster", "brokerAddr": "192.0.2.1:10911", "brokerName": "tasty"}
_REGISTER = {**_BROKER, "brokerId": "0", "haServerAddr": "192.0.2.1:10912", "compressed": "false"}
_KEY = {"namespace": "ORDER_TOPIC_CONFIG", "key": "samples"}
_REGISTRATION = {
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000},
        "topicConfigTable": {
            name: {
                "topicName": name,
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
            }
            for name in ("samples", "crumbs")
        },
    },
    "filterServerList": [],
}
_QUEUES = {
    "brokerDatas": [],
    "filterServerTable": {},
    "queueDatas": [
        {
            "brokerName": "tasty",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
            "topicSysFlag": 0,
        }
    ],
}

_SAMPLES: list[tuple[Code, dict[str, str], object]] = [
    (Code.PUT_KV_CONFIG, {**_KEY, "value": "tasty:4"}, b""),
    (Code.GET_KV_CONFIG, _KEY, b""),
    (Code.DELETE_KV_CONFIG, _KEY, b""),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}, b""),
    (Code.REGISTER_BROKER, _REGISTER, _REGISTRATION),
    (Code.UNREGISTER_BROKER, {**_BROKER, "brokerId": "0"}, b""),
    (Code.BROKER_HEARTBEAT, _BROKER, b""),
    (Code.QUERY_DATA_VERSION, {**_BROKER, "brokerId": "0"}, DataVersion(counter=1).encode()),
    (Code.GET_BROKER_MEMBER_GROUP, _BROKER, b""),
    (Code.GET_BROKER_CLUSTER_INFO, {}, b""),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "tasty"}, b""),
    (Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "tasty"}, b""),
    (Code.GET_ROUTEINFO_BY_TOPIC, {**_TOPIC, "acceptStandardJsonOnly": "true"}, b""),
    (Code.DELETE_TOPIC_IN_NAMESRV, {**_TOPIC, "clusterName": "DefaultCluster"}, b""),
    (Code.REGISTER_TOPIC_IN_NAMESRV, _TOPIC, _QUEUES),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, b""),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}, b""),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, b""),
    (Code.GET_UNIT_TOPIC_LIST, {}, b""),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, b""),
    (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, b""),
    (Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n"),
    (Code.GET_NAMESRV_CONFIG, {}, b""),
]

SAMPLES: list[Command] = [
    *commands([captured.ROUTE_JSON_498, captured.ROUTE_COMPACT_550, captured.REGISTER_JSON_550]),
    *(
        Command(code, ext=ext, body=body if isinstance(body, bytes) else msgspec.json.encode(body))
        for code, ext, body in _SAMPLES
    ),
]
