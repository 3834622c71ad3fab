"""Consuming a topic as a member of a group.

Invariant: what is committed was printed, or left out on purpose, and has left this process.
Without `--follow` it ends when the queues of this member hold nothing more.
"""

import threading
import time

from onelog.client import PullConsumer, PushConsumer, ReceivedMessage, RetryLater
from onelog.commands.clients import ClientSession
from onelog.commands.consume.printing import Printer
from onelog.commands.consume.reading import POLL_SECONDS, Plan
from onelog.commands.session import complain
from onelog.rocketmq.names import TOOLS_GROUP

BATCH_SIZE = 256
COMMIT_SECONDS = 1.0
JOIN_SECONDS_MAX = 10.0
"""After so long without a queue, the other members do not give us one."""


def share_topic(session: ClientSession, plan: Plan, printer: Printer, group: str) -> None:
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
                printer.flush()
                if time.monotonic() - committed > COMMIT_SECONDS:
                    consumer.commit()
                    committed = time.monotonic()
                if not messages and ending.is_reached(consumer):
                    break
        except BaseException:
            # Perhaps in the middle of what a poll gave: the rest of that comes again.
            printer.flush()
            consumer.commit(printer.taken())
            raise
        # Also for queues that gave nothing yet: so the group stays where it began.
        consumer.commit()


def share_orderly(session: ClientSession, plan: Plan, printer: Printer, group: str) -> None:
    """The same with the queues locked, so that no other member has messages of them meanwhile."""
    with PullConsumer(TOOLS_GROUP, **session.options) as asking:
        asking.queues(plan.topic)  # An error if there is no such topic.
    listener = _OrderlyListener(printer)
    ending = _Ending(plan, group)
    with PushConsumer(
        group, **session.options, start=plan.first_start, orderly=True, threads=1
    ) as consumer:
        consumer.subscribe(plan.topic, plan.tags, sql=plan.sql, listener=listener.hear)
        consumer.start()
        try:
            while not listener.is_over.wait(POLL_SECONDS):
                if ending.is_reached(consumer):
                    break
        finally:
            listener.is_over.set()
    if listener.trouble is not None:
        raise listener.trouble


class _OrderlyListener:
    """Prints messages until it is told to stop; the rest stays with the broker."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self.is_over = threading.Event()
        self.trouble: OSError | None = None

    def hear(self, message: ReceivedMessage) -> None:
        if self.is_over.is_set():
            raise RetryLater("enough was printed")
        try:
            self._printer.print(message)
            self._printer.flush()
        except OSError as error:
            self.trouble = error
            self.is_over.set()
            raise RetryLater("it cannot be printed") from None
        if self._printer.is_done:
            self.is_over.set()


class _Ending:
    """Tells when a member has got everything."""

    def __init__(self, plan: Plan, group: str) -> None:
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
