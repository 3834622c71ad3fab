"""The page of the sales board."""

import re
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from onelog_examples.board_page import WINDOWS_MAX, page, write
from onelog_examples.sales_board import Cell

START = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)


def cells(windows: int, *categories: str) -> list[Cell]:
    return [
        Cell(START.replace(minute=number), category, 2, Decimal(10 * place))
        for number in range(windows)
        for place, category in enumerate(categories, 1)
    ]


def chart_of(text: str) -> ElementTree.Element:
    found = re.search("<svg.*</svg>", text)
    assert found
    return ElementTree.fromstring(found.group())


def test_the_chart_has_a_bar_for_each_category_of_each_window() -> None:
    text = page(cells(3, "books", "toys"), "sales")
    bars = chart_of(text).findall("rect")
    assert len(bars) == 6
    assert len({bar.get("fill") for bar in bars}) == 2
    # Toys bring twice as much: their bars are twice as tall.
    heights = sorted({float(bar.get("height", 0)) for bar in bars})
    assert round(heights[1] / heights[0]) == 2
    assert "12 orders, 90.00 in 3 windows" in text
    assert text.index(">toys<") < text.index(">books<")


def test_names_are_text_and_not_markup() -> None:
    text = page(cells(1, "<script>", "a&b"), "<b>")
    assert "<script>" not in text
    assert "<title>&lt;b&gt;</title>" in text
    assert len(chart_of(text).findall("rect")) == 2


def test_only_the_last_windows_are_drawn_and_no_sales_are_no_bars() -> None:
    assert len(chart_of(page(cells(60, "books"), "x")).findall("rect")) == WINDOWS_MAX
    many = [*cells(60, "books"), Cell(START.replace(hour=11), "books", 1, Decimal(1))]
    assert len(chart_of(page(many, "x")).findall("rect")) == WINDOWS_MAX
    assert chart_of(page([], "nothing")).findall("rect") == []


def test_the_page_is_replaced_as_a_whole_and_reloads_if_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "board.html"
    write(path, cells(1, "books"), "sales", refresh_seconds=5)
    assert 'http-equiv="refresh" content="5"' in path.read_text()
    write(path, cells(1, "toys"), "sales")
    assert "refresh" not in path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["board.html"]
