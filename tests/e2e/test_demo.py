"""`onelog demo` and `onelog pipeline` as people run them, with a server and Spark of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onelog_examples.shop import Shop, running_server

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def onelog(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "onelog", *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_demonstration_counts_every_order_once(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    out = onelog("demo", "--rate", "500", "--seconds", "10", "--folder", str(folder))
    assert "All three agree" in out
    assert "5,000 orders" in out
    assert "<svg" in (folder / "sales-board.html").read_text()
    assert not (folder / "server").exists()


def test_the_template_runs_on_demo_data(tmp_path: Path) -> None:
    folder = str(tmp_path / "shop")
    onelog("pipeline", "init", folder)
    for count in (2_000, 3_000):  # The second run begins anew, with orders of its own.
        out = onelog("pipeline", "run", folder, "--demo", str(count))
        rows = re.findall(r"│ (\w+) +│ (\d+) +│", out)
        assert sum(int(orders) for _, orders in rows) == count, out


def test_a_second_run_adds_what_has_come(tmp_path: Path) -> None:
    from onelog.client import Producer

    folder = tmp_path / "shop"
    onelog("pipeline", "init", str(folder))
    with running_server(tmp_path / "server") as nameserver:
        shop = Shop(nameserver, "orders", 1, 1)
        with Producer("shop", nameserver=nameserver) as producer:
            for total in (500, 800):
                shop.send(producer, total - shop.orders)
                onelog("pipeline", "run", str(folder), "-n", nameserver)
                out = onelog("pipeline", "show", "sales_by_category", "--folder", str(folder))
                rows = re.findall(r"│ (\w+) +│ (\d+) +│", out)
                assert sum(int(orders) for _, orders in rows) == total, out
