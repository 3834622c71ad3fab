"""Peers that would have the broker work for nobody but them, on every port.

What counts is how long the thread that serves everybody computes before a client that asks little
has its answer: that does not depend on what else the machine does. The broker and the client that
asks are processes of their own.
"""

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.wire.kafka.codes import ApiKey
from onelog.wire.mqtt import packets
from onelog.wire.mqtt.codes import V5
from onelog.wire.mqtt.packets import Subscribe, SubscribeFilter
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.replication import default_ha, epoch_ha
from tests.e2e import floods
from tests.e2e.floods import Flood, amqp, h2, kafka, kafka_fetch, press, remoting, stomp
from tests.e2e.stall_probe import Probe
from tests.e2e.watched_broker import ServingEverything

WAIT_CPU_MS_MAX = 250
"""What the broker may compute for others before a client has its answer: 100 where nothing
else runs. Beside other tests the same work takes twice the CPU time."""
LOST_CPU_SECONDS_MAX = 0.5
MIB = 1 << 20


class Besieged:
    """A broker, and a client that asks it small questions all the time."""

    def __init__(self, broker: ServingEverything, probe: Probe) -> None:
        self.broker = broker
        self.ports = broker.ports
        self._probe = probe

    def press(self, section: str, hello: bytes, data: bytes, **options: float) -> list[Flood]:
        """Flood a port while the client asks; it must not wait for that."""
        self._probe.seen()
        found = press(self.ports[section], hello, data, **options)  # type: ignore[arg-type]
        self.check()
        assert sum(each.sent for each in found) > 10_000, "nobody was pressed"
        return found

    def seen(self) -> None:
        """What comes now counts."""
        self._probe.seen()

    def check(self, cpu_ms_max: float = WAIT_CPU_MS_MAX) -> None:
        """The client has not waited."""
        seen = self._probe.seen()
        print(seen)
        assert seen.asked
        assert seen.lost == 0
        assert seen.cpu_ms < cpu_ms_max
        assert self.broker.bugs() == []


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    """One broker for all attacks: what they leave behind must not help the next ones either."""
    folder = tmp_path_factory.mktemp("besieged")
    with ServingEverything(folder) as broker:
        probe = Probe(broker.port, broker.pid, folder / "probe.log")
        try:
            # Who comes first finds what is imported then.
            press(broker.ports["http"], b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", repeat=False)
            yield Besieged(broker, probe)
        finally:
            probe.stop()
        assert broker.is_running


# -- Kafka -----------------------------------------------------------------------------------------


def test_pipelined_fetches_of_one_client_hold_nobody(besieged: Besieged) -> None:
    fetch = kafka_fetch("nothing-there", range(100))
    besieged.press("kafka", b"", fetch, connections=8)


def test_pipelined_questions_for_all_versions_hold_nobody(besieged: Besieged) -> None:
    besieged.press("kafka", b"", kafka(ApiKey.API_VERSIONS, 0))


def test_pipelined_questions_for_all_topics_hold_nobody(besieged: Besieged) -> None:
    press(
        besieged.ports["broker"],
        b"",
        b"".join(
            remoting(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": f"topic-{each}",
                    "defaultTopic": "TBW102",
                    "readQueueNums": "8",
                    "writeQueueNums": "8",
                    "perm": "6",
                    "topicFilterType": "SINGLE_TAG",
                },
            )
            for each in range(100)
        ),
        connections=1,
        repeat=False,
        seconds=0.5,
    )
    besieged.press("kafka", b"", kafka(ApiKey.METADATA, 1, {"topics": None}))


def test_a_fetch_of_very_many_partitions_holds_nobody(besieged: Besieged) -> None:
    fetch = kafka_fetch("topic-0", range(20_000))
    besieged.press("kafka", b"", fetch, connections=2, repeat=False, seconds=2)


def test_a_question_for_very_many_topics_holds_nobody(besieged: Besieged) -> None:
    topics = [{"name": f"unknown-{each}"} for each in range(20_000)]
    fields = {"topics": topics, "allow_auto_topic_creation": False}
    besieged.press("kafka", b"", kafka(ApiKey.METADATA, 4, fields), connections=2, repeat=False)


def test_a_request_to_produce_to_very_many_partitions_holds_nobody(besieged: Besieged) -> None:
    partitions = [{"index": each % 8, "records": b"no batch"} for each in range(20_000)]
    fields = {
        "transactional_id": None,
        "acks": 1,
        "timeout_ms": 1_000,
        "topic_data": [{"name": "topic-0", "partition_data": partitions}],
    }
    besieged.press("kafka", b"", kafka(ApiKey.PRODUCE, 3, fields), connections=2, repeat=False)


def test_offsets_of_very_many_partitions_hold_nobody(besieged: Besieged) -> None:
    partitions = [{"partition_index": each, "timestamp": -1} for each in range(20_000)]
    fields = {"replica_id": -1, "topics": [{"name": "topic-0", "partitions": partitions}]}
    besieged.press("kafka", b"", kafka(ApiKey.LIST_OFFSETS, 1, fields), connections=2, repeat=False)


def test_commits_of_very_many_partitions_hold_nobody(besieged: Besieged) -> None:
    partitions = [
        {"partition_index": each, "committed_offset": 1, "committed_metadata": ""}
        for each in range(20_000)
    ]
    fields = {
        "group_id": "commits",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "topic-0", "partitions": partitions}],
    }
    data = kafka(ApiKey.OFFSET_COMMIT, 2, fields)
    besieged.press("kafka", b"", data, connections=2, repeat=False)


@pytest.mark.parametrize(
    ("section", "hello", "data"),
    [
        ("kafka", b"", kafka_fetch("topic-0", range(8)) * 20_000),
        ("kafka", b"", kafka(ApiKey.METADATA, 1, {"topics": None}) * 20_000),
        ("broker", b"", remoting(RequestCode.GET_ALL_TOPIC_CONFIG) * 2_000),
        (
            "amqp",
            floods.AMQP_HELLO,
            amqp("queue.declare", "", False, False, True, True, False, {}) * 5_000,
        ),
        ("stomp", floods.STOMP_HELLO, stomp("BEGIN", transaction="t", receipt="1") * 5_000),
    ],
    ids=["kafka-fetch", "kafka-metadata", "remoting", "amqp", "stomp"],
)
def test_for_who_has_hung_up_nothing_more_is_done(
    besieged: Besieged, section: str, hello: bytes, data: bytes
) -> None:
    """What was read of it before must not be worked off for nobody."""
    with floods.pressing(besieged.ports[section], hello, data, 1, repeat=False) as (flood,):
        floods.run([flood], 0.1)
        # Not with a goodbye, but with a reset.
        linger = struct.pack("ii", 1, 0)
        flood.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    time.sleep(0.1)
    before = besieged.broker.computed_s()
    time.sleep(0.8)
    assert besieged.broker.computed_s() - before < LOST_CPU_SECONDS_MAX
    besieged.check()


# -- remoting --------------------------------------------------------------------------------------


def test_pipelined_requests_of_one_client_hold_nobody(besieged: Besieged) -> None:
    besieged.press("broker", b"", remoting(RequestCode.GET_ALL_TOPIC_CONFIG))


def test_requests_that_nobody_knows_hold_nobody(besieged: Besieged) -> None:
    besieged.press("broker", b"", remoting(9_999))


def test_requests_with_very_many_fields_hold_nobody(besieged: Besieged) -> None:
    ext = {f"field{each}": "x" * 10 for each in range(2_000)}
    besieged.press("broker", b"", remoting(RequestCode.GET_MAX_OFFSET, ext))


# -- AMQP ------------------------------------------------------------------------------------------

_names = itertools.count()


def _queues(count: int) -> bytes:
    return b"".join(
        amqp("queue.declare", f"flood-{next(_names)}", False, False, True, True, False, {})
        for _ in range(count)
    )


@pytest.mark.parametrize(
    "data",
    [
        _queues(3_000),
        b"".join(
            amqp("queue.declare", f"kept-{each}", False, True, False, False, False, {})
            for each in range(1_000)
        ),
        b"".join(
            amqp("exchange.declare", f"e{each}", "topic", False, False, False, False, False, {})
            for each in range(2_000)
        ),
        amqp("exchange.declare", "e", "topic", False, False, False, False, False, {})
        + amqp("queue.declare", "bound", False, False, True, True, False, {})
        + b"".join(
            amqp("queue.bind", "bound", "e", f"a.{each}.#", False, {}) for each in range(3_000)
        ),
    ],
    ids=["queues", "durable-queues", "exchanges", "bindings"],
)
def test_floods_of_declarations_hold_nobody(besieged: Besieged, data: bytes) -> None:
    besieged.press("amqp", floods.AMQP_HELLO, data, connections=1, repeat=False, seconds=2)


def test_floods_of_channels_hold_nobody(besieged: Besieged) -> None:
    data = b"".join(amqp("channel.open", channel=each) for each in range(2, 2_000))
    besieged.press("amqp", floods.AMQP_HELLO, data, connections=1, repeat=False)


def test_a_message_in_very_many_parts_holds_nobody(besieged: Besieged) -> None:
    size = 100_000
    whole = floods.amqp_publish("", "nowhere", bytes(size))
    head = whole[: whole.index(b"\x03\0\1")]
    parts = struct.pack(">BHI", 3, 1, 1) + b"x\xce"
    besieged.press("amqp", floods.AMQP_HELLO, head + parts * size)


def test_heart_beats_without_end_hold_nobody(besieged: Besieged) -> None:
    besieged.press("amqp", floods.AMQP_HELLO, b"\x08\0\0\0\0\0\0\xce" * 1_000)


def test_messages_to_nowhere_hold_nobody(besieged: Besieged) -> None:
    data = b"".join(floods.amqp_publish("", f"no{each}", b"x") for each in range(100))
    besieged.press("amqp", floods.AMQP_HELLO, data)


# -- STOMP -----------------------------------------------------------------------------------------


def test_floods_of_subscriptions_hold_nobody(besieged: Besieged) -> None:
    data = b"".join(
        stomp("SUBSCRIBE", id=str(each), destination=f"/topic/a{each}") for each in range(3_000)
    )
    besieged.press("stomp", floods.STOMP_HELLO, data, connections=1, repeat=False, seconds=2)


def test_messages_to_ever_other_destinations_hold_nobody(besieged: Besieged) -> None:
    data = b"".join(
        stomp("SEND", b"x", destination=f"/topic/b{each}", receipt=str(each))
        for each in range(1_000)
    )
    besieged.press("stomp", floods.STOMP_HELLO, data)


def test_floods_of_transactions_hold_nobody(besieged: Besieged) -> None:
    data = stomp("BEGIN", transaction="t") + stomp("ABORT", transaction="t")
    besieged.press("stomp", floods.STOMP_HELLO, data)


def test_empty_lines_without_end_hold_nobody(besieged: Besieged) -> None:
    besieged.press("stomp", floods.STOMP_HELLO, b"\r\n" * 1_000)


# -- MQTT ------------------------------------------------------------------------------------------


def _subscribe(first: int, count: int) -> bytes:
    wanted = [SubscribeFilter(f"a/{each}/+/#", 1) for each in range(first, first + count)]
    return packets.encode_subscribe(V5, Subscribe(1, wanted, {}))


def test_one_request_for_very_many_subscriptions_holds_nobody(besieged: Besieged) -> None:
    hello, data = floods.mqtt_hello("many"), _subscribe(0, 9_000)
    besieged.press("mqtt", hello, data, connections=1, repeat=False, seconds=2)


def test_thousands_of_durable_sessions_hold_nobody(besieged: Besieged) -> None:
    def hello(number: int) -> bytes:
        return floods.mqtt_hello(f"kept-{number}", clean=False, properties={0x11: 3_600})

    besieged.seen()
    press(
        besieged.ports["mqtt"],
        hello,
        lambda each: _subscribe(each, 5),
        connections=300,
        repeat=False,
    )
    besieged.check()


def test_pings_without_end_hold_nobody(besieged: Besieged) -> None:
    besieged.press("mqtt", floods.mqtt_hello("pings"), b"\xc0\0" * 1_000, connections=1)


# -- gRPC ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        h2(floods.SETTINGS, 0, 0, struct.pack(">HI", 4, 1) * 2_700),
        h2(floods.SETTINGS, 0, 0, struct.pack(">HI", 4, 1))
        + h2(floods.SETTINGS, 0, 0, struct.pack(">HI", 4, 2)),
        h2(floods.PING, 0, 0, bytes(8)),
        h2(floods.WINDOW, 0, 1, struct.pack(">I", 1)) * 1_000,
        h2(floods.WINDOW, 0, 0, struct.pack(">I", 1)) * 1_000,
        h2(0, 0, 1) * 1_000,
        h2(0, 0, 1, bytes(5) * 3_000),
    ],
    ids=["settings", "many-settings", "pings", "window", "windows", "nothing", "messages"],
)
def test_frames_that_cost_the_peer_nothing_hold_nobody(besieged: Besieged, data: bytes) -> None:
    """One connection with as many calls as it may have, and then the same frame without end."""
    hello = floods.GRPC_HELLO + floods.grpc_calls(1_000)
    besieged.press("grpc", hello, data, connections=2)


def test_calls_that_are_taken_back_at_once_hold_nobody(besieged: Besieged) -> None:
    data = b"".join(
        floods.grpc_calls(1, first=number) + h2(floods.RESET, 0, number, struct.pack(">I", 8))
        for number in range(1, 8_000, 2)
    )
    besieged.press("grpc", floods.GRPC_HELLO, data, repeat=False)


def test_headers_that_never_end_hold_nobody(besieged: Besieged) -> None:
    hello = floods.GRPC_HELLO + h2(floods.HEADERS, 0, 1, b"\0\1a\1b")
    besieged.press("grpc", hello, h2(floods.CONTINUATION, 0, 1) * 10_000, repeat=False)
    besieged.press("grpc", hello, h2(floods.CONTINUATION, 0, 1, b"\0\1a\1b") * 10_000, repeat=False)


# -- HTTP ------------------------------------------------------------------------------------------


def test_pipelined_requests_over_http_hold_nobody(besieged: Besieged) -> None:
    besieged.press("http", b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health HTTP/1.1\r\nhost: [\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: http://[\r\n\r\n",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: 100\r\n\r\nx",
    ],
    ids=["host", "origin", "cut-short"],
)
def test_requests_that_are_none_fill_no_log(besieged: Besieged, request_bytes: bytes) -> None:
    before = len(besieged.broker.log.read_bytes())
    for _ in range(20):
        press(besieged.ports["http"], b"", request_bytes, connections=1, repeat=False, seconds=0.02)
    time.sleep(0.1)
    assert besieged.broker.bugs() == []
    assert len(besieged.broker.log.read_bytes()) - before < 10_000


def test_bytes_that_are_no_http_fill_no_log(besieged: Besieged) -> None:
    before = len(besieged.broker.log.read_bytes())
    data = b"\0no request at all\r\n\r\n"
    press(besieged.ports["http"], b"", data, connections=300, repeat=False, seconds=0.3)
    added = besieged.broker.log.read_bytes()[before:].count(b"\n")
    assert added < 50, "a line for each of them"


def test_a_body_in_very_many_chunks_holds_nobody(besieged: Besieged) -> None:
    hello = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    besieged.press("http", hello, b"1\r\nx\r\n" * 1_000)


def test_a_websocket_with_tiny_messages_holds_nobody(besieged: Besieged) -> None:
    port = besieged.ports["http"]
    hello = floods.websocket_hello(port)
    begin = floods.websocket_message(floods.mqtt_hello("ws"))
    with floods.pressing(port, hello, begin, 2, repeat=False) as begun:
        floods.run(begun, 0.3)
        besieged.seen()
        for each in begun:
            each.repeat(floods.websocket_message(b"\xc0\0") * 20_000)
        floods.run(begun, 1)
        assert sum(each.sent for each in begun) > 100_000
    besieged.check()


# -- followers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [default_ha.encode_report(0) * 10_000, epoch_ha.encode_report(0) * 10_000],
    ids=["default", "epochs"],
)
def test_reports_without_end_hold_nobody(besieged: Besieged, data: bytes) -> None:
    besieged.press("replication", b"", data)


# -- bytes that wait -------------------------------------------------------------------------------


HALVES: dict[str, bytes] = {
    "broker": MIB.to_bytes(4, "big") + bytes(MIB // 2),
    "kafka": MIB.to_bytes(4, "big") + bytes(MIB // 2),
    "stomp": floods.STOMP_HELLO
    + b"SEND\ndestination:/topic/x\ncontent-length:%d\n\n" % MIB
    + bytes(MIB // 2),
    "mqtt": floods.mqtt_hello() + b"\x30\x80\x80\x40" + bytes(MIB // 2),
}


@pytest.mark.parametrize("section", HALVES)
def test_half_a_frame_of_very_many_peers_holds_nobody(besieged: Besieged, section: str) -> None:
    before = besieged.broker.anonymous_bytes()
    besieged.seen()
    port = besieged.ports[section]
    with floods.pressing(port, b"", HALVES[section], 120, repeat=False) as crowd:
        floods.run(crowd, 1.5)
        grown = besieged.broker.anonymous_bytes() - before
    besieged.check()
    assert grown < 120 * MIB


def test_frames_that_claim_much_take_nothing_before_their_bytes_are_there(
    besieged: Besieged,
) -> None:
    before = besieged.broker.anonymous_bytes()
    port, claim = besieged.ports["kafka"], (16 * MIB).to_bytes(4, "big") + bytes(100)
    with floods.pressing(port, b"", claim, 300, repeat=False) as crowd:
        floods.run(crowd, 0.5)
        assert besieged.broker.anonymous_bytes() - before < 32 * MIB
    besieged.check()


def test_unfinished_frames_of_all_ports_have_one_limit(
    tmp_path: Path,
) -> None:
    """Not one for each port: those who keep the most are cut off, and others do not wait."""
    share = 32 * MIB
    with ServingEverything(tmp_path, net__unread_bytes_max=share) as broker:
        probe = Probe(broker.port, broker.pid, tmp_path / "probe.log")
        besieged = Besieged(broker, probe)
        try:
            for section, half in HALVES.items():  # What is imported for the first of them is.
                press(broker.ports[section], b"", half, connections=1, repeat=False, seconds=0.1)
            before = broker.anonymous_bytes()
            besieged.seen()
            with contextlib.ExitStack() as stack:
                crowd: list[Flood] = []
                for section, half in HALVES.items():
                    port = broker.ports[section]
                    opened = floods.pressing(port, b"", half, 50, repeat=False)
                    crowd += stack.enter_context(opened)
                floods.run(crowd, 2)
                grown = broker.anonymous_bytes() - before
                cut = sum(not each.is_open for each in crowd)
            besieged.check()
        finally:
            probe.stop()
    print(f"{cut} of {len(crowd)} were cut off; {grown / MIB:.0f} MiB more")
    assert cut >= len(crowd) - 2 * share // MIB - 1
    assert grown < 2 * share


def test_parts_of_long_requests_of_all_clients_have_one_limit(tmp_path: Path) -> None:
    """What a request is read to takes many times its bytes, and all of them are worked on."""
    share = 64 * MIB
    partitions = [
        {"partition_index": each, "committed_offset": 1, "committed_metadata": ""}
        for each in range(150_000)
    ]
    fields = {
        "group_id": "commits",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "no-such-topic", "partitions": partitions}],
    }
    data = kafka(ApiKey.OFFSET_COMMIT, 2, fields)
    with ServingEverything(tmp_path, net__unread_bytes_max=share) as broker:
        probe = Probe(broker.port, broker.pid, tmp_path / "probe.log")
        besieged = Besieged(broker, probe)
        try:
            press(broker.ports["kafka"], b"", data, connections=1, repeat=False, seconds=0.1)
            before = broker.anonymous_bytes()
            besieged.seen()
            with floods.pressing(broker.ports["kafka"], b"", data, 30, repeat=False) as crowd:
                grown = 0
                for _ in range(20):
                    floods.run(crowd, 0.2)
                    grown = max(grown, broker.anonymous_bytes() - before)
            besieged.check()
        finally:
            probe.stop()
    print(f"{grown / MIB:.0f} MiB more")
    assert grown < 4 * share
