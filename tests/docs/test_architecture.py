"""docs/architecture.md shows the tree as it is, and walks that can be walked."""

import ast
import re
from collections.abc import Iterator

from tests.docs.markdown import DOCS

ROOT = DOCS.parent
SOURCE = ROOT / "src" / "onelog"
BESIDE = ("examples/onelog_examples", "benchmarks/command/onelog_bench")
"""Packages that are installed with `onelog`."""
PAGE = (DOCS / "architecture.md").read_text("utf-8")
HOPS_MAX = 10

Tree = dict[str, set[str]]
"""The modules of each package; packages by their paths, "" for the top of `onelog`."""


def drawn(page: str) -> Tree:
    """The tree that the page draws: packages end in a slash, what follows a # is said of them."""
    block = page.split("```\nsrc/onelog/\n")[1].split("```")[0]
    found: Tree = {"": set()}
    above = [(-1, "")]
    for line in block.splitlines():
        words = line.partition("#")[0].split()
        if words and words[0].endswith("/"):
            indent = len(line) - len(line.lstrip())
            while above[-1][0] >= indent:
                above.pop()
            above.append((indent, above[-1][1] + words.pop(0)))
            found[above[-1][1]] = set()
        found[above[-1][1]].update(words)
    return found


def real() -> Tree:
    """The tree as it is on disk."""
    found: Tree = {}
    for path in SOURCE.rglob("*.py"):
        if not (path.parent / "__init__.py").exists():
            continue  # A template for users, not of ours.
        package = path.parent.relative_to(SOURCE).as_posix().removeprefix(".")
        modules = found.setdefault(f"{package}/" if package else "", set())
        if not path.stem.startswith("__"):
            modules.add(path.stem)
    for package in BESIDE:
        stems = {path.stem for path in (ROOT / package).glob("*.py")}
        found[f"{package}/"] = stems - {"__init__"}
    return found


def walks(page: str) -> Iterator[list[tuple[str, str]]]:
    """The walks of the page: what is called in which module, hop by hop."""
    for section in page.split("\n### A walk: ")[1:]:
        yield re.findall(r"^\d+\. `([a-z_/0-9]+\.py)` `(\w+)`", section.split("\n## ")[0], re.M)


def test_the_page_draws_every_package_and_module_that_there_is() -> None:
    page, tree = drawn(PAGE), real()
    assert page.keys() == tree.keys()
    assert [package for package in tree if tree[package] != page[package]] == []


def test_a_send_and_a_long_poll_are_walked_in_few_hops_that_exist() -> None:
    found = list(walks(PAGE))
    assert len(found) == 2
    for hops in found:
        assert 3 <= len(hops) <= HOPS_MAX
        for module, name in hops:
            nodes = ast.walk(ast.parse((SOURCE / module).read_text("utf-8")))
            assert name in {getattr(node, "name", None) for node in nodes}, (module, name)
