"""`/healthz`: the process answers. `/readyz`: the broker takes messages."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.core.access import SELF
from onelog.gateways import GatewayContext
from onelog.gateways.http.requests import answer


def routes(context: GatewayContext) -> list[BaseRoute]:
    """What probes ask."""

    async def healthz(request: Request) -> Response:
        return answer({"status": "ok"})

    async def readyz(request: Request) -> Response:
        role = "slave" if context.replica_status.broker_id else "master"
        refusal = context.broker.admin.refusal(SELF)
        if refusal:
            return answer({"status": "not ready", "role": role, "reason": refusal}, 503)
        return answer({"status": "ok", "role": role})

    return [Route("/healthz", healthz), Route("/readyz", readyz)]
