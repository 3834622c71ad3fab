"""What endpoints need of a request: who asks, whether they may, the body; and how to answer."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import compress
from time import monotonic
from typing import Any, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from onelog.core.access import Principal
from onelog.core.filters.patterns import compile_pattern
from onelog.errors import (
    FilterSyntaxError,
    InvalidRequestError,
    MessageTooLargeError,
    NotPermittedError,
    OnelogError,
)
from onelog.gateways import GatewayContext
from onelog.net.connection import BUSY_SECONDS, is_here

ANSWER_SECONDS_MAX = 60.0
"""How long an answer of the core is waited for; all of them have shorter limits of their own."""

TRACE_CHARACTERS_MAX = 512
PRINCIPAL = "onelog.principal"
"""Where a request's scope has who has logged in."""
SLASH = "\ue02f"
"""Stands in a path for a slash that is part of a name, and was sent as %2F."""
_T = TypeVar("_T")
_Made = TypeVar("_Made")
_encoder = msgspec.json.Encoder(enc_hook=str)


def context_of(request: HTTPConnection) -> GatewayContext:
    """The house that the request came to."""
    context: GatewayContext = request.app.state.context
    return context


def principal_of(request: HTTPConnection) -> Principal:
    """Who asks: who has logged in, else nobody in particular."""
    principal: Principal | None = request.scope.get(PRINCIPAL)
    return address_of(request) if principal is None else principal


def address_of(request: HTTPConnection) -> Principal:
    host, port = request.client or ("", 0)
    shown = f"[{host}]" if ":" in host else host
    return Principal("", "http", f"{shown}:{port}")


def traced_by(request: HTTPConnection) -> dict[str, str]:
    """The trace that a request belongs to (W3C Trace Context): a message that it sends does, too.

    Only what is of its form: these become properties, which are parted by control characters.
    """
    names = ("traceparent", "tracestate")
    given = {name: request.headers.get(name, "") for name in names}
    return {
        name: text
        for name, text in given.items()
        if text.isascii() and text.isprintable() and text and len(text) <= TRACE_CHARACTERS_MAX
    }


def is_near(request: HTTPConnection) -> bool:
    """Whether they are on this machine."""
    host = request.client.host if request.client else ""
    local = request.scope.get("server") or ("", 0)
    return is_here(host, local[0])


def path_of(request: HTTPConnection) -> dict[str, str]:
    return {name: str(each).replace(SLASH, "/") for name, each in request.path_params.items()}


def may_administer(request: HTTPConnection) -> bool:
    """Whether they may change what others use; users have permissions for that."""
    return (
        bool(principal_of(request).name)
        or is_near(request)
        or context_of(request).loaded.config.security.remote_admin
    )


def require_admin(request: HTTPConnection) -> Principal:
    """Who asks, if they may change what others use; `NotPermittedError` if not."""
    if not may_administer(request):
        raise NotPermittedError(
            "only for who is on the broker's machine; set security.remote_admin = true to let "
            "other machines do this"
        )
    return principal_of(request)


async def body_of(request: Request, bytes_max: int | None = None) -> bytes:
    """The body, up to a size; by default that of the largest request of any protocol."""
    limit = bytes_max or context_of(request).broker.admin.config.frame_bytes_max
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise MessageTooLargeError(f"a request may have {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def json_of(request: Request, kind: type[_T], bytes_max: int | None = None) -> _T:
    """The body as JSON of a kind.

    It must say that it is JSON: forms of other pages cannot do that without being asked first.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json":
        raise InvalidRequestError("send JSON, with content-type: application/json")
    body = await body_of(request, bytes_max)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not as it should be: {error}") from None


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    try:
        content = _encoder.encode(value)
    except UnicodeEncodeError:  # AMQP's clients may give names that are no UTF-8.
        content = _encoder.encode(_readable(value))
    return Response(content, status, headers, "application/json")


def _readable(value: Any) -> Any:
    """The same, with a mark in the place of what is no text."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_readable(name): _readable(each) for name, each in value.items()}
    return [*map(_readable, value)] if isinstance(value, list | tuple) else value


async def in_turns(items: Iterable[_T], make: Callable[[_T], _Made]) -> list[_Made]:
    """What is made of each of many; others have their turn in between."""
    found: list[_Made] = []
    began = monotonic()
    for each in items:
        found.append(make(each))
        if monotonic() - began > BUSY_SECONDS:
            await asyncio.sleep(0)
            began = monotonic()
    return found


async def called(start: Callable[[Callable[..., None]], object]) -> tuple[Any, ...]:
    """What a callback of the core is called with; `start` is given the callback."""
    future: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()

    def done(*results: Any) -> None:
        if not future.done():
            future.set_result(results)

    start(done)
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        return await future


async def looked_up(context: GatewayContext, find: Callable[[], _T]) -> _T:
    """What a function finds that may have to wait for the disk; it runs in a worker."""
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def results(found: Callable[[], _T]) -> None:
        if future.done():
            return
        try:
            future.set_result(found())
        except OnelogError as error:
            future.set_exception(error.with_traceback(None))
        except Exception as error:
            future.set_exception(error)

    context.look_up(find, results)
    return await future


def as_requested(request: Request, made: list[dict[str, Any]], page_max: int) -> Any:
    """A list in the order, with the columns, and of the page that a request asks for."""
    query = request.query_params
    if by := query.get("sort"):
        made = sorted(
            made,
            key=lambda each: (str(type(_column(each, by))), _column(each, by)),
            reverse=query.get("sort_reverse") == "true",
        )
    if columns := query.get("columns"):
        wanted = {each.partition(".")[0] for each in columns.split(",")}
        made = [{name: each[name] for name in each if name in wanted} for each in made]
    if "page" not in query:
        return made
    try:
        page, size = int(query["page"]), int(query.get("page_size", "100"))
    except ValueError:
        raise InvalidRequestError("page and page_size must be numbers") from None
    if page < 1 or not 1 <= size <= page_max:
        raise InvalidRequestError(f"page is 1 at least, and page_size up to {page_max}")
    name = query.get("name", "")
    names = [str(each.get("name", "")) for each in made]
    if query.get("use_regex") == "true":
        try:
            is_wanted = list(map(compile_pattern(name).is_in, names))
        except FilterSyntaxError as error:
            raise InvalidRequestError(str(error)) from None
    else:
        is_wanted = [name in each for each in names]
    found = list(compress(made, is_wanted))
    items = found[(page - 1) * size : page * size]
    if page > 1 and not items:
        raise InvalidRequestError(f"page_out_of_range: page {page} of {len(found)}")
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": items,
        "page": page,
        "page_count": max(1, -(-len(found) // size)),
        "page_size": size,
        "total_count": len(made),
    }


def _column(each: dict[str, Any], name: str) -> Any:
    value: Any = each
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, int | float | str) else ""
