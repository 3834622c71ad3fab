"""One request that names very many things, on every port: whoever asks little does not wait for it.

What counts is how long the thread that serves everybody computes, as in `test_red_loop`.
"""

import itertools
import json
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onelog.record.forms.amqp_fields import encode_table
from onelog.wire.amqp.frame import content_frames
from onelog.wire.amqp.methods import ENCODERS
from onelog.wire.grpc import messages
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.frame import PARTS_MAX
from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5
from onelog.wire.mqtt.packets import Publish, Subscribe, SubscribeFilter, Unsubscribe
from onelog.wire.remoting.codes import RequestCode
from tests.e2e import floods
from tests.e2e.floods import amqp, h2, kafka, press, pressing, remoting, run, stomp
from tests.gateways.kafka.live import kafka as kafka_broker
from tests.gateways.kafka.raw import batch_of, fetch_fields, raw
from tests.security.test_red_loop import Besieged, besieged
from tests.waiting import eventually

__all__ = ["besieged"]

MANY = 60_000
SHORT_CPU_MS = 100
"""What the broker computes until others are served where each step is known to be a short one:
half of it where nothing else runs."""
Fields = dict[str, Any]


# -- Kafka -----------------------------------------------------------------------------------------


def named(count: int = MANY) -> list[str]:
    return [f"name-{each}" for each in range(count)]


def partitions(name: str, key: str = "topics", **each: Any) -> Fields:
    found = [{name: number % 8, **each} for number in range(MANY)]
    return {key: [{"name": "topic-0", "topic": "topic-0", "partitions": found}]}


QUESTIONS: dict[str, tuple[ApiKey, int, Callable[[], Fields]]] = {
    "a-topic-again-and-again": (
        ApiKey.METADATA,
        9,
        lambda: {"topics": [{"name": "topic-0"}] * MANY, "allow_auto_topic_creation": False},
    ),
    "positions-of-groups": (
        ApiKey.OFFSET_FETCH,
        8,
        lambda: {"groups": [{"group_id": each, "topics": None} for each in named()]},
    ),
    "positions": (
        ApiKey.OFFSET_FETCH,
        5,
        lambda: {
            "group_id": "g",
            "topics": [{"name": each, "partition_indexes": [0]} for each in named()],
        },
    ),
    "ends-of-epochs": (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        lambda: partitions("partition", leader_epoch=0),
    ),
    "first-messages": (ApiKey.DELETE_RECORDS, 1, lambda: partitions("partition_index", offset=0)),
    "settings": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda: {
            "resources": [
                {"resource_type": 2, "resource_name": f"topic-{each % 8}"} for each in range(MANY)
            ]
        },
    ),
    "changes-of-settings": (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda: {"resources": [{"resource_type": 2, "resource_name": each} for each in named()]},
    ),
    "topics-to-make": (
        ApiKey.CREATE_TOPICS,
        5,
        lambda: {
            "validate_only": True,
            "topics": [
                {"name": each, "num_partitions": 1, "replication_factor": 1} for each in named()
            ],
        },
    ),
    "topics-to-delete": (ApiKey.DELETE_TOPICS, 5, lambda: {"topic_names": named()}),
    "groups": (ApiKey.DESCRIBE_GROUPS, 5, lambda: {"groups": named()}),
    "groups-to-delete": (ApiKey.DELETE_GROUPS, 2, lambda: {"groups_names": named()}),
    "members-that-leave": (
        ApiKey.LEAVE_GROUP,
        5,
        lambda: {"group_id": "g", "members": [{"member_id": each} for each in named()]},
    ),
    "coordinators": (ApiKey.FIND_COORDINATOR, 4, lambda: {"coordinator_keys": named()}),
    "transactions": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        lambda: {
            "transactions": [
                {"transactional_id": each, "topics": [{"name": "topic-0", "partitions": [0]}]}
                for each in named()
            ]
        },
    ),
    "ends-of-transactions": (
        ApiKey.WRITE_TXN_MARKERS,
        1,
        lambda: {
            "markers": [
                {"producer_id": each, "topics": [{"name": "topic-0", "partition_indexes": [0]}]}
                for each in range(MANY)
            ]
        },
    ),
    "producers": (
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        lambda: {
            "topics": [{"name": "topic-0", "partition_indexes": [each % 8 for each in range(MANY)]}]
        },
    ),
    "passwords": (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda: {"users": [{"name": each} for each in named()]},
    ),
    "leaders": (
        ApiKey.ELECT_LEADERS,
        2,
        lambda: {"topic_partitions": [{"topic": each, "partitions": [0]} for each in named()]},
    ),
    "places": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda: partitions("partition_index", replicas=[0]),
    ),
    "messages-to-share": (
        ApiKey.SHARE_FETCH,
        2,
        lambda: {
            "group_id": "g",
            "member_id": "m",
            "max_records": 1,
            "max_bytes": 1,
            "topics": [
                {"topic_id": each.to_bytes(16, "big"), "partitions": [{"partition_index": 0}]}
                for each in range(MANY)
            ],
        },
    ),
    "partitions-to-fetch": (
        ApiKey.FETCH,
        4,
        lambda: (
            {"max_wait_ms": 0, "max_bytes": 1}
            | partitions("partition", fetch_offset=0, partition_max_bytes=1)
        ),
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_request_of_kafka_for_very_many_things_holds_nobody(
    besieged: Besieged, name: str
) -> None:
    key, version, fields = QUESTIONS[name]
    data = kafka(key, version, fields())
    besieged.press("kafka", b"", data, connections=1, repeat=False, seconds=1.5)


async def test_a_request_with_more_parts_than_a_limit_is_refused(tmp_path: Path) -> None:
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        wanted = {"topics": [{"name": "t", "partition_indexes": range(PARTS_MAX + 1)}]}
        client.tell(ApiKey.OFFSET_FETCH, 5, {"group_id": "g", **wanted})
        assert await client.is_closed()


async def test_a_text_that_is_longer_than_kafka_s_is_refused(tmp_path: Path) -> None:
    async with kafka_broker(tmp_path) as server, raw(server) as client:
        client.tell(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["x" * (1 << 15)]})
        assert await client.is_closed()


async def test_answers_that_wait_for_one_before_them_count_as_unsent(tmp_path: Path) -> None:
    async with kafka_broker(tmp_path) as server, raw(server) as client, raw(server) as other:
        await client.make_topic("orders")
        await client.make_topic("empty")
        await client.produce("orders", batch_of(bytes(100_000)))
        held = fetch_fields("empty", [(0, 0)], max_wait_ms=60_000)
        client.tell(ApiKey.FETCH, 12, held)
        for _ in range(20):
            client.tell(ApiKey.FETCH, 12, fetch_fields("orders", [(0, 0)]))
        unsent = server._capacity.unsent
        await eventually(lambda: unsent.total > 1_900_000, "counted")
        await other.produce("empty", batch_of(b"x"))
        for _ in range(21):
            await client.hear(ApiKey.FETCH, 12)
        assert unsent.total == 0


# -- AMQP ------------------------------------------------------------------------------------------


def declare(name: str, *, durable: bool = False, arguments: Fields | None = None) -> bytes:
    return amqp("queue.declare", name, False, durable, False, False, True, arguments or {})


def consumed(besieged: Besieged, queue: str, count: int) -> bytes:
    """Have so many messages in a queue; what takes them all without an acknowledgement."""
    data = floods.amqp_publish("", queue, b"x") * count
    press(besieged.ports["amqp"], floods.AMQP_HELLO, data, repeat=False, connections=1)
    return amqp("basic.consume", queue, "", False, False, False, True, {})


def test_very_many_messages_that_are_refused_at_once_hold_nobody(besieged: Besieged) -> None:
    dead: Fields = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    hello = floods.AMQP_HELLO + declare("graves") + declare("refused", arguments=dead)
    port = besieged.ports["amqp"]
    press(port, hello, b"", repeat=False, connections=1, seconds=0.3)
    consume = consumed(besieged, "refused", 40_000)
    with floods.pressing(port, floods.AMQP_HELLO, consume, 1, repeat=False) as (flood,):
        floods.run([flood], 2)
        besieged.seen()
        flood.tell(amqp("basic.nack", 0, True, False))
        floods.run([flood], 2)
    besieged.check()


@pytest.mark.parametrize("durable", [False, True], ids=["in-memory", "in-the-log"])
def test_messages_that_are_alike_for_very_many_queues_hold_nobody(
    besieged: Besieged, durable: bool
) -> None:
    fan = f"fan-{durable}"
    hello = floods.AMQP_HELLO + amqp(
        "exchange.declare", fan, "fanout", False, False, False, False, True, {}
    )
    hello += b"".join(
        declare(f"{fan}-{each}", durable=durable)
        + amqp("queue.bind", f"{fan}-{each}", fan, "", True, {})
        for each in range(1_000)
    )
    port = besieged.ports["amqp"]
    press(port, hello, b"", repeat=False, connections=1, seconds=3)
    data = floods.amqp_publish(fan, "", b"x") * 400
    besieged.press("amqp", floods.AMQP_HELLO, data, connections=1, repeat=False, seconds=3)
    deleted = (amqp("queue.delete", f"{fan}-{each}", False, False, True) for each in range(1_000))
    press(port, floods.AMQP_HELLO, b"".join(deleted), repeat=False, connections=1)


def test_messages_that_are_alike_for_very_many_bindings_of_headers_hold_nobody(
    besieged: Besieged,
) -> None:
    data = amqp("exchange.declare", "he", "headers", False, False, False, False, True, {})
    data += declare("by-headers")
    for each in range(3_000):
        wanted = {"x-match": "all", **{f"h{number}": each for number in range(20)}}
        data += amqp("queue.bind", "by-headers", "he", str(each), True, wanted)
    press(besieged.ports["amqp"], floods.AMQP_HELLO, data, repeat=False, connections=1)
    table = encode_table({f"h{number}": 1 for number in range(20)})
    properties = struct.pack(">HI", 0x2000, len(table)) + table
    method = ENCODERS["basic.publish"]("he", "k", False, False)
    message = b"".join(map(bytes, content_frames(1, method, properties, b"x", 131_072)))
    besieged.press("amqp", floods.AMQP_HELLO, message * 400, connections=1, repeat=False)
    gone = amqp("exchange.delete", "he", False, False)
    press(besieged.ports["amqp"], floods.AMQP_HELLO, gone, repeat=False, connections=1)


# -- STOMP -----------------------------------------------------------------------------------------


def test_a_subscription_to_very_many_queues_holds_nobody_and_its_end_neither(
    besieged: Besieged,
) -> None:
    queues = b"".join(declare(f"w.{each}", durable=True) for each in range(2_000))
    press(besieged.ports["amqp"], floods.AMQP_HELLO, queues, repeat=False, connections=1, seconds=3)
    data = b"".join(stomp("SUBSCRIBE", id=str(each), destination="/queue/w.*") for each in range(5))
    besieged.seen()
    port = besieged.ports["stomp"]
    press(port, floods.STOMP_HELLO, data, connections=1, repeat=False, seconds=2)
    time.sleep(0.5)
    besieged.check()


# -- MQTT ------------------------------------------------------------------------------------------


def subscribe(filters: list[str]) -> bytes:
    wanted = [SubscribeFilter(each, 1) for each in filters]
    return packets.encode_subscribe(V5, Subscribe(1, wanted, {}))


def test_conditions_of_very_many_consumers_of_a_queue_hold_nobody(besieged: Besieged) -> None:
    condition = "h LIKE '" + "%a" * 25 + "%b' OR h LIKE '%" + "_a%" * 30 + "b'"
    hello = floods.STOMP_HELLO + b"".join(
        stomp("SUBSCRIBE", id=str(each), destination="/queue/liked", selector=condition)
        for each in range(20)
    )
    with pressing(besieged.ports["stomp"], hello, b"\n", 10, repeat=False) as consumers:
        run(consumers, 0.5)
        sent = stomp("SEND", b"x", destination="/queue/liked", h="a" * 3_000)
        besieged.press("stomp", floods.STOMP_HELLO, sent, connections=3)


def test_very_many_retained_messages_for_many_subscribers_hold_nobody(besieged: Besieged) -> None:
    retained = b"".join(
        packets.encode_publish(V5, Publish(b"kept/%d" % each, 1, 0, b"", b"x"))
        for each in range(15_000)
    )
    port = besieged.ports["mqtt"]
    press(port, floods.mqtt_hello("r"), retained, repeat=False, connections=1, seconds=3)
    besieged.press(
        "mqtt",
        floods.mqtt_hello(),
        subscribe(["#", "kept/#", "+/+", "kept/+", "+/+/+/x"]) * 100,
        connections=20,
        repeat=False,
        seconds=3,
    )


def test_very_many_filters_that_are_given_up_at_once_hold_nobody(besieged: Besieged) -> None:
    filters = [f"given/up/{each}/+" for each in range(8_000)]
    gone = packets.encode_unsubscribe(V5, Unsubscribe(2, filters, {}))
    hello, data = floods.mqtt_hello("giving-up"), subscribe(filters) + gone
    besieged.press("mqtt", hello, data, connections=1, repeat=False, seconds=4)


def test_a_client_with_very_many_shared_filters_that_leaves_holds_nobody(
    besieged: Besieged,
) -> None:
    port, filters = besieged.ports["mqtt"], [f"$share/g{each}/left/behind" for each in range(9_000)]
    with pressing(port, floods.mqtt_hello("leaver"), subscribe(filters), 1, repeat=False) as found:
        run(found, 4)
        besieged.seen()
    time.sleep(2)
    besieged.check(SHORT_CPU_MS)


def test_a_session_with_very_many_filters_that_comes_and_goes_holds_nobody(
    besieged: Besieged,
) -> None:
    hello = floods.mqtt_hello("back", clean=False, properties={0x11: 60})
    filters = [f"$share/g{each % 900}/back/{each // 900}" for each in range(4_500)]
    press(besieged.ports["mqtt"], hello, subscribe(filters), connections=1, repeat=False, seconds=4)
    besieged.seen()
    for _ in range(5):
        press(besieged.ports["mqtt"], hello, b"", connections=8, repeat=False, seconds=0.3)
    besieged.check(SHORT_CPU_MS)
    again = floods.mqtt_hello("back")  # Which ends the session that was.
    press(besieged.ports["mqtt"], again, b"\xc0\0", connections=1, repeat=False, seconds=2)
    besieged.check(SHORT_CPU_MS)


def test_a_message_that_very_many_filters_of_one_client_match_holds_nobody(
    besieged: Besieged,
) -> None:
    levels = itertools.product("+a", repeat=12)
    filters = ["/".join((*each, last)) for each in levels for last in "+#"]
    port = besieged.ports["mqtt"]
    with pressing(port, floods.mqtt_hello("eager"), subscribe(filters), 1, repeat=False) as found:
        run(found, 4)
        besieged.seen()
        topics = [b"a/" * 12 + b"%d" % each for each in range(20)]
        data = b"".join(
            packets.encode_publish(V5, Publish(each, 0, 0, b"", b"x")) for each in topics
        )
        press(port, floods.mqtt_hello(), data, connections=1, repeat=False, seconds=2)
        besieged.check(SHORT_CPU_MS)


# -- gRPC ------------------------------------------------------------------------------------------


def test_very_many_packed_bodies_of_one_request_hold_nobody(besieged: Besieged) -> None:
    from isal import igzip

    body = igzip.compress(bytes(4 << 20))
    system = messages.SystemProperties(message_id="x", body_encoding=2)
    topic = messages.Resource(name="topic-0")
    message = messages.Message(topic=topic, body=body, system_properties=system)
    content = messages.SendMessageRequest(messages=[message] * 500).SerializeToString()
    data = b"\0" + struct.pack(">I", len(content)) + content
    calls = floods.grpc_calls(1, "/apache.rocketmq.v2.MessagingService/SendMessage")
    for at in range(0, len(data), 16_000):
        calls += h2(0, int(at + 16_000 >= len(data)), 1, data[at : at + 16_000])
    besieged.press("grpc", floods.GRPC_HELLO, calls, connections=1, repeat=False, seconds=2)


# -- HTTP ------------------------------------------------------------------------------------------


def asked(besieged: Besieged, method: str, path: str, body: bytes, kind: str) -> int:
    url = f"http://127.0.0.1:{besieged.ports['http']}{path}"
    request = urllib.request.Request(url, body, {"content-type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except urllib.error.URLError:
        return 413  # The broker has hung up before it was told everything.


JSON, FORM = "application/json", "application/x-www-form-urlencoded"
LARGE: dict[str, tuple[str, str, bytes, str, int]] = {
    "arguments": (
        "PUT",
        "/api/queues/%2F/large",
        b'{"arguments":{' + b",".join(b'"a%d":1' % each for each in range(500_000)) + b"}}",
        JSON,
        413,
    ),
    "form": (
        "POST",
        "/api/message/large",
        b"&".join(b"a%d=b" % each for each in range(500_000)),
        FORM,
        400,
    ),
    "definitions": (
        "POST",
        "/api/definitions",
        json.dumps(
            {"queues": [{"name": f"d{each}", "vhost": "/"} for each in range(3_000)]}
        ).encode(),
        JSON,
        204,
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_body_of_http_holds_nobody(besieged: Besieged, name: str) -> None:
    method, path, body, kind, status = LARGE[name]
    besieged.seen()
    assert asked(besieged, method, path, body, kind) == status
    besieged.check()


def test_lists_of_very_many_queues_hold_nobody(besieged: Besieged) -> None:
    queues = b"".join(declare(f"listed-{each}") for each in range(3_000))
    press(besieged.ports["amqp"], floods.AMQP_HELLO, queues, repeat=False, connections=1, seconds=3)
    data = b"GET /api/queues HTTP/1.1\r\nhost: x\r\n\r\n"
    besieged.press("http", b"", data * 300, connections=1, repeat=False, seconds=2)


# -- remoting --------------------------------------------------------------------------------------


def locks(count: int) -> bytes:
    queues = [{"topic": f"t{each}", "brokerName": "b", "queueId": 0} for each in range(count)]
    return json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": queues}).encode()


BODIES: dict[str, tuple[RequestCode, Callable[[], bytes]]] = {
    "locks": (RequestCode.LOCK_BATCH_MQ, lambda: locks(150_000)),
    "nothing": (
        RequestCode.LOCK_BATCH_MQ,
        lambda: b'{"mqSet":[' + b"{}," * 4_000_000 + b"{}]}",
    ),
    "acknowledgements": (
        RequestCode.BATCH_ACK_MESSAGE,
        lambda: json.dumps({"acks": [{"c": "g", "t": "topic-0", "b": "/w=="}] * 100_000}).encode(),
    ),
    "settings": (
        RequestCode.UPDATE_BROKER_CONFIG,
        lambda: b"".join(b"a%d=1\n" % each for each in range(300_000)),
    ),
    "groups": (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        lambda: json.dumps({"groupConfigList": [{"groupName": each} for each in named()]}).encode(),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_of_remoting_with_very_many_things_holds_nobody(
    besieged: Besieged, name: str
) -> None:
    code, body = BODIES[name]
    data = remoting(code, {}, body())
    besieged.press("broker", b"", data, connections=1, repeat=False, seconds=1.5)
