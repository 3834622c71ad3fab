"""REST at `/v1`: a route for each operation, and the document that describes them.

Parameters of the path, the query and the body are the operation's arguments. What did not change is
not sent again (If-None-Match), and what did change meanwhile is not overwritten (If-Match).
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog.admin.broker import FUNCTIONS, Call
from onelog.admin.openapi import document
from onelog.admin.operations import Arguments, Operation
from onelog.admin.table import OPERATIONS
from onelog.errors import InvalidRequestError
from onelog.gateways import GatewayContext
from onelog.gateways.http.problems import problem
from onelog.gateways.http.requests import (
    answer,
    json_of,
    may_administer,
    path_of,
    principal_of,
    require_admin,
    traced_by,
)


def routes(context: GatewayContext) -> list[BaseRoute]:
    """A route for each path, with all its methods."""
    described = document(OPERATIONS)

    async def openapi(request: Request) -> Response:
        return answer(described)

    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [
        Route("/v1/openapi.json", openapi),
        *(
            Route(path, _endpoint(context, methods), methods=list(methods))
            for path, methods in by_path.items()
        ),
    ]


def _endpoint(
    context: GatewayContext, methods: dict[str, Operation]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        operation = methods[method]
        principal = require_admin(request) if operation.changes else principal_of(request)
        call = Call(
            context,
            principal,
            may_administer(request),
            tuple(request.client or ("127.0.0.1", 0)),  # type: ignore[arg-type]
            traced_by(request),
        )
        arguments = await _arguments(request, operation)
        wanted = request.headers.get("if-match")
        if wanted is not None and operation.changes and "GET" in methods:
            get = methods["GET"]
            nothing = msgspec.convert(path_of(request), get.arguments)
            if wanted.strip() not in ("*", _etag(answer(await FUNCTIONS[get.name](call, nothing)))):
                return problem(412, "it has changed since: look at it again", "changed")
        made = answer(await FUNCTIONS[operation.name](call, arguments), operation.status)
        if not operation.changes:
            etag = _etag(made)
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers={"etag": etag})
            made.headers["etag"] = etag
            made.headers["cache-control"] = "no-cache"
        return made

    return endpoint


def _etag(made: Response) -> str:
    return f'"{hashlib.sha256(made.body).hexdigest()[:32]}"'


async def _arguments(request: Request, operation: Operation) -> Struct:
    """What the operation is given, from the path and from the query or the body."""
    items = request.query_params.multi_items()
    query, named = dict(items), path_of(request)
    if len(items) != len(query):
        raise InvalidRequestError("a parameter is there twice")
    if not operation.takes_body:
        return _converted({**query, **named}, operation.arguments, "a parameter", strict=False)
    _converted(query, Arguments, "a parameter")
    body = await json_of(request, dict[str, Any])
    if operation.whole:
        body = {operation.whole: body}
    if twice := body.keys() & named.keys():
        raise InvalidRequestError(f"the path says it already: {', '.join(twice)}")
    return _converted({**body, **named}, operation.arguments, "the body")


def _converted(given: dict[str, Any], kind: type[Struct], what: str, strict: bool = True) -> Struct:
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{what} is not as it should be: {error}") from None
