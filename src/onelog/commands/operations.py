"""Commands that come from the table of operations: those that brokers of OneLog do alone.

What an operation must be given is an argument of its command, and all else is an option. What a
module of the same group has a command for (because it works on clusters of RocketMQ, too, or asks
many brokers) is that module's. Operations of `onelog.admin.network` ask all brokers of the cluster;
all others ask one broker for the operation.

A module may have `QUESTIONS`: functions by the names of operations, which say what is asked before.
"""

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import inspect as kinds
from rich.console import RenderableType
from rich.progress import MofNCompleteColumn

from onelog.admin.operations import Operation
from onelog.admin.table import OPERATIONS
from onelog.clock import SystemClock
from onelog.commands.options import Broker, Yes
from onelog.commands.session import Session, confirm, connected
from onelog.commands.terminal import facts, progress_bar, show_count, table
from onelog.commands.times import parse_time
from onelog.errors import InvalidRequestError

ROWS_MAX = 100
"""Of a table inside of a result; a program gets them all."""
Question = Callable[[Session, Any], Awaitable[str | None]]
NO_QUESTIONS: Mapping[str, Question] = MappingProxyType({})


def group_of(name: str) -> typer.Typer:
    """All commands of a group: those of its module, and then those of operations."""
    app, questions = typer.Typer(), NO_QUESTIONS
    try:
        module = importlib.import_module(f"onelog.commands.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"onelog.commands.{name}":
            raise
    else:
        app = getattr(module, "app", app)
        questions = getattr(module, "QUESTIONS", questions)
    known = {each.name for each in app.registered_commands}
    for operation in OPERATIONS:
        for command in operation.commands:
            group, _, short = command.partition(" ")
            if group == name and short not in known:
                made = _command(operation, questions.get(operation.name))
                app.command(short, help=f"{operation.summary}.")(made)
    return app


def _command(operation: Operation, question: Question | None) -> Any:
    async def run(
        session: Session, /, broker: str | None = None, yes: bool = True, **given: Any
    ) -> None:
        arguments = _arguments(operation, given, session.utc)
        if question is not None:
            asked = await question(session, arguments)
            confirm(asked or "", yes or asked is None)
        elif not yes:
            names = " ".join(given[each] for each in operation.path_names)
            confirm(f"{operation.summary}: {names}?", yes)
        found = await _executed(session, operation, arguments, broker)
        title = operation.summary.removeprefix("List ")
        session.show(found, *shown(title, operation.result, found, session.utc))
        session.complain(found.get("failures", ()))

    keyword = inspect.Parameter.KEYWORD_ONLY
    session = inspect.Parameter("session", inspect.Parameter.POSITIONAL_ONLY)
    made = [*_parameters(operation)]
    if not operation.asks_all:
        made.append(inspect.Parameter("broker", keyword, default=None, annotation=Broker))
    if operation.method == "DELETE" or question is not None:
        made.append(inspect.Parameter("yes", keyword, default=False, annotation=Yes))
    run.__signature__ = inspect.Signature([session, *made])  # type: ignore[attr-defined]
    return connected(run)


async def _executed(
    session: Session, operation: Operation, arguments: Any, broker: str | None
) -> dict[str, Any]:
    """The result, as JSON has it."""
    if operation.asks_all:
        from onelog.admin import network

        with progress_bar(operation.summary, None, MofNCompleteColumn()) as on_progress:
            at = network.Network(session.admin, sys.maxsize, on_progress)
            found = msgspec.to_builtins(await network.FUNCTIONS[operation.name](at, arguments))
    else:
        operations = session.admin.operations
        ask = operations.run if operation.changes else operations.ask
        found = await ask(operation.name, broker=broker, **msgspec.to_builtins(arguments))
    assert isinstance(found, dict)
    return found


def _parameters(operation: Operation) -> Iterator[inspect.Parameter]:
    """What typer is told of the arguments of an operation: those of the path come first."""
    described = options_of(operation.arguments)
    for name in [
        *operation.path_names,
        *(each for each in described if each not in operation.path_names),
    ]:
        hint, default = described[name]
        keyword = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, keyword, default=default, annotation=hint)


def options_of(arguments: type[msgspec.Struct]) -> dict[str, tuple[Any, Any]]:
    """Arguments as `with_options` takes them: by name, what typer is told, and the default."""
    described = kinds.type_info(arguments)
    assert isinstance(described, kinds.StructType)
    made = {}
    for each in described.fields:
        kind, text, own = _plain(each.type)
        hint, limits = _hint(kind)
        limits |= {name: own[name] for name in ("max",) if name in own}
        if "is_time" in own:
            hint, limits = str, {}
        flags = own.get("flags", ())
        default: Any = each.default if isinstance(each.default, str | int | float) else None
        default = own.get("default", default)
        if isinstance(each.default, NoneType) or (not each.required and default is None):
            hint = hint | None
        about: Any = typer.Option(*flags, help=text, **limits)
        if each.required:
            default = inspect.Parameter.empty
            if not isinstance(kind, kinds.DictType):
                about = typer.Argument(metavar=each.name.upper(), help=text, **limits)
        made[each.name] = Annotated[hint, about], default
    return made


def _plain(kind: kinds.Type) -> tuple[kinds.Type, str, dict[str, Any]]:
    """A type without what is said of it, what that is, and what is different in a command."""
    text, own = "", dict[str, Any]()
    while isinstance(kind, kinds.Metadata | kinds.UnionType):
        if isinstance(kind, kinds.Metadata):
            text = text or (kind.extra_json_schema or {}).get("description", "")
            own = (kind.extra or {}) | own
            kind = kind.type
        else:
            rest = [each for each in kind.types if not isinstance(each, kinds.NoneType)]
            if len(rest) > 1:
                break
            kind = rest[0]
    return kind, text, own


def _hint(kind: kinds.Type) -> tuple[Any, dict[str, Any]]:
    """The type that typer knows, and its limits."""
    match kind:
        case kinds.BoolType():
            return bool, {}
        case kinds.IntType():
            return int, {"min": kind.ge, "max": kind.le}
        case kinds.LiteralType():
            return Literal[tuple(kind.values)], {}
        case kinds.ListType() | kinds.DictType():
            return list[str], {}
        case _:
            return str, {}


def _arguments(operation: Operation, given: Mapping[str, Any], utc: bool) -> Any:
    """The arguments. Typer has looked at limits that are different in a command."""
    parsed = _parsed(operation, given, utc)
    larger = {
        name: parsed.pop(name) for name in [*parsed] if "max" in _plain(_field(operation, name))[2]
    }
    try:
        arguments = msgspec.convert(parsed, operation.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(str(error)) from None
    for name, value in larger.items():
        setattr(arguments, name, value)
    return arguments


def _parsed(operation: Operation, given: Mapping[str, Any], utc: bool) -> dict[str, Any]:
    """The arguments as JSON would have them; what was not said is left out."""
    parsed = {}
    for name, value in given.items():
        kind, _, own = _plain(_field(operation, name))
        if value is None:
            continue
        if "is_time" in own:
            value = parse_time(value, SystemClock().now_ms(), utc=utc)
        elif isinstance(kind, kinds.DictType):
            pairs = [each.partition("=") for each in value]
            value = {key.strip(): _value(text) for key, _, text in pairs}
        elif isinstance(kind, kinds.ListType) and _hint(_plain(kind.item_type)[0])[0] is str:
            value = [_value(each) if each[:1] == "{" else each for each in value]
        elif isinstance(kind, kinds.StructType):
            value = _value(value)
        parsed[name] = value
    return parsed


def _field(operation: Operation, name: str) -> kinds.Type:
    described = kinds.type_info(operation.arguments)
    assert isinstance(described, kinds.StructType)
    return next(each.type for each in described.fields if each.name == name)


def _value(text: str) -> Any:
    """What a text says as JSON, or the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def shown(title: str, kind: Any, found: Any, utc: bool) -> Iterator[RenderableType]:
    """A result as people like to see it: tables of what it lists, and facts of the rest.

    `kind` is its type: one that has `columns` says itself how a table of it looks.
    """
    if isinstance(found, dict) and isinstance(found.get("items"), list):
        rest = found.get("total", 0) - len(found["items"])
        yield _listed(title, kind, found["items"], rest, utc)
        return
    if isinstance(found, list):
        yield _listed(title, kind, found[:ROWS_MAX], len(found[ROWS_MAX:]), utc)
        return
    hints = get_type_hints(kind) if isinstance(kind, type) else {}
    inner = {key: each for key, each in found.items() if each and _has_parts(each)}
    plain = {key: each for key, each in found.items() if key not in (*inner, "failures")}
    yield facts(plain, utc=utc)
    for key, each in inner.items():
        title = key.replace("_", " ")
        if get_origin(hints.get(key)) is dict and not any(map(_has_parts, each.values())):
            # Names that somebody else gave.
            yield table(title, "name, value", rows=sorted(each.items()), utc=utc)
        else:
            yield from shown(title, hints.get(key), each, utc)


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and isinstance(next(iter(value), 0), dict)
    )


def _listed(title: str, kind: Any, found: list[Any], rest: int, utc: bool) -> RenderableType:
    rows = [each if isinstance(each, dict) else {title.lower(): each} for each in found]
    (item,) = get_args(kind)[:1] or (None,)
    if columns := getattr(item, "columns", None):
        headings = columns.split(", ")
    else:
        names = [key for key in rows[0] if not isinstance(rows[0][key], dict)] if rows else []
        right = {key for key in names if type(rows[0][key]) in (int, float)}
        headings = [((">" if key in right else "") + key.replace("_", " "), key) for key in names]
    counts = [each.partition("=")[0][1:] for each in headings if each[:1] == "#"]
    footer = {headings[0].partition("=")[0]: "total"} if counts else {}
    made = table(
        f"{title}: {show_count(len(rows) + rest)}",
        *headings,
        rows=rows,
        footer=footer | dict.fromkeys(counts, True),
        utc=utc,
    )
    if rest > 0:
        made.caption = f"... and {show_count(rest)} more"
    return made
