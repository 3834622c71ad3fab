"""The sales board as a page: one HTML file with its chart in it, which needs nothing else.

Bars are windows of time, stacked by category; the table below has the sums. A category keeps its
colour, as far as there are colours.
"""

import html
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from onelog_examples.sales_board import Cell

WINDOWS_MAX = 60
"""Bars in the chart: the last so many."""
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 360, 90, 40

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">{refresh}<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1000px; color: #222 }}
svg {{ width: 100%; height: auto }} text {{ font: 12px system-ui, sans-serif; fill: #555 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem 1rem; text-align: right }}
td:first-child, th:first-child {{ text-align: left }} tr {{ border-top: 1px solid #ddd }}
i {{ display: inline-block; width: .8em; height: .8em; margin-right: .5em }}
</style></head><body>
<h1>{title}</h1><p>{orders:,} orders, {revenue:,.2f} in {windows} windows of time</p>
{chart}
<table><tr><th>category</th><th>orders</th><th>revenue</th></tr>
{rows}
</table></body></html>
"""


def write(
    path: Path, cells: Sequence[Cell], title: str, refresh_seconds: int | None = None
) -> None:
    """Write the page; whoever reads it meanwhile sees the old one, or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(page(cells, title, refresh_seconds), encoding="utf-8")
    os.replace(temporary, path)


def page(cells: Sequence[Cell], title: str, refresh_seconds: int | None = None) -> str:
    """The text of the page."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for cell in cells:
        totals[cell.category][0] += cell.orders
        totals[cell.category][1] += float(cell.revenue)
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(sorted(totals))}
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])
    rows = "\n".join(
        f'<tr><td><i style="background:{colours[name]}"></i>{html.escape(name)}</td>'
        f"<td>{orders:,.0f}</td><td>{revenue:,.2f}</td></tr>"
        for name, (orders, revenue) in ranked
    )
    refresh = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    return _PAGE.format(
        refresh=refresh,
        title=html.escape(title),
        orders=sum(cell.orders for cell in cells),
        revenue=sum(float(cell.revenue) for cell in cells),
        windows=len({cell.window_start for cell in cells}),
        chart=chart(cells, colours),
        rows=rows,
    )


def chart(cells: Sequence[Cell], colours: Mapping[str, str]) -> str:
    """Revenue per window, as SVG."""
    windows: dict[datetime, list[Cell]] = defaultdict(list)
    for cell in cells:
        windows[cell.window_start].append(cell)
    shown = sorted(windows)[-WINDOWS_MAX:]
    top = max((_revenue(windows[start]) for start in shown), default=0.0) or 1.0
    height = _HEIGHT - _BOTTOM - 10
    step = (_WIDTH - _LEFT) / max(1, len(shown))
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    for share in (0, 0.5, 1):
        y = 10 + height * (1 - share)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * share:,.0f}</text>'
        )
    for number, start in enumerate(shown):
        x, y = _LEFT + number * step, 10.0 + height
        for cell in sorted(windows[start], key=lambda cell: cell.category):
            tall = float(cell.revenue) / top * height
            y -= tall
            said = html.escape(f"{start:%H:%M:%S} {cell.category}: {cell.revenue:,}")
            parts.append(
                f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
                f'height="{tall:.1f}" fill="{colours[cell.category]}"><title>{said}</title></rect>'
            )
        if number % -(-len(shown) // 10) == 0:
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 15}">{start:%H:%M:%S}</text>')
    return "".join([*parts, "</svg>"])


def _revenue(cells: Sequence[Cell]) -> float:
    return float(sum(cell.revenue for cell in cells))
