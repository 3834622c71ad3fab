"""What a queue is declared with: its arguments, which of them there may be, and what they mean.

Names, limits and refusals are RabbitMQ's, whose clients expect them: an argument with a value that
makes no sense is refused, one that nobody knows is kept and means nothing, and declaring a queue
again with other arguments is refused, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from onelog.errors import PreconditionFailedError
from onelog.record.forms.amqp_fields import same

Kind = Literal["classic", "quorum", "stream"]
Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]

TIME_MAX_MS = 315_360_000_000
"""Ten years, as in RabbitMQ."""
_NUMBER_MAX = (1 << 63) - 1
PRIORITY_MAX = 255
DELIVERY_LIMIT = 20
"""How often a message of a quorum queue may come back, where nothing is said."""
_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
_NOT_OF_QUORUM = ("x-max-priority", "x-queue-mode")
_NOT_OF_STREAMS = (
    "x-max-priority",
    "x-queue-mode",
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
)
_COMPARED = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
    "x-quorum-initial-group-size",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-skip-transient",
)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What the arguments of a queue mean."""

    kind: Kind = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    priorities: int = 0
    """The highest one; 0 if all messages are equal."""
    single_active: bool = False
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    skip_transient: bool = False
    """Whether messages that need not survive a restart are not for this queue."""

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit of messages or bytes."""
        return self.length_max is not None or self.bytes_max is not None


def _invalid(name: str, queue: str, why: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"invalid arg '{name}' for {queue}: {why}")


def _number(low: int, high: int) -> Callable[[str, str, Any], int]:
    def check(name: str, queue: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _invalid(name, queue, f"{{unacceptable_type,{type(value).__name__}}}")
        if value < low:
            raise _invalid(name, queue, f"{{value_negative,{value}}}")
        if value > high:
            raise _invalid(name, queue, f"{{value_too_large,{value}}}")
        return value

    return check


def _text(name: str, queue: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _invalid(name, queue, f"{{unacceptable_type,{type(value).__name__}}}")
    return value


def _flag(name: str, queue: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _invalid(name, queue, f"{{unacceptable_type,{type(value).__name__}}}")
    return value


def _one_of(*values: str) -> Callable[[str, str, Any], str]:
    def check(name: str, queue: str, value: Any) -> str:
        if _text(name, queue, value) not in values:
            raise _invalid(
                name, queue, f"{{value_not_one_of,{value}}}; it may be " + ", ".join(values)
            )
        return str(value)

    return check


_CHECKS: dict[str, tuple[str, Callable[[str, str, Any], Any]]] = {
    "x-queue-type": ("kind", _one_of("classic", "quorum", "stream")),
    "x-message-ttl": ("message_ttl_ms", _number(0, TIME_MAX_MS)),
    "x-expires": ("expires_ms", _number(1, TIME_MAX_MS)),
    "x-max-length": ("length_max", _number(0, _NUMBER_MAX)),
    "x-max-length-bytes": ("bytes_max", _number(0, _NUMBER_MAX)),
    "x-overflow": ("overflow", _one_of(*_OVERFLOWS)),
    "x-dead-letter-exchange": ("dead_letter_exchange", _text),
    "x-dead-letter-routing-key": ("dead_letter_key", _text),
    "x-max-priority": ("priorities", _number(0, PRIORITY_MAX)),
    "x-single-active-consumer": ("single_active", _flag),
    "x-delivery-limit": ("delivery_limit", _number(-1, _NUMBER_MAX)),
    "x-consumer-timeout": ("consumer_timeout_ms", _number(0, _NUMBER_MAX)),
    "x-skip-transient": ("skip_transient", _flag),
}


def limits_of(
    arguments: Mapping[str, Any], queue: str, *, durable: bool, exclusive: bool, auto_delete: bool
) -> QueueLimits:
    """What a queue's arguments mean, or `PreconditionFailedError`; `queue` names it, for people."""
    found: dict[str, Any] = {}
    for name, (field, check) in _CHECKS.items():
        if name in arguments:
            found[field] = check(name, queue, arguments[name])
    kind = found.get("kind", "classic")
    if "dead_letter_key" in found and "dead_letter_exchange" not in found:
        raise _invalid("x-dead-letter-routing-key", queue, "routing_key_but_no_dlx_defined")
    if kind == "classic":
        found.pop("delivery_limit", None)
    elif kind == "quorum":
        _check_foreign(_NOT_OF_QUORUM, arguments, queue)
        if found.get("overflow") == "reject-publish-dlx":
            raise _invalid("x-overflow", queue, "{invalid_overflow,reject-publish-dlx}")
        found.setdefault("delivery_limit", DELIVERY_LIMIT)
    else:
        _check_foreign(_NOT_OF_STREAMS, arguments, queue)
    if found.get("delivery_limit") == -1:
        found["delivery_limit"] = None
    if kind != "classic":
        unfit = {"non-durable": not durable, "exclusive": exclusive, "auto-delete": auto_delete}
        for what, is_so in unfit.items():
            if is_so:
                raise PreconditionFailedError(f"invalid property '{what}' for {queue}")
    return QueueLimits(**found)


def _check_foreign(names: tuple[str, ...], arguments: Mapping[str, Any], queue: str) -> None:
    for name in names:
        if name in arguments:
            raise PreconditionFailedError(f"invalid arg '{name}' for {queue}: not of this type")


def check_same(
    queue: str, declared: Mapping[str, Any], current: Mapping[str, Any], what: str = "arg"
) -> None:
    """`PreconditionFailedError` if arguments that matter are not those that the queue has."""
    for name in _COMPARED:
        mine, its = declared.get(name), current.get(name)
        if name == "x-queue-type":
            mine, its = mine or "classic", its or "classic"
        if not same(mine, its):
            raise PreconditionFailedError(
                f"inequivalent {what} '{name}' for {queue}: received {_shown(mine)} but current is "
                f"{_shown(its)}"
            )


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"the value '{str(value).lower()}' of type 'bool'"
    kind = {int: "signedint", str: "longstr"}.get(type(value), type(value).__name__)
    return f"the value '{value}' of type '{kind}'"
