"""Every "yes" that OneLog's console gives itself has a test."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "console" / "comparison.md"


def test_every_yes_names_a_test_that_there_is() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TABLE.read_text("utf-8").splitlines()
        if line.startswith("| ") and line.count("|") == 8
    ]
    ours = [(row[0], row[5], row[6]) for row in rows[1:]]
    assert len(ours) > 30
    for what, answer, test in ours:
        if answer != "yes":
            assert not test, what
            continue
        found = re.fullmatch(r"`(\w+\.py)::(\w+)`", test)
        assert found, f"{what}: which test shows it?"
        source = (ROOT / "tests" / "console" / found[1]).read_text("utf-8")
        assert f"def {found[2]}(" in source, test


def test_every_picture_that_is_shown_is_there() -> None:
    for page in (ROOT / "docs" / "console.md", TABLE, ROOT / "README.md", ROOT / "README.zh-CN.md"):
        for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
