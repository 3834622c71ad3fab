"""RocketMQ's gRPC protocol on its port. What serves it is imported when the first client comes.

That takes longer than others should wait: it is done in a worker, and those who come meanwhile are
read from when it is done.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from onelog.config_sources import Loaded
from onelog.gateways import GatewayContext
from onelog.gateways.grpc.endpoints import Endpoints
from onelog.jobs import Job
from onelog.net.connection import Connection, Session
from onelog.rocketmq import lite

if TYPE_CHECKING:
    from onelog.gateways.grpc.session import Gateway


def _handlers() -> dict[str, tuple[Any, ...]]:
    """Every method: who handles it, whether requests come as a stream, how a status is answered."""
    from onelog.gateways.grpc import lite_topics, receiving, routes, sending
    from onelog.gateways.grpc.clients import answer_telemetry

    return {
        "QueryRoute": (routes.query_route,),
        "Heartbeat": (lambda call, request: call.gateway.clients.heartbeat(call, request),),
        "SendMessage": (sending.send_message,),
        "QueryAssignment": (routes.query_assignment,),
        "ReceiveMessage": (receiving.receive_message, False, receiving.answer_receive),
        "AckMessage": (receiving.ack_message,),
        "ForwardMessageToDeadLetterQueue": (receiving.to_dead_letters,),
        "PullMessage": (receiving.pull_message, False, receiving.answer_pull),
        "UpdateOffset": (receiving.update_offset,),
        "GetOffset": (receiving.get_offset,),
        "QueryOffset": (receiving.query_offset,),
        "EndTransaction": (sending.end_transaction,),
        "Telemetry": (
            lambda call, command: call.gateway.clients.telemetry(call, command),
            True,
            answer_telemetry,
        ),
        "NotifyClientTermination": (
            lambda call, request: call.gateway.clients.terminated(call, request),
        ),
        "ChangeInvisibleDuration": (receiving.change_invisible,),
        "RecallMessage": (sending.recall_message,),
        "SyncLiteSubscription": (lite_topics.sync,),
    }


class GrpcGateway:
    """Its port, and what its sessions share once there is one."""

    def __init__(self, context: GatewayContext) -> None:
        self.context = context
        self._shared: Gateway | None = None
        self.endpoints = Endpoints(context)
        self._expiring = Job("forgetting lite topics")
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self) -> None:
        """Open its port."""
        await self.context.listen(self.context.loaded.config.grpc.port, self._session, _handlers)
        await self.endpoints.start()
        self._expire_lite_topics()

    def _expire_lite_topics(self) -> None:
        """Now and then, forget lite topics that are not used any more, if any of them may go."""
        self._timer = asyncio.get_running_loop().call_later(
            lite.CHECK_MS / 1000, self._expire_lite_topics
        )
        broker, now_ms = self.context.broker, self.context.clock.now_ms()
        with self._expiring:
            lifetimes_ms = lite.lifetimes(broker)
            if lifetimes_ms:
                find = partial(lite.expired, broker, now_ms, lifetimes_ms)
                self.context.look_up(find, lambda found: self._forget(found()))

    def _forget(self, found: list[tuple[str, int]]) -> None:
        with self._expiring:
            left = lite.forget_some(self.context.broker, found)
            if left and self._timer is not None:
                asyncio.get_running_loop().call_soon(self._forget, left)

    def _session(self, connection: Connection) -> Session:
        from onelog.gateways.grpc.session import GrpcSession

        return GrpcSession(connection, self.shared())

    def shared(self) -> "Gateway":
        if self._shared is None:
            from onelog.gateways.grpc.sending import ask_producer
            from onelog.gateways.grpc.session import Gateway

            self._shared = Gateway(self.context, _handlers(), self.endpoints)
            self.context.broker.transactions.ask_producer.append(ask_producer)
        return self._shared

    def refresh(self, loaded: Loaded) -> None:
        """Take over what follows from the configuration."""
        if self._shared is not None:
            self._shared.refresh(loaded)

    async def close(self) -> None:
        """Take no more calls, and give back what clients have not acknowledged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.endpoints.close()
        if self._shared is not None:
            self._shared.close()
