"""One request of the management API: its principal, and what its path and its body say."""

from typing import Any

from starlette.requests import Request

from onelog.core.access import Principal
from onelog.core.routing.names import DEFAULT_VHOST
from onelog.errors import InvalidRequestError, VhostNotFoundError
from onelog.gateways import ClientState, GatewayContext
from onelog.gateways.http.rates import Rates
from onelog.gateways.http.requests import SLASH, context_of

_TRUE = (True, "true", "True", 1)

Body = dict[str, Any]


def pick(source: object, names: str) -> Body:
    """Attributes of a value: `name`, or `name=attribute`, between spaces."""
    pairs = (each.partition("=") for each in names.split())
    return {name: getattr(source, other or name) for name, _, other in pairs}


class Call:
    """A request, with what its path and body say."""

    def __init__(self, request: Request, principal: Principal, body: Body, rates: Rates) -> None:
        self.request = request
        self.rates = rates
        self.context: GatewayContext = context_of(request)
        self.broker = self.context.broker
        self.principal = principal
        # Where names may have slashes, one at the end is none of them.
        self.path = {
            name: str(each).removesuffix("/").replace(SLASH, "/")
            for name, each in request.path_params.items()
        }
        self.body = body

    @property
    def sees_all(self) -> bool:
        """Whether they may know of everything that the broker has."""
        return self.broker.users.may(self.principal, "describe", ("broker", "names"))

    def clients(self) -> list[ClientState]:
        """Connections of AMQP, their own only if they may not know of others."""
        is_all, vhosts = self.sees_all, self.vhosts
        return [
            each
            for each in self.context.clients()
            if each.vhost in vhosts and (is_all or each.user == self.principal.name)
        ]

    @property
    def vhost(self) -> str:
        """The vhost that the path names, or the first one."""
        return self.path.get("vhost", "/")

    @property
    def vhosts(self) -> list[str]:
        """The vhost that the path names, which has to be there, or all."""
        named = self.path.get("vhost")
        if named is None:
            return [each.name for each in self.broker.publish.routing.vhosts(self.principal)]
        # The default one is always there, also for who may not describe it.
        if named != DEFAULT_VHOST and not self.broker.publish.routing.is_open_to(
            self.principal, named
        ):
            raise VhostNotFoundError(f"there is no vhost '{named}'")
        return [named]

    def flag(self, name: str, otherwise: bool = False) -> bool:
        """Yes or no, whatever it is written as."""
        return self.body.get(name, otherwise) in _TRUE

    def text(self, name: str, otherwise: str = "") -> str:
        found = self.body.get(name, otherwise)
        if not isinstance(found, str):
            raise InvalidRequestError(f"{name} must be a text")
        return found

    def table(self, name: str) -> dict[str, Any]:
        found = self.body.get(name) or {}
        if not isinstance(found, dict):
            raise InvalidRequestError(f"{name} must be an object")
        return found
