"""Calls by hand: any bytes to any method, through gRPC's own library."""

import asyncio
import hmac
from types import TracebackType
from typing import Any, Self

import grpc.aio

from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import ClientType

SERVICE = "/apache.rocketmq.v2.MessagingService/"


class RawClient:
    """A channel, and a Telemetry stream when it is asked for."""

    def __init__(self, at: str, client_id: str = "raw") -> None:
        self.channel = grpc.aio.insecure_channel(at)
        self.metadata = [("x-mq-client-id", client_id), ("x-mq-language", "PYTHON")]
        self._stream: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.channel.close()

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        """The answer to a request, which may be bytes that are none."""
        options.setdefault("metadata", self.metadata)
        answer = getattr(messages, f"{method}Response")
        made = self.channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda each: (
                each if isinstance(each, bytes) else each.SerializeToString()
            ),
            response_deserializer=answer.FromString,
        )
        return await made(request, timeout=30, **options)

    async def stream(self, method: str, request: Any, **options: Any) -> list[Any]:
        """All answers to a request."""
        options.setdefault("metadata", self.metadata)
        made = self.channel.unary_stream(
            SERVICE + method,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=getattr(messages, f"{method}Response").FromString,
        )
        return [each async for each in made(request, timeout=30, **options)]

    def telemetry(self) -> Any:
        """A Telemetry stream."""
        made = self.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=lambda each: (
                each if isinstance(each, bytes) else each.SerializeToString()
            ),
            response_deserializer=messages.TelemetryCommand.FromString,
        )
        return made(metadata=self.metadata)

    async def introduce_consumer(
        self, group: str, topic: str, kind: ClientType = ClientType.PUSH_CONSUMER
    ) -> Any:
        """Become a member of a group; the settings it is told."""
        settings = messages.Settings(client_type=kind)
        settings.subscription.group.name = group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = topic, "*"
        return await self._introduce(settings)

    async def introduce_producer(self, topic: str) -> Any:
        """Become a producer, who may be asked about transactions; the settings it is told."""
        settings = messages.Settings(client_type=ClientType.PRODUCER)
        settings.publishing.topics.add(name=topic)
        return await self._introduce(settings)

    async def _introduce(self, settings: Any) -> Any:
        self._stream = self.telemetry()
        await self._stream.write(messages.TelemetryCommand(settings=settings))
        return (await self.hear()).settings

    def sign(self, user: str, secret: str) -> None:
        """Make all calls from now on as a user."""
        time = "20261117T120000Z"
        digest = hmac.new(secret.encode(), time.encode(), "sha1").hexdigest()
        text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={digest}"
        self.metadata += [("x-mq-date-time", time), ("authorization", text)]

    async def hear(self) -> Any:
        """The next command of the broker."""
        return await asyncio.wait_for(self._stream.read(), 30)

    async def tell(self, **command: Any) -> None:
        """Answer one."""
        status = messages.Status(code=20000, message="OK")
        await self._stream.write(messages.TelemetryCommand(status=status, **command))
