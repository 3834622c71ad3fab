"""All operations, as routes, with the document that describes them."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.admin.broker import (
    audit,
    brokers,
    groups,
    lake,
    message_history,
    replicas,
    routing,
    topics,
    users,
)
from onelog.admin.openapi import document
from onelog.admin.operations import Operation, routes_of
from onelog.gateways import GatewayContext
from onelog.gateways.http.requests import answer

OPERATIONS: Sequence[Operation] = [
    *audit.OPERATIONS,
    *brokers.OPERATIONS,
    *replicas.OPERATIONS,
    *topics.OPERATIONS,
    *groups.OPERATIONS,
    *message_history.OPERATIONS,
    *lake.OPERATIONS,
    *routing.OPERATIONS,
    *users.OPERATIONS,
]


def routes(context: GatewayContext) -> list[BaseRoute]:
    """What REST has."""
    described = document(OPERATIONS)

    async def openapi(request: Request) -> Response:
        return answer(described)

    return [Route("/v1/openapi.json", openapi), *routes_of(context, OPERATIONS)]
