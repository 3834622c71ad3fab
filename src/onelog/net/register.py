"""The register of a cluster: texts by key that a name server keeps for all brokers.

It is the first of the name servers that a broker is told of: they do not talk to each other, and
two of them would not agree. What is put there takes the place of a text that is known, or fails.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from onelog.config import BrokerConfig
from onelog.errors import OnelogError, RequestRefusedError
from onelog.net.peer import Peer
from onelog.net.tls import Tls
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.routes import ClusterInfo, KVTable, QueueData, TopicRouteData

TIMEOUT_MS = 1_500
_FOUND = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)


KINDS = ("GRPC", "KAFKA")
"""The registers that a cluster may have."""


def is_register(namespace: str, cluster: str) -> bool:
    """Whether that namespace of a name server is a register of this cluster."""
    return any(namespace == f"{kind}_{cluster}" for kind in KINDS)


class Loaded(NamedTuple):
    """What the name server knows."""

    texts: dict[str, str] | None
    """None if nothing has changed."""
    names: frozenset[str]
    """Of the brokers that are registered."""


class Register:
    """The register of one cluster, at its name server."""

    def __init__(self, kind: str, config: Callable[[], BrokerConfig], tls: Tls) -> None:
        self._config = config
        self._tls = tls
        assert kind in KINDS
        self._namespace = f"{kind}_{config().cluster}"
        self._peer: Peer | None = None
        self._connecting = asyncio.Lock()
        self._version = self._life = ""

    async def load(self) -> Loaded:
        """Everything, if it is not what it was the last time."""
        ext = {"namespace": self._namespace, "known": self._version}
        answer = await self._ask(RequestCode.GET_KVLIST_BY_NAMESPACE, ext)
        info = ClusterInfo.decode((await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        names = frozenset(info.cluster_addr_table.get(self._config().cluster, ()))
        version = answer.ext.get("version", "")
        self._life = version.partition("-")[0]
        if version and version == self._version:
            return Loaded(None, names)
        self._version = version
        return Loaded(KVTable.decode(answer.body).table if answer.body else {}, names)

    @property
    def life(self) -> str:
        """Another one after each start of the name server."""
        return self._life

    def forget(self) -> None:
        """Load everything the next time."""
        self._version = ""

    async def put(self, key: str, text: str, expected: str) -> None:
        """Put a text in the place of another, or of none ("")."""
        ext = {"namespace": self._namespace, "key": key, "value": text, "expected": expected}
        await self._ask(RequestCode.PUT_KV_CONFIG, ext)

    async def delete(self, key: str) -> None:
        await self._ask(RequestCode.DELETE_KV_CONFIG, {"namespace": self._namespace, "key": key})

    async def queues(self, topic: str) -> Mapping[str, int]:
        """How many queues of a topic each broker has."""
        return {
            name: max(data.read_queue_nums, data.write_queue_nums)
            for name, data in (await self.route(topic)).items()
        }

    async def route(self, topic: str) -> dict[str, QueueData]:
        """The queues of a topic on each broker that is there."""
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        found = TopicRouteData.decode(answer.body).queue_datas
        return {data.broker_name: data for data in found}

    async def _ask(self, code: RequestCode, ext: dict[str, str] | None = None) -> Command:
        try:
            peer = await self._connected()
            answer = await peer.ask(code, ext or {}, b"", TIMEOUT_MS)
        except OnelogError:
            # It may be half dead: the next request takes another connection.
            if self._peer is not None:
                self._peer.connection.close()
            raise
        if answer.code not in _FOUND:
            raise RequestRefusedError(f"the name server answered {answer.code}: {answer.remark}")
        return answer

    async def _connected(self) -> Peer:
        async with self._connecting:
            if self._peer is None or not self._peer.is_open:
                host, port = self._config().nameserver_addresses[0]
                tls = await self._tls.client_context()
                self._peer = await Peer.connect(host, port, tls=tls, timeout_ms=TIMEOUT_MS)
            return self._peer

    async def close(self) -> None:
        """Ask nothing more."""
        if self._peer is not None:
            await self._peer.close()
