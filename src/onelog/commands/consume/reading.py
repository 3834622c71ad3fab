"""What `onelog consume` does: reading a topic with or without a group, and printing it.

Without a group every queue is read by itself, and nothing is committed.

Invariants: what is committed was printed, or left out on purpose, and has left this process.
Without `--follow` it ends: without a group after what the queues held when it began, with a group
when the queues of this member hold nothing more.
"""

import json
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from onelog.client import PullConsumer, PushConsumer, Queue, ReceivedMessage, RetryLater
from onelog.commands.clients import ClientSession, Pace
from onelog.commands.session import complain
from onelog.commands.terminal import body_document, progress_bar, show_bytes, show_count, show_text
from onelog.commands.times import parse_time, show_time
from onelog.errors import CompressionError, InvalidRequestError
from onelog.rocketmq.names import TOOLS_GROUP

POLL_SECONDS = 0.2
"""How long a poll that finds nothing takes; then it is looked whether that was all."""

BATCH_SIZE = 256
COMMIT_SECONDS = 1.0
JOIN_SECONDS_MAX = 10.0
"""After so long without a queue, the other members do not give us one."""


class Printer:
    """Prints messages, until there were enough."""

    def __init__(
        self,
        session: ClientSession,
        *,
        key: str | None,
        count: int | None,
        rate: float | None,
        bodies: bool,
    ) -> None:
        self._key = key
        self._count = count
        self._pace = Pace(rate)
        self._as_json = session.as_json
        self._utc = session.utc
        self._bodies = bodies
        self._taken: dict[Queue, int] = {}
        self.printed = 0
        self.passed = 0
        """Messages that were printed or left out."""

    @property
    def is_done(self) -> bool:
        """Whether there were enough."""
        return self._count is not None and self.printed >= self._count

    def left(self, count: int) -> int:
        """How many messages may be fetched, if one would like so many."""
        return count if self._count is None else min(count, self._count - self.printed)

    def print(self, message: ReceivedMessage) -> None:
        """Print a message, if it is one that is wanted."""
        if self._key is None or self._key in message.keys:
            self._pace.wait()
            if self._bodies:
                sys.stdout.buffer.write(message.body + b"\n")
            elif self._as_json:
                sys.stdout.write(json.dumps(document(message), separators=(",", ":")) + "\n")
            else:
                sys.stdout.write(line(message, self._utc) + "\n")
            self.printed += 1
        self.passed += 1
        self._taken[message.queue] = message.offset + 1

    def taken(self) -> dict[Queue, int]:
        """How far each queue is done with."""
        return dict(self._taken)


def document(message: ReceivedMessage) -> dict[str, Any]:
    """A message, for programs. A body that is no text is in base64."""
    return {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.queue.queue_id,
        "offset": message.offset,
        "id": message.message_id,
        "offset_id": message.offset_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "flag": message.flag,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "attempt": message.delivery_attempt,
        **body_document(message.body),
    }


def line(message: ReceivedMessage, utc: bool) -> str:
    """A message on one line, for people."""
    address = f"{message.broker}/{message.queue.queue_id}@{message.offset}"
    tags = f" [{show_text(message.tags)}]" if message.tags else ""
    keys = f" {{{show_text(' '.join(message.keys))}}}" if message.keys else ""
    return f"{show_time(message.store_ms, utc=utc)} {address}{tags}{keys} {_shown_body(message)}"


def _shown_body(message: ReceivedMessage) -> str:
    try:
        body = message.body
    except CompressionError as error:
        return f"({error})"
    try:
        return show_text(body.decode())
    except UnicodeDecodeError:
        return f"({show_bytes(len(body))} that are no text)"


@dataclass(frozen=True, slots=True)
class ConsumePlan:
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


def begin_time(since: str | None, from_beginning: bool, utc: bool) -> datetime | None:
    """When the first messages to print were stored, if that is limited."""
    if since is None:
        return None
    if from_beginning:
        raise InvalidRequestError("--from-beginning and --since exclude one another")
    return datetime.fromtimestamp(
        parse_time(since, time.time_ns() // 1_000_000, utc=utc) / 1000, UTC
    )


def read_queues(session: ClientSession, plan: ConsumePlan, printer: Printer) -> None:
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
                progress(printer.passed, said=said)
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
    sys.stdout.flush()
    return len(messages)


def share_topic(session: ClientSession, plan: ConsumePlan, printer: Printer, group: str) -> None:
    """Print this member's share of the messages."""
    with PullConsumer(
        group, **session.options, start=plan.first_start, auto_commit=False
    ) as consumer:
        consumer.queues(plan.topic)  # An error if there is no such topic.
        consumer.subscribe(plan.topic, plan.tags, sql=plan.sql)
        ending = _Ending(plan, group)
        committed = time.monotonic()
        try:
            while not printer.is_done:
                messages = consumer.poll(POLL_SECONDS, count=printer.left(BATCH_SIZE))
                for message in messages:
                    printer.print(message)
                sys.stdout.flush()
                if time.monotonic() - committed > COMMIT_SECONDS:
                    consumer.commit()
                    committed = time.monotonic()
                if not messages and ending.is_reached(consumer):
                    break
        except BaseException:
            # Perhaps in the middle of what a poll gave: the rest of that comes again.
            sys.stdout.flush()
            consumer.commit(printer.taken())
            raise
        # Also for queues that gave nothing yet: so the group stays where it began.
        consumer.commit()


def share_orderly(session: ClientSession, plan: ConsumePlan, printer: Printer, group: str) -> None:
    """The same with the queues locked, so that no other member has messages of them meanwhile."""
    with PullConsumer(TOOLS_GROUP, **session.options) as asking:
        asking.queues(plan.topic)  # An error if there is no such topic.
    ending = _Ending(plan, group)
    is_over = threading.Event()
    troubles: list[OSError] = []

    def hear(message: ReceivedMessage) -> None:
        """Prints messages until it is over; the rest stays with the broker."""
        if is_over.is_set():
            raise RetryLater("enough was printed")
        try:
            printer.print(message)
            sys.stdout.flush()
        except OSError as error:
            troubles.append(error)
            is_over.set()
            raise RetryLater("it cannot be printed") from None
        if printer.is_done:
            is_over.set()

    with PushConsumer(
        group, **session.options, start=plan.first_start, orderly=True, threads=1
    ) as consumer:
        consumer.subscribe(plan.topic, plan.tags, sql=plan.sql, listener=hear)
        consumer.start()
        try:
            while not is_over.wait(POLL_SECONDS):
                if ending.is_reached(consumer):
                    break
        finally:
            is_over.set()
    for trouble in troubles:
        raise trouble


class _Ending:
    """Tells when a member has got everything."""

    def __init__(self, plan: ConsumePlan, group: str) -> None:
        self._follow = plan.follow
        self._topic = plan.topic
        self._group = group
        self._joining = time.monotonic()

    def is_reached(self, consumer: PullConsumer | PushConsumer) -> bool:
        """Whether there is nothing more to wait for."""
        if self._follow:
            return False
        # The group's retry topic may be ours before the topic itself is.
        if any(queue.topic.endswith(self._topic) for queue in consumer.assigned):
            return not sum(consumer.lag().values())
        if time.monotonic() - self._joining < JOIN_SECONDS_MAX:
            return False
        complain(f"group {self._group} has other members, which left no queue to this one")
        return True
