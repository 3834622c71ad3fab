"""Clusters and their brokers, as the name servers know them and as the brokers see themselves.

Brokers that share a name are one master (id 0) and its slaves; together they are a `BrokerSet`.

What RocketMQ's protocol has no request for, they are asked by the names of REST's operations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from onelog.client.connection.address import Address, parse_address
from onelog.client.connection.nodes import Failure, Nodes
from onelog.client.synchronous import Part, waiting
from onelog.errors import BrokerNotFoundError, InvalidRequestError, WireError
from onelog.wire.remoting.codes import RequestCode
from onelog.wire.remoting.routes import BrokerData, ClusterInfo, KVTable

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """The brokers of one name, each with its id and address."""

    name: str
    cluster: str
    members: tuple[tuple[int, Address], ...]

    @property
    def master(self) -> Address | None:
        """Where changes go; None while there is no master."""
        return dict(self.members).get(MASTER_ID)

    @property
    def preferred(self) -> Address:
        """Where questions go: the master, or the slave with the lowest id."""
        return self.members[0][1]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """How one broker process is doing."""

    name: str
    cluster: str
    broker_id: int
    address: Address
    version: str
    put_rate: float
    """Messages per second over the last 10 s."""
    get_rate: float
    put_today: int
    get_today: int
    disk_used_ratio: float
    booted_ms: int
    oldest_message_ms: int
    stalls: int
    """How often since its start the event loop was held for over 20 ms. Only OneLog tells."""
    longest_stall_ms: int
    log_held_by: str
    """Which queues the log has to be kept for, however old it is. Only OneLog tells."""
    details: dict[str, str]
    """Everything that the broker tells about itself, under RocketMQ's names."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """How all brokers are doing, as far as they answered."""

    brokers: tuple[BrokerStatus, ...]
    failures: tuple[Failure, ...]


@dataclass(eq=False)
class Clusters:
    """Questions about clusters."""

    _nodes: Nodes

    async def brokers(self, cluster: str | None = None) -> tuple[BrokerSet, ...]:
        """All brokers, or those of one cluster, by cluster and name."""
        info = await self._nodes.fetch_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
        sets = sorted(
            (broker_set(data) for data in info.broker_addr_table.values() if data.broker_addrs),
            key=lambda each: (each.cluster, each.name),
        )
        found = tuple(each for each in sets if cluster is None or each.cluster == cluster)
        if cluster is not None and not found:
            known = _listed({each.cluster for each in sets})
            raise BrokerNotFoundError(f"no cluster {cluster!r}; the name servers know {known}")
        return found

    async def sources(self) -> dict[str, Address]:
        """Where to ask about everything, by the names of all brokers."""
        return {each.name: each.preferred for each in await self.brokers()}

    async def masters(
        self, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, Address]:
        """The masters that a change is for, by name: those of a cluster, or one by its name.

        With neither given there must be one cluster only: nobody should change another one by
        leaving something out.
        """
        sets = await self.brokers(cluster)
        if broker is not None:
            sets = tuple(each for each in sets if each.name == broker)
            if not sets:
                raise BrokerNotFoundError(f"the name servers know no broker {broker!r}")
        elif cluster is None:
            clusters = {each.cluster for each in sets}
            if len(clusters) > 1:
                raise InvalidRequestError(
                    f"there are several clusters: say which one of {_listed(clusters)}"
                )
        return masters_of(sets)

    async def status(self, cluster: str | None = None) -> ClusterStatus:
        """Every broker's own report, slaves included."""
        members = {
            str(address): (each, broker_id, address)
            for each in await self.brokers(cluster)
            for broker_id, address in each.members
        }
        gathered = await self._nodes.gather(members, lambda member: self._status(*member))
        return ClusterStatus(tuple(gathered.answers.values()), gathered.failures)

    async def _status(self, brokers: BrokerSet, broker_id: int, address: Address) -> BrokerStatus:
        answer = await self._nodes.fetch(address, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)
        table = answer.table
        own = table.get("onelogVersion")
        gets = table.get("getTransferredTps") or table.get("getTransferedTps", "")
        puts_today = _whole(table, "msgPutTotalTodayNow") - _whole(table, "msgPutTotalTodayMorning")
        gets_today = _whole(table, "msgGetTotalTodayNow") - _whole(table, "msgGetTotalTodayMorning")
        return BrokerStatus(
            name=brokers.name,
            cluster=brokers.cluster,
            broker_id=broker_id,
            address=address,
            # One of OneLog also says which RocketMQ it stands in for.
            version=f"OneLog {own}" if own else table.get("brokerVersionDesc", ""),
            put_rate=_first_rate(table.get("putTps", "")),
            get_rate=_first_rate(gets),
            put_today=max(0, puts_today),
            get_today=max(0, gets_today),
            disk_used_ratio=_first_rate(table.get("commitLogDiskRatio", "")),
            booted_ms=_whole(table, "bootTimestamp"),
            oldest_message_ms=max(0, _whole(table, "earliestMessageTimeStamp")),
            stalls=_whole(table, "onelogStallsTotal"),
            longest_stall_ms=_whole(table, "onelogStallLongestMs"),
            log_held_by=table.get("onelogLogHeldBy", ""),
            details=table,
        )


class SyncClusters(Part[Clusters]):
    """The same for threads."""

    brokers = waiting(Clusters.brokers)
    masters = waiting(Clusters.masters)
    sources = waiting(Clusters.sources)
    status = waiting(Clusters.status)


def broker_set(data: BrokerData) -> BrokerSet:
    """The brokers of a name, from a name server's answer."""
    members = sorted((number, parse_address(text)) for number, text in data.broker_addrs.items())
    return BrokerSet(data.broker_name, data.cluster, tuple(members))


def masters_of(sets: tuple[BrokerSet, ...]) -> dict[str, Address]:
    """The masters by name; `BrokerNotFoundError` if one is missing, for it would miss a change."""
    missing = [each.name for each in sets if each.master is None]
    if missing or not sets:
        what = f"{_listed(missing)} has no master now" if missing else "there are no brokers"
        raise BrokerNotFoundError(f"nothing was changed: {what}")
    return {each.name: each.master for each in sets if each.master is not None}


def _listed(names: set[str] | list[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _whole(table: Mapping[str, str], key: str) -> int:
    text = table.get(key, "")
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else 0


def _first_rate(text: str) -> float:
    """The first of the numbers in a text such as "12.5 11.0 9.8": the shortest span."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


@dataclass(eq=False)
class Operations:
    """What a broker does, or tells, that RocketMQ's protocol has no request for."""

    _nodes: Nodes
    _clusters: Clusters

    async def ask(self, name: str, /, *, broker: str | None = None, **arguments: Any) -> Any:
        """The result of an operation that changes nothing, as JSON has it."""
        return await self._operate(RequestCode.ASK_OPERATION, name, broker, arguments)

    async def run(self, name: str, /, *, broker: str | None = None, **arguments: Any) -> Any:
        """The same for one that may change something."""
        return await self._operate(RequestCode.RUN_OPERATION, name, broker, arguments)

    async def _operate(
        self, code: RequestCode, name: str, broker: str | None, arguments: dict[str, Any]
    ) -> Any:
        masters = await self._clusters.masters(None, broker)
        if len(masters) > 1:
            raise InvalidRequestError(
                f"there are several brokers: say which of {', '.join(masters)}"
            )
        (address,) = masters.values()
        body = msgspec.json.encode(arguments)
        answer = await self._nodes.ask(address, code, {"operation": name}, body)
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError as error:
            raise WireError(f"{address} sent what is no JSON: {error}") from None


class SyncOperations(Part[Operations]):
    """The same for threads."""

    ask = waiting(Operations.ask)
    run = waiting(Operations.run)
