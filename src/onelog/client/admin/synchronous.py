"""Administration from threads.

    with Admin.connect("127.0.0.1:9876") as admin:
        for queue in admin.topics.status("orders").queues: ...

The work is done by an `AsyncAdmin` on the background loop. Each part has the methods of the asyncio
part of the same name, with the same arguments and results, and each returns when it is done; what
is an `async for` there is a `for` here.

Invariant: any thread may call any method, and whoever waits can be interrupted (Ctrl-C).
"""

import functools
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from onelog.client.admin.asynchronous import AsyncAdmin
from onelog.client.admin.cluster import Clusters
from onelog.client.admin.dead_letters import DeadLetters
from onelog.client.admin.delays import Delays
from onelog.client.admin.groups import Groups
from onelog.client.admin.messages import Messages
from onelog.client.admin.positions import Positions
from onelog.client.admin.topics import Topics
from onelog.client.admin.traces import Traces
from onelog.client.connection import background
from onelog.client.connection.nodes import TIMEOUT_MS
from onelog.errors import ClientClosedError

if TYPE_CHECKING:
    from onelog.client.credentials import Credentials

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class _Part(Generic[A]):
    """A part of an administrator, and the asyncio part that does its work."""

    def __init__(self, admin: "Admin", core: A) -> None:
        self.admin = admin
        self.core = core


def _waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Part[A], P], T]:
    """The same method for threads: it returns when it is done."""

    @functools.wraps(method)
    def call(part: _Part[A], /, *arguments: P.args, **named: P.kwargs) -> T:
        return part.admin._run(method(part.core, *arguments, **named))

    return call


def _iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Part[A], P], Iterator[T]]:
    """The same generator for threads: it waits for each item."""

    @functools.wraps(method)
    def iterate(part: _Part[A], /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        items = method(part.core, *arguments, **named)

        async def following() -> tuple[T] | None:
            # StopAsyncIteration cannot pass through a future.
            async for item in items:
                return (item,)
            return None

        try:
            while (found := part.admin._run(following())) is not None:
                yield found[0]
        finally:
            part.admin._run(items.aclose())

    return iterate


class _Clusters(_Part[Clusters]):
    """Clusters and their brokers."""

    brokers = _waiting(Clusters.brokers)
    masters = _waiting(Clusters.masters)
    status = _waiting(Clusters.status)


class _Topics(_Part[Topics]):
    """Topics."""

    create = _waiting(Topics.create)
    delete = _waiting(Topics.delete)
    describe = _waiting(Topics.describe)
    groups = _waiting(Topics.groups)
    names = _waiting(Topics.names)
    route = _waiting(Topics.route)
    status = _waiting(Topics.status)
    update = _waiting(Topics.update)


class _Groups(_Part[Groups]):
    """Consumer groups."""

    copy_settings = _waiting(Groups.copy_settings)
    create = _waiting(Groups.create)
    delete = _waiting(Groups.delete)
    describe = _waiting(Groups.describe)
    members = _waiting(Groups.members)
    names = _waiting(Groups.names)
    progress = _waiting(Groups.progress)
    summaries = _waiting(Groups.summaries)
    update = _waiting(Groups.update)


class _Positions(_Part[Positions]):
    """Where groups are in their topics."""

    clone = _waiting(Positions.clone)
    offset_at = _waiting(Positions.offset_at)
    preview = _waiting(Positions.preview)
    reset = _waiting(Positions.reset)
    skip = _waiting(Positions.skip)


class _Messages(_Part[Messages]):
    """Messages that are stored."""

    by_id = _waiting(Messages.by_id)
    by_key = _waiting(Messages.by_key)
    by_offset = _waiting(Messages.by_offset)
    by_time = _iterating(Messages.by_time)
    by_unique_key = _waiting(Messages.by_unique_key)
    consumption = _waiting(Messages.consumption)
    follow = _iterating(Messages.follow)
    pull = _waiting(Messages.pull)


class _DeadLetters(_Part[DeadLetters]):
    """Messages that were given up on."""

    before = _waiting(DeadLetters.before)
    box = _waiting(DeadLetters.box)
    boxes = _waiting(DeadLetters.boxes)
    drop = _waiting(DeadLetters.drop)
    find = _waiting(DeadLetters.find)
    letters = _iterating(DeadLetters.letters)
    resend = _waiting(DeadLetters.resend)
    resend_all = _waiting(DeadLetters.resend_all)
    restore = _waiting(DeadLetters.restore)
    settle = _waiting(DeadLetters.settle)


class _Traces(_Part[Traces]):
    """What happened to messages."""

    trace = _waiting(Traces.trace)


class _Delays(_Part[Delays]):
    """Messages that wait for their time."""

    cancel = _waiting(Delays.cancel)
    find = _waiting(Delays.find)
    waiting = _waiting(Delays.waiting)


class Admin:
    """An administrator for threads; `AsyncAdmin` is the same for an event loop.

    The methods of its parts take and return what those of `AsyncAdmin` do, and need no `await`.
    """

    def __init__(self, core: AsyncAdmin) -> None:
        self._core = core
        self._home: background.Home | None = None
        self._is_closed = False
        self.clusters = _Clusters(self, core.clusters)
        self.topics = _Topics(self, core.topics)
        self.groups = _Groups(self, core.groups)
        self.positions = _Positions(self, core.positions)
        self.messages = _Messages(self, core.messages)
        self.dead_letters = _DeadLetters(self, core.dead_letters)
        self.traces = _Traces(self, core.traces)
        self.delays = _Delays(self, core.delays)

    @staticmethod
    def connect(
        nameserver: str = "",
        *,
        timeout_ms: int = TIMEOUT_MS,
        tls: bool | ssl.SSLContext | None = None,
        credentials: "Credentials | None" = None,
    ) -> "Admin":
        """A client of these name servers, `host:port` between semicolons.

        Without any, those of ONELOG_NAMESERVER or NAMESRV_ADDR in the environment, else
        127.0.0.1:9876. `tls=True` encrypts, but takes any certificate; a context verifies as it
        says (see `client.tls`). With `credentials` all requests are signed.
        """
        return Admin(
            AsyncAdmin.connect(nameserver, timeout_ms=timeout_ms, tls=tls, credentials=credentials)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Closing twice does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._home is not None and self._home.is_usable:
            background.run(self._core.close())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asyncio administrator, and return what it returns."""
        try:
            if self._is_closed:
                raise ClientClosedError("the administrator was closed: make a new one")
            if self._home is None:
                self._home = background.home()
            self._home.check_usable()
        except BaseException:
            work.close()
            raise
        return background.run(work)
