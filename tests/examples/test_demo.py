"""The demonstration as a whole, as its user runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onelog_examples.demo import FIRST_ORDERS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_500)]

LINE = re.compile(r"s: ([\d,]+) orders sent, ([\d,]+) on the board, ([\d,]+) in the table")


def test_the_shop_begins_when_spark_counts_and_nothing_else_is_on_the_screen(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "onelog",
            "demo",
            "--rate",
            "500",
            "--seconds",
            "10",
            "--folder",
            str(tmp_path / "demo"),
        ],
        capture_output=True,
        text=True,
        timeout=1_400,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert "All three agree" in ended.stdout
    looks = [
        tuple(int(number.replace(",", "")) for number in found)
        for found in LINE.findall(ended.stdout)
    ]
    assert looks
    for sent, counted, stored in looks:
        assert sent <= FIRST_ORDERS or (counted and stored), looks
    assert (tmp_path / "demo" / "spark.log").exists()
