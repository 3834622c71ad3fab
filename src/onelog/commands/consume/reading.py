"""Reading a topic without a group: every queue by itself, and nothing is committed.

Invariant: without `--follow` it ends after what the queues held when it began.
"""

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from onelog.client import PullConsumer
from onelog.commands.clients import ClientSession, progress_bar
from onelog.commands.consume.printing import Printer
from onelog.commands.terminal import show_count
from onelog.commands.times import parse_time
from onelog.errors import InvalidRequestError
from onelog.rocketmq.names import TOOLS_GROUP

POLL_SECONDS = 0.2
"""How long a poll that finds nothing takes; then it is looked whether that was all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to consume, and from where on."""

    topic: str
    tags: str
    sql: str | None
    follow: bool
    start: datetime | None
    from_beginning: bool

    @property
    def first_start(self) -> datetime | Literal["first", "last"]:
        """Where a group begins that has no position yet."""
        return self.start or ("first" if self.from_beginning else "last")

    @staticmethod
    def of(
        topic: str,
        tags: str,
        sql: str | None,
        follow: bool,
        from_beginning: bool,
        since: str | None,
        utc: bool,
    ) -> "Plan":
        """The options of the command line, checked."""
        start = None
        if since is not None:
            if from_beginning:
                raise InvalidRequestError("--from-beginning and --since exclude one another")
            ms = parse_time(since, time.time_ns() // 1_000_000, utc=utc)
            start = datetime.fromtimestamp(ms / 1000, UTC)
        return Plan(topic, tags, sql, follow, start, from_beginning)


def read_queues(session: ClientSession, plan: Plan, printer: Printer) -> None:
    """Print what all queues of a topic hold, or what comes to them."""
    with PullConsumer(TOOLS_GROUP, **session.options, auto_commit=False) as consumer:
        consumer.assign(consumer.queues(plan.topic), plan.tags, sql=plan.sql)
        if plan.start is not None:
            consumer.seek_to_time(plan.start)
        elif plan.follow and not plan.from_beginning:
            consumer.seek_to_end()
        else:
            consumer.seek_to_begin()
        if plan.follow:
            while not printer.is_done:
                _print_some(consumer, printer, {})
        else:
            _read_to_the_end(consumer, printer)


def _read_to_the_end(consumer: PullConsumer, printer: Printer) -> None:
    ends = {
        (queue.broker, queue.queue_id): offset for queue, offset in consumer.end_offsets().items()
    }
    total = sum(consumer.lag().values())
    # The bar would be in the way of what is printed to the same terminal.
    with progress_bar("reading", total, wanted=not sys.stdout.isatty()) as progress:
        is_more = total > 0
        while is_more and not printer.is_done:
            if _print_some(consumer, printer, ends):
                said = show_count(printer.printed)
                progress.update(progress.task_ids[0], completed=printer.passed, said=said)
            else:
                is_more = any(
                    consumer.position(queue) < ends[queue.broker, queue.queue_id]
                    for queue in consumer.assigned
                )


def _print_some(consumer: PullConsumer, printer: Printer, ends: dict[tuple[str, int], int]) -> int:
    """Print what a poll gives, up to these ends; how many messages it gave."""
    messages = consumer.poll(POLL_SECONDS)
    for message in messages:
        if printer.is_done:
            break
        end = ends.get((message.broker, message.queue.queue_id))
        if end is None or message.offset < end:
            printer.print(message)
    printer.flush()
    return len(messages)
