"""The application: all routes, and what holds for every request.

A page of another server must not be able to use a reader's browser against the broker. So a request
must call this machine by a name that is its own (or names of other servers could be made to point
here), and what changes something, or is a WebSocket, must not come from another server's page.
"""

import importlib
import ipaddress
import logging
import re
import socket
from urllib.parse import SplitResult, quote, unquote, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onelog.errors import OnelogError
from onelog.gateways import GatewayContext
from onelog.gateways.http.logins import Logins, is_browser, is_page, page
from onelog.gateways.http.problems import problem, problem_of
from onelog.gateways.http.requests import PRINCIPAL, SLASH

log = logging.getLogger(__name__)

_SAFE = ("GET", "HEAD", "OPTIONS")
TAKING = ("/api/message/",)
"""Where a GET takes a message, and makes a queue: it is no more safe than a POST."""
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    # Whatever it says to be, nothing in it is run on the console's origin.
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
"""Of every answer that has none of its own."""


def make_app(context: GatewayContext) -> Starlette:
    """The application, with the routes that the house knows of."""
    logins = Logins(context)
    routes = logins.routes()
    for entry_point in context.routes:
        module, _, name = entry_point.partition(":")
        routes += getattr(importlib.import_module(module), name)(context)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, context=context, logins=logins)],
        exception_handlers={
            OnelogError: _onelog_error,
            HTTPException: _http_error,
            TimeoutError: _too_late,
            ClientDisconnect: _cut_short,
            Exception: _bug,
        },
    )
    app.state.context = context
    return app


async def _onelog_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OnelogError)
    return problem_of(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    detail = error.detail
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path}"
    return problem(error.status_code, detail, headers=headers)


async def _too_late(request: Request, error: Exception) -> Response:
    return problem(504, "the broker did not answer in time: look whether it was done")


async def _cut_short(request: Request, error: Exception) -> Response:
    """The client has hung up in the middle of its request: nobody reads this."""
    return problem(400, "the request did not come whole")


async def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed: %r", request.method, request.url.path, error)
    return problem(500, type(error).__name__)


class Guard:
    """Refuses what another server's page may have sent, and marks every answer."""

    def __init__(self, app: ASGIApp, context: GatewayContext, logins: Logins) -> None:
        self._app = app
        self._context = context
        self._logins = logins
        self._own = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] not in ("http", "websocket"):
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # A line that ends in a message's header would begin another one.
                message["headers"] = [
                    (name, _CONTROL.sub(b" ", value)) for name, value in message["headers"]
                ]
            await send(message)

        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            shown = re.sub(rb"%2[fF]", quote(SLASH).encode(), raw)
            scope["path"] = unquote(shown.decode("ascii", "replace"))
        refusal = self._refusal(scope)
        if not refusal and not self._context.broker.users.is_open:
            found = await self._logins.principal(HTTPConnection(scope))
            if isinstance(found, OnelogError):
                if scope["type"] == "http":
                    await self._unknown(found, Headers(scope=scope))(scope, receive, marked)
                    return
                # Who has not said who he is does so inside, as MQTT's and STOMP's clients do.
                refusal = str(found) if "authorization" in Headers(scope=scope) else ""
            elif found is not None:
                scope[PRINCIPAL] = found
                if scope["type"] == "websocket":
                    scope["state"]["connection"].user = found.name
        if scope["type"] == "websocket":
            if refusal:
                await send({"type": "websocket.close", "code": 1008, "reason": refusal})
            else:
                await self._app(scope, receive, send)
            return

        if refusal:
            await problem(403, refusal)(scope, receive, marked)
        else:
            await self._app(scope, receive, marked)

    def _unknown(self, error: OnelogError, headers: Headers) -> Response:
        """The answer to who is not let in: people get a form, programs are told how to log in."""
        if is_page(headers):
            return page(401)
        made = problem_of(error)
        if is_browser(headers):
            del made.headers["www-authenticate"]
        return made

    def _refusal(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own(host):
            return (
                f"{host!r:.80} is no name of this machine: call it by its address, or add the name "
                "to http.hosts"
            )
        takes = scope["type"] == "http" and scope["method"] in _SAFE
        if takes and not scope["path"].startswith(TAKING):
            return ""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None:
            # Without TLS browsers say of a GET to other machines at most which page was before; old
            # ones say no more of what a form sends.
            before = _parts(headers.get("referer", ""))
            origin = f"{before.scheme}://{before.netloc}" if before.netloc else None
        if origin is None:
            is_program = not takes or not headers.get("user-agent", "").startswith("Mozilla/")
            is_own = site in _SAME or (site is None and is_program)
            return "" if is_own else _FOREIGN
        allowed = self._context.loaded.config.http.origins.split(",")
        is_same = _parts(origin).netloc.lower() == host.lower()
        return "" if is_same or "*" in allowed or origin in allowed else _FOREIGN

    def _is_own(self, host: str) -> bool:
        name = _parts(f"//{host}").hostname if host else None
        if name is None:
            return False
        own_settings, hosts = (
            self._context.broker.admin.config,
            self._context.loaded.config.http.hosts,
        )
        try:
            ipaddress.ip_address(name)
        except ValueError:
            own = self._own | {own_settings.host.lower(), own_settings.client_host.lower()}
            return name in own or name in hosts.lower().split(",")
        return True


def _parts(url: str) -> SplitResult:
    """The parts of an address; of what is none, nothing."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


_SAME = ("none", "same-origin")
_FOREIGN = "this came from a page of another server: add that to http.origins to let it in"
