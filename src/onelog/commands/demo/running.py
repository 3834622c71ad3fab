"""What `onelog demo` does, and what it shows meanwhile.

The shop sends orders; one streaming query counts them on the sales board, another keeps them as a
lake table. When the shop has closed and both have caught up, all three must have the same.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from onelog.commands.demo.server import running_server
from onelog.commands.demo.shop import Shop
from onelog.commands.job.board_view import board_table
from onelog.commands.job.running import until_interrupted
from onelog.commands.spark_options import spark_session
from onelog.commands.terminal import console, show_bytes, show_count
from onelog.spark import lake, lake_tables
from onelog.spark.jobs import board_page, sales_board, topics
from onelog.spark.jobs.sales_board import Cell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDERS, RESULTS = "orders", "sales"
QUEUES = 4
BOARD_EVERY_SECONDS, LAKE_EVERY_SECONDS = 1.0, 2.0
LOOK_SECONDS = 0.5
CATCH_UP_SECONDS_MAX = 60
TITLE = "Sales of a shop that does not exist"


@dataclass(frozen=True, slots=True)
class _Places:
    folder: Path
    page: Path

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def board(self) -> Path:
        return self.folder / "board"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"


@dataclass(frozen=True, slots=True)
class _Look:
    """How far everybody is at one moment."""

    sent: int
    cells: Sequence[Cell]
    table_rows: int
    table_bytes: int

    @property
    def counted(self) -> int:
        return sum(cell.orders for cell in self.cells)

    @property
    def cents(self) -> int:
        return round(100 * sum(cell.revenue for cell in self.cells))

    @property
    def line(self) -> str:
        return (
            f"{show_count(self.sent)} orders sent, {show_count(self.counted)} on the board, "
            f"{show_count(self.table_rows)} in the table"
        )


def run(
    rate: int,
    seconds: int,
    folder: Path | None,
    page: Path | None,
    master: str | None,
    remote: str | None,
) -> bool:
    """Everything; whether all agreed in the end."""
    began = time.monotonic()
    folder = (folder or Path(tempfile.mkdtemp(prefix="onelog-demo-"))).absolute()
    places = _Places(folder, page or folder / "sales-board.html")
    out = console()
    with ExitStack() as stack:
        stopped = stack.enter_context(until_interrupted())
        nameserver = stack.enter_context(running_server(places.server))
        link = {"nameserver": nameserver}
        for topic in (ORDERS, RESULTS):
            if not topics.queues(link, topic):
                topics.create(link, topic, QUEUES)
        out.print(f"server with name server {nameserver}, data in {folder}; starting Spark ...")
        shop = stack.enter_context(Shop(nameserver, ORDERS, rate))
        spark = stack.enter_context(spark_session("onelog demo", master, remote))
        queries = _start(spark, link, places, stack)
        out.print(f"Spark runs after {time.monotonic() - began:.0f} s")
        live = stack.enter_context(Live(console=out, transient=True, auto_refresh=False))
        if not out.is_terminal:
            live.stop()

        def look() -> _Look:
            found = _look(shop, places)
            text = f"{time.monotonic() - began:5.1f} s: {found.line}"
            if out.is_terminal:
                live.update(Group(board_table(found.cells, TITLE), Text(text)), refresh=True)
            else:
                out.print(text)
            board_page.write(places.page, found.cells, TITLE, refresh_seconds=2)
            return found

        end = time.monotonic() + seconds
        while time.monotonic() < end and not stopped() and _are_well(queries):
            look()
            time.sleep(LOOK_SECONDS if out.is_terminal else 4 * LOOK_SECONDS)
        shop.close()
        found = look()
        end = time.monotonic() + CATCH_UP_SECONDS_MAX
        while not _is_complete(found) and time.monotonic() < end and _are_well(queries):
            time.sleep(LOOK_SECONDS)
            found = look()
        live.stop()
        is_right = _report(found, shop, spark, places)
    shutil.rmtree(places.server, ignore_errors=True)
    out.print(f"done in {time.monotonic() - began:.0f} s; rm -r {folder} removes what is left")
    return is_right


def _start(
    spark: "SparkSession", link: dict[str, str], places: _Places, stack: ExitStack
) -> "list[StreamingQuery]":
    board = sales_board.start(
        spark, link, ORDERS, places.board, result_topic=RESULTS, window_seconds=5,
        every=BOARD_EVERY_SECONDS,
    )  # fmt: skip
    stack.callback(board.stop)
    table = lake.start([ORDERS], places.lake, spark=spark, options=link, every=LAKE_EVERY_SECONDS)
    stack.callback(table.stop)
    return [board, table]


def _are_well(queries: "list[StreamingQuery]") -> bool:
    """True; or raises what one of them failed with."""
    for query in queries:
        if (error := query.exception()) is not None:
            raise error
    return True


def _look(shop: Shop, places: _Places) -> _Look:
    sent = shop.orders
    tables = {each.name: each for each in lake_tables.tables(places.lake)}
    table = tables.get(ORDERS)
    return _Look(
        sent,
        sales_board.read(places.board),
        0 if table is None else table.rows,
        0 if table is None else table.size_bytes,
    )


def _is_complete(found: _Look) -> bool:
    return found.counted >= found.sent and found.table_rows >= found.sent


def _report(found: _Look, shop: Shop, spark: "SparkSession", places: _Places) -> bool:
    """Print the board, and whether the table's bodies add up to what was sent."""
    out = console()
    out.print(board_table(found.cells, TITLE))
    board_page.write(places.page, found.cells, TITLE)
    amount = "cast(get_json_object(cast(body as string), '$.amount') as decimal(18,2))"
    row = lake.read(spark, places.lake / ORDERS).selectExpr(
        "count(*) messages", "count(distinct key) orders", f"cast(sum({amount}) * 100 as bigint) cents"
    ).first()  # fmt: skip
    assert row is not None
    out.print(f"sent   {show_count(shop.orders)} orders, {shop.cents / 100:,.2f}")
    out.print(f"board  {show_count(found.counted)} orders, {found.cents / 100:,.2f}")
    out.print(
        f"table  {show_count(row['messages'])} orders, {row['cents'] / 100:,.2f}, "
        f"{show_bytes(found.table_bytes)} in {places.lake / ORDERS}"
    )
    out.print(f"chart  {places.page}")
    sums = {
        (shop.orders, shop.cents),
        (found.counted, found.cents),
        (row["messages"], row["cents"]),
    }
    if len(sums) == 1 and row["orders"] == shop.orders:
        out.print("All three agree: every order is there, once.")
        return True
    out.print("They do not agree.")
    return False
