"""Talking to name servers and brokers: which connection, how long to wait, whom to ask next.

A broker that could not be reached is suspect until it answers again; who only reads goes to
another one of its set meanwhile.

Invariants: a name server that does not answer soon is not waited for: the next one is asked, too,
and the one that answered last is asked first; every failure is a typed error that names the
address; what is asked of many nodes is asked at the same time, and of no more than
`CONCURRENT_MAX` at once.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from onelog.client.connection.address import Address
from onelog.errors import (
    ClientClosedError,
    ConsumersOfflineError,
    GroupNotFoundError,
    KeyNotFoundError,
    NameserversUnreachableError,
    NotPermittedError,
    OnelogError,
    PartlyDoneError,
    PeerClosedError,
    PeerTimeoutError,
    RequestRefusedError,
    TopicNotFoundError,
    WireError,
)
from onelog.message import Buffer
from onelog.net.peer import Peer
from onelog.wire.remoting.body import Body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

CONCURRENT_MAX = 32
TIMEOUT_MS = 3_000
NEXT_SECONDS = 0.5
"""How long a name server may take before the next one is asked as well."""
PROBE_SECONDS = 1.0
"""How often a suspect node is tried."""
PROBES_MAX = 300

REFUSALS: dict[int, type[OnelogError]] = {
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFoundError,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFoundError,
    ResponseCode.CONSUMER_NOT_ONLINE: ConsumersOfflineError,
    ResponseCode.NO_PERMISSION: NotPermittedError,
    ResponseCode.QUERY_NOT_FOUND: KeyNotFoundError,
}
"""What an answer's code means here; the others are `RequestRefusedError`."""

Sign = Callable[[Mapping[str, str] | None, Buffer], dict[str, str]]
"""Adds to a request's fields what proves who sends it."""

log = logging.getLogger(__name__)

K = TypeVar("K")
N = TypeVar("N")
T = TypeVar("T")
B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that could not do its part of something."""

    who: str
    reason: str

    def __str__(self) -> str:
        return f"{self.who}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Gathered(Generic[K, T]):
    """What many nodes answered, and who could not."""

    answers: dict[K, T]
    failures: tuple[Failure, ...]


class Nodes:
    """The connections of one client. To be used in `async with`, or closed by hand."""

    def __init__(
        self,
        nameservers: Sequence[Address],
        *,
        timeout_ms: int = TIMEOUT_MS,
        tls: ssl.SSLContext | None = None,
        sign: Sign | None = None,
        on_connected: Callable[[Address, Peer], None] | None = None,
        on_request: Callable[[Peer, Command], None] | None = None,
    ) -> None:
        assert nameservers
        self.timeout_ms = timeout_ms
        self._nameservers = list(nameservers)
        self._tls = tls
        self._sign = sign
        self._on_connected = on_connected
        self._on_request = on_request
        self._peers: dict[Address, Peer] = {}
        self._connecting: SharedWork[Address, Peer] = SharedWork()
        self._suspects: dict[Address, asyncio.Task[None]] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def nameservers(self) -> tuple[Address, ...]:
        """The name servers, the one that answered last first."""
        return tuple(self._nameservers)

    async def close(self) -> None:
        """Close all connections; none is opened any more."""
        self._is_closed = True
        await end_all(self._suspects.values())
        await self._connecting.close()
        peers, self._peers = self._peers, {}
        await asyncio.gather(*(peer.close() for peer in peers.values()))

    # One node.

    async def ask(
        self,
        address: Address,
        code: RequestCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        accept: frozenset[int] = frozenset(),
        timeout_ms: int | None = None,
    ) -> Command:
        """The answer of one node; an error unless it is SUCCESS or a code of `accept`."""
        answer = await self._ask(address, code, ext, body, timeout_ms)
        if answer.code != ResponseCode.SUCCESS and answer.code not in accept:
            raise refusal(address, code, answer)
        return answer

    def open_peer(self, address: Address) -> Peer | None:
        peer = self._peers.get(address)
        return peer if peer is not None and peer.is_open else None

    async def peer(self, address: Address) -> Peer:
        """The connection to a node; it is opened if there is none."""
        return self.open_peer(address) or await self._connect(address)

    async def fetch(
        self, address: Address, code: RequestCode, kind: type[B], ext: dict[str, str] | None = None
    ) -> B:
        """The same, with the body of the answer as a value."""
        return _decoded(address, await self.ask(address, code, ext), kind)

    async def _ask(
        self,
        address: Address,
        code: RequestCode,
        ext: dict[str, str] | None,
        body: bytes,
        timeout_ms: int | None = None,
    ) -> Command:
        limit_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        if self._sign is not None:
            ext = self._sign(ext, body)
        peer = self.open_peer(address)
        is_fresh = peer is None
        while True:
            if peer is None:
                peer = await self._connect(address)
            try:
                return await peer.ask(code, ext, body, limit_ms)
            except PeerTimeoutError:
                reason = f"{address} did not answer {code.name} within {limit_ms} ms"
                self.suspect(address)
                raise PeerTimeoutError(reason) from None
            except PeerClosedError:
                if is_fresh:
                    self.suspect(address)
                    reason = f"{address} closed the connection instead of answering {code.name}"
                    raise PeerClosedError(reason) from None
            # It was idle for too long, or the node was restarted: worth a new one.
            peer, is_fresh = None, True

    async def _connect(self, address: Address) -> Peer:
        if self._is_closed:
            raise ClientClosedError(f"the client is closed, and does not connect to {address}")
        return await self._connecting.get(address, self._open)

    async def _open(self, address: Address) -> Peer:
        try:
            peer = await Peer.connect(
                address.host,
                address.port,
                tls=self._tls,
                timeout_ms=self.timeout_ms,
                on_request=self._on_request,
                language="PYTHON",
            )
        except (PeerClosedError, PeerTimeoutError):
            self.suspect(address)
            raise
        self._peers[address] = peer
        if self._on_connected is not None:
            self._on_connected(address, peer)
        return peer

    # Nodes that do not answer.

    @property
    def suspects(self) -> Collection[Address]:
        """The nodes that could not be reached when they were last tried."""
        return self._suspects.keys()

    def suspect(self, address: Address) -> None:
        """A node does not answer: avoid it where another one would do, until it does again."""
        is_known = address in self._suspects or address in self._nameservers
        if not is_known and not self._is_closed:
            task = asyncio.ensure_future(self._probe(address))
            self._suspects[address] = task
            task.add_done_callback(lambda _: self._suspects.pop(address, None))

    async def _probe(self, address: Address) -> None:
        """Come back when a node answers, whatever that is; or when that is hopeless."""
        for _ in range(PROBES_MAX):
            await asyncio.sleep(PROBE_SECONDS)
            try:
                peer = await self.peer(address)
                await peer.ask(RequestCode.HEART_BEAT, None, b"{}", self.timeout_ms)
            except PeerTimeoutError:
                # Half dead, or its machine is gone: the next try takes a new connection.
                if (stuck := self._peers.pop(address, None)) is not None:
                    stuck.connection.abort()
            except OnelogError:
                continue
            else:
                log.info("%s answers again", address)
                return

    # The name servers.

    async def ask_nameserver(
        self, code: RequestCode, ext: dict[str, str] | None = None
    ) -> tuple[Address, Command]:
        """The answer of the first name server that gives one, and which it was."""
        reasons: list[str] = []
        rest = list(self._nameservers)
        waiting: dict[asyncio.Task[Command], Address] = {}
        try:
            while rest or waiting:
                if rest:
                    address = rest.pop(0)
                    task = asyncio.ensure_future(self._ask(address, code, ext, b""))
                    waiting[task] = address
                patience = NEXT_SECONDS if rest else None
                await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in waiting if each.done()]:
                    address = waiting.pop(task)
                    try:
                        answer = task.result()
                    except (PeerClosedError, PeerTimeoutError) as error:
                        reasons.append(str(error))
                    else:
                        return address, self._checked(address, code, answer)
        finally:
            await end_all(waiting)
        raise NameserversUnreachableError("no name server answers: " + "; ".join(reasons))

    def _checked(self, address: Address, code: RequestCode, answer: Command) -> Command:
        self._nameservers.remove(address)
        self._nameservers.insert(0, address)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(address, code, answer)
        return answer

    async def fetch_nameserver(
        self, code: RequestCode, kind: type[B], ext: dict[str, str] | None = None
    ) -> B:
        """The same, with the body of the answer as a value."""
        address, answer = await self.ask_nameserver(code, ext)
        return _decoded(address, answer, kind)

    async def change_nameservers(
        self, code: RequestCode, ext: dict[str, str], accept: frozenset[int] = frozenset()
    ) -> None:
        """Have every name server do something: they share nothing with one another."""
        await self.change(
            {str(address): address for address in self._nameservers},
            lambda address: self.ask(address, code, ext, accept=accept),
        )

    # Many nodes.

    async def gather(
        self, nodes: Mapping[K, N], ask: Callable[[N], Awaitable[T]]
    ) -> Gathered[K, T]:
        """What each node answers; raises only if all of them failed."""
        results = await at_once(_caught(ask), nodes.values())
        named = dict(zip(nodes, results, strict=True))
        errors = {str(k): r for k, r in named.items() if isinstance(r, OnelogError)}
        if errors and len(errors) == len(nodes):
            raise next(iter(errors.values()))
        return Gathered(
            {k: r for k, r in named.items() if not isinstance(r, OnelogError)},
            tuple(Failure(who, str(error)) for who, error in errors.items()),
        )

    async def fetch_all(
        self, nodes: Mapping[K, Address], code: RequestCode, kind: type[B], ext: dict[str, str]
    ) -> Gathered[K, B]:
        """The same for one question to all of them."""
        return await self.gather(nodes, lambda address: self.fetch(address, code, kind, ext))

    async def change(self, nodes: Mapping[K, N], ask: Callable[[N], Awaitable[object]]) -> None:
        """Have each node do something; `PartlyDoneError` if some did and some did not."""
        gathered = await self.gather(nodes, ask)
        if gathered.failures:
            done = ", ".join(map(str, gathered.answers))
            reasons = "; ".join(failure.reason for failure in gathered.failures)
            raise PartlyDoneError(f"done on {done}, but not everywhere: {reasons}")


class SharedWork(Generic[K, T]):
    """Work that many may want at the same time: it is done once, and ends alike for all of them.

    If one of those who wait stops waiting, the work goes on; it is cancelled only when its client
    is closed. Those who wait get a `ClientClosedError` then: `CancelledError` would mean that they
    were cancelled themselves.
    """

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, do: Callable[[K], Coroutine[Any, Any, T]]) -> T:
        """What the work for a key gives; it is begun unless it is being done."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(do(key))
            task.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise ClientClosedError("the client was closed meanwhile") from None
            raise

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # Whoever waits gets it; if nobody does any more, it is no warning.

    async def close(self) -> None:
        await end_all(list(self._tasks.values()))


async def end_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks, and come back when they have ended."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


@contextlib.contextmanager
def forgiven(
    log: logging.Logger, what: str, *about: object, level: int = logging.INFO
) -> Iterator[None]:
    """Go on after an error of ours: the log has what did not work, and why."""
    try:
        yield
    except OnelogError as error:
        log.log(level, f"{what}: %s", *about, error)


async def at_once(ask: Callable[[N], Awaitable[T]], items: Iterable[N]) -> list[T]:
    """What is answered for each item, in their order; the first error ends all the asking."""
    free = asyncio.Semaphore(CONCURRENT_MAX)

    async def limited(item: N) -> T:
        async with free:
            return await ask(item)

    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _caught(ask: Callable[[N], Awaitable[T]]) -> Callable[[N], Awaitable[T | OnelogError]]:
    async def caught(item: N) -> T | OnelogError:
        try:
            return await ask(item)
        except OnelogError as error:
            return error

    return caught


def refusal(
    address: Address,
    code: RequestCode,
    answer: Command,
    kinds: Mapping[int, type[OnelogError]] = REFUSALS,
) -> OnelogError:
    """What a node's answer says that is not SUCCESS."""
    kind = kinds.get(answer.code, RequestRefusedError)
    reason = (answer.remark or "").strip() or "no reason given"
    # A Java broker may send a page of documentation links along; the first line says it all.
    first = reason.splitlines()[0]
    named = ResponseCode(answer.code).name if answer.code in set(ResponseCode) else "?"
    return kind(f"{address} refused {code.name}: {first} (code {answer.code} {named})")


def _decoded(address: Address, answer: Command, kind: type[B]) -> B:
    try:
        return kind.decode_answer(answer.body)
    except WireError as error:
        raise WireError(f"{address} answered what cannot be read: {error}") from None
