"""What `onelog demo` does, and what it shows meanwhile.

The shop sends orders; one streaming query counts them on the sales board, another keeps them as a
lake table. When the shop has closed and both have caught up, all three must have the same.

Spark takes a while to get going, more than a minute on a busy machine. So the shop sends a few
orders, and goes on when both queries are done with them. What Spark and its workers have to say
goes to a file.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from onelog.commands.job.running import until_interrupted
from onelog.commands.spark_options import spark_session
from onelog.commands.terminal import console, show_bytes, show_count
from onelog.errors import ConfigError, OnelogError
from onelog.spark import lake
from onelog.spark.jobs import topics
from onelog.spark.lake import tables as lake_tables
from onelog_examples import board_page, sales_board
from onelog_examples.board_view import board_table
from onelog_examples.sales_board import Cell
from onelog_examples.shop import Shop, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDERS, RESULTS = "orders", "sales"
QUEUES = 4
BOARD_EVERY_SECONDS, LAKE_EVERY_SECONDS = 1.0, 2.0
LOOK_SECONDS, LINE_SECONDS = 0.5, 2.0
STILL_SECONDS_MAX = 180
START_SECONDS_MAX = 900
"""How long the first orders may take."""
FIRST_ORDERS = 10
TITLE = "Sales of a shop that does not exist"


class _Places:
    def __init__(self, folder: Path, page: Path | None) -> None:
        self.folder = folder
        self.page = page or folder / "sales-board.html"
        self.server, self.board, self.lake = folder / "server", folder / "board", folder / "lake"
        self.spark_log = folder / "spark.log"


@dataclass(frozen=True, slots=True)
class _Look:
    """How far everybody is at one moment."""

    is_open: bool
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
    def is_complete(self) -> bool:
        return not self.is_open and self.counted >= self.sent and self.table_rows >= self.sent

    @property
    def line(self) -> str:
        return (
            f"{show_count(self.sent)} orders sent, {show_count(self.counted)} on the board, "
            f"{show_count(self.table_rows)} in the table"
        )


class _Screen:
    """What is seen meanwhile: the board where there is a terminal, else a line now and then."""

    def __init__(self, out: Console, began: float, page: Path) -> None:
        self._out = out
        self._began = began
        self._page = page
        self._live = Live(console=out, transient=True, auto_refresh=False)
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._live.stop()

    def show(self, found: _Look) -> None:
        now = time.monotonic()
        text = f"{now - self._began:5.1f} s: {found.line}"
        if self._out.is_terminal:
            self._live.update(Group(board_table(found.cells, TITLE), Text(text)), refresh=True)
        elif found.line != self._said and now - self._said_at >= LINE_SECONDS:
            self._out.print(text)
            self._said, self._said_at = found.line, now
        board_page.write(self._page, found.cells, TITLE, refresh_seconds=2)


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
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: name another folder")
    folder = (folder or Path(tempfile.mkdtemp(prefix="onelog-demo-"))).absolute()
    places = _Places(folder, page)
    out = console()
    with ExitStack() as stack:
        stopped = stack.enter_context(until_interrupted())
        nameserver = stack.enter_context(running_server(places.server))
        link = {"nameserver": nameserver, "tls": "false"}
        for topic in (ORDERS, RESULTS):
            if not topics.queues(link, topic):
                topics.create(link, topic, QUEUES)
        out.print(f"server with name server {nameserver}, data in {folder}; starting Spark ...")
        spark = stack.enter_context(
            spark_session("onelog demo", master, remote, log=places.spark_log)
        )
        queries = _start(spark, link, places, stack)
        first = min(FIRST_ORDERS, rate)
        shop = stack.enter_context(Shop(nameserver, ORDERS, rate, rate * seconds, first=first))
        screen = stack.enter_context(_Screen(out, began, places.page))
        found = _follow(shop, places, screen, queries, stopped)
        shop.close()
        screen.close()
        is_right = _report(found, shop, spark, places)
    shutil.rmtree(places.server, ignore_errors=True)
    out.print(f"done in {time.monotonic() - began:.0f} s; rm -r {folder} removes what is left")
    return is_right


def _start(
    spark: "SparkSession", link: dict[str, str], places: _Places, stack: ExitStack
) -> "list[StreamingQuery]":
    board = sales_board.start(
        spark,
        link,
        ORDERS,
        places.board,
        result_topic=RESULTS,
        window_seconds=5,
        every=BOARD_EVERY_SECONDS,
    )
    stack.callback(board.stop)
    table = lake.start([ORDERS], places.lake, spark=spark, options=link, every=LAKE_EVERY_SECONDS)
    stack.callback(table.stop)
    return [board, table]


def _follow(
    shop: Shop,
    places: _Places,
    screen: _Screen,
    queries: "list[StreamingQuery]",
    stopped: Callable[[], bool],
) -> _Look:
    """Watch until everybody has everything; the shop begins in earnest when both queries run."""
    found, moved_at = _look(shop, places), time.monotonic()
    while not found.is_complete:
        screen.show(found)
        _check(queries)
        if stopped():
            shop.close()
        elif not shop.has_begun and all(map(_is_at_work, queries)):
            shop.begin()
        time.sleep(LOOK_SECONDS)
        before, found = found, _look(shop, places)
        patience = STILL_SECONDS_MAX if shop.has_begun else START_SECONDS_MAX
        if found != before:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > patience:
            raise OnelogError(
                f"nothing moves any more: {found.line}; what Spark says is in {places.spark_log}"
            )
    return found


def _is_at_work(query: "StreamingQuery") -> bool:
    """Whether it is done with a batch that had orders."""
    return any(done is not None and done.numInputRows for done in query.recentProgress)


def _check(queries: "list[StreamingQuery]") -> None:
    """Raise what one of them failed with, if one did."""
    for query in queries:
        if (error := query.exception()) is not None:
            raise error


def _look(shop: Shop, places: _Places) -> _Look:
    # Asked first: what is sent after that is seen in the next look.
    is_open, sent = shop.is_open, shop.orders
    tables = {each.name: each for each in lake_tables.tables(places.lake)}
    table = tables.get(ORDERS)
    return _Look(
        is_open,
        sent,
        sales_board.read(places.board),
        0 if table is None else table.rows,
        0 if table is None else table.size_bytes,
    )


def _report(found: _Look, shop: Shop, spark: "SparkSession", places: _Places) -> bool:
    """Print the board, and whether the table's bodies add up to what was sent."""
    out = console()
    out.print(board_table(found.cells, TITLE))
    board_page.write(places.page, found.cells, TITLE)
    amount = "cast(get_json_object(cast(body as string), '$.amount') as decimal(18,2))"
    row = (
        lake.read(spark, places.lake / ORDERS)
        .selectExpr(
            "count(*) messages",
            "count(distinct key) orders",
            f"cast(sum({amount}) * 100 as bigint) cents",
        )
        .first()
    )
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
