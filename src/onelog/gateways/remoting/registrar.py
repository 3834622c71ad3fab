"""The broker's own calls to the name servers: here I am, and these are my topics.

It registers with every name server, over a connection that stays open: at the start, every 30 s,
and as soon as a topic changes. A name server that does not answer is logged once, and tried again
soon; no other waits for it. A broker with very many topics sends them when they have changed, and
else asks whether the name server still knows them. A slave learns from the answers where its master
is, and asks every second while nobody knows one.

Invariant: no two registrations with one name server are under way at a time, and the last one tells
the topics as they are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import OnelogError, PeerClosedError, PeerTimeoutError
from onelog.gateways import GatewayContext
from onelog.jobs import Job
from onelog.net.peer import Peer
from onelog.net.tasks import is_set
from onelog.rocketmq.tables import topic_body, version_body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicTable,
    encode_registration,
)

log = logging.getLogger(__name__)

LARGE_COUNT = 1_000
"""Topics that are not sent without need."""
START_SECONDS = 1.0
"""How long a start waits for further name servers when one has answered."""
AGAIN_SECONDS = 2.0
"""When a name server is tried again that could not be reached."""
MASTERLESS_SECONDS = 1.0
"""When a slave asks again for which no master was known."""
GOODBYE_MS_MAX = 1_000

Address = tuple[str, int]
Exchange = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _NameserverConnection:
    """What goes on with one name server."""

    address: Address
    job: Job
    peer: Peer | None = None
    is_silent: bool = False
    is_registered: bool = False
    task: asyncio.Task[None] | None = None
    again: bool = False
    """Whether something changed during the registration."""
    later: asyncio.TimerHandle | None = None


class Registrar:
    """Keeps the name servers informed about one broker."""

    def __init__(self, context: GatewayContext, address: str) -> None:
        self._context = context
        self._broker: Broker = context.broker
        self._address = address
        self._lines: dict[Address, _NameserverConnection] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._encoded: tuple[DataVersion, bytes] | None = None
        self.master: tuple[str, str] | None = None
        """Where the name servers say that a slave's master is, and its port of followers."""
        self._broker.topics.on_change.append(self._topic_changed)

    async def start(self) -> None:
        """Register once, then go on by itself; one that is silent is not waited for."""
        waiting = self._register_all()
        loop = asyncio.get_running_loop()
        enough = loop.time() + START_SECONDS
        while waiting:
            is_registered = any(line.is_registered for line in self._lines.values())
            left = max(0.0, enough - loop.time()) if is_registered else None
            if left == 0.0:
                break
            _, waiting = await asyncio.wait(
                waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Say goodbye to the name servers that can be reached."""
        if self._task is not None:
            self._task.cancel()
        lines = list(self._lines.values())
        for line in lines:
            self._drop(line)
        await asyncio.gather(*(self._leave(line) for line in lines))

    def refresh(self) -> None:
        """Something else than a topic changed: register again."""
        self._changed.set()

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self._changed.set()

    async def _run(self) -> None:
        job = Job("registering with the name servers")
        while True:
            await is_set(self._changed, self._broker.admin.config.register_interval_ms / 1000)
            with job:
                self._register_all()

    async def register(self) -> None:
        """Register with all name servers, at the same time, and wait for all."""
        tasks = self._register_all()
        if tasks:
            await asyncio.wait(tasks)

    def _register_all(self) -> set[asyncio.Task[None]]:
        """Begin to register with every name server; one that is at it registers once more then."""
        self._changed.clear()
        addresses = self._broker.admin.config.nameserver_addresses
        for address in [each for each in self._lines if each not in addresses]:
            self._drop(self._lines.pop(address), hang_up=True)
        for address in addresses:
            if address not in self._lines:
                job = Job("registering with name server {}:{}".format(*address))
                self._lines[address] = _NameserverConnection(address, job)
            self._begin(self._lines[address])
        return {line.task for line in self._lines.values() if line.task is not None}

    def _begin(self, line: _NameserverConnection) -> None:
        line.again = True
        if line.task is None:
            line.task = asyncio.create_task(self._register_until_done(line))

    def _drop(self, line: _NameserverConnection, hang_up: bool = False) -> None:
        if line.task is not None:
            line.task.cancel()
            line.task = None
        if line.later is not None:
            line.later.cancel()
        if hang_up and line.peer is not None:
            line.peer.connection.close()

    async def _register_until_done(self, line: _NameserverConnection) -> None:
        if line.later is not None:
            line.later.cancel()
            line.later = None
        while line.again:
            line.again = False
            with line.job:
                await self._exchange(line, self._register)
        line.task = None
        if not any(each.task for each in self._lines.values()):
            self._encoded = None  # It may be large.
        pause = AGAIN_SECONDS if line.is_silent else MASTERLESS_SECONDS
        if line.is_silent or (self._broker_id and self.master is None):
            loop = asyncio.get_running_loop()
            line.later = loop.call_later(pause, self._begin, line)

    async def _exchange(self, line: _NameserverConnection, exchange: Exchange) -> None:
        hint = ""
        try:
            if line.peer is None or not line.peer.is_open:
                tls = await self._context.tls.client_context()
                timeout_ms = self._broker.admin.config.register_timeout_ms
                line.peer = await Peer.connect(*line.address, tls=tls, timeout_ms=timeout_ms)
                if tls is None:
                    hint = "; if it demands TLS, set tls.outgoing=on"
            await exchange(line.peer)
        except OnelogError as error:
            if isinstance(error, PeerTimeoutError) and line.peer is not None:
                line.peer.connection.abort()  # What it wakes up to is the next connection.
            if not line.is_silent:
                line.is_silent = True
                log.warning("name server %s:%d cannot be reached: %s%s", *line.address, error, hint)
        else:
            line.is_registered = True
            if line.is_silent:
                line.is_silent = False
                log.info("name server %s:%d answers again", *line.address)

    # What is registered.

    @property
    def _broker_id(self) -> int:
        given = self._context.replica_status.broker_id
        return self._broker.admin.config.broker_id if given is None else given

    def _version(self) -> DataVersion:
        """The version of the topics: those of a later master are newer than any of an older."""
        version = version_body(self._broker.topics.all(SELF)[0])
        epoch = self._context.replica_status.epoch
        return msgspec.structs.replace(version, state_version=epoch) if epoch else version

    async def _register(self, peer: Peer) -> None:
        version = self._version()
        topics = len(self._broker.topics.all(SELF)[1])
        # A slave registers in full, because only that is answered with where its master is.
        if topics > LARGE_COUNT and not self._broker_id and await self._is_known(peer, version):
            return
        replica_status = self._context.replica_status
        ext = {
            **self._principal(),
            "haServerAddr": replica_status.ha_address,
            "compressed": "false",
            "bodyCrc32": "0",
            "enableActingMaster": "true" if replica_status.replicated else "false",
        }
        body = await self._body(version, topics)
        answer = await self._ask(peer, RequestCode.REGISTER_BROKER, ext, body)
        self._learn(answer)

    def _learn(self, answer: Command) -> None:
        address, ha_address = answer.ext.get("masterAddr"), answer.ext.get("haServerAddr")
        if not self._broker_id or not address or not ha_address:
            return
        if self.master != (address, ha_address):
            self.master = (address, ha_address)
            self._context.replica_status.found_master(address, ha_address)

    async def _is_known(self, peer: Peer, version: DataVersion) -> bool:
        """Whether a name server has these topics already; to be asked is a sign of life, too."""
        code, timeout_ms = (
            RequestCode.QUERY_DATA_VERSION,
            self._broker.admin.config.register_timeout_ms,
        )
        answer = await peer.ask(code, self._principal(), version.encode(), timeout_ms)
        return answer.code == ResponseCode.SUCCESS and answer.ext.get("changed") == "false"

    async def _body(self, version: DataVersion, topics: int) -> bytes:
        if self._encoded is not None and self._encoded[0] == version:
            return self._encoded[1]
        if topics > LARGE_COUNT:
            # Many topics take a worker some tenths of a second.
            body = await asyncio.to_thread(lambda: encode_registration(self.body()))
        else:
            body = encode_registration(self.body())
        self._encoded = (version, body)
        return body

    def _principal(self) -> dict[str, str]:
        config = self._broker.admin.config
        return {
            "brokerName": config.name,
            "brokerAddr": self._address,
            "clusterName": config.cluster,
            "brokerId": str(self._broker_id),
        }

    async def _leave(self, line: _NameserverConnection) -> None:
        if line.peer is None or not line.peer.is_open:
            return
        if not self._context.replica_status.leaves:
            line.peer.connection.abort()
            await line.peer.close()
            return
        timeout_ms = min(GOODBYE_MS_MAX, self._broker.admin.config.register_timeout_ms)
        try:
            await self._ask(
                line.peer, RequestCode.UNREGISTER_BROKER, self._principal(), b"", timeout_ms
            )
        except OnelogError as error:
            log.info("name server %s:%d still lists this broker: %s", *line.address, error)
            line.peer.connection.abort()
        await line.peer.close()

    async def _ask(
        self,
        peer: Peer,
        code: RequestCode,
        ext: dict[str, str],
        body: bytes,
        timeout_ms: int | None = None,
    ) -> Command:
        if timeout_ms is None:
            timeout_ms = self._broker.admin.config.register_timeout_ms
        answer = await peer.ask(code, ext, body, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise PeerClosedError(f"it answered {answer.code}: {answer.remark}")
        return answer

    def body(self) -> RegisterBrokerBody:
        topics = self._broker.topics.all(SELF)[1]
        return RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicTable(
                data_version=self._version(),
                topic_config_table={topic.name: topic_body(topic) for topic in topics},
            )
        )
