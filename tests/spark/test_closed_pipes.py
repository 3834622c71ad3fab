"""What Spark's Python workers say at the end of a query."""

import subprocess
import sys

import pytest

HIDDEN = "from onelog.spark.closed_pipes import hide_closed_pipes as hide; hide(); hide(); "
CAUGHT = "import traceback\ntry: raise {}('x')\nexcept BaseException: traceback.print_exc()"


def said(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    ).stderr


@pytest.mark.parametrize("error", ["BrokenPipeError", "ConnectionResetError"])
def test_pipes_that_the_other_side_closed_are_no_traceback(error: str) -> None:
    assert said(f"{HIDDEN}raise {error}('x')") == ""
    assert said(f"{HIDDEN}\n{CAUGHT.format(error)}") == ""


def test_everything_else_is_shown() -> None:
    assert "ValueError: x" in said(f"{HIDDEN}raise ValueError('x')")
    assert "ValueError: x" in said(f"{HIDDEN}\n{CAUGHT.format('ValueError')}")
