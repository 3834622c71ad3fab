"""Commands that come from the table of operations: those that brokers of OneLog do alone.

What an operation must be given is an argument of its command, and all else is an option. What a
module of the same group has a command for (because it works on clusters of RocketMQ, too, or asks
many brokers) is that module's.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal

import msgspec
import typer
from msgspec import inspect as kinds
from rich.console import RenderableType

from onelog.admin.operations import Operation
from onelog.admin.table import OPERATIONS
from onelog.commands.options import Broker, Yes
from onelog.commands.session import Session, confirm, connected
from onelog.commands.terminal import facts, table
from onelog.errors import InvalidRequestError


def group_of(name: str) -> typer.Typer:
    """All commands of a group: those of its module, and then those of operations."""
    try:
        app: typer.Typer = importlib.import_module(f"onelog.commands.{name}").app
    except ModuleNotFoundError as error:
        if error.name != f"onelog.commands.{name}":
            raise
        app = typer.Typer()
    known = {each.name for each in app.registered_commands}
    for operation in OPERATIONS:
        for command in operation.commands:
            group, _, short = command.partition(" ")
            if group == name and short not in known:
                app.command(short, help=f"{operation.summary}.")(_command(operation))
    return app


def _command(operation: Operation) -> Any:
    async def run(session: Session, /, broker: str | None, yes: bool = True, **given: Any) -> None:
        if not yes:
            names = " ".join(given[each] for each in operation.path_names)
            confirm(f"{operation.summary}: {names}?", yes)
        parsed = _parsed(operation, given)
        try:
            arguments = msgspec.convert(parsed, operation.arguments, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(str(error)) from None
        operations = session.admin.operations
        ask = operations.run if operation.changes else operations.ask
        found = await ask(operation.name, broker=broker, **msgspec.to_builtins(arguments))
        session.show(found, *shown(operation.summary, found, session.utc))

    keyword = inspect.Parameter.KEYWORD_ONLY
    session = inspect.Parameter("session", inspect.Parameter.POSITIONAL_ONLY)
    made = [*_parameters(operation)]
    made.append(inspect.Parameter("broker", keyword, default=None, annotation=Broker))
    if operation.method == "DELETE":
        made.append(inspect.Parameter("yes", keyword, default=False, annotation=Yes))
    run.__signature__ = inspect.Signature([session, *made])  # type: ignore[attr-defined]
    return connected(run)


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
        kind, text, flags = _plain(each.type)
        hint, limits = _hint(kind)
        default: Any = each.default if isinstance(each.default, str | int | float) else None
        if isinstance(each.default, NoneType) or (not each.required and default is None):
            hint = hint | None
        about: Any = typer.Option(*flags, help=text, **limits)
        if each.required:
            default = inspect.Parameter.empty
            if not isinstance(kind, kinds.DictType):
                about = typer.Argument(metavar=each.name.upper(), help=text, **limits)
        made[each.name] = Annotated[hint, about], default
    return made


def _plain(kind: kinds.Type) -> tuple[kinds.Type, str, tuple[str, ...]]:
    """A type without what is said of it, what that is, and the names of the option."""
    text, flags = "", ()
    while isinstance(kind, kinds.Metadata | kinds.UnionType):
        if isinstance(kind, kinds.Metadata):
            text = text or (kind.extra_json_schema or {}).get("description", "")
            flags = flags or (kind.extra or {}).get("flags", ())
            kind = kind.type
        else:
            rest = [each for each in kind.types if not isinstance(each, kinds.NoneType)]
            if len(rest) > 1:
                break
            kind = rest[0]
    return kind, text, flags


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


def _parsed(operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as JSON would have them; what was not said is left out."""
    parsed = {}
    for name, value in given.items():
        kind, _, _ = _plain(_field(operation, name))
        if value is None:
            continue
        if isinstance(kind, kinds.DictType):
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


def shown(title: str, found: Any, utc: bool) -> Iterator[RenderableType]:
    """A result as people like to see it: tables of what it lists, and facts of the rest."""
    if isinstance(found, dict) and isinstance(found.get("items"), list):
        found = found["items"]
    if isinstance(found, list):
        rows = [each if isinstance(each, dict) else {title.lower(): each} for each in found]
        columns = [key for key in rows[0] if not isinstance(rows[0][key], dict)] if rows else []
        right = {key for key in columns if type(rows[0][key]) in (int, float)}
        headings = [((">" if key in right else "") + key.replace("_", " "), key) for key in columns]
        yield table(f"{title}: {len(rows)}", *headings, rows=rows, utc=utc)
        return
    inner = {key: each for key, each in found.items() if isinstance(each, dict | list) and each}
    plain = {key: each for key, each in found.items() if key not in inner}
    yield facts(plain, utc=utc)
    for key, each in inner.items():
        is_list = isinstance(each, list) and isinstance(each[0], str | int)
        if is_list:
            yield facts({key: ", ".join(map(str, each))})
        else:
            yield from shown(key.replace("_", " "), each, utc)
