"""docs/tour.md shows lines that stand in the source, and pages lead to pages that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS

ROOT = DOCS.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CONTRIBUTING.md",
    *DOCS.rglob("*.md"),
]
MODULE = re.compile(r"`((?:\w+/)*\w+\.(?:py|txt))`")


def excerpts(page: str) -> Iterator[tuple[Path, list[str]]]:
    """The file that is named before each block of code, and the lines of the block."""
    named = None
    for text, code in re.findall(r"(.*?)```(?:python)?\n(.*?)```", page, re.S):
        for path in re.findall(r"^From `([^`]+)`", text, re.M):
            named = ROOT / path if path.startswith("tests/") else ROOT / "src/onelog" / path
        assert named is not None
        yield named, [line.strip() for line in code.splitlines() if line.strip() not in ("", "...")]


def test_every_line_that_the_tour_shows_stands_in_the_source_in_that_order() -> None:
    shown = list(excerpts((DOCS / "tour.md").read_text("utf-8")))
    assert len(shown) >= 7
    for path, lines in shown:
        source = iter([line.strip() for line in path.read_text("utf-8").splitlines()])
        for line in lines:
            assert line in source, f"{path.name} has no such line after the one before: {line}"


def test_every_module_that_the_tour_names_is_there() -> None:
    for name in MODULE.findall((DOCS / "tour.md").read_text("utf-8")):
        assert (ROOT / name).exists() or (ROOT / "src/onelog" / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_page_and_picture_that_a_page_leads_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), target
