"""One real request, at least, of every code that the broker answers: as clients and tools ask.

They are about the topic `samples` and the group `tasters`, which need not exist.
"""

import base64

import msgspec

from onelog.message import encode_properties
from onelog.wire.remoting.codes import RequestCode as Code
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.recall_handle import encode_handle

TOPIC = "samples"
GROUP = "tasters"
CLIENT = "192.0.2.7@4711#1"
BROKER = "broker-a"
NOW = 1_700_000_000_000
_UNIQUE = "7F0000010001000000000000000A0000"
_ID = "7F00000100002A9F0000000000000000"
_QUEUE = {"topic": TOPIC, "queueId": "0"}
_MEMBER = {"consumerGroup": GROUP, **_QUEUE}
_RECEIPT = f"0 {NOW} 60000 0 0 {BROKER} 0 0"
_LOCK = {
    "clientId": CLIENT,
    "consumerGroup": GROUP,
    "onlyThisBroker": False,
    "mqSet": [{"topic": TOPIC, "brokerName": BROKER, "queueId": 0}],
}
_SUBSCRIPTION = {
    "topic": TOPIC,
    "subString": "a || b",
    "tagsSet": ["a", "b"],
    "codeSet": [97, 98],
    "subVersion": NOW,
    "expressionType": "TAG",
    "classFilterMode": False,
}
_SQL = {"topic": TOPIC, "subString": "a BETWEEN 1 AND 7", "expressionType": "SQL92"}
_HEARTBEAT = {
    "clientID": CLIENT,
    "producerDataSet": [{"groupName": "cooks"}],
    "consumerDataSet": [
        {
            "groupName": GROUP,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [_SUBSCRIPTION],
        }
    ],
}
_BATCH_ACK = {
    "brokerName": BROKER,
    "acks": [
        {
            "c": GROUP,
            "t": TOPIC,
            "r": "0",
            "so": 0,
            "q": 0,
            "rq": 0,
            "pt": NOW,
            "it": 60_000,
            "b": base64.b64encode(b"\x05").decode(),
        }
    ],
}
_SEND = {
    "a": "cooks",
    "b": TOPIC,
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": str(NOW),
    "h": "0",
    "i": encode_properties({"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": _UNIQUE}).decode(),
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "false",
    "n": BROKER,
}
_LONG_SEND = {
    "producerGroup": "cooks",
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "queueId": "0",
    "defaultTopicQueueNums": "4",
    "sysFlag": "0",
    "bornTimestamp": str(NOW),
    "flag": "0",
    "properties": _SEND["i"],
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}
_PULL = {
    **_MEMBER,
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": str(NOW),
    "expressionType": "TAG",
    "maxMsgBytes": "262144",
}
_POP = {
    **_MEMBER,
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "15000",
    "bornTime": str(NOW),
    "initMode": "0",
    "expType": "TAG",
    "exp": "*",
    "order": "false",
    "attemptId": "attempt-1",
}
_TOPIC_SETTINGS = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "attributes": "+message.type=NORMAL",
}
_TOPICS = {
    "topicConfigList": [
        {"topicName": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": {}}
    ]
}
_GROUP_SETTINGS = {
    "groupName": GROUP,
    "consumeEnable": True,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "attributes": {},
}
_MODE = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 1}
_ASSIGNMENT = {
    "topic": TOPIC,
    "consumerGroup": GROUP,
    "clientId": CLIENT,
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}
_RESET = {"group": GROUP, **_QUEUE, "timestamp": str(NOW), "isForce": "true", "offset": "-1"}
_END = {
    "topic": TOPIC,
    "producerGroup": "cooks",
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "commitOrRollback": "8",
    "fromTransactionCheck": "false",
    "msgId": _UNIQUE,
    "transactionId": _UNIQUE,
}
_BACK = {
    "offset": "0",
    "group": GROUP,
    "delayLevel": "0",
    "originMsgId": _ID,
    "originTopic": TOPIC,
    "unitMode": "false",
    "maxReconsumeTimes": "16",
}
_QUERY = {
    "topic": TOPIC,
    "key": "k1",
    "maxNum": "32",
    "beginTimestamp": "0",
    "endTimestamp": str(2 * NOW),
}
_CLONE = {"srcGroup": GROUP, "destGroup": "others", "topic": TOPIC, "offline": "false"}
_HANDLE = encode_handle(TOPIC, BROKER, 2 * NOW, _UNIQUE)


def _batch(*bodies: bytes) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    entries = []
    for body in bodies:
        rest = bytes(12) + len(body).to_bytes(4, "big") + body + b"\0\7KEYS\1k\2"
        entries.append((4 + len(rest)).to_bytes(4, "big") + rest)
    return b"".join(entries)


def _encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def _properties(text: str, **added: str) -> str:
    return text + encode_properties(added).decode()


_ACL = {
    "subject": "User:bob",
    "policies": [{"entries": [{"resource": "Topic:o*", "actions": ["Pub"], "decision": "Allow"}]}],
}
_SAMPLES: list[tuple[Code, dict[str, str], object]] = [
    (Code.SEND_MESSAGE, _LONG_SEND, b"body"),
    (Code.SEND_MESSAGE_V2, _SEND, b"body"),
    (Code.SEND_MESSAGE_V2, _SEND | {"b": f"%RETRY%{GROUP}", "j": "1"}, b"again"),
    (Code.SEND_MESSAGE_V2, _SEND | {"i": _properties(_SEND["i"], DELAY="1")}, b"later"),
    (Code.SEND_MESSAGE_V2, _SEND | {"i": _properties(_SEND["i"], TIMER_DELAY_MS="50")}, b"soon"),
    (
        Code.SEND_MESSAGE_V2,
        _SEND | {"f": "4", "i": _properties(_SEND["i"], TRAN_MSG="true", PGROUP="cooks")},
        b"half",
    ),
    (Code.SEND_BATCH_MESSAGE, _SEND | {"m": "true"}, _batch(b"one", b"two")),
    (
        Code.SEND_REPLY_MESSAGE,
        _LONG_SEND | {"properties": _properties("", REPLY_TO_CLIENT=CLIENT, CORRELATION_ID="7")},
        b"reply",
    ),
    (
        Code.SEND_REPLY_MESSAGE_V2,
        _SEND | {"i": _properties("", REPLY_TO_CLIENT=CLIENT, CORRELATION_ID="7")},
        b"reply",
    ),
    (Code.CONSUMER_SEND_MSG_BACK, _BACK, b""),
    (Code.END_TRANSACTION, _END, b""),
    (Code.RESUME_CHECK_HALF_MESSAGE, {"topic": TOPIC, "msgId": _ID}, b""),
    (Code.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": _HANDLE, "producerGroup": "cooks"}, b""),
    (Code.PULL_MESSAGE, _PULL, b""),
    (Code.PULL_MESSAGE, _PULL | {"subscription": "a > 1", "expressionType": "SQL92"}, b""),
    (Code.LITE_PULL_MESSAGE, _PULL | {"sysFlag": "23"}, b""),
    (Code.POP_MESSAGE, _POP, b""),
    (Code.POP_MESSAGE, _POP | {"order": "true"}, b""),
    (Code.PEEK_MESSAGE, {**_MEMBER, "maxMsgNums": "32"}, b""),
    (Code.NOTIFICATION, {**_MEMBER, "pollTime": "15000", "bornTime": str(NOW)}, b""),
    (Code.POLLING_INFO, _MEMBER, b""),
    (Code.ACK_MESSAGE, {**_MEMBER, "extraInfo": _RECEIPT, "offset": "0"}, b""),
    (Code.BATCH_ACK_MESSAGE, {}, _BATCH_ACK),
    (
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        {**_MEMBER, "extraInfo": _RECEIPT, "offset": "0", "invisibleTime": "30000"},
        b"",
    ),
    (Code.HEART_BEAT, {}, _HEARTBEAT),
    (Code.UNREGISTER_CLIENT, {"clientID": CLIENT, "consumerGroup": GROUP}, b""),
    (Code.CHECK_CLIENT_CONFIG, {}, {"clientId": CLIENT, "group": GROUP, "subscriptionData": _SQL}),
    (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, b""),
    (Code.LOCK_BATCH_MQ, {}, _LOCK),
    (Code.UNLOCK_BATCH_MQ, {}, _LOCK),
    (Code.QUERY_CONSUMER_OFFSET, _MEMBER, b""),
    (Code.UPDATE_CONSUMER_OFFSET, {**_MEMBER, "commitOffset": "1"}, b""),
    (Code.GET_MAX_OFFSET, _QUEUE, b""),
    (Code.GET_MIN_OFFSET, _QUEUE, b""),
    (Code.SEARCH_OFFSET_BY_TIMESTAMP, {**_QUEUE, "timestamp": str(NOW)}, b""),
    (Code.GET_EARLIEST_MSG_STORETIME, _QUEUE, b""),
    (Code.VIEW_MESSAGE_BY_ID, {"topic": TOPIC, "offset": "0"}, b""),
    (Code.QUERY_MESSAGE, _QUERY, b""),
    (Code.QUERY_MESSAGE, _QUERY | {"key": _UNIQUE, "_UNIQUE_KEY_QUERY": "true"}, b""),
    (Code.QUERY_ASSIGNMENT, {}, _ASSIGNMENT),
    (Code.SET_MESSAGE_REQUEST_MODE, {}, _MODE),
    (Code.GET_ALL_MESSAGE_REQUEST_MODE, {}, b""),
    (Code.UPDATE_AND_CREATE_TOPIC, _TOPIC_SETTINGS, b""),
    (Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, _TOPICS),
    (Code.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, b""),
    (Code.CLEAN_UNUSED_TOPIC, {}, b""),
    (Code.GET_ALL_TOPIC_CONFIG, {"topicSeq": "0", "maxTopicNum": "20"}, b""),
    (Code.GET_TOPIC_CONFIG, {"topic": TOPIC}, b""),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, b""),
    (Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC}, b""),
    (Code.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, b""),
    (Code.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP}, b""),
    (
        Code.QUERY_CORRECTION_OFFSET,
        {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": "a,b"},
        b"",
    ),
    (Code.QUERY_CONSUME_QUEUE, {**_MEMBER, "index": "0", "count": "10"}, b""),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _GROUP_SETTINGS),
    (
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        {"groupConfigList": [_GROUP_SETTINGS]},
    ),
    (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {"groupSeq": "0", "maxGroupNum": "20"}, b""),
    (Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, b""),
    (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"}, b""),
    (Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}, b""),
    (Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "cooks"}, b""),
    (Code.GET_ALL_PRODUCER_INFO, {}, b""),
    (Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": GROUP, "topic": TOPIC}, b""),
    (Code.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP}, b""),
    (Code.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}, b""),
    (Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, b""),
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, _RESET, b""),
    (Code.CLONE_GROUP_OFFSET, _CLONE, b""),
    (Code.GET_ALL_CONSUMER_OFFSET, {}, b""),
    (Code.GET_ALL_DELAY_OFFSET, {}, b""),
    (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": GROUP, "clientId": CLIENT}, b""),
    (
        Code.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": GROUP, "clientId": CLIENT, "msgId": _ID, "topic": TOPIC},
        b"",
    ),
    (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": TOPIC, "group": GROUP}, b""),
    (Code.GET_BROKER_RUNTIME_INFO, {}, b""),
    (Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}, b""),
    (Code.GET_BROKER_CONFIG, {}, b""),
    (Code.UPDATE_BROKER_CONFIG, {}, b"traceOn=true\n"),
    (Code.DELETE_EXPIRED_COMMITLOG, {}, b""),
    (Code.CLEAN_EXPIRED_CONSUMEQUEUE, {}, b""),
    (Code.GET_BROKER_HA_STATUS, {"masterHAAddress": "", "masterFlushOffset": "0"}, b""),
    (Code.GET_TIMER_CHECK_POINT, {}, b""),
    (Code.GET_TIMER_METRICS, {}, b""),
    (Code.POP_ROLLBACK, {}, b""),
    (
        Code.STAGE_MESSAGES,
        {"query": "q", "batch": "1", "attempt": "a", **_QUEUE, "bornTimestamp": str(NOW)},
        _batch(b"one", b"two"),
    ),
    (Code.COMMIT_STAGED, {"query": "q", "batch": "1"}, [0, 1]),
    (Code.QUERY_STAGED, {"query": "q"}, b""),
    # The first user must be an administrator, so these leave everything open.
    (
        Code.AUTH_CREATE_USER,
        {"username": "bob"},
        {"username": "bob", "password": "b", "userType": "Normal"},
    ),
    (Code.AUTH_UPDATE_USER, {"username": "bob"}, {"username": "bob", "userStatus": "disable"}),
    (Code.AUTH_DELETE_USER, {"username": "bob"}, b""),
    (Code.AUTH_GET_USER, {"username": "bob"}, b""),
    (Code.AUTH_LIST_USER, {"filter": "b"}, b""),
    (Code.ASK_OPERATION, {"operation": "list_topics"}, b'{"q": "o"}'),
    (Code.RUN_OPERATION, {"operation": "delete_topic"}, b'{"topic": "o"}'),
    (Code.AUTH_CREATE_ACL, {"subject": "User:bob"}, _ACL),
    (Code.AUTH_UPDATE_ACL, {"subject": "Role:readers"}, _ACL),
    (Code.AUTH_DELETE_ACL, {"subject": "User:bob", "resource": "Topic:*"}, b""),
    (Code.AUTH_GET_ACL, {"subject": "User:bob"}, b""),
    (Code.AUTH_LIST_ACL, {"subjectFilter": "bob", "resourceFilter": "Topic"}, b""),
    (Code.CHANGE_BINDING, {"topic": TOPIC, "filter": "sensors/+/heat", "back": "false"}, b""),
    (Code.LIST_BINDINGS, {}, b""),
]

SAMPLES = [
    Command(code, "JAVA", 513, number, ext=ext, body=_encoded(body))
    for number, (code, ext, body) in enumerate(_SAMPLES)
]
"""In no order. All are two-way."""
