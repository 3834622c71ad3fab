"""Bindings: which topics of MQTT flow into which topics, and back."""

from dataclasses import dataclass

from onelog.client.admin.cluster import Clusters
from onelog.client.connection.nodes import Nodes
from onelog.client.synchronous import Part, waiting
from onelog.wire.remoting.bindings import BindingList
from onelog.wire.remoting.codes import RequestCode


@dataclass(frozen=True, slots=True)
class Binding:
    """What flows from a filter of MQTT into a topic, or `back`: from a topic to one of MQTT's."""

    filter: str
    topic: str
    back: bool
    broker: str


@dataclass(eq=False)
class Bindings:
    """Bindings of all brokers of a cluster."""

    _nodes: Nodes
    _clusters: Clusters

    async def change(
        self,
        filter_: str,
        topic: str,
        *,
        back: bool = False,
        remove: bool = False,
        cluster: str | None = None,
    ) -> tuple[str, ...]:
        """Make a binding, or end one; on which brokers."""
        masters = await self._clusters.masters(cluster)
        ext = {"filter": filter_, "topic": topic}
        ext |= {name: "true" for name, on in (("back", back), ("remove", remove)) if on}
        await self._nodes.change(
            masters,
            lambda address: self._nodes.ask(address, RequestCode.CHANGE_BINDING, ext),
        )
        return tuple(masters)

    async def all(self, *, cluster: str | None = None) -> tuple[Binding, ...]:
        """Every binding."""
        masters = await self._clusters.masters(cluster)
        gathered = await self._nodes.fetch_all(masters, RequestCode.LIST_BINDINGS, BindingList, {})
        return tuple(
            Binding(each.filter, each.topic, each.back, broker)
            for broker, answer in gathered.answers.items()
            for each in answer.bindings
        )


class SyncBindings(Part[Bindings]):
    """The same for threads."""

    change = waiting(Bindings.change)
    all = waiting(Bindings.all)
