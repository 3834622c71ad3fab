"""One RocketMQ client of the broker: requests in, answers out.

A handler takes the session and the command. It returns an `Success`, or None if the answer comes
later (a held pull, a message that waits for the disk) or never. What goes wrong is raised, and
becomes an answer through `ERROR_CODES`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from onelog import errors
from onelog.config_sources import Loaded
from onelog.core.access import SELF, Principal
from onelog.core.cursors.offsets import machine_memory_bytes
from onelog.gateways import GatewayContext, code_of
from onelog.message import Appended, encode_host
from onelog.net.connection import Buffer, Connection, is_here
from onelog.net.remoting import ServerSession
from onelog.rocketmq.profile import added_properties
from onelog.rocketmq.routes import Routes
from onelog.rocketmq.sent_properties import PlainForms
from onelog.wire.remoting.administration import is_remote_request
from onelog.wire.remoting.codes import ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import REQUEST_HEADER_BYTES_MAX, CompactHeaders
from onelog.wire.remoting.signature import ACCESS_KEY, signed_parts

log = logging.getLogger(__name__)

ERROR_CODES: dict[type[errors.OnelogError], ResponseCode] = {
    errors.WireError: ResponseCode.SYSTEM_ERROR,
    errors.ConfigError: ResponseCode.SYSTEM_ERROR,
    errors.MessageError: ResponseCode.MESSAGE_ILLEGAL,
    errors.InvalidTopicError: ResponseCode.INVALID_PARAMETER,
    errors.InvalidQueueError: ResponseCode.INVALID_PARAMETER,
    errors.OffsetOutOfRangeError: ResponseCode.SYSTEM_ERROR,
    errors.StoreError: ResponseCode.SERVICE_NOT_AVAILABLE,
    errors.StoreFullError: ResponseCode.SERVICE_NOT_AVAILABLE,
    errors.StoreCorruptError: ResponseCode.SYSTEM_ERROR,
    errors.TopicNotFoundError: ResponseCode.TOPIC_NOT_EXIST,
    errors.TopicPermissionError: ResponseCode.NO_PERMISSION,
    errors.SystemTopicError: ResponseCode.INVALID_PARAMETER,
    errors.GroupNotFoundError: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    errors.GroupPermissionError: ResponseCode.NO_PERMISSION,
    errors.InvalidGroupError: ResponseCode.INVALID_PARAMETER,
    errors.SubscriptionNotFoundError: ResponseCode.SUBSCRIPTION_NOT_EXIST,
    errors.SubscriptionOutdatedError: ResponseCode.SUBSCRIPTION_NOT_LATEST,
    errors.FilterDisabledError: ResponseCode.SYSTEM_ERROR,
    errors.FilterSyntaxError: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    errors.ConsumersOfflineError: ResponseCode.CONSUMER_NOT_ONLINE,
    errors.FlushTimeoutError: ResponseCode.FLUSH_DISK_TIMEOUT,
    errors.ReplicaTimeoutError: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    errors.ReplicasMissingError: ResponseCode.SLAVE_NOT_AVAILABLE,
    errors.NotMasterError: ResponseCode.SERVICE_NOT_AVAILABLE,
    errors.BrokerBusyError: ResponseCode.SYSTEM_BUSY,
    errors.StatisticNotFoundError: ResponseCode.SYSTEM_ERROR,
    errors.InvalidRequestError: ResponseCode.SYSTEM_ERROR,
    errors.PeerClosedError: ResponseCode.CONSUMER_NOT_ONLINE,
    errors.PeerTimeoutError: ResponseCode.CONSUME_MSG_TIMEOUT,
    errors.NotPermittedError: ResponseCode.NO_PERMISSION,
    errors.KeyNotFoundError: ResponseCode.QUERY_NOT_FOUND,
    errors.NotSavedError: ResponseCode.SYSTEM_ERROR,
    errors.LeaseNotFoundError: ResponseCode.NO_MESSAGE,
    errors.InvalidReceiptError: ResponseCode.MESSAGE_ILLEGAL,
    errors.InvalidLeaseTimeError: ResponseCode.INVALID_PARAMETER,
    errors.TooManyLeasesError: ResponseCode.SYSTEM_BUSY,
    errors.TransactionNotFoundError: ResponseCode.SYSTEM_ERROR,
    errors.TransactionForeignError: ResponseCode.SYSTEM_ERROR,
    errors.TransactionLateError: ResponseCode.ILLEGAL_OPERATION,
    errors.RecallError: ResponseCode.ILLEGAL_OPERATION,
    errors.StagedPartError: ResponseCode.ILLEGAL_OPERATION,
    errors.BatchFencedError: ResponseCode.ILLEGAL_OPERATION,
    errors.MembershipError: ResponseCode.ILLEGAL_OPERATION,
    errors.ProducerStateError: ResponseCode.ILLEGAL_OPERATION,
    errors.UserNotFoundError: ResponseCode.USER_NOT_EXIST,
    errors.UserExistsError: ResponseCode.INVALID_PARAMETER,
    errors.RoleNotFoundError: ResponseCode.POLICY_NOT_EXIST,
    errors.RoutingError: ResponseCode.ILLEGAL_OPERATION,
}
"""Every error that the core can raise. One that is not here is looked up by its nearest parent."""


def response_code(error: errors.OnelogError) -> ResponseCode:
    """The code that tells a client of this error."""
    return code_of(error, ERROR_CODES, ResponseCode.SYSTEM_ERROR)


class Success(NamedTuple):
    """A successful answer."""

    ext: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: Buffer | list[memoryview] = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None


_Found = TypeVar("_Found")
_Item = TypeVar("_Item")


class Gateway:
    """What all sessions of one broker share."""

    def __init__(self, context: GatewayContext, handlers: "dict[int, Handler]") -> None:
        self.context = context
        self.broker = context.broker
        self.clock = context.clock
        self.store_host = context.store_host
        self.handlers = handlers
        self.local_handlers: dict[int, Handler] = {}
        """Those for peers on this machine; they hold on to it, so it is changed in place."""
        self.remote_handlers: dict[int, Handler] = {}
        """Those for peers on other machines; the same."""
        self._chosen: tuple[bool, ...] = ()
        self.started_ms = context.clock.now_ms()
        self.routes = Routes(lambda: self.broker.admin.config, context.clock.now_ms, context.tls)
        self.headers = CompactHeaders()
        self.plain_forms = PlainForms()
        """What properties of plain messages look like."""
        self.pop = context.pop
        self.id_prefix = context.store_host.hex().upper()
        """How the ids of messages stored here begin."""
        self.refresh(context.loaded)
        context.broker.users.on_change.append(self._choose_handlers)

    def _choose_handlers(self) -> None:
        """While there are users, requests are signed, and users have permissions."""
        logins = self.broker.users.logins
        chosen = (
            self.loaded.config.security.remote_admin,
            self.broker.users.is_open,
            logins.is_needed,
        )
        if chosen == self._chosen:
            return
        self._chosen = is_remote, is_open, is_needed = chosen
        local = self.handlers
        remote = local if is_remote else is_remote_request(local, BrokerSession.refuse_remote)
        if is_needed:
            local = remote = {code: signed_only(each) for code, each in local.items()}
        elif not is_open:
            signed = {code: perhaps_signed(each, each) for code, each in local.items()}
            remote = {code: perhaps_signed(each, remote[code]) for code, each in local.items()}
            local = signed
        self.local_handlers.update(local)
        self.remote_handlers.update(remote)

    def refresh(self, loaded: Loaded) -> None:
        """Take over what follows from the configuration."""
        self.loaded = loaded
        self._choose_handlers()
        replication = loaded.config.replication
        percent = replication.slave_reads_percent if replication.slave_reads else None
        self.far_bytes = None if percent is None else machine_memory_bytes() * percent // 100
        """How far behind a group is that is better served by a slave; None if no group is."""
        config = self.broker.admin.config
        self.region, self.trace = config.region, config.trace
        self.added_properties = added_properties(config)
        """What the broker adds to the properties of every message, as RocketMQ does."""


def same(answer: Success) -> Success:
    """What a worker found, when that is the answer."""
    return answer


class BrokerSession(ServerSession[Success]):
    """One client, or one admin tool. It is also the channel that the core knows it by."""

    def __init__(self, connection: Connection, gateway: Gateway) -> None:
        frame_bytes_max = gateway.broker.admin.config.frame_bytes_max
        super().__init__(connection, frame_bytes_max, REQUEST_HEADER_BYTES_MAX, gateway.headers)
        self.gateway = gateway
        self.broker = gateway.broker
        self.is_local = is_here(connection.remote[0], connection.local[0])
        # Chosen once for all requests: those in a hurry need not ask who they are from.
        self.handlers = gateway.local_handlers if self.is_local else gateway.remote_handlers
        host, port = connection.remote
        origin = "remoting", connection.remote_address
        self._logins = self.broker.users.logins
        certified = self._logins.certified(connection.certificate, *origin)
        self.principal = self._unsigned = certified or Principal("", *origin)
        connection.user = self.principal.name
        self.born_host = encode_host(host.partition("%")[0] or "127.0.0.1", port)

    def authenticate(self, command: Command) -> bool:
        """Who has signed the request? False if it was not they, which is answered later.

        `NotAuthenticatedError` if requests must be signed, and this one is not.
        """
        ext = command.ext
        name = ext.get(ACCESS_KEY)
        principal = self._unsigned
        if name is not None:
            content, signature = signed_parts(command.code, ext)
            signer = self._logins.signed(
                name,
                signature,
                content,
                self.principal,
                partial(self._refused, command),
                command.body,
            )
            if signer is None:
                return False
            principal = signer
        elif not principal.name and self._logins.is_needed:
            raise errors.NotAuthenticatedError(
                "No accessKey is configured: requests have to be signed by a user. For onelog set "
                "ONELOG_ACCESS_KEY and ONELOG_SECRET_KEY, for others access key and secret key"
            )
        if principal is not self.principal:
            self.principal = principal
            self.connection.user = principal.name
        return True

    def _refused(self, command: Command, error: Principal | errors.OnelogError) -> None:
        if isinstance(error, errors.OnelogError) and not self.connection.closing:
            self.fail(command, error)

    def answer(self, command: Command, answer: Success) -> None:
        """Send a successful answer."""
        self.reply(command, answer.code, answer.ext, answer.remark, answer.body)

    def fail(self, command: Command, error: errors.OnelogError) -> None:
        """Answer a request that went wrong."""
        self.reply(command, response_code(error), remark=str(error))

    def conclude(self, command: Command, answer: Success, error: errors.OnelogError | None) -> None:
        """Answer a request whose change was recorded, or was not.

        A slow disk takes nothing back: it is done, as after a send that was too late. Replicas that
        do not have it may: another of them may become master.
        """
        if error is None or type(error) is errors.FlushTimeoutError:
            self.answer(command, answer)
        else:
            self.fail(command, error)

    def _go_on(self, command: Command, act: Callable[[], Success | None]) -> None:
        """Answer with what comes of an act, later than the request came."""
        try:
            answer = act()
        except errors.OnelogError as error:
            self.fail(command, error)
        except Exception as error:
            log.exception("request %d of %s failed", command.code, self.connection)
            self.reply(command, ResponseCode.SYSTEM_ERROR, remark=type(error).__name__)
        else:
            if answer is not None:
                self.answer(command, answer)

    def look_up(
        self,
        command: Command,
        find: Callable[[], _Found],
        then: Callable[[_Found], Success | None],
    ) -> None:
        """Answer with what `then` makes of what `find` finds, which may have to wait for the disk.

        `find` runs in a worker: it may read the store and tables that are copied at once, and
        changes nothing. `then` runs in the loop.
        """
        self.gateway.context.look_up(
            find, lambda found: self._go_on(command, lambda: then(found()))
        )

    def in_turns(
        self,
        command: Command,
        items: Iterable[_Item],
        act: Callable[[_Found], None],
        prepare: Callable[[_Item], _Found],
    ) -> Success | None:
        """Do something with each of many, in turns with the requests of others, and say so.

        Nothing is done if one of them cannot be prepared for it.
        """

        def one_by_one() -> Iterator[None]:
            try:
                prepared: list[_Found] = []
                for item in items:
                    prepared.append(prepare(item))
                    yield
                for each in prepared:
                    act(each)
                    yield
            except errors.OnelogError as error:
                self.fail(command, error)
            else:
                self.answer(command, Success())

        self.work(one_by_one())
        return None

    def when_warm(
        self, command: Command, log_offset: int, act: Callable[[], Success | None]
    ) -> Success | None:
        """Do what needs the record at a log offset: now, or when a worker has read it."""
        broker = self.broker
        if broker.topics.is_warm(log_offset):
            return act()
        self.look_up(command, lambda: broker.topics.message_at(SELF, log_offset), lambda _: act())
        return None

    def closed(self) -> None:
        """The connection is gone, and with it everything that hung on it."""
        self.broker.groups.channel_closed(self)


Handler = Callable[[BrokerSession, Command], Success | None]


def signed_only(handler: Handler) -> Handler:
    """The handler of a request that has to say who it is from."""

    def handle(session: BrokerSession, command: Command) -> Success | None:
        return handler(session, command) if session.authenticate(command) else None

    return handle


def perhaps_signed(handler: Handler, for_others: Handler) -> Handler:
    """The handler of a request that may say who it is from; `for_others` is for nobody's."""

    def handle(session: BrokerSession, command: Command) -> Success | None:
        if ACCESS_KEY in command.ext or session.principal.name:
            if not session.authenticate(command):
                return None
            if session.principal.name:
                return handler(session, command)
        return for_others(session, command)

    return handle


def by_worker(answer: Callable[[BrokerSession, Command], Success]) -> Handler:
    """The handler of a question that a worker can answer alone; see `BrokerSession.look_up`."""

    def handle(session: BrokerSession, command: Command) -> None:
        session.look_up(command, partial(answer, session, command), same)

    return handle


def answer_stored(
    token: tuple[BrokerSession, Command], _: Appended | None, error: errors.OnelogError | None
) -> None:
    """What a request wanted is stored, or not; for those to which that is all there is to say."""
    session, command = token
    session.conclude(command, Success(), error)
