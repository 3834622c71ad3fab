"""Sending what `onelog produce` was given, many messages at a time.

Invariants: no more than `ON_THE_WAY_MAX` messages are unfinished, and of those with the same order
key one; what the summary counts as sent, a broker has stored. Whatever ends the sending, messages
that are on their way are waited for; a second Ctrl-C does not wait.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import typer
from rich.progress import Progress

from onelog.client import Producer, Receipt
from onelog.commands.clients import ClientSession, Pace, progress_bar
from onelog.commands.produce.reading import Item, Unusable
from onelog.commands.session import EXIT_FAILED, complain
from onelog.commands.terminal import show_bytes, show_count

ON_THE_WAY_MAX = 256
SHOW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """How to send."""

    group: str
    count: int | None
    rate: float | None
    keep_going: bool
    receipts: bool
    input_bytes: int | None
    """What there is to read in all, if that is known."""


class _Sent:
    """What became of the messages; written by the SDK's thread as well as by the command's."""

    def __init__(self, session: ClientSession, receipts: bool) -> None:
        self._session = session
        self._receipts = receipts
        self._free = threading.BoundedSemaphore(ON_THE_WAY_MAX)
        self.count = 0
        self.failed = 0
        self.body_bytes = 0
        self.last: Receipt | None = None
        self.trouble: OSError | None = None
        """Why receipts cannot be printed any more."""

    def begin(self) -> None:
        """Wait until another message may be sent."""
        self._free.acquire()

    def ended(self, item: Item) -> Callable[[Receipt | BaseException], None]:
        def note(result: Receipt | BaseException) -> None:
            try:
                if isinstance(result, Receipt):
                    self._stored(item, result)
                else:
                    self.fail(item.place, result)
            except OSError as error:
                self.trouble = error
            finally:
                self._free.release()

        return note

    def _stored(self, item: Item, receipt: Receipt) -> None:
        self.count += 1
        self.body_bytes += len(item.message.body)
        self.last = receipt
        if self._receipts:
            self._session.show_line(_document(receipt), _line(receipt))

    def fail(self, place: str, error: BaseException | str) -> None:
        self.failed += 1
        self._session.exit_code = EXIT_FAILED
        complain(f"{place}: {error}")

    def wait(self) -> None:
        """Until nothing is on its way."""
        for _ in range(ON_THE_WAY_MAX):
            self._free.acquire()
        if self.trouble is not None:
            raise self.trouble


def send(session: ClientSession, source: Iterable[Item | Unusable], plan: Plan) -> None:
    """Send everything, and say what was sent."""
    sent = _Sent(session, plan.receipts)
    began = time.monotonic()
    try:
        with (
            progress_bar("sending", plan.count or plan.input_bytes) as progress,
            Producer(plan.group, **session.options) as producer,
        ):
            try:
                _send_all(producer, source, plan, sent, progress)
            finally:
                sent.wait()
    finally:
        _summarize(session, plan, sent, time.monotonic() - began)


def _send_all(
    producer: Producer,
    source: Iterable[Item | Unusable],
    plan: Plan,
    sent: _Sent,
    progress: Progress,
) -> None:
    pace = Pace(plan.rate)
    in_order: dict[str, Future[Receipt]] = {}
    read_bytes = 0
    shown = 0.0
    for number, item in enumerate(source, 1):
        if isinstance(item, Unusable):
            sent.fail(item.place, item.reason)
        else:
            pace.wait()
            _send_one(producer, item, sent, in_order)
            read_bytes += item.size
        if sent.trouble is not None or (sent.failed and not plan.keep_going):
            return
        if time.monotonic() - shown > SHOW_SECONDS:
            shown = time.monotonic()
            done = number if plan.count else read_bytes
            progress.update(progress.task_ids[0], completed=done, said=show_count(sent.count))
        if number == plan.count:
            return


def _send_one(
    producer: Producer, item: Item, sent: _Sent, in_order: dict[str, Future[Receipt]]
) -> None:
    key = item.order_key
    if key is not None and (before := in_order.get(key)) is not None:
        before.exception()  # Waits: a message that is tried again must not be overtaken.
    sent.begin()
    future = producer.send_async(item.message, sent.ended(item), order_key=key)
    if key is not None:
        if len(in_order) > 2 * ON_THE_WAY_MAX:
            for done in [each for each, future in in_order.items() if future.done()]:
                del in_order[done]
        in_order[key] = future


def _summarize(session: ClientSession, plan: Plan, sent: _Sent, seconds: float) -> None:
    rate = show_count(round(sent.count / seconds)) if seconds else "-"
    failed = f", {show_count(sent.failed)} could not be sent" if sent.failed else ""
    text = (
        f"{show_count(sent.count)} sent ({show_bytes(sent.body_bytes)}) "
        f"in {seconds:.2f} s, {rate}/s{failed}"
    )
    if plan.receipts:
        typer.echo(text, err=True)
        return
    document: dict[str, Any] = {
        "sent": sent.count,
        "failed": sent.failed,
        "body_bytes": sent.body_bytes,
        "seconds": round(seconds, 3),
    }
    views = [text]
    if sent.count == 1 and sent.last is not None:
        document["receipt"] = _document(sent.last)
        views.append(_line(sent.last))
    session.show(document, *views)


def _document(receipt: Receipt) -> dict[str, Any]:
    return {
        "id": receipt.message_id,
        "topic": receipt.queue.topic,
        "broker": receipt.queue.broker,
        "queue": receipt.queue.queue_id,
        "offset": receipt.offset,
        "offset_id": receipt.offset_id,
        "status": receipt.status.value,
        "recall_handle": receipt.recall_handle,
    }


def _line(receipt: Receipt) -> str:
    queue = receipt.queue
    status = "" if receipt.status.value == "ok" else f" ({receipt.status.value})"
    place = f"{queue.topic} {queue.broker}/{queue.queue_id}@{receipt.offset}"
    return f"{receipt.message_id} {place}{status}"
