"""Clients: their settings, those of the broker, and the stream on which the broker asks.

A client introduces itself on its Telemetry stream (`Settings`), gets the broker's settings, and
keeps the stream open. Heartbeats keep it in its groups. The core knows it as a channel, whichever
of its connections a request comes on. When it says goodbye, is silent, or its connection breaks and
it does not come back within seconds, it is gone from its groups, and what it has not acknowledged
is given to others.
"""

import itertools
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onelog.core.access import SELF
from onelog.core.membership.members import Client, ConsumerData, ConsumeType
from onelog.errors import OnelogError, PeerClosedError, PeerTimeoutError
from onelog.gateways import ClientProbe, RefusedError
from onelog.gateways.grpc.answers import OK
from onelog.gateways.grpc.checks import full_name, group_name, subscription_of, topic_name
from onelog.gateways.grpc.renewal import RenewedLeases
from onelog.rocketmq.properties import LEVELS_SECONDS
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import ClientType, Code
from onelog.wire.grpc.http2 import Status

if TYPE_CHECKING:
    from onelog.gateways.grpc.session import Call, Gateway, GrpcSession

log = logging.getLogger(__name__)

CLIENTS_MAX = 10_000
"""Telemetry streams of all connections, too."""
SILENT_MS_MAX = 120_000
BROKEN_MS_MAX = 10_000
"""Within which a client whose connection broke must come back to keep what it has."""
_GONE_MAX = 100
"""Clients that are taken leave of at a time."""
QUESTIONS_MAX = 100
"""What a client may be asked at a time."""
SUBSCRIPTIONS_MAX = 1_000
TOPICS_MAX = 1_000
VERSION = 513
"""The version that RocketMQ's tools are shown: V5_5_0."""
LANGUAGES = {"DOT_NET": "DOTNET", "GOLANG": "GO"}
KNOWN_LANGUAGES = frozenset("JAVA CPP DOTNET PYTHON RUBY GO PHP RUST NODE_JS".split())
CONSUMERS: dict[int, ConsumeType] = {
    ClientType.PUSH_CONSUMER: "CONSUME_PASSIVELY",
    ClientType.SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
    ClientType.PULL_CONSUMER: "CONSUME_ACTIVELY",
    ClientType.LITE_PUSH_CONSUMER: "CONSUME_PASSIVELY",
    ClientType.LITE_SIMPLE_CONSUMER: "CONSUME_ACTIVELY",
}
LITE = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
LITE_SUBSCRIPTIONS_MAX = 3_000
"""Lite topics that one client may want, as many as RocketMQ lets it."""
LITE_NAME_MAX = 64
DELAYS_MS = [each * 1_000 for each in LEVELS_SECONDS]
"""How long consumers wait between attempts, unless their group says otherwise."""
ATTEMPTS = 3
BATCH = 32
_PROPERTY_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")

Answered = Callable[[Any], None]
"""Called with what a client said (a TelemetryCommand), or an error."""


class GrpcClient(ClientProbe):
    """One client, by its id. The core knows it as a channel."""

    def __init__(self, client_id: str, user: str) -> None:
        self.client_id = client_id
        self.user = user
        self.settings: Any = None
        self.telemetry: Call | None = None
        self.session: GrpcSession | None = None
        """The connection it was last heard on; None if that is broken."""
        self.seen_ms = 0
        self.leases: RenewedLeases = {}
        self.lite_topics: dict[str, set[str]] = {}
        """The lite topics it wants, by the topic they are of."""
        self.receiving: set[Call] = set()
        """Requests for messages of lite topics that are held."""
        self.questions: dict[str, Answered] = {}
        self._numbers = itertools.count(1)

    @property
    def kind(self) -> int:
        return 0 if self.settings is None else int(self.settings.client_type)

    @property
    def is_lite(self) -> bool:
        """Whether it consumes lite topics."""
        return self.kind in LITE

    def send_command(self, **command: Any) -> bool:
        """Send it a command; False if it cannot hear."""
        call = self.telemetry
        if call is None or call.is_over or call.session.connection.congested:
            return False
        call.send(messages.TelemetryCommand(status=OK, **command))
        return True

    def ask(self, answered: Answered, timeout_ms: int, kind: str, **details: Any) -> None:
        """Ask it something that it answers with the same nonce."""
        if len(self.questions) >= QUESTIONS_MAX:
            answered(PeerTimeoutError(f"{len(self.questions)} questions wait for its answers"))
            return
        nonce = f"{next(self._numbers):x}"
        question = getattr(messages, _QUESTIONS[kind])(nonce=nonce, **details)
        if self.telemetry is None or not self.send_command(**{kind: question}):
            answered(PeerClosedError(f"{self.client_id} has no telemetry stream"))
            return
        self.questions[nonce] = answered
        self.telemetry.gateway.later(timeout_ms, lambda: self._too_late(nonce))

    def _too_late(self, nonce: str) -> None:
        answered = self.questions.pop(nonce, None)
        if answered is not None:
            answered(PeerTimeoutError(f"{self.client_id} does not answer"))

    def answered(self, nonce: str, command: Any) -> None:
        waiting = self.questions.pop(nonce, None)
        if waiting is not None:
            waiting(command)

    # -- what admin tools ask --------------------------------------------------------------------

    def thread_stack(self, timeout_ms: int, then: Callable[[str | OnelogError], None]) -> None:
        def notified(command: Any) -> None:
            is_error = isinstance(command, OnelogError)
            then(command if is_error else command.thread_stack_trace.thread_stack_trace)

        self.ask(notified, timeout_ms, "print_thread_stack_trace_command")

    def consume_directly(
        self, message: Any, timeout_ms: int, then: Callable[[int | OnelogError], None]
    ) -> None:
        """Have it consume a message; the code that it answers with."""
        from onelog.gateways.grpc.delivered import as_message

        def notified(command: Any) -> None:
            then(command if isinstance(command, OnelogError) else int(command.status.code))

        self.ask(
            notified,
            timeout_ms,
            "verify_message_command",
            message=as_message(message, message.topic),
        )


_QUESTIONS = {
    "print_thread_stack_trace_command": "PrintThreadStackTraceCommand",
    "verify_message_command": "VerifyMessageCommand",
}


class Clients:
    """All clients of one broker."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._broker = gateway.broker
        self._known: dict[str, GrpcClient] = {}
        self._broker.groups.on_channel_expired.append(self._expired)

    def find(self, call: "Call") -> GrpcClient | None:
        """The client that makes a call, if it has introduced itself; nobody else may use its id."""
        client = self._known.get(call.client_id)
        if client is not None and client.user != call.principal.name:
            raise RefusedError(Code.FORBIDDEN, "a client of another user has that id")
        return client

    def _seen(self, call: "Call") -> GrpcClient:
        client = self.find(call)
        if client is None:
            if len(self._known) >= CLIENTS_MAX:
                raise RefusedError(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are here")
            client = self._known[call.client_id] = GrpcClient(call.client_id, call.principal.name)
        client.seen_ms = self._gateway.clock.now_ms()
        if client.session is not call.session:
            client.session = call.session
            call.session.clients.add(client)
        return client

    def session_lost(self, clients: "set[GrpcClient]", session: "GrpcSession") -> None:
        """A connection broke on which these clients were heard."""
        broken = [client for client in clients if client.session is session]
        for client in broken:
            client.session = None
        if broken:
            self._gateway.later(BROKEN_MS_MAX, lambda: self._give_up(broken))

    def _give_up(self, clients: list[GrpcClient]) -> None:
        for client in clients[:_GONE_MAX]:
            if client.session is None and self._known.get(client.client_id) is client:
                self._gone(client)
        if left := clients[_GONE_MAX:]:
            self._gateway.later(0, lambda: self._give_up(left))

    # -- telemetry -----------------------------------------------------------------------------

    def telemetry(self, call: "Call", command: Any) -> None:
        """Something on a Telemetry stream."""
        kind = command.WhichOneof("command")
        if kind == "settings":
            self._introduced(call, command.settings)
        elif kind in ("thread_stack_trace", "verify_message_result"):
            client = self.find(call)
            if client is not None:
                client.answered(getattr(command, kind).nonce, command)

    def _introduced(self, call: "Call", settings: Any) -> None:
        if settings.WhichOneof("pub_sub") is None:
            raise RefusedError(
                Code.BAD_REQUEST, "there is no publishing or subscription data in settings"
            )
        _check_settings(settings)
        client = self._seen(call)
        if client.telemetry is not call:
            if client.telemetry is not None:
                client.telemetry.ended = None
                client.telemetry.stream.finish()
            client.telemetry = call
            call.ended = lambda: self._stream_ended(client, call)
        client.settings = settings
        self._register(call, client)
        call.send(messages.TelemetryCommand(status=OK, settings=self._merged(client)))

    def _stream_ended(self, client: GrpcClient, call: "Call") -> None:
        if client.telemetry is call:
            client.telemetry = None

    def _gone(self, client: GrpcClient) -> None:
        self._broker.groups.channel_closed(client)
        self._gateway.renewal.release(client.leases)
        for nonce in list(client.questions):
            client.answered(nonce, PeerClosedError(f"{client.client_id} is gone"))

    def _expired(self, channel: object) -> None:
        if isinstance(channel, GrpcClient):
            self._forget(channel)

    def _forget(self, client: GrpcClient) -> None:
        if self._known.get(client.client_id) is client:
            del self._known[client.client_id]
        if client.telemetry is not None:
            call, client.telemetry = client.telemetry, None
            call.ended = None
            call.stream.finish()
        self._gone(client)

    def sweep(self) -> None:
        """Forget clients that are silent, some at a time."""
        until_ms = self._gateway.clock.now_ms() - SILENT_MS_MAX
        silent = [each for each in self._known.values() if each.seen_ms < until_ms]
        for client in silent[:_GONE_MAX]:
            self._forget(client)
        if len(silent) > _GONE_MAX:
            self._gateway.later(0, self.sweep)

    # -- groups --------------------------------------------------------------------------------

    def _register(self, call: "Call", client: GrpcClient) -> None:
        settings = client.settings
        language = call.header(b"x-mq-language")
        language = LANGUAGES.get(language, language)
        if language not in KNOWN_LANGUAGES:
            language = "OTHER"
        address = call.session.connection.remote_address
        # These clients share out no queues, so a change of members is no news to them.
        known = Client(client.client_id, client, language, VERSION, address, is_notified=False)
        if settings.HasField("publishing"):
            topics = [topic_name(self._broker, each) for each in settings.publishing.topics]
            self._broker.groups.heartbeat(call.principal, known, (), topics)
        else:
            wanted = settings.subscription.subscriptions
            consumer = ConsumerData(
                group_name(settings.subscription.group),
                CONSUMERS.get(client.kind, "CONSUME_PASSIVELY"),
                subscriptions=tuple(
                    subscription_of(full_name(each.topic), each.expression) for each in wanted
                ),
            )
            self._broker.groups.heartbeat(call.principal, known, (consumer,), ())

    def heartbeat(self, call: "Call", request: Any) -> Any:
        client = self.find(call)
        if client is None or client.settings is None:
            raise RefusedError(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        if client.kind != ClientType.PRODUCER and client.kind not in CONSUMERS:
            raise RefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, f"{client.kind} is no client type")
        if client.kind != ClientType.PRODUCER:
            group_name(request.group)
        self._seen(call)
        self._register(call, client)
        return messages.HeartbeatResponse(status=OK)

    def terminated(self, call: "Call", request: Any) -> Any:
        client = self.find(call)
        if client is None or client.settings is None:
            raise RefusedError(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        self._forget(client)
        return messages.NotifyClientTerminationResponse(status=OK)

    # -- settings ------------------------------------------------------------------------------

    def _merged(self, client: GrpcClient) -> Any:
        """Its settings, and those that the broker decides."""
        settings = messages.Settings()
        settings.CopyFrom(client.settings)
        settings.metric.on = False
        if settings.HasField("publishing"):
            settings.publishing.validate_message_type = True
            settings.publishing.max_body_size = (
                self._gateway.context.loaded.config.store.body_bytes_max
            )
            policy = settings.backoff_policy
            policy.max_attempts = ATTEMPTS
            backoff = policy.exponential_backoff
            backoff.initial.nanos = 10_000_000
            backoff.max.seconds = 1
            backoff.multiplier = 2
            return settings
        group = self._broker.groups.require(SELF, full_name(settings.subscription.group))
        subscription = settings.subscription
        subscription.fifo = group.consume_message_orderly
        subscription.receive_batch_size = BATCH
        subscription.long_polling_timeout.FromMilliseconds(self._gateway.settings.poll_max_ms)
        if client.is_lite:
            subscription.lite_subscription_quota = LITE_SUBSCRIPTIONS_MAX
            subscription.max_lite_topic_size = LITE_NAME_MAX
        _fill_policy(settings.backoff_policy, group.retry_times_max, group.retry_policy)
        return settings


def _fill_policy(policy: Any, retries_max: int, document: Any) -> None:
    policy.max_attempts = retries_max + 1
    document = document or {}
    numbers = document.get("exponentialRetryPolicy")
    if document.get("type") == "EXPONENTIAL":
        numbers = numbers or {}
        backoff = policy.exponential_backoff
        backoff.initial.FromMilliseconds(numbers.get("initial", 5_000))
        backoff.max.FromMilliseconds(numbers.get("max", 7_200_000))
        backoff.multiplier = numbers.get("multiplier", 2)
        return
    table = (document.get("customizedRetryPolicy") or {}).get("next") or DELAYS_MS
    for delay_ms in table:
        policy.customized_backoff.next.add().FromMilliseconds(delay_ms)


def _check_settings(settings: Any) -> None:
    given = settings.client_properties
    if (
        len(given) > 32
        or sum(len(name) + len(value) for name, value in given.items()) > 4_096
        or any(
            not _PROPERTY_NAME.fullmatch(name) or len(value) > 256 for name, value in given.items()
        )
    ):
        raise RefusedError(
            Code.INVALID_CLIENT_PROPERTIES,
            "client properties: at most 32, of 64 and 256 characters, and 4096 bytes together",
        )
    if len(settings.subscription.subscriptions) > SUBSCRIPTIONS_MAX:
        raise RefusedError(Code.BAD_REQUEST, f"more than {SUBSCRIPTIONS_MAX} subscriptions")
    if len(settings.publishing.topics) > TOPICS_MAX:
        raise RefusedError(Code.BAD_REQUEST, f"more than {TOPICS_MAX} topics")


def answer_telemetry(call: "Call", status: Any) -> None:
    """A command on a Telemetry stream that went wrong ends it, as the proxy does."""
    is_clients = Code.BAD_REQUEST <= status.code < Code.INTERNAL_ERROR
    code = Status.INVALID_ARGUMENT if is_clients else Status.INTERNAL
    if status.code == Code.TOO_MANY_REQUESTS:
        code = Status.RESOURCE_EXHAUSTED
    call.stream.finish(code, f"process client telemetryCommand failed. {status.message}")
