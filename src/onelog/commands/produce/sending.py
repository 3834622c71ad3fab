"""What `onelog produce` does: making messages of lines, JSON lines and files, and sending them.

Input is read as it comes and no further, so what a pipe gives is sent at once. What cannot be made
into a message comes out as `Unusable`, with its place and the reason.

Invariants: no more than `ON_THE_WAY_MAX` messages are unfinished, and of those with the same order
key one. The summary counts as sent what a broker has stored. Whatever ends the sending, messages
that are on their way are waited for; a second Ctrl-C does not wait.
"""

import base64
import binascii
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import typer

from onelog.client import Message, Producer, Receipt
from onelog.commands.clients import ClientSession, Pace
from onelog.commands.produce import Form
from onelog.commands.session import EXIT_FAILED, complain
from onelog.commands.terminal import progress_bar, show_bytes, show_count
from onelog.commands.times import parse_span, parse_time
from onelog.errors import InvalidRequestError, OnelogError

STDIN = Path("-")
TOPIC_OF_LINES = "-"

ON_THE_WAY_MAX = 256
SHOW_SECONDS = 0.1


class Item(NamedTuple):
    """A message to send."""

    message: Message
    order_key: str | None
    source: str
    """Where it stood: for complaints."""
    size: int
    """Bytes of input that it took."""


class Unusable(NamedTuple):
    """Input that is no message."""

    source: str
    reason: str


class _JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON line. The fields from `id` on are what `onelog consume` says about a message."""

    body: msgspec.Raw
    body_encoding: str = "utf-8"
    topic: str | None = None
    tags: str | None = None
    keys: str | list[str] | None = None
    properties: dict[str, str] | None = None
    delay: float | str | None = None
    deliver_at: int | str | None = None
    delay_level: int | None = None
    order_key: str | None = None
    flag: int | None = None
    id: object = None
    offset_id: object = None
    broker: object = None
    queue: object = None
    offset: object = None
    born_ms: object = None
    store_ms: object = None
    attempt: object = None


_decode_line = msgspec.json.Decoder(_JsonLine).decode


@dataclass(frozen=True, slots=True)
class Template:
    """What all messages have, unless they say otherwise."""

    topic: str
    order_key: str | None
    utc: bool
    shared: dict[str, Any]
    """The other arguments of a `Message`."""

    @staticmethod
    def of(
        topic: str,
        tag: str | None,
        keys: Sequence[str] | None,
        properties: Sequence[str] | None,
        delay: str | None,
        deliver_at: str | None,
        order_key: str | None,
        utc: bool,
    ) -> "Template":
        """The options of the command line, checked."""
        named = {}
        for each in properties or ():
            name, equals, value = each.partition("=")
            if not equals or not name or not value:
                raise InvalidRequestError(f"--property {each}: write it as name=value")
            named[name] = value
        shared: dict[str, Any] = {
            "tags": tag,
            "keys": tuple(keys or ()),
            "properties": named,
            "delay": _delay(delay),
            "deliver_at": _moment(deliver_at, utc),
        }
        # Refuses now what every message would be refused for.
        Message("t" if topic == TOPIC_OF_LINES else topic, b"?", **shared)
        return Template(topic, order_key, utc, shared)

    def plain(self, body: bytes) -> Message:
        """A message of which only the body is known."""
        return Message(self.topic, body, **self.shared)

    def of_json(self, line: bytes) -> tuple[Message, str | None]:
        """A message that says more, and its order key."""
        try:
            given = _decode_line(line)
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(str(error)) from None
        own = {"tags": given.tags, "keys": given.keys, "flag": given.flag}
        merged = self.shared | {name: value for name, value in own.items() if value is not None}
        merged["properties"] = {**self.shared["properties"], **(given.properties or {})}
        if not (given.delay is given.deliver_at is given.delay_level is None):
            merged["delay"] = _delay(given.delay)
            merged["deliver_at"] = _moment(given.deliver_at, self.utc)
            merged["delay_level"] = given.delay_level or 0
        message = Message(self._topic_of(given), _body(given), **merged)
        return message, given.order_key or self.order_key

    def _topic_of(self, given: _JsonLine) -> str:
        if self.topic != TOPIC_OF_LINES:
            return self.topic
        if not given.topic:
            raise InvalidRequestError("it names no topic, and the command line does not, either")
        return given.topic


def items(
    template: Template, form: Form, files: Sequence[Path], bodies: Sequence[str] | None
) -> Iterator[Item | Unusable]:
    """The messages, one after the other."""
    if template.topic == TOPIC_OF_LINES and form != "json":
        raise InvalidRequestError("only JSON lines can name their topic: name one for all of them")
    if bodies is not None:
        if files:
            raise InvalidRequestError("--body and files exclude one another")
        for number, body in enumerate(bodies, 1):
            yield _item(template, "files", body.encode(), f"--body number {number}")
        return
    for path in files or [STDIN]:
        name = "stdin" if path == STDIN else str(path)
        with _opened(path, name) as stream:
            if form == "files":
                yield _item(template, form, stream.read(), name)
                continue
            for number, line in enumerate(stream, 1):
                if line.strip(b"\r\n"):
                    yield _item(template, form, line, f"{name}, line {number}")


def input_bytes(files: Sequence[Path]) -> int | None:
    """How much there is to read; None if nobody knows."""
    try:
        sizes = [path.stat().st_size for path in files if path.is_file()]
    except OSError:
        return None
    return sum(sizes) if files and len(sizes) == len(files) else None


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with path.expanduser().open("rb") as stream:
            yield stream
    except OSError as error:
        raise InvalidRequestError(f"{name}: {error.strerror}") from None


def _item(template: Template, form: Form, data: bytes, source: str) -> Item | Unusable:
    try:
        if form == "json":
            message, order_key = template.of_json(data)
            return Item(message, order_key, source, len(data))
        body = data.rstrip(b"\r\n") if form == "lines" else data
        return Item(template.plain(body), template.order_key, source, len(data))
    except OnelogError as error:
        return Unusable(source, str(error))


def _body(given: _JsonLine) -> bytes:
    raw = bytes(given.body)
    if not raw.startswith(b'"'):
        return raw
    text = msgspec.json.decode(raw, type=str)
    if given.body_encoding == "utf-8":
        return text.encode()
    if given.body_encoding != "base64":
        raise InvalidRequestError(f"body_encoding is utf-8 or base64, not {given.body_encoding!r}")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError(f"the body is no base64: {error}") from None


def _delay(given: float | str | None) -> timedelta | None:
    if given is None:
        return None
    if isinstance(given, str):
        return timedelta(milliseconds=parse_span(given))
    try:
        return timedelta(seconds=given)
    except OverflowError:
        raise InvalidRequestError(f"a delay cannot be {given} s") from None


def _moment(given: int | str | None, utc: bool) -> datetime | None:
    if given is None:
        return None
    ms = given
    if isinstance(ms, str):
        ms = parse_time(ms, time.time_ns() // 1_000_000, utc=utc)
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        raise InvalidRequestError(f"{given} is no time") from None


@dataclass(frozen=True, slots=True)
class ProducePlan:
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
                    self.fail(item.source, result)
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

    def fail(self, source: str, error: BaseException | str) -> None:
        self.failed += 1
        self._session.exit_code = EXIT_FAILED
        complain(f"{source}: {error}")

    def wait(self) -> None:
        """Until nothing is on its way."""
        for _ in range(ON_THE_WAY_MAX):
            self._free.acquire()
        if self.trouble is not None:
            raise self.trouble


def send(session: ClientSession, source: Iterable[Item | Unusable], plan: ProducePlan) -> None:
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
    plan: ProducePlan,
    sent: _Sent,
    progress: Callable[..., None],
) -> None:
    pace = Pace(plan.rate)
    in_order: dict[str, Future[Receipt]] = {}
    reached: set[str] = set()
    read_bytes = 0
    shown = 0.0
    for number, item in enumerate(source, 1):
        if isinstance(item, Unusable):
            sent.fail(item.source, item.reason)
        else:
            pace.wait()
            future = _send_one(producer, item, sent, in_order)
            if item.message.topic not in reached:
                # The next one could overtake it while the route and the connection are made.
                reached.add(item.message.topic)
                future.exception()
            read_bytes += item.size
        if sent.trouble is not None or (sent.failed and not plan.keep_going):
            return
        if time.monotonic() - shown > SHOW_SECONDS:
            shown = time.monotonic()
            done = number if plan.count else read_bytes
            progress(done, said=show_count(sent.count))
        if number == plan.count:
            return


def _send_one(
    producer: Producer, item: Item, sent: _Sent, in_order: dict[str, Future[Receipt]]
) -> Future[Receipt]:
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
    return future


def _summarize(session: ClientSession, plan: ProducePlan, sent: _Sent, seconds: float) -> None:
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
    source = f"{queue.topic} {queue.broker}/{queue.queue_id}@{receipt.offset}"
    return f"{receipt.message_id} {source}{status}"
