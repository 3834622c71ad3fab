"""Who asks, of each request: by password, by token, by certificate, or by a session of a browser.

A session begins with the form at `/login`, and is a cookie: HttpOnly, SameSite=Strict, Secure over
TLS, and new with each login. Only its hash is kept, in memory. It ends when its user logs out, gets
another password or may not log in any more, after half an hour without a request, and after twelve
hours in any case. That other pages cannot use it, `app` looks after: what changes something must
come from a page of this server.
"""

import base64
import hashlib
import html
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from onelog.core.access import Principal
from onelog.core.users.passwords import Proofs
from onelog.core.users.users import User
from onelog.errors import NotAuthenticatedError, OnelogError
from onelog.gateways import GatewayContext
from onelog.gateways.http.requests import address_of, answer, body_of, called, principal_of

LOGIN = "/login"
OPEN = ("/healthz", "/readyz", LOGIN)
"""What everybody may ask, also where users log in."""
IDLE_MS = 30 * 60_000
LIFE_MS = 12 * 3_600_000
SESSIONS_MAX = 10_000
SESSIONS_OF_ONE_MAX = 20
FORM_BYTES_MAX = 8 << 10
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>OneLog: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; font-family: system-ui, sans-serif }
body { display: grid; place-items: center; min-height: 90vh; margin: 1rem }
form { display: grid; gap: .8rem; width: min(20rem, 100%) }
label { display: grid; gap: .2rem }
input, button { font: inherit; padding: .5rem }
p { margin: 0; color: light-dark(#b00020, #ff8a80) }
</style></head><body><main><form method="post" action="/login">
<h1>OneLog</h1>@WRONG@
<label>User <input name="user" autocomplete="username" required autofocus></label>
<label>Password <input name="password" type="password" autocomplete="current-password"
required></label>
<button>Log in</button>
</form></main></body></html>
"""


@dataclass(slots=True)
class _Session:
    """One browser that has logged in."""

    user: str
    proofs: Proofs
    """What proved the password then: with another one the session ends."""
    began_ms: int
    used_ms: int


class Logins:
    """Finds out who asks."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._logins = context.broker.users.logins
        self._now_ms: Callable[[], int] = context.clock.now_ms
        self.sessions: dict[bytes, _Session] = {}
        """By the hash of what the cookie has, the one that began first at the beginning."""

    # -- every request -------------------------------------------------------------------------

    async def principal(self, request: HTTPConnection) -> Principal | OnelogError | None:
        """Who asks, or why they are not let in; None for nobody, where nobody need log in."""
        logins = self._logins
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        origin = ("http", address_of(request).address)
        found: Principal | OnelogError | None
        if kind.lower() == "basic":
            try:
                name, _, password = base64.b64decode(given, validate=True).decode().partition(":")
            except ValueError:
                return NotAuthenticatedError("that is no name and password")
            (found,) = await called(lambda done: logins.log_in(name, password, *origin, done))
            return found
        if kind.lower() == "bearer":
            (found,) = await called(lambda done: logins.log_in_by_token(given, *origin, done))
            return found
        found = self._by_session(request, origin)
        if found is None:
            found = logins.certified(request.scope["state"].get("certificate") or {}, *origin)
        if found is None and logins.is_needed and request.scope["path"] not in OPEN:
            return NotAuthenticatedError("log in as a user")
        return found

    def _by_session(self, request: HTTPConnection, origin: tuple[str, str]) -> Principal | None:
        key = _hashed(request.cookies.get(self._cookie(request), ""))
        session = self.sessions.get(key)
        if session is None:
            return None
        now_ms = self._now_ms()
        user: User | None = self._logins.users.users.known.get(session.user)
        is_same = user is not None and not user.disabled and user.proofs == session.proofs
        if not is_same or now_ms - session.used_ms > IDLE_MS or now_ms - session.began_ms > LIFE_MS:
            del self.sessions[key]
            return None
        session.used_ms = now_ms
        return Principal(session.user, *origin)

    @staticmethod
    def _cookie(request: HTTPConnection) -> str:
        """Cookies know no ports: brokers on one machine have names of their own."""
        return f"onelog_{(request.scope.get('server') or ('', 0))[1]}"

    # -- the form ------------------------------------------------------------------------------

    def routes(self) -> list[BaseRoute]:
        return [
            Route(LOGIN, self._form),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/v1/session", self._session),
        ]

    async def _form(self, request: Request) -> Response:
        return page(200)

    async def _log_in(self, request: Request) -> Response:
        form = parse_qs((await body_of(request, FORM_BYTES_MAX)).decode("utf-8", "replace"))
        name, password = (form.get(each, [""])[0] for each in ("user", "password"))
        self._end(request)
        if self._logins.users.is_open:
            return RedirectResponse("/", 303)
        origin = ("http", address_of(request).address)
        (found,) = await called(lambda done: self._logins.log_in(name, password, *origin, done))
        if isinstance(found, OnelogError):
            return page(401, str(found))
        made = RedirectResponse("/", 303)
        made.set_cookie(
            self._cookie(request),
            self._begin(found.name),
            LIFE_MS // 1000,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return made

    def _begin(self, name: str) -> str:
        now_ms = self._now_ms()
        own = [key for key, each in self.sessions.items() if each.user == name]
        old = own[: max(0, len(own) - SESSIONS_OF_ONE_MAX + 1)]
        if len(self.sessions) >= SESSIONS_MAX:
            old.append(next(iter(self.sessions)))
        for key in old:
            self.sessions.pop(key, None)
        text = secrets.token_urlsafe(32)
        user: User = self._logins.users.users.known[name]
        self.sessions[_hashed(text)] = _Session(name, user.proofs, now_ms, now_ms)
        return text

    def _end(self, request: Request) -> None:
        self.sessions.pop(_hashed(request.cookies.get(self._cookie(request), "")), None)

    async def _log_out(self, request: Request) -> Response:
        self._end(request)
        made = RedirectResponse(LOGIN, 303)
        made.delete_cookie(self._cookie(request), httponly=True, samesite="strict")
        return made

    async def _session(self, request: Request) -> Response:
        return answer({"user": principal_of(request).name})


def _hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def page(status: int, wrong: str = "") -> Response:
    """The form, with what was wrong."""
    shown = f'<p role="alert">{html.escape(wrong)}</p>' if wrong else ""
    text = _PAGE.replace("@WRONG@", shown)
    # With no referrer, a browser would not say where the form comes from, either.
    headers = {"content-security-policy": POLICY, "referrer-policy": "same-origin"}
    return Response(text, status, headers, "text/html; charset=utf-8")


def is_page(headers: Headers) -> bool:
    """Whether a person has gone there with a browser, and not a script."""
    return "text/html" in headers.get("accept", "")


def is_browser(headers: Headers) -> bool:
    """Whether a script of a page asks: the browser is not to ask for a password by itself."""
    return "sec-fetch-mode" in headers
