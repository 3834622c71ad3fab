"""Reading the queues of waiting messages, with a bar for those who wait meanwhile."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onelog.client.admin.delays import Delays, Listing


async def read(delays: Delays, topic: str | None, cluster: str | None, limit: int) -> Listing:
    """The messages that wait, those first that are due first."""
    screen = Console(stderr=True)
    columns = (
        TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("reading", total=None)
        return await delays.waiting(
            topic,
            cluster=cluster,
            count_max=limit,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
