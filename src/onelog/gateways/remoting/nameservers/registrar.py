"""The broker's own calls to the name servers: here I am, and these are my topics.

It registers with every name server, over a connection that stays open: at the start, every 30 s,
and as soon as a topic changes. A name server that does not answer is logged once, and tried again
next time; the others do not wait for it. A broker with very many topics sends them when they have
changed, and else asks whether the name server still knows them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from onelog.core.access import SELF
from onelog.core.broker import Broker
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import OnelogError, PeerClosedError
from onelog.jobs import Job
from onelog.net.peer import Peer
from onelog.net.tls import Tls
from onelog.rocketmq.tables import topic_body, version_body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicTable,
    encode_registration,
)

log = logging.getLogger(__name__)

LARGE_COUNT = 1_000
"""Topics that are not sent without need."""

Address = tuple[str, int]


class Registrar:
    """Keeps the name servers informed about one broker."""

    def __init__(self, broker: Broker, address: str, ha_address: str, tls: Tls) -> None:
        self._broker = broker
        self._tls = tls
        self._address = address
        self._ha_address = ha_address
        self._peers: dict[Address, Peer] = {}
        self._silent: set[Address] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        broker.hooks.topic_changed.append(self._topic_changed)

    async def start(self) -> None:
        """Register once, then go on by itself."""
        await self.register()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Say goodbye to the name servers that can be reached."""
        if self._task is not None:
            self._task.cancel()
        await self._tell_all(self._unregister)
        for peer in self._peers.values():
            await peer.close()

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self._changed.set()

    async def _run(self) -> None:
        job = Job("registering with the name servers")
        while True:
            period_s = self._broker.config.register_interval_ms / 1000
            try:
                async with asyncio.timeout(period_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            with job:
                await self.register()

    async def register(self) -> None:
        """Register with all name servers, at the same time."""
        self._changed.clear()
        known, topics = self._broker.admin.topics(SELF)
        version, is_large = version_body(known), len(topics) > LARGE_COUNT
        body = b"" if is_large else encode_registration(self.body())

        async def tell(peer: Peer) -> None:
            nonlocal body
            if is_large:
                if await self._is_known(peer, version):
                    return
                # Many topics take a worker some tenths of a second.
                body = body or await asyncio.to_thread(lambda: encode_registration(self.body()))
            await self._register(peer, body)

        await self._tell_all(tell)

    async def _is_known(self, peer: Peer, version: DataVersion) -> bool:
        """Whether a name server has these topics already; to be asked is a sign of life, too."""
        code, timeout_ms = RequestCode.QUERY_DATA_VERSION, self._broker.config.register_timeout_ms
        answer = await peer.ask(code, self._who(), version.encode(), timeout_ms)
        return answer.code == ResponseCode.SUCCESS and answer.ext.get("changed") == "false"

    async def _tell_all(self, tell: Callable[[Peer], Awaitable[None]]) -> None:
        addresses = self._broker.config.nameserver_addresses
        await asyncio.gather(*(self._tell(address, tell) for address in addresses))

    async def _tell(self, address: Address, tell: Callable[[Peer], Awaitable[None]]) -> None:
        hint = ""
        try:
            peer = self._peers.get(address)
            if peer is None or not peer.is_open:
                tls = await self._tls.client_context()
                timeout_ms = self._broker.config.register_timeout_ms
                peer = self._peers[address] = await Peer.connect(
                    *address, tls=tls, timeout_ms=timeout_ms
                )
                if tls is None:
                    hint = "; if it demands TLS, set tls.outgoing=on"
            await tell(peer)
        except OnelogError as error:
            if address not in self._silent:
                self._silent.add(address)
                log.warning("name server %s:%d cannot be told: %s%s", *address, error, hint)
        else:
            if address in self._silent:
                self._silent.discard(address)
                log.info("name server %s:%d answers again", *address)

    def _who(self) -> dict[str, str]:
        config = self._broker.config
        return {
            "brokerName": config.name,
            "brokerAddr": self._address,
            "clusterName": config.cluster,
            "brokerId": str(config.broker_id),
        }

    async def _register(self, peer: Peer, body: bytes) -> None:
        ext = {
            **self._who(),
            "haServerAddr": self._ha_address,
            "compressed": "false",
            "bodyCrc32": "0",
            "enableActingMaster": "false",
        }
        await self._ask(peer, RequestCode.REGISTER_BROKER, ext, body)

    async def _unregister(self, peer: Peer) -> None:
        await self._ask(peer, RequestCode.UNREGISTER_BROKER, self._who(), b"")

    async def _ask(self, peer: Peer, code: RequestCode, ext: dict[str, str], body: bytes) -> None:
        timeout_ms = self._broker.config.register_timeout_ms
        answer = await peer.ask(code, ext, body, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise PeerClosedError(f"it answered {answer.code}: {answer.remark}")

    def body(self) -> RegisterBrokerBody:
        """All topics of this broker."""
        version, topics = self._broker.admin.topics(SELF)
        return RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicTable(
                data_version=version_body(version),
                topic_config_table={topic.name: topic_body(topic) for topic in topics},
            )
        )
