"""Arguments of exchanges, bindings and queues in JSON, in which durable tables are kept.

Values are those of AMQP's field tables. JSON has no bytes, times, decimals and no numbers that are
none; they are an object with one name that no field has:

    {"!": "x", "v": base64}   bytes       {"!": "T", "v": seconds}   a time
    {"!": "D", "v": text}     a decimal   {"!": "d", "v": text}      nan, inf or -inf

Invariant: what is read back is what was written, and the same arguments are the same JSON. What no
JSON has, a name that is no UTF-8, is refused.
"""

import base64
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from onelog.errors import PreconditionFailedError
from onelog.record.forms.amqp_fields import Table, Timestamp, Value

_MARK = "!"
_encode = msgspec.json.Encoder(order="sorted").encode


def to_json(arguments: Mapping[str, Value]) -> dict[str, Any]:
    """The arguments as JSON can have them."""
    for name in arguments:
        if not (name.isascii() or _is_text(name)):
            raise PreconditionFailedError(f"the name of an argument is no UTF-8: {name!r}")
    return {name: _plain(value) for name, value in arguments.items()}


def _is_text(name: str) -> bool:
    """Whether it is one in UTF-8; bytes that are not are surrogates in tables."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def from_json(arguments: Mapping[str, Any]) -> Table:
    """The inverse of `to_json`."""
    return {name: _typed(value) for name, value in arguments.items()}


def identity(arguments: Mapping[str, Value]) -> str:
    """A text that two sets of arguments share if they are the same; empty if there are none."""
    return _encode(to_json(arguments)).decode() if arguments else ""


def _plain(value: Value) -> Any:
    if isinstance(value, bytes):
        return {_MARK: "x", "v": base64.b64encode(value).decode()}
    if isinstance(value, Timestamp):
        return {_MARK: "T", "v": int(value)}
    if isinstance(value, Decimal):
        return {_MARK: "D", "v": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {_MARK: "d", "v": str(value)}
    if isinstance(value, dict):
        made = to_json(value)
        return {_MARK: "F", "v": made} if _MARK in made else made
    if isinstance(value, list):
        return list(map(_plain, value))
    return value


def _typed(value: Any) -> Value:
    if isinstance(value, list):
        return list(map(_typed, value))
    if not isinstance(value, dict):
        return value  # type: ignore[no-any-return]
    inner: Any = value.get("v")
    match value.get(_MARK):
        case "x":
            return base64.b64decode(inner)
        case "T":
            return Timestamp(inner)
        case "D":
            return Decimal(inner)
        case "d":
            return float(inner)
        case "F":
            return from_json(inner)
    return from_json(value)
