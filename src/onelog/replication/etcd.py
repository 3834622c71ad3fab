"""etcd's JSON API over HTTP: as much of it as a set of replicas needs.

A request goes to one of the endpoints, to the next one after a failure; none is sent twice, because
it may have been done. Connections are kept; one that a request failed on is not used again.

Keys and values are in base64, whole numbers are strings:

    POST /v3/kv/range         {key, range_end}        -> {header: {revision}, kvs: [...]}
    POST /v3/kv/txn           {compare, success}      -> {header: {revision}, succeeded}
    POST /v3/lease/grant      {TTL: seconds}          -> {ID, TTL}
    POST /v3/lease/keepalive  {ID}                    -> {result: {TTL}}, without TTL if it is over
    POST /v3/watch            {create_request}        -> a line per change, until one hangs up
"""

import asyncio
import contextlib
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from onelog.errors import RegistryError
from onelog.jobs import Job
from onelog.net.tasks import Tasks
from onelog.replication.registry import Entry, Lease, Put, Snapshot

log = logging.getLogger(__name__)

WATCH_SILENCE_S = 60.0
WATCH_PAUSE_S = 0.5
ANSWER_BYTES_MAX = 16 << 20

Endpoint = tuple[str, int]
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Answer = TypeVar("_Answer")


class LeaseGoneError(RegistryError):
    """A lease is over that something was to be written under."""


def parse_endpoints(text: str) -> list[Endpoint]:
    """`host:port;host:port`, or with commas."""
    parts = (part.rpartition(":") for part in text.replace(",", ";").split(";") if part)
    return [(host.strip("[]"), int(port)) for host, _, port in parts]


def prefix_of(cluster: str, name: str) -> str:
    """Where the keys of a set are; `name` is that of the brokers in it."""
    return f"/onelog/{cluster}/{name}/"


class Etcd:
    """The keys below a prefix. `RegistryError`: there is no answer, or it says that it failed."""

    def __init__(self, endpoints: Sequence[Endpoint], prefix: str, timeout_ms: int) -> None:
        self._endpoints = list(endpoints)
        self._prefix = prefix
        self._timeout_s = timeout_ms / 1000
        self._idle: list[_Connection] = []
        self._tasks = Tasks()
        self._watching: asyncio.Task[None] | None = None
        self._failed = False

    async def close(self) -> None:
        """Hang up, after the last answers; each comes in time, or not at all."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()

    # -- what is asked -------------------------------------------------------------------------

    async def grant_lease(self, ttl_ms: int) -> Lease:
        """A lease of at least this time, in whole seconds."""
        answer = await self._ask("/v3/lease/grant", {"TTL": str(-(-ttl_ms // 1000))})
        return Lease(int(answer["ID"]), int(answer["TTL"]) * 1000)

    async def renew_lease(self, lease: int) -> bool:
        """Renew a lease; False if it is over."""
        answer = await self._ask("/v3/lease/keepalive", {"ID": str(lease)})
        return int(answer["result"].get("TTL", 0)) > 0

    async def revoke_lease(self, lease: int) -> None:
        await self._ask("/v3/lease/revoke", {"ID": str(lease)})

    async def read_all(self) -> Snapshot:
        answer = await self._ask("/v3/kv/range", self._whole_range())
        entries = {}
        for each in answer.get("kvs", ()):
            key = b64decode(each["key"]).decode()[len(self._prefix) :]
            value, lease = b64decode(each.get("value", "")), int(each.get("lease", 0))
            entries[key] = Entry(value, int(each["mod_revision"]), lease)
        return Snapshot(int(answer["header"]["revision"]), entries)

    async def transact(self, expected: Mapping[str, int], puts: Mapping[str, Put | None]) -> int:
        """As `Registry.write` says."""
        body = {
            "compare": [
                {
                    "key": self._key(key),
                    "target": "MOD",
                    "result": "EQUAL",
                    "mod_revision": str(revision),
                }
                for key, revision in expected.items()
            ],
            "success": [self._change(key, put) for key, put in puts.items()],
        }
        try:
            answer = await self._ask("/v3/kv/txn", body)
        except LeaseGoneError:
            return 0
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def _change(self, key: str, put: Put | None) -> dict[str, Any]:
        if put is None:
            return {"request_delete_range": {"key": self._key(key)}}
        value = b64encode(put.value).decode()
        return {"request_put": {"key": self._key(key), "value": value, "lease": str(put.lease)}}

    def _key(self, key: str) -> str:
        return b64encode((self._prefix + key).encode()).decode()

    def _whole_range(self) -> dict[str, str]:
        end = self._prefix[:-1] + chr(ord(self._prefix[-1]) + 1)
        return {"key": self._key(""), "range_end": b64encode(end.encode()).decode()}

    async def changes(self) -> AsyncGenerator[None, None]:
        """One item when changes are watched, and one for each; until none come for long."""
        connection = await self._connect()
        try:
            request = {"create_request": self._whole_range()}
            async with asyncio.timeout(self._timeout_s):
                self._send(connection, "/v3/watch", request)
                status, _ = await _read_head(connection[0])
            if status != 200:
                raise RegistryError(f"etcd does not let changes be watched: HTTP {status}")
            while True:
                try:
                    async with asyncio.timeout(WATCH_SILENCE_S):
                        if not await _read_chunk(connection[0]):
                            return
                except TimeoutError:
                    return  # Nothing has changed for so long, or nobody is there: watch anew.
                yield
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            raise RegistryError(f"the watch on etcd ended: {error!r}") from None
        finally:
            connection[1].close()

    # -- HTTP ----------------------------------------------------------------------------------

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        endpoint = self._endpoints[0]
        connection = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._kept() or await self._connect()
                self._send(connection, path, body)
                status, headers = await _read_head(connection[0])
                content = await _read_body(connection[0], headers)
            answer: dict[str, Any] = msgspec.json.decode(content, type=dict)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            if connection is not None:
                connection[1].close()
            self._turn_from(endpoint)
            raise RegistryError(f"etcd at {_shown(endpoint)} does not answer: {error!r}") from None
        except BaseException:
            if connection is not None:
                connection[1].close()
            raise
        self._idle.append(connection)
        if status == 200 and "error" not in answer:
            return answer
        said = str(answer.get("message") or answer.get("error"))
        if "lease not found" in said:
            raise LeaseGoneError(said)
        self._turn_from(endpoint)
        raise RegistryError(f"etcd at {_shown(endpoint)} says: {said}")

    def _kept(self) -> _Connection | None:
        """A connection that was used before, and that nobody has closed since."""
        while self._idle:
            connection = self._idle.pop()
            if not connection[0].at_eof() and connection[0].exception() is None:
                return connection
            connection[1].close()
        return None

    def _turn_from(self, endpoint: Endpoint) -> None:
        """Ask another one from now on, unless that was done."""
        if endpoint == self._endpoints[0]:
            self._endpoints.append(self._endpoints.pop(0))
            self._hang_up()

    def _hang_up(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _connect(self) -> _Connection:
        endpoint = self._endpoints[0]
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.open_connection(*endpoint, limit=ANSWER_BYTES_MAX)
        except (OSError, TimeoutError) as error:
            self._turn_from(endpoint)
            raise RegistryError(f"etcd at {_shown(endpoint)}: {error!r}") from None

    def _send(self, connection: _Connection, path: str, body: Mapping[str, Any]) -> None:
        content = msgspec.json.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {_shown(self._endpoints[0])}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection[1].write(head.encode() + content)

    # -- as a registry -------------------------------------------------------------------------

    def grant(self, ttl_ms: int, done: Callable[[Lease | None], None]) -> None:
        """See `Registry`."""
        self._later(self.grant_lease(ttl_ms), done)

    def keep_alive(self, lease: int, done: Callable[[bool | None], None]) -> None:
        """See `Registry`."""
        self._later(self.renew_lease(lease), done)

    def revoke(self, lease: int) -> None:
        """See `Registry`."""

        async def revoke() -> None:
            with contextlib.suppress(LeaseGoneError):
                await self.revoke_lease(lease)

        self._later(revoke(), lambda _: None)

    def read(self, done: Callable[[Snapshot | None], None]) -> None:
        """See `Registry`."""
        self._later(self.read_all(), done)

    def write(
        self,
        expected: Mapping[str, int],
        puts: Mapping[str, Put | None],
        done: Callable[[int | None], None],
    ) -> None:
        """See `Registry`."""
        self._later(self.transact(expected, puts), done)

    def watch(self, changed: Callable[[], None]) -> None:
        """See `Registry`."""

        async def watch() -> None:
            job = Job("the watch on etcd")
            while True:
                with job:
                    # Closed here, whatever `changed` raises: the collector would come too late.
                    async with contextlib.aclosing(self.changes()) as changes:
                        async for _ in changes:
                            changed()
                await asyncio.sleep(WATCH_PAUSE_S)

        self._watching = self._tasks.spawn(watch())

    def _later(
        self,
        request: Coroutine[Any, Any, _Answer],
        done: Callable[[_Answer | None], None],
    ) -> None:
        async def ask() -> None:
            answer = None
            try:
                answer = await request
                self._say("")
            except RegistryError as error:
                self._say(str(error))
            try:
                done(answer)
            except Exception:
                log.exception("what etcd says could not be dealt with")

        self._tasks.spawn(ask())

    def _say(self, error: str) -> None:
        """The first of several failures, and their end."""
        if error and not self._failed:
            log.warning("%s", error)
        elif self._failed and not error:
            log.warning("etcd answers again")
        self._failed = bool(error)


def _shown(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(head[0].split()[1]), headers


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", 0)))
    chunks = []
    while chunk := await _read_chunk(reader):
        chunks.append(chunk)
    return b"".join(chunks)


async def _read_trailers(reader: asyncio.StreamReader) -> None:
    """What comes after the last chunk, up to the empty line."""
    while (await reader.readuntil(b"\r\n")) != b"\r\n":
        pass


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    """The next chunk; the last one is empty."""
    size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
    if size > ANSWER_BYTES_MAX:
        raise ValueError(f"a chunk of {size} bytes")
    if size == 0:
        await _read_trailers(reader)
        return b""
    return (await reader.readexactly(size + 2))[:-2]
