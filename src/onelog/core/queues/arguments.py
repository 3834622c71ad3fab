"""What a queue is declared with: its arguments, which of them there may be, and what they mean.

Names, limits and refusals are RabbitMQ's, whose clients expect them: an argument with a value that
makes no sense is refused, one that nobody knows is kept and means nothing, and declaring a queue
again with other arguments is refused, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

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

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit of messages or bytes."""
        return self.length_max is not None or self.bytes_max is not None


def _invalid(name: str, queue: str, why: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"invalid arg '{name}' for {queue}: {why}")


@dataclass(frozen=True, slots=True)
class Argument:
    """What values an argument may have, and what it sets."""

    kind: type
    field: str = ""
    """Of `QueueLimits`; empty if it means nothing here."""
    low: int = 0
    high: int = _NUMBER_MAX
    values: tuple[str, ...] = ()
    policy: Literal["limit", "other", ""] = ""
    """Whether policies may have it, and whether the lower value of both counts."""
    is_compared: bool = True
    """Whether a queue that is declared again must have the same."""

    def check(self, name: str, queue: str, value: Any) -> Any:
        """The value, or `PreconditionFailedError`."""
        is_of_kind = isinstance(value, self.kind) and isinstance(value, bool) is (self.kind is bool)
        if not is_of_kind:
            raise _invalid(name, queue, f"{{unacceptable_type,{type(value).__name__}}}")
        if self.values and value not in self.values:
            raise _invalid(
                name, queue, f"{{value_not_one_of,{value}}}; it may be " + ", ".join(self.values)
            )
        if self.kind is int and value < self.low:
            raise _invalid(name, queue, f"{{value_negative,{value}}}")
        if self.kind is int and value > self.high:
            raise _invalid(name, queue, f"{{value_too_large,{value}}}")
        return value


ARGUMENTS = {
    "x-expires": Argument(int, "expires_ms", low=1, high=TIME_MAX_MS, policy="limit"),
    "x-message-ttl": Argument(int, "message_ttl_ms", high=TIME_MAX_MS, policy="limit"),
    "x-dead-letter-exchange": Argument(str, "dead_letter_exchange", policy="other"),
    "x-dead-letter-routing-key": Argument(str, "dead_letter_key", policy="other"),
    "x-dead-letter-strategy": Argument(str),
    "x-max-length": Argument(int, "length_max", policy="limit"),
    "x-max-length-bytes": Argument(int, "bytes_max", policy="limit"),
    "x-max-in-memory-length": Argument(int),
    "x-max-priority": Argument(int, "priorities", high=PRIORITY_MAX),
    "x-overflow": Argument(str, "overflow", values=get_args(Overflow), policy="other"),
    "x-queue-mode": Argument(str),
    "x-single-active-consumer": Argument(bool, "single_active"),
    "x-queue-type": Argument(str, "kind", values=get_args(Kind)),
    "x-delivery-limit": Argument(int, "delivery_limit", low=-1, policy="limit"),
    "x-quorum-initial-group-size": Argument(int),
    "x-max-age": Argument(int),
    "x-stream-max-segment-size-bytes": Argument(int),
    "x-skip-transient": Argument(bool),
    "x-consumer-timeout": Argument(int, "consumer_timeout_ms", policy="limit", is_compared=False),
}
"""All that are known; an argument without a field is about RabbitMQ's inside."""


def limits_of(
    arguments: Mapping[str, Any], queue: str, *, durable: bool, exclusive: bool, auto_delete: bool
) -> QueueLimits:
    """What a queue's arguments mean, or `PreconditionFailedError`; `queue` names it, for people."""
    found: dict[str, Any] = {}
    for name, each in ARGUMENTS.items():
        if each.field and name in arguments:
            found[each.field] = each.check(name, queue, arguments[name])
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
    for name in (name for name, each in ARGUMENTS.items() if each.is_compared):
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
