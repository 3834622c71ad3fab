"""Operations of OneLog's brokers by their names: those of REST, over RocketMQ's protocol."""

from dataclasses import dataclass
from typing import Any

import msgspec

from onelog.client.admin.cluster import Clusters
from onelog.client.connection.nodes import Nodes
from onelog.client.synchronous import Part, waiting
from onelog.errors import InvalidRequestError, WireError
from onelog.wire.remoting.codes import RequestCode


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
