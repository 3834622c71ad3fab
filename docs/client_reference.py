"""Writes docs/client-reference.md from the source: signatures and docstrings, nothing else.

    python docs/client_reference.py

Invariant: the page has every name of `onelog.client.__all__`; a test says when it is out of date.
"""

import ast
import copy
import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "client-reference.md"
PACKAGE = ROOT / "src" / "onelog" / "client"

CHAPTERS = {
    "Producers": ["Producer", "AsyncProducer", "ProducerOptions"],
    "Push consumers": ["PushConsumer", "AsyncPushConsumer", "ConsumerOptions", "RetryLater"],
    "Pull consumers": ["PullConsumer", "AsyncPullConsumer", "PullConsumerOptions"],
    "Messages": ["Message", "ReceivedMessage", "Receipt", "SendStatus", "Queue"],
    "Every client": ["ClientOptions", "Credentials"],
    "Transactions": ["TransactionState", "TransactionReceipt"],
    "Handling a message once": [
        "idempotent", "HandledKeys", "SqliteStore", "RedisStore", "DbApiStore",
    ],
    "Sharing out queues": [
        "AllocationStrategy", "ByConfig", "ByConsistentHash", "ByRoom", "ByNearbyRoom",
    ],
    "Hooks and traces": ["SendHook", "SendContext", "ConsumeHook", "ConsumeContext", "TraceHook"],
    "Administration": [
        "Admin", "AsyncAdmin", "Clusters", "Topics", "TopicChange", "Groups", "Positions",
        "Messages", "DeadLetters", "Traces", "Delays",
    ],
}

PARTS = {
    "Clusters": "admin.cluster", "Topics": "admin.topics", "Groups": "admin.groups",
    "Positions": "admin.groups", "Messages": "admin.messages",
    "DeadLetters": "admin.dead_letters", "Traces": "admin.traces", "Delays": "admin.delays",
}
"""The modules of an administrator's parts, which nobody makes by himself."""

HEAD = """\
# Reference of `onelog.client`

Written from the docstrings by `python docs/client_reference.py`; the guide is
[client.md](client.md). Errors are in `onelog.errors`.
"""

BETWEEN_MODULES = frozenset("check_usable go_on settled send_now dispatch deliver_again".split())
"""Methods that parts of the SDK call, and users have no use for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def exported() -> dict[str, str]:
    """The module that each public name comes from."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    return {
        alias.asname or alias.name: node.module.removeprefix("onelog.client.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onelog.client.")
        if node.module is not None
        for alias in node.names
    }


def page() -> str:
    """The whole page."""
    modules = exported() | PARTS
    parts = [HEAD]
    for chapter, names in CHAPTERS.items():
        parts.append(f"## {chapter}\n")
        for name in names:
            module = importlib.import_module(f"onelog.client.{modules[name]}")
            parts.append(Source(inspect.getsource(module), vars(module)).entry(name))
    return "\n".join(parts)


class Source:
    """A module: its text, and what its names stand for."""

    def __init__(self, text: str, values: Mapping[str, object]) -> None:
        self._body = ast.parse(text).body
        self._values = values

    def entry(self, name: str) -> str:
        """One public name, with everything that belongs to it."""
        for node in self._body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return "\n".join(self._class(node))
            if isinstance(node, Function) and node.name == name:
                return f"### `{self._signature(node)}`\n\n{_docstring(node)}\n"
        for statement, text in _documented(self._body):
            if isinstance(statement, ast.Assign) and _target(statement) == name:
                return f"### `{name} = {_annotation(statement.value)}`\n\n{text}\n"
        raise LookupError(f"the module has no {name}")

    def _class(self, node: ast.ClassDef) -> Iterator[str]:
        functions = [*self._inherited(node), *self._functions(node)]
        inits = [self._arguments(each) for each in functions if each.name == "__init__"]
        shown = inits[0] if inits and node.name not in PARTS else ""
        yield f"### `{node.name}{shown}`\n"
        yield _docstring(node) + "\n"
        for parent in map(ast.unparse, node.bases):
            if parent.endswith("Options"):
                yield f"Also everything of `{parent}`.\n"
        members = [*_fields(node), *map(self._method, filter(_is_shown, functions))]
        if members:
            yield "\n".join(members) + "\n"

    def _functions(self, node: ast.ClassDef) -> Iterator[Function]:
        """Its methods, and those that it has from an asyncio class: `name = waiting(...)`."""
        for each in node.body:
            if isinstance(each, Function):
                yield each
            elif isinstance(each, ast.Assign) and _way(each):
                assert isinstance(each.value, ast.Call)
                kind, _, method = ast.unparse(each.value.args[0]).partition(".")
                other = self._source_of(kind)
                found = {one.name: one for one in other._functions(other._node(kind))}[method]
                yield other._for_threads(found)

    def _inherited(self, node: ast.ClassDef) -> Iterator[Function]:
        """The methods of parents that have no entry of their own, and are not its own, too."""
        own = {each.name for each in self._functions(node)}
        for parent in (ast.unparse(each).partition("[")[0] for each in node.bases):
            value = self._values.get(parent)
            is_ours = inspect.isclass(value) and value.__module__.startswith("onelog.client")
            if is_ours and parent not in exported():
                other = self._source_of(parent)
                functions = other._functions(other._node(parent))
                yield from (each for each in functions if each.name not in own | {"__init__"})

    def _source_of(self, kind: str) -> "Source":
        module = importlib.import_module(self._values[kind].__module__)
        return Source(inspect.getsource(module), vars(module))

    def _node(self, name: str) -> ast.ClassDef:
        return next(
            each for each in self._body if isinstance(each, ast.ClassDef) and each.name == name
        )

    def _for_threads(self, node: Function) -> ast.FunctionDef:
        """The same without `async`; defaults are values, since their names are of this module."""
        made = ast.FunctionDef(**{name: getattr(node, name) for name in ast.FunctionDef._fields})
        made.args = copy.deepcopy(node.args)
        made.args.defaults = [self._valued(each) for each in made.args.defaults]
        made.args.kw_defaults = [each and self._valued(each) for each in made.args.kw_defaults]
        return made

    def _valued(self, default: ast.expr) -> ast.expr:
        value = self._values.get(ast.unparse(default))
        return ast.Constant(value) if isinstance(value, int | float | str) else default

    def _method(self, node: Function) -> str:
        if "property" in _decorators(node):
            shown = f"{node.name}: {_annotation(node.returns)}"
        else:
            static = "static " if "staticmethod" in _decorators(node) else ""
            shown = static + self._signature(node)
        return _item(shown, _docstring(node))

    def _signature(self, node: Function) -> str:
        waits = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        return f"{waits}{node.name}{self._arguments(node)} -> {_annotation(node.returns)}"

    def _arguments(self, node: Function) -> str:
        given = node.args
        places = [each for each in given.args if each.arg not in ("self", "cls")]
        defaults: list[ast.expr | None] = [None] * (len(places) - len(given.defaults))
        shown = [
            self._argument(*each) for each in zip(places, [*defaults, *given.defaults], strict=True)
        ]
        if given.vararg is not None:
            shown.append(f"*{self._argument(given.vararg, None)}")
        elif given.kwonlyargs:
            shown.append("*")
        shown += [
            self._argument(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        ]
        if given.kwarg is not None:
            shown.append(f"**{self._argument(given.kwarg, None)}")
        return f"({', '.join(shown)})"

    def _argument(self, argument: ast.arg, default: ast.expr | None) -> str:
        shown = f"{argument.arg}: {_annotation(argument.annotation)}"
        if default is None:
            return shown
        text = ast.unparse(default)
        value = self._values.get(text)
        # The name of a constant says less than its value.
        return (
            f"{shown} = {value!r}" if isinstance(value, int | float | str) else f"{shown} = {text}"
        )


def _is_shown(node: Function) -> bool:
    is_inner = node.name.startswith("_") or node.name in BETWEEN_MODULES
    return not is_inner and "overload" not in _decorators(node)


def _decorators(node: Function) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement, text in _documented(node.body):
        name = _target(statement)
        if name.startswith("_") or _way(statement):
            continue
        kind = ""
        if isinstance(statement, ast.AnnAssign):
            kind = f": {_annotation(statement.annotation)}"
        yield _item(name + kind, text)


def _documented(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Assignments, each with the text right below it."""
    for number, statement in enumerate(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            match body[number + 1 : number + 2]:
                case [ast.Expr(ast.Constant(str(text)))]:
                    yield statement, inspect.cleandoc(text)
                case _:
                    yield statement, ""


def _way(statement: ast.stmt) -> bool:
    """Whether it says how a method of an asyncio class is called from threads."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("waiting", "calling")


def _target(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign):
        return ast.unparse(statement.target)
    return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


class _Unquoted(ast.NodeTransformer):
    """Types in quotes are that for the interpreter's sake, and not for readers."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return ast.parse(node.value, mode="eval").body
        return node


def _annotation(node: ast.expr | None) -> str:
    return ast.unparse(_Unquoted().visit(node)) if node is not None else ""


def _docstring(node: ast.ClassDef | Function) -> str:
    return ast.get_docstring(node) or ""


def _item(shown: str, text: str) -> str:
    lines = text.splitlines() or [""]
    first = f"- `{shown}`" + (f": {lines[0]}" if lines[0] else "")
    return "\n".join([first, *(f"  {line}".rstrip() for line in lines[1:])])


if __name__ == "__main__":
    PAGE.write_text(page())
