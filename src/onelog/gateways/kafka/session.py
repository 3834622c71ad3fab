"""One Kafka client of the broker: requests in, answers out, in the order of the requests.

A handler takes the session and the request. It returns the fields of the answer, or None if they
come later, by `Session.answer` (a held fetch, a batch that waits for the disk), or never (`drop`).
Where a request may name very many partitions, the handler is a generator that yields between them.
A client may send many requests before it reads an answer: each has a place in a queue, and answers
leave from its head. Those that wait for one before them count as bytes that are unsent.

Invariants: answers leave in the order in which their requests came; while the peer is behind with
reading, or has had its turn, answers wait here, and its further requests stay unread.
"""

import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from onelog.core.access import SELF, Action, Kind, Principal
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import (
    NotPermittedError,
    OnelogError,
    WireError,
)
from onelog.gateways import GatewayContext
from onelog.gateways.kafka.cluster.agreement import Agreement
from onelog.gateways.kafka.cluster.spread import Spread
from onelog.gateways.kafka.cluster.view import Cluster, KafkaNode
from onelog.gateways.kafka.configs import ProduceTargets
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.fetch_sessions import FetchSessions
from onelog.gateways.kafka.groups.offsets_topic import OffsetsTopic
from onelog.gateways.kafka.kept_settings import KeptSettings
from onelog.gateways.kafka.names import TopicIds
from onelog.gateways.kafka.share_sessions import ShareSessions
from onelog.message import encode_host
from onelog.net.connection import Connection, FramedSession, is_here
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.frame import (
    Header,
    KafkaFrameReader,
    Piece,
    encode_answer,
    encode_long_answer,
    read_fields,
    read_header,
    read_long_fields,
)
from onelog.wire.kafka.schema import Fields

log = logging.getLogger(__name__)

PENDING_MAX = 1_000
"""Requests of one client that may wait for their answers; more stay unread."""
KEPT_BYTES_MAX, LONG_KEPT_BYTES = 16 << 20, 1 << 20
"""What answers may take that wait for one before them; and what one counts for that is long."""
LONG_BYTES, LONG_STEPS = 32 << 10, 64
"""A request of so many bytes, or with an answer of so many parts, may take its time."""
PART_BYTES = 512
"""What a part of a long request takes in memory once it is read."""
_FEATURES = {"transaction.version": 2}
"""What clients may use only if all brokers do; with 2, transactions that KIP-890 describes."""
OPERATIONS: dict[int, Action] = {
    3: "consume",
    4: "publish",
    5: "create",
    6: "delete",
    7: "alter",
    8: "describe",
    9: "alter",
    10: "describe",
    11: "alter",
    12: "publish",
}
"""What Kafka's operations are here, by their numbers."""
_FEATURES_VERSION = 4
"""Clients before do not understand that a feature may be off."""
_BEFORE_LOGIN = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

_Found = TypeVar("_Found")
Steps = Generator[None, None, Fields | None]
"""A handler at work, which ends with the answer."""


class Request:
    """A request, and its answer once there is one."""

    __slots__ = (
        "answer client_id fields is_dropped is_long kept_bytes key number pieces version".split()
    )

    def __init__(self, key: int, version: int, number: int, client_id: str, fields: Fields) -> None:
        self.key = key
        self.version = version
        self.number = number
        self.client_id = client_id
        self.fields = fields
        self.answer: Fields | None = None
        self.is_dropped = False
        """Whether nobody wants an answer."""
        self.is_long = False
        """Whether its answer may have very many parts."""
        self.pieces: list[Piece] | None = None
        """The bytes of an answer that waits for those before it."""
        self.kept_bytes = 0
        """What these take."""


class Gateway:
    """What all sessions of one broker share."""

    def __init__(
        self,
        context: GatewayContext,
        handlers: "dict[ApiKey, Handler]",
        versions: dict[ApiKey, range],
    ) -> None:
        self.context = context
        self.broker = context.broker
        self.clock = context.clock
        self.store_host = context.store_host
        self.handlers: dict[int, Handler] = {int(key): each for key, each in handlers.items()}
        self.versions: dict[int, range] = {int(key): each for key, each in versions.items()}
        """What is served of each API; what is advertised, a client may use."""
        self.ids = TopicIds(context.broker)
        self.targets = ProduceTargets(context)
        # Clients do not take a new address for a number that they know: each master has its own.
        config = context.loaded.config.broker
        node_id = context.loaded.config.kafka.node_id
        self.cluster = Cluster(
            node_id, self._here, config.broker_id, self._successors, context.replica_status
        )
        self.agreement: Agreement | None = None
        """With the other brokers; None if there are no others."""
        self.spread: Spread | None = None
        if not self.cluster.is_alone:
            self.agreement = Agreement(context, self.cluster, self._here())
            self.spread = Spread(self.agreement, context.broker)
        self.offsets_topic = OffsetsTopic(self.broker, self.cluster, self.clock)
        self.kept_settings = KeptSettings(context, self.cluster.node_id)
        self.fetch_sessions = FetchSessions(context.random)
        self.share_sessions = ShareSessions(self._member_gone)

    def _member_gone(self, group: str, member: str) -> None:
        """A member of a share group was cut off: others may have what it has."""
        self.broker.queues.sharing.release(SELF, group, member)

    def _here(self) -> KafkaNode:
        """This broker, as clients are told of it."""
        config = self.broker.admin.config
        port = self.context.loaded.config.kafka.port
        return KafkaNode(self.cluster.node_id, config.name, config.client_host, port)

    def _successors(self) -> list[KafkaNode]:
        """The other nodes of a replica set: clients that know them find the next master."""
        found = []
        for number, address in sorted(self.context.replica_status.kafka_nodes().items()):
            host, _, port = address.rpartition(":")
            if number != self.cluster.node_id:
                found.append(
                    KafkaNode(number, self.broker.admin.config.name, host.strip("[]"), int(port))
                )
        return found


class KafkaSession(FramedSession):
    """One client. It is also the channel that the core knows it by."""

    _reader: KafkaFrameReader

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        super().__init__(connection)
        self._reader = KafkaFrameReader(gateway.broker.admin.config.frame_bytes_max)
        self.gateway = gateway
        self.broker = gateway.broker
        host, port = connection.remote
        self.host = host
        origin = "kafka", connection.remote_address
        certified = self.broker.users.logins.certified(connection.certificate, *origin)
        self.log_in(certified or Principal("", *origin))
        self.born_host = encode_host(host.partition("%")[0] or "127.0.0.1", port)
        self.sasl: str | None = None
        """The mechanism by which the client logs in."""
        self.scram: object = None
        """An exchange that has begun."""
        self._pending: deque[Request] = deque()
        self._kept_bytes = 0
        """Of answers that wait for one before them."""
        self.fetched = 0
        """Where the next fetch goes on, of more partitions than are looked at in one."""
        self._part_bytes = 0
        """Of a long request that is being served: they count as unread."""
        self._reads_apart = 0
        """How many batches of the last request workers look into; those behind it wait."""
        self.is_local = is_here(connection.remote[0], connection.local[0])

    def log_in(self, principal: Principal) -> None:
        """The client has proved who it is."""
        self.principal = principal
        self.connection.user = principal.name

    def operations(self, kind: Kind, name: str, most: int) -> int:
        """Which of Kafka's operations they may, of those that such a thing has; a bit for each."""
        access, principal = self.broker.users, self.principal
        if access.is_open:
            return most
        return sum(
            1 << number
            for number, action in OPERATIONS.items()
            if most >> number & 1 and access.may(principal, action, (kind, name))
        )

    def require_administrator(self) -> None:
        """`NotPermittedError` if what deletes or reconfigures is not for this peer."""
        loaded = self.gateway.context.loaded.config
        if self.principal.name:
            return  # Users have permissions for that.
        if not self.is_local and not loaded.security.remote_admin:
            raise NotPermittedError(
                "administration is for the broker's own machine, unless security.remote_admin is "
                f"true: {self.host} is another one"
            )

    # -- requests ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; the rest of a large request is read to where it stays."""
        if not data:
            self._send_ready()
        super().data_received(data)
        if self._unread:
            self.connection.read_to(self._reader.room, self._filled)

    def _filled(self, count: int) -> None:
        """Bytes of a large request arrived."""
        self._reader.fill(count)
        room = self._reader.room
        self.connection.read_to(room, self._filled)
        if room is None:
            self.connection.data_received(b"")
        else:
            self._keep(self._reader.unread_bytes, False)

    def writable(self) -> None:
        """The peer reads again: go on with the answers and requests that were put off."""
        self._send_ready()
        super().writable()

    def _keep(self, unread: int, anew: bool) -> None:
        """So many bytes wait for the rest of their request; `anew`: it is another than before."""
        if unread > 2 * self.broker.admin.config.frame_bytes_max:
            raise WireError(f"{unread} bytes of requests wait for {len(self._pending)} answers")
        super()._keep(unread + self._part_bytes, anew)

    def connection_lost(self) -> None:
        """The connection is gone, and with it everything that hung on it."""
        self._pending.clear()
        self.broker.groups.channel_closed(self)
        self.gateway.share_sessions.channel_closed(self)

    def _handle_read(self) -> None:
        connection = self.connection
        if self._is_full() or connection.closing:
            return
        for frame in self._reader.frames():
            self._handle(frame)
            if self._is_full() or connection.closing or connection.turn_is_over():
                break

    def _is_full(self) -> bool:
        """Whether further requests stay unread for now."""
        return self._owes_much() or self.connection.congested or self._reads_apart > 0

    def _owes_much(self) -> bool:
        return len(self._pending) >= PENDING_MAX or self._kept_bytes >= KEPT_BYTES_MAX

    def _handle(self, frame: memoryview) -> None:
        header = read_header(frame)
        key, version, number, client_id, _ = header
        served = self.gateway.versions.get(key)
        if served is None or version not in served or version not in schema.apis()[key].versions:
            if key != ApiKey.API_VERSIONS:
                raise WireError(f"version {version} of API {key} is not served")
            request = Request(key, 0, number, client_id, {})
            self._pending.append(request)
            self.answer(request, api_versions_answer(self.gateway, ErrorCode.UNSUPPORTED_VERSION))
            return
        if (
            not self.principal.name
            and not self.broker.users.is_open
            and key not in _BEFORE_LOGIN
            and self.broker.users.logins.is_needed
        ):
            raise WireError("not logged in: users log in by SASL here")
        if len(frame) < LONG_BYTES:
            self._serve(Request(key, version, number, client_id, read_fields(header, frame)))
        else:
            self.work(self._serve_long(header, frame))

    def _serve(self, request: Request) -> bool:
        """Whether the request is done with, or goes on in steps."""
        self._pending.append(request)
        try:
            answer = self.gateway.handlers[request.key](self, request)
            if answer is not None and type(answer) is not dict:
                steps = cast(Steps, answer)
                for _ in range(LONG_STEPS):  # Most have one or two.
                    next(steps)
                    if self.connection.turn_is_over():
                        break
                request.is_long = True
                self.work(self._finish(request, steps))
                return False
        except StopIteration as end:
            answer = end.value
        except OnelogError as error:
            answer = refusal(error)
        if answer is not None:
            self.answer(request, cast(Fields, answer))
        return True

    def _serve_long(self, header: Header, frame: memoryview) -> Iterator[None]:
        key, version, number, client_id, _ = header
        steps = read_long_fields(header, frame)
        while True:
            try:
                parts = next(steps)
            except StopIteration as end:
                request = Request(key, version, number, client_id, end.value)
                break
            self._keep_parts(parts)
            yield
        if self._serve(request) and self._part_bytes:
            self._keep_parts(0)

    def _keep_parts(self, count: int) -> None:
        """A long request has so many parts by now, or is served."""
        self._part_bytes = count * PART_BYTES
        self._keep(self._reader.unread_bytes, True)

    def _finish(self, request: Request, steps: Steps) -> Iterator[None]:
        """Answer what a handler does in steps."""
        try:
            answer = yield from steps
        except OnelogError as error:
            answer = refusal(error)
        if self._part_bytes:
            self._keep_parts(0)
        if answer is not None:
            self.answer(request, answer)

    # -- answers -------------------------------------------------------------------------------

    def answer(self, request: Request, fields: Fields) -> None:
        """Answer a request, now or as soon as those before it are answered."""
        request.answer = fields
        if self._pending and self._pending[0] is request:
            self._send_ready()
        elif self._pending and not request.is_dropped:
            self._keep_back(request, fields)

    def _keep_back(self, request: Request, fields: Fields) -> None:
        """An answer waits for one before it: what it takes is known, and counts as unsent."""
        request.kept_bytes = LONG_KEPT_BYTES
        if not request.is_long:
            request.pieces = self._encoded(request, fields)
            request.kept_bytes, request.answer = sum(map(len, request.pieces)), {}
        self._kept_bytes += request.kept_bytes
        self.connection.keep_back(self._kept_bytes)

    def _encoded(self, request: Request, fields: Fields) -> list[Piece]:
        return encode_answer(request.key, request.version, request.number, fields)

    def drop(self, request: Request) -> None:
        """Give no answer: the peer wants none."""
        request.is_dropped = True
        self.answer(request, {})

    def refuse(self, request: Request, error: OnelogError) -> None:
        """Answer a request that went wrong as a whole."""
        self.answer(request, refusal(error))

    def _send_ready(self) -> None:
        pending, connection = self._pending, self.connection
        was_full = self._owes_much()
        while pending and pending[0].answer is not None and not connection.congested:
            request = pending[0]
            assert request.answer is not None
            if request.kept_bytes:
                self._kept_bytes -= request.kept_bytes
                request.kept_bytes = 0
                connection.keep_back(self._kept_bytes)
            if request.is_long:
                answer, request.answer = request.answer, None
                self.work(self._send_long(request, answer))
                return
            pending.popleft()
            if not request.is_dropped:
                connection.send(request.pieces or self._encoded(request, request.answer))
                if connection.closing or (pending and connection.turn_is_over()):
                    break
        if was_full and not self._owes_much():
            connection.wait_for_turn()

    def _send_long(self, request: Request, answer: Fields) -> Iterator[None]:
        number = request.number
        pieces = yield from encode_long_answer(request.key, request.version, number, answer)
        if self._pending:
            self._pending.popleft()
            self.connection.send(pieces)
            self._send_ready()

    def later(self, request: Request, work: Callable[[], Awaitable[Fields | None]]) -> None:
        """Answer with what others have to be asked for, in a cluster; None if that comes later."""

        async def run() -> None:
            try:
                fields = await work()
                if fields is not None:
                    self.answer(request, fields)
            except OnelogError as error:
                self.refuse(request, error)
            except Exception:
                log.exception("request %d of %s failed", request.key, self.connection)
                self.connection.abort()

        assert self.gateway.agreement is not None
        self.gateway.agreement.spawn(run())

    def read_apart(self, look: Callable[[], _Found], then: Callable[[_Found | None], None]) -> None:
        """Have a worker look into a part of a request; those behind the request wait for that."""

        def on_found(found: _Found | None) -> None:
            self._reads_apart -= 1
            if self.connection.closing:
                return
            self.connection.guard(then, found)
            if not self._reads_apart:
                self.connection.hold(False)
                self.connection.wait_for_turn()

        self._reads_apart += 1
        self.connection.hold()
        self.broker.cursors.in_line(look, on_found)

    def look_up(self, request: Request, find: Callable[[], Fields]) -> None:
        """Answer with what `find` finds in a worker."""

        def on_found(found: Callable[[], Fields]) -> None:
            request.is_long = True
            try:
                self.answer(request, found())
            except OnelogError as error:
                self.refuse(request, error)
            except Exception:
                log.exception("request %d of %s failed", request.key, self.connection)
                self.connection.abort()

        self.gateway.context.look_up(find, on_found)


Handler = Callable[[KafkaSession, Request], Fields | Steps | None]


def agreed(
    handle: Callable[[KafkaSession, Request], Fields | Steps], again: bool = False
) -> Handler:
    """A handler that knows what all brokers know, and may propose changes to them.

    `again`: it only asks, and is to see what it proposed.
    """

    def handler(session: KafkaSession, request: Request) -> Fields | Steps | None:
        agreement = session.gateway.agreement
        if agreement is None:
            return handle(session, request)
        request.is_long = True
        session.later(request, lambda: agreement.agree(lambda: handle(session, request), again))
        return None

    return handler


def whole(answer: Fields | Steps) -> Fields:
    """The answer of a handler, with all its steps taken at once."""
    try:
        while not isinstance(answer, dict):
            next(answer)
    except StopIteration as end:
        return cast(Fields, end.value)
    return answer


def leader_of(session: KafkaSession, topic: TopicConfig, partition: int) -> Fields:
    """Who has a partition, for a client that asked another broker."""
    node = session.gateway.cluster.leader(topic, partition)
    return {"leader_id": node, "leader_epoch": session.gateway.cluster.leader_epoch}


def refusal(error: OnelogError) -> Fields:
    """The answer to a request that went wrong as a whole; APIs without a code have handlers that
    tell it for each of their parts."""
    return {"error_code": error_code(error), "error_message": str(error)}


@contextmanager
def refusal_in(answer: Fields) -> Iterator[None]:
    """Have what goes wrong be in an answer to a part of a request."""
    try:
        yield
    except OnelogError as error:
        answer |= refusal(error)


def api_versions(session: KafkaSession, request: Request) -> Fields:
    """API_VERSIONS: what is served."""
    if request.version >= 3:
        software = request.fields["client_software_name"], request.fields["client_software_version"]
        if not all(_SOFTWARE.fullmatch(each) for each in software):
            return api_versions_answer(session.gateway, ErrorCode.INVALID_REQUEST)
    answer = api_versions_answer(session.gateway, ErrorCode.NONE)
    if not session.gateway.cluster.is_alone:
        return answer
    if request.version >= _FEATURES_VERSION:
        answer["supported_features"] = [
            {"name": name, "min_version": 0, "max_version": level}
            for name, level in _FEATURES.items()
        ]
    answer["finalized_features_epoch"] = 0
    answer["finalized_features"] = [
        {"name": name, "max_version_level": level, "min_version_level": level}
        for name, level in _FEATURES.items()
    ]
    return answer


def api_versions_answer(gateway: Gateway, code: ErrorCode) -> Fields:
    """What is served, also for those who asked in a version that is not."""
    return {
        "error_code": code,
        "api_keys": [
            {"api_key": key, "min_version": served[0], "max_version": served[-1]}
            for key, served in sorted(gateway.versions.items())
        ],
    }
