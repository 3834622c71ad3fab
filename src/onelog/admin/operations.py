"""What an operation is, and how a request becomes one.

An operation is a row: method, path, what it takes, what it gives, and the function that does it.
Routes and the OpenAPI document are both made from the rows, so they cannot differ. Parameters,
bodies and answers are `msgspec` types; what does not fit them is refused before anything is done.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onelog.core.access import Action, Kind, Principal
from onelog.errors import InvalidRequestError
from onelog.gateways import GatewayContext
from onelog.gateways.http.problems import problem
from onelog.gateways.http.requests import (
    answer,
    json_of,
    path_of,
    principal_of,
    require_admin,
)

LIMIT_MAX = 1_000
T = TypeVar("T")

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="How many at most.")]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Time = Annotated[
    int, Meta(ge=0, le=253_402_300_799_000, description="Milliseconds since 1970, UTC.")
]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class Nothing(Struct, forbid_unknown_fields=True):
    """No parameters."""


class Done(Struct):
    """It is done."""

    done: bool = True


class Listing(Struct, Generic[T]):
    """A page of something: `next` is the `after` of the following page, if there is one."""

    items: list[T]
    total: int
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, as operations see it."""

    context: GatewayContext
    principal: Principal
    path: dict[str, str]
    query: Any
    body: Any
    request: Request


@dataclass(frozen=True, slots=True)
class Operation:
    """One row."""

    method: str
    path: str
    summary: str
    act: Callable[[Ask], Awaitable[Any]]
    result: Any
    """The type of the answer."""
    query: type[Struct] = Nothing
    body: Any = None
    """The type of the request's body; None for none."""
    status: int = 200
    example: Any = None
    """A body that could be sent; of a GET, an answer."""
    text: str = ""
    """More about it."""
    tags: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """What clients that are made from the OpenAPI document call it."""
        return self.act.__name__

    @property
    def changes(self) -> bool:
        """Whether it may change something, and is for administrators."""
        return self.method != "GET"


def routes_of(context: GatewayContext, operations: Sequence[Operation]) -> list[Route]:
    """A route for each path, with all its methods."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [
        Route(path, _endpoint(context, methods), methods=list(methods))
        for path, methods in by_path.items()
    ]


def _endpoint(
    context: GatewayContext, methods: dict[str, Operation]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        operation = methods[method]
        principal = require_admin(request) if operation.changes else principal_of(request)
        query = _query_of(request, operation.query)
        body = None if operation.body is None else await json_of(request, operation.body)
        ask = Ask(context, principal, path_of(request), query, body, request)
        wanted = request.headers.get("if-match")
        if wanted is not None and operation.changes and "GET" in methods:
            nothing = msgspec.convert({}, methods["GET"].query)
            current = answer(await methods["GET"].act(_but(ask, nothing)))
            if wanted.strip() not in ("*", _etag(current)):
                return problem(412, "it has changed since: look at it again", "changed")
        made = answer(await operation.act(ask), operation.status)
        if not operation.changes:
            etag = _etag(made)
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers={"etag": etag})
            made.headers["etag"] = etag
            made.headers["cache-control"] = "no-cache"
        return made

    return endpoint


def _but(ask: Ask, query: Any) -> Ask:
    return Ask(ask.context, ask.principal, ask.path, query, None, ask.request)


def _etag(made: Response) -> str:
    return f'"{hashlib.sha256(made.body).hexdigest()[:32]}"'


def _query_of(request: Request, kind: type[Struct]) -> Struct:
    given = request.query_params.multi_items()
    if len(given) != len(dict(given)):
        raise InvalidRequestError("a parameter is there twice")
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"a parameter is not as it should be: {error}") from None


def check(ask: Ask, action: Action, name: str, kind: Kind = "broker") -> None:
    """`NotPermittedError` if they may not; for what no verb of the core looks after."""
    ask.context.broker.access.check(ask.principal, action, (kind, name))


def knows_names(ask: Ask) -> bool:
    """Whether they may know of everything that the broker has."""
    access = ask.context.broker.access
    return access.is_open or access.may(ask.principal, "describe", ("broker", "names"))


class Pace:
    """Lets others go on every now and then, in work that looks at very many things."""

    def __init__(self, seconds: float = 0.004) -> None:
        self._seconds = seconds
        self._began = perf_counter()

    async def give(self) -> None:
        """To be called often: it costs little when it is not time."""
        if perf_counter() - self._began > self._seconds:
            await asyncio.sleep(0)
            self._began = perf_counter()


def paged(names: Sequence[str], limit: int, after: str) -> tuple[list[str], str | None]:
    """The next names behind one, of a sorted list, and where the following page begins."""
    from bisect import bisect_right

    begin = bisect_right(names, after) if after else 0
    page = list(names[begin : begin + limit])
    has_more = begin + limit < len(names)
    return page, page[-1] if has_more and page else None
