"""The pages at `/`: files of this package, read once, with headers that let nothing else in.

A page runs its own scripts only, and nothing that anybody wrote into a message or a name: there is
no HTML in the answers of REST, and the scripts make text of everything.
"""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.gateways import GatewayContext

FOLDER = Path(__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def routes(context: GatewayContext) -> list[BaseRoute]:
    """A route for each file; nothing else can be asked for."""
    made: list[BaseRoute] = []
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in TYPES:
            file = _file(path.read_bytes(), TYPES[path.suffix])
            made.append(Route("/" if path.name == "index.html" else f"/console/{path.name}", file))
    return made


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """Answers with one file, or that it has not changed."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {
        "etag": etag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "cross-origin-opener-policy": "same-origin",
    }

    async def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return file
