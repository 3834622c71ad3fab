"""Every error of the broker has a code of its own choosing."""

import ast
from pathlib import Path

import pytest

import onelog
from onelog import errors
from onelog.errors import OnelogError, StoreClosedError
from onelog.gateways.remoting.session import ERROR_CODES, response_code
from onelog.wire.remoting.codes import ResponseCode

SOURCE = Path(onelog.__file__).parent
REACHED = ("core", "store", "gateways/remoting", "wire/remoting", "net/remoting.py", "message.py")
"""What runs while a request is handled."""


def errors_named_in(path: Path) -> set[str]:
    """The errors that a module imports, to raise or to handle them."""
    return {
        alias.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "onelog.errors"
        for alias in node.names
    }


def modules() -> list[Path]:
    found = []
    for place in REACHED:
        path = SOURCE / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


REACHABLE = sorted(set[str]().union(*map(errors_named_in, modules())) - {"OnelogError"})


def test_the_errors_are_found_at_all() -> None:
    assert {"TopicNotFoundError", "StoreFullError", "WireError", "PeerTimeoutError"} <= set(
        REACHABLE
    )


@pytest.mark.parametrize("name", REACHABLE)
def test_every_error_that_a_request_can_end_in_has_a_code(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, OnelogError)
    assert set(kind.__mro__[: kind.__mro__.index(OnelogError)]) & set(ERROR_CODES)
    assert response_code(kind("reason")) != ResponseCode.SUCCESS


def test_an_error_without_a_code_has_that_of_its_nearest_parent() -> None:
    class OneOfTheirsError(StoreClosedError):
        pass

    assert response_code(OneOfTheirsError("")) == ERROR_CODES[errors.StoreError]
    assert response_code(OnelogError("")) == ResponseCode.SYSTEM_ERROR
