"""Messages as the HTTP port shows them: as JSON, or as a body with headers of HTTP."""

import base64
import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from onelog.core.cursors.fetch import Result
from onelog.errors import InvalidRequestError, OnelogError
from onelog.message import Message
from onelog.record.compression import unpacked_body
from onelog.record.decode import decode_messages
from onelog.record.forms import rocketmq
from onelog.record.forms.neutral import Neutral

KEY, HEADER, RECEIPT = "onelog-key", "onelog-header-", "onelog-receipt"
"""Headers of HTTP that are a message's own."""
_NAME = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
PRINTABLE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What is in a header as it is; anything else is in URL quotes."""


def neutral_of(message: Message) -> Neutral:
    """A message of RocketMQ's form, in no system's."""
    return rocketmq.to_neutral(unpacked_body(message), message.properties, message.born_ms)


def shown(
    topic: str, queue_id: int, offset: int, message: Message, **more: object
) -> dict[str, Any]:
    """A message as JSON. A text is a text; other bytes are in base64, under a name of their own."""
    key, body, headers, time_ms = neutral_of(message)
    found: dict[str, Any] = {
        "topic": topic,
        "queue": queue_id,
        "offset": offset,
        "id": message.message_id,
        **more,
        "time_ms": time_ms,
        **_text_or_bytes("key", key),
        **_text_or_bytes("body", body),
    }
    shown_headers: dict[str, Any] = {}
    for name, value in headers:
        text = _text_or_bytes("base64", value)
        one = text["base64"] if "base64" in text else {"base64": text["base64_base64"]}
        if name in shown_headers:
            before = shown_headers[name]
            shown_headers[name] = [*(before if isinstance(before, list) else [before]), one]
        else:
            shown_headers[name] = one
    found["headers"] = shown_headers
    return found


def _text_or_bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def http_headers(neutral: Neutral) -> dict[str, str]:
    """A message's key and headers as headers of HTTP, in URL quotes where they must be."""
    found = {}
    if neutral.key is not None:
        found[KEY] = quote(neutral.key, safe=PRINTABLE)
    for name, value in neutral.headers:
        if value is not None and _NAME.fullmatch(name):
            found[f"{HEADER}{name}"] = quote(value, safe=PRINTABLE)
    return found


def raw(neutral: Neutral, media: bytes | None, default: str, more: dict[str, str]) -> Response:
    """A message as the answer itself. A browser saves what somebody has sent, and shows nothing."""
    kind = default if media is None else media.decode("latin-1")
    if not kind.isprintable():
        kind = "application/octet-stream"
    headers = {**http_headers(neutral), **more, "content-disposition": "attachment"}
    return Response(neutral.body or b"", 200, headers, kind)


def messages_in(result: Result) -> list[tuple[int, Message]]:
    """What a fetch found at one cursor: messages with their offsets in that queue."""
    if isinstance(result, OnelogError):
        raise result
    found = [message for part in result.slices for message in decode_messages(part)]
    offsets = result.offsets or [message.queue_offset for message in found]
    return list(zip(offsets, found, strict=False))


def number(parameters: Any, name: str, default: int, least: int, most: int) -> int:
    """A parameter of the query that is a number."""
    text = parameters.get(name)
    if text is None:
        return default
    try:
        found = int(text[:20])
    except ValueError:
        found = least - 1
    if not least <= found <= most:
        raise InvalidRequestError(f"{name}={text[:40]} is not a number from {least} to {most}")
    return found
