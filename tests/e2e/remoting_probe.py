"""The smallest possible remoting client: one connection, one JSON request, one answer.

Tests use it to see whether a server is ready, so it must not depend on any client under test.
"""

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass

SEND_MESSAGE_V2 = 310
UPDATE_AND_CREATE_TOPIC = 17
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    code: int
    remark: str
    fields: dict[str, str]
    body: bytes


def call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 3,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request to host:port and wait for its answer; OSError if there is none."""
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "language": "JAVA",
            "opaque": 1,
            "version": 409,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": dict(fields or {}),
        }
    ).encode()
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout_s))
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection, server_hostname=host))
        connection.sendall(
            struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
        )
        with connection.makefile("rb") as stream:
            size, header_size = struct.unpack(">ii", _exactly(stream.read(8), 8))
            header_size &= 0xFFFFFF
            frame = _exactly(stream.read(size - 4), size - 4)
    answer = json.loads(frame[:header_size])
    return Answer(
        code=answer["code"],
        remark=answer.get("remark") or "",
        fields=answer.get("extFields") or {},
        body=frame[header_size:],
    )


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ConnectionError(f"the connection ended after {len(data)} of {size} bytes")
    return data


def is_answering(address: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether somebody there speaks the protocol; any answer will do."""
    try:
        call(address, GET_BROKER_CLUSTER_INFO, tls=tls)
    except OSError:
        return False
    return True


def has_route(nameserver: str, topic: str = "TBW102", tls: ssl.SSLContext | None = None) -> bool:
    """Whether the name server knows a broker for the topic (by default: for new topics)."""
    try:
        return call(nameserver, GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, tls=tls).code == 0
    except OSError:
        return False


def accepts_message(broker: str, topic: str) -> bool:
    """Whether the broker acknowledges a message (to a topic that it creates, if need be)."""
    fields = {
        "a": "probe",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "l": "0",
        "m": "false",
    }
    try:
        return call(broker, SEND_MESSAGE_V2, fields, b"probe").code == 0
    except OSError:
        return False


def create_topic(broker: str, topic: str, queues: int) -> None:
    """Create a topic on one broker."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    answer = call(broker, UPDATE_AND_CREATE_TOPIC, fields, timeout_s=10)
    if answer.code != 0:
        raise ConnectionError(f"create {topic}: code {answer.code}, {answer.remark}")
