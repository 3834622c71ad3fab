"""The sales board on a terminal."""

from datetime import UTC, datetime
from decimal import Decimal

from rich.console import Console

from onelog_examples.board_view import board_table, sparkline
from onelog_examples.sales_board import Cell

START = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)


def test_a_sparkline_is_as_tall_as_its_values() -> None:
    assert sparkline([0, 4, 8]) == " ▄█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""


def test_the_best_category_comes_first_and_windows_without_sales_are_gaps() -> None:
    cells = [
        Cell(START, "books", 2, Decimal("10.50")),
        Cell(START, "toys", 1, Decimal(40)),
        Cell(START.replace(second=10), "toys", 3, Decimal(2)),
    ]
    out = Console(width=200)
    with out.capture() as shown:
        out.print(board_table(cells, "sales"))
    rows = [line for line in shown.get().splitlines() if line.startswith(("│", "┃"))]
    assert "last 2 windows" in rows[0]
    assert ["toys" in rows[1], "books" in rows[2], "all" in rows[3]] == [True, True, True]
    assert "42.00" in rows[1]
    assert "█ " in rows[2].rsplit("│", 2)[1]
    assert ("6" in rows[3], "52.50" in rows[3]) == (True, True)


def test_an_empty_board_is_a_board() -> None:
    out = Console(width=200)
    with out.capture() as shown:
        out.print(board_table([], "sales"))
    assert "all" in shown.get()
