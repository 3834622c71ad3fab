"""Types: what checkers say about programs that use the SDK, right ones and wrong ones."""

import dataclasses
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
import sysconfig
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onelog.client
from onelog.errors import OnelogError

PROGRAM = Path(__file__).with_name("user_program.py")
SCRIPTS = Path(sysconfig.get_path("scripts"))
CACHE = Path(__file__).resolve().parents[2] / ".mypy_cache" / "user-program"

BEGIN = """\
import onelog
from onelog.client import Message, Producer, PullConsumer, PushConsumer, idempotent
"""
WRONG = {
    'Message("orders", "text")': "bytes",
    'Message("orders", b"x", tag="paid")': "tag",
    'Message("orders", b"x", delay=90)': "timedelta",
    'Producer("app", retires=3)': "retires",
    'Producer("app", compression="rar")': "compression",
    'Producer("app").send(b"x")': "Message",
    'Producer("app").send(Message("orders", b"x")).offest': "offest",
    'PushConsumer("g", start="begin")': "start",
    'PushConsumer("g").subscribe("orders", listener=lambda: None)': "subscribe",
    'PullConsumer("g", orderly=True)': "orderly",
    'PullConsumer("g").seek("orders", 3)': "Queue",
    "idempotent(store=3)": "store",
    'onelog.embedded(port="x")': "port",
}


def mypy(path: Path) -> list[str]:
    """What mypy complains about, as it would for a user with `--strict` and nothing else."""
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-error-summary"),
            *("--hide-error-context", "--no-color-output", f"--cache-dir={CACHE}", str(path)),
        ],
        capture_output=True,
        text=True,
        cwd=path.parent,
    )
    assert checked.returncode in (0, 1), checked.stderr
    return [line for line in checked.stdout.splitlines() if ": error: " in line]


def pyright(path: Path, folder: Path) -> list[str]:
    """The same of pyright, which is what many editors ask."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({"include": [str(path)], "typeCheckingMode": "strict"}))
    checked = subprocess.run(
        [
            *(SCRIPTS / "basedpyright", "--project", config, "--pythonpath", sys.executable),
            "--outputjson",
        ],
        capture_output=True,
        text=True,
    )
    assert checked.returncode in (0, 1), checked.stderr
    return [
        f"{found['range']['start']['line'] + 1}: {found['message']}"
        for found in json.loads(checked.stdout)["generalDiagnostics"]
        if found["severity"] == "error"
    ]


def wrong_program(folder: Path) -> Path:
    path = folder / "wrong_program.py"
    path.write_text(BEGIN + "\n".join(WRONG) + "\n")
    return path


def test_a_users_program_is_right_to_mypy() -> None:
    assert mypy(PROGRAM) == []


def test_a_users_program_is_right_to_pyright(tmp_path: Path) -> None:
    assert pyright(PROGRAM, tmp_path) == []


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_mistakes_are_found(checker: str, tmp_path: Path) -> None:
    program = wrong_program(tmp_path)
    found = mypy(program) if checker == "mypy" else pyright(program, tmp_path)
    lines = program.read_text().splitlines()
    for wrong, reason in WRONG.items():
        number = lines.index(wrong) + 1
        marks = (f"py:{number}:", f"{number}: ")
        about = [each for each in found if marks[0] in each or each.startswith(marks[1])]
        assert about, f"{checker} finds nothing wrong with {wrong}"
        assert any(reason in each for each in about), about


# What the signatures say.


def names_of_the_client() -> dict[str, object]:
    """All that annotations may mean: they are texts where an import would cost something."""
    known: dict[str, object] = {}
    for module in pkgutil.walk_packages(onelog.client.__path__, "onelog.client."):
        if module.name != "onelog.client.opentelemetry":
            known |= vars(importlib.import_module(module.name))
    return known | {"Unpack": typing.Unpack}


def annotations_of(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Everything that a public name declares: parameters, results, fields."""
    known = names_of_the_client()
    if inspect.isfunction(value):
        yield from _hints(name, value, known)
    elif inspect.isclass(value):
        if dataclasses.is_dataclass(value) or hasattr(value, "__annotations__"):
            yield from _hints(name, value, known)
        for attribute in dir(value):
            member = inspect.getattr_static(value, attribute)
            is_public = not attribute.startswith("_") or attribute in ("__init__", "__call__")
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            is_ours = str(getattr(function, "__module__", "")).startswith("onelog.")
            if is_public and is_ours and inspect.isfunction(function):
                yield from _hints(f"{name}.{attribute}", function, known)
    else:
        yield name, value


def _hints(
    name: str, value: Callable[..., object] | type, known: dict[str, object]
) -> Iterator[tuple[str, object]]:
    hints = typing.get_type_hints(value, localns=known)
    if inspect.isfunction(value):
        own = inspect.signature(value).parameters
        missing = [each for each in own if each not in ("self", "cls") and each not in hints]
        assert not missing, f"{name} does not say what {missing} are"
        assert "return" in hints, f"{name} does not say what it returns"
    for each, hint in hints.items():
        yield f"{name}: {each}", hint


def has_any(hint: object) -> bool:
    """Whether a hint is Any, or has it in it."""
    if hint is Any:
        return True
    if isinstance(hint, list | tuple):
        return any(map(has_any, hint))
    return any(map(has_any, typing.get_args(hint)))


def test_no_public_signature_says_any() -> None:
    seen = {
        place: hint
        for name in onelog.client.__all__
        for place, hint in annotations_of(name, getattr(onelog.client, name))
    }
    assert [place for place, hint in seen.items() if has_any(hint)] == []
    # It did look: into methods, fields, options and properties.
    for place in (
        "Producer.send: message",
        "Message: keys",
        "ProducerOptions: hooks",
        "ReceivedMessage.body: return",
        "Admin.connect: return",
        "idempotent: key",
    ):
        assert place in seen


def test_any_would_be_found() -> None:
    def loose(first: int, second: dict[str, list[Any]]) -> Callable[[Any], int]:
        raise NotImplementedError

    found = [place for place, hint in annotations_of("loose", loose) if has_any(hint)]
    assert found == ["loose: second", "loose: return"]
    assert not has_any(Callable[[int], str | None])


def test_everything_public_says_what_it_is_for() -> None:
    for name in onelog.client.__all__:
        value = getattr(onelog.client, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert (value.__doc__ or "").strip(), name
            assert not (value.__doc__ or "").startswith(f"{name}("), f"{name} says its fields only"


def test_all_errors_have_one_parent() -> None:
    import onelog.errors

    classes = [each for each in vars(onelog.errors).values() if inspect.isclass(each)]
    assert len(classes) > 50
    assert [each for each in classes if not issubclass(each, OnelogError)] == []
