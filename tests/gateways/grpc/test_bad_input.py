"""Requests that are none, or too much: answered, and bounded."""

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest
from hpack import Encoder

from onelog.errors import StoreFullError
from onelog.gateways.grpc import clients, session
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import ClientType, Code
from onelog.wire.grpc.http2 import PREFACE
from tests.gateways.grpc.live import address, grpc_broker, make_topic
from tests.gateways.grpc.raw import SERVICE, RawClient


def message(topic: str, **fields: Any) -> Any:
    """A request to send one message."""
    request = messages.SendMessageRequest()
    made = request.messages.add()
    made.topic.name, made.body = topic, b"x"
    made.system_properties.message_id = "id"
    for name, value in fields.items():
        setattr(made.system_properties, name, value)
    return request


async def status_of(calling: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calling
    return raised.value.code()


async def test_what_is_no_request_gets_a_status_of_grpc(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, RawClient(address(server)) as client:
        assert await status_of(client.call("SendMessage", b"\xff\xff")) is grpc.StatusCode.INTERNAL
        made = client.channel.unary_unary(SERVICE + "Nothing")
        assert await status_of(made(b"")) is grpc.StatusCode.UNIMPLEMENTED
        large = [*client.metadata, ("x-much", "y" * 20_000)]
        calling = client.call("Heartbeat", messages.HeartbeatRequest(), metadata=large)
        assert await status_of(calling) is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await client.call("Heartbeat", messages.HeartbeatRequest(), metadata=[])
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        answer = await client.call("Heartbeat", messages.HeartbeatRequest())
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_a_request_is_refused_with_the_code_of_what_is_wrong(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, RawClient(address(server)) as client:
        topic = make_topic(server, "there")

        async def code(request: Any) -> Code:
            answer = await client.call("SendMessage", request)
            return Code(answer.status.code)

        assert await code(messages.SendMessageRequest()) is Code.MESSAGE_CORRUPTED
        assert await code(message("no such topic!")) is Code.ILLEGAL_TOPIC
        assert await code(message("rmq_sys_x")) is Code.ILLEGAL_TOPIC
        assert await code(message("nowhere")) is Code.TOPIC_NOT_FOUND
        assert await code(message(topic, tag="a|b")) is Code.ILLEGAL_MESSAGE_TAG
        assert await code(message(topic, message_id="")) is Code.ILLEGAL_MESSAGE_ID
        assert await code(message(topic, message_group="g" * 64)) is Code.ILLEGAL_MESSAGE_GROUP
        wrong_type = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert await code(message(topic, message_group="g")) is wrong_type
        assert await code(message(topic, message_type=99)) is Code.OK
        empty = message(topic)
        empty.messages[0].body = b""
        assert await code(empty) is Code.MESSAGE_BODY_EMPTY
        large = message(topic)
        large.messages[0].body = b"x" * ((2 << 20) + 1)
        assert await code(large) is Code.MESSAGE_BODY_TOO_LARGE
        reserved = message(topic)
        reserved.messages[0].user_properties["UNIQ_KEY"] = "x"
        assert await code(reserved) is Code.ILLEGAL_MESSAGE_PROPERTY_KEY
        many = message(topic)
        for number in range(129):
            many.messages[0].user_properties[f"p{number}"] = "x"
        assert await code(many) is Code.MESSAGE_PROPERTIES_TOO_LARGE
        two = message(topic)
        two.MergeFrom(message("nowhere"))
        assert await code(two) is Code.MESSAGE_CORRUPTED


async def test_each_message_has_its_entry_alone_or_with_others(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, RawClient(address(server)) as client:
        one = message(make_topic(server, "there"))
        two = messages.SendMessageRequest()
        two.MergeFrom(one)
        two.MergeFrom(one)
        for request, places in ((one, {0}), (two, {0, 1})):
            answer = await client.call("SendMessage", request)
            assert answer.status.code == Code.OK
            assert [each.status.code for each in answer.entries] == [Code.OK] * len(places)
            assert {each.message_id for each in answer.entries} == {"id"}
            assert max(each.offset for each in answer.entries) in places
        server.core.writer.refuse(StoreFullError("no room"))
        for request in (one, two):
            answer = await client.call("SendMessage", request)
            codes = {each.status.code for each in answer.entries}
            assert codes == {answer.status.code}
            assert Code.OK not in codes
            assert "no room" in answer.entries[0].status.message
        server.core.writer.refuse(None)


async def test_consumers_are_told_what_is_wrong_with_their_requests(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, RawClient(address(server)) as client:
        topic = make_topic(server, "there")

        async def code(**changes: Any) -> Code:
            request = messages.ReceiveMessageRequest(batch_size=1)
            request.group.name = changes.get("group", "g")
            request.message_queue.topic.name = changes.get("topic", topic)
            request.invisible_duration.seconds = changes.get("invisible", 10)
            request.filter_expression.expression = changes.get("expression", "*")
            request.filter_expression.type = changes.get("kind", 1)
            request.long_polling_timeout.nanos = 1_000_000
            first, *_ = await client.stream("ReceiveMessage", request)
            return Code(first.status.code)

        assert await code() is Code.MESSAGE_NOT_FOUND
        assert await code(topic="nowhere") is Code.TOPIC_NOT_FOUND
        assert await code(group="CID_RMQ_SYS_x") is Code.ILLEGAL_CONSUMER_GROUP
        assert await code(invisible=0) is Code.ILLEGAL_INVISIBLE_TIME
        assert await code(invisible=50_000) is Code.ILLEGAL_INVISIBLE_TIME
        assert await code(expression="a >", kind=2) is Code.ILLEGAL_FILTER_EXPRESSION

        ack = messages.AckMessageRequest()
        ack.group.name, ack.topic.name = "g", topic
        ack.entries.add(message_id="x", receipt_handle="nothing")
        answer = await client.call("AckMessage", ack)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
        end = messages.EndTransactionRequest(resolution=1, transaction_id="x")
        end.topic.name = topic
        answer = await client.call("EndTransaction", end)
        assert answer.status.code == Code.INVALID_TRANSACTION_ID
        end.transaction_id = "0" * 32
        answer = await client.call("EndTransaction", end)
        assert answer.status.code == Code.INVALID_TRANSACTION_ID


async def test_settings_of_nobody_end_the_stream(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server, RawClient(address(server)) as client:
        stream = client.telemetry()
        await stream.write(messages.TelemetryCommand(settings=messages.Settings()))
        assert await status_of(stream.read()) is grpc.StatusCode.INVALID_ARGUMENT
        stream = client.telemetry()
        await stream.write(b"\x12\xff")
        assert await status_of(stream.read()) is grpc.StatusCode.INTERNAL


async def test_there_is_an_end_to_telemetry_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 20)
    async with grpc_broker(tmp_path) as server:
        topic = make_topic(server, "there")
        async with contextlib.AsyncExitStack() as stack:
            for number in range(20):
                client = await stack.enter_async_context(
                    RawClient(address(server), f"client-{number}")
                )
                settings = await client.introduce_consumer("g", topic, ClientType.SIMPLE_CONSUMER)
                assert settings.backoff_policy.max_attempts == 17
            late = await stack.enter_async_context(RawClient(address(server), "late"))
            calling = late.introduce_consumer("g", topic)
            assert await status_of(calling) is grpc.StatusCode.RESOURCE_EXHAUSTED


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, number) + payload


def headers(encoder: Encoder, method: str) -> bytes:
    return bytes(
        encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", SERVICE + method),
                ("content-type", "application/grpc"),
                ("x-mq-client-id", "byhand"),
            ]
        )
    )


async def test_a_call_that_stays_silent_is_ended_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CALL_SECONDS_MAX", 0.2)
    async with grpc_broker(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.grpc.port)
        encoder = Encoder()
        writer.write(PREFACE + frame(4, 0, 0) + frame(1, 4, 1, headers(encoder, "SendMessage")))
        writer.write(frame(0, 0, 1, b"\0\0\0\0"))
        told = b""
        async with asyncio.timeout(20):
            while b"grpc-status\x014" not in told:
                told += await reader.read(1000)
        writer.close()
        async with RawClient(address(server)) as client:
            answer = await client.call("Heartbeat", messages.HeartbeatRequest())
            assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + frame(0, 0, 1, b"data of nothing"),
        PREFACE + frame(1, 4, 2, b"\x88"),
        PREFACE + frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
        PREFACE + b"\xff\xff\xff" + b"\x00" * 6,
        PREFACE + frame(8, 0, 0, struct.pack(">I", 0x7FFFFFFF)),
        PREFACE + frame(1, 0, 1, b"\x88") + frame(0, 0, 1, b""),
        PREFACE + frame(5, 4, 2, b"\0\0\0\x02"),
        PREFACE + frame(4, 0, 0, b"123"),
        PREFACE + frame(6, 0, 0, b"123"),
    ],
)
async def test_what_is_no_http2_ends_the_connection(tmp_path: Path, bad: bytes) -> None:
    async with grpc_broker(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.grpc.port)
        writer.write(bad)
        async with asyncio.timeout(20):
            while await reader.read(1000):
                pass
        writer.close()


async def test_calls_that_are_taken_back_at_once_do_not_go_on_for_ever(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.grpc.port)
        encoder = Encoder()
        writer.write(PREFACE + frame(4, 0, 0))
        for number in range(1, 3000, 2):
            writer.write(frame(1, 4, number, headers(encoder, "SendMessage")))
            writer.write(frame(3, 0, number, struct.pack(">I", 8)))
        async with asyncio.timeout(20):
            try:
                while await reader.read(10_000):
                    pass
            except ConnectionError:
                pass
        writer.close()
