"""What users may say about a client, as keyword arguments with types.

Constructors take `**options: Unpack[ProducerOptions]` and the like, so that editors and type
checkers know every name; at run time a name that is unknown is refused by `check_names`, with the
one that was probably meant. Invariant: a `ClientSettings` is complete and checked.
"""

import difflib
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from onelog.client.connection.address import Address, parse_addresses
from onelog.errors import ConfigError
from onelog.net.tls import client_context
from onelog.record.compression import Compression as Form

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from onelog.client.consumer.allocation import AllocationStrategy
    from onelog.client.credentials import Credentials
    from onelog.client.hooks import ConsumeHook, SendHook
    from onelog.client.producer.transactions import Checker

NAMESERVER = "127.0.0.1:9876"

Compression = Literal["zlib", "lz4", "zstd"]
FORMS: dict[Compression, Form] = {"zlib": Form.ZLIB, "lz4": Form.LZ4, "zstd": Form.ZSTD}

S = TypeVar("S", bound="DataclassInstance")


class ClientOptions(TypedDict, total=False):
    """What every client takes."""

    nameserver: str
    """`host:port`, several between semicolons. Else the environment's ONELOG_NAMESERVER or
    NAMESRV_ADDR, else 127.0.0.1:9876."""
    credentials: "Credentials"
    """Whose requests they are: they are signed."""
    tls: bool | ssl.SSLContext
    """True encrypts, but takes any certificate; a context verifies as it says."""
    timeout: timedelta | float
    """How long a request may take; a number is seconds. 3 s."""
    client_id: str
    """Must differ from that of every other client. Made of address, process and time."""
    namespace: str
    """Is put before the names of topics and groups, as RocketMQ's clients do."""


class ProducerOptions(ClientOptions, total=False):
    """What producers take besides."""

    retries: int
    """How often a send that failed is tried again, on another broker if there is one. 2."""
    body_bytes_max: int
    """Bodies over this are refused. 4 MiB."""
    compress_over_bytes: int
    """Bodies from this on are compressed. 4096."""
    compression: Compression
    """How. zlib, which every RocketMQ client reads."""
    queues: int
    """Queues of a topic that comes into being by being sent to. 4."""
    avoid_faults: bool
    """Whether brokers that were slow or failed are left alone for a while. False."""
    hooks: "Sequence[SendHook]"
    """Called before and after each send."""
    checker: "Checker"
    """Answers the broker's question how a transaction ended."""


class ConsumerOptions(ClientOptions, total=False):
    """What consumers take besides."""

    model: Literal["clustering", "broadcasting"]
    """Whether the members of the group share the messages, or each gets all. clustering."""
    orderly: bool
    """One message of a queue at a time, in their order. False."""
    pop: bool
    """Whether the broker leases messages instead of assigning queues. False."""
    start: Literal["first", "last"] | datetime
    """Where a group begins that has no position yet. last."""
    batch_size: int
    """How many messages a listener gets at once; over 1 it gets a list. 1."""
    threads: int
    """How many listeners run at the same time in the synchronous consumers. 20."""
    concurrency: int
    """How many listeners run at the same time in the asyncio consumers. 20."""
    allocation: "AllocationStrategy"
    """How queues are shared out among the members of the group. Evenly."""
    retries_max: int
    """How often a message is retried before it becomes a dead letter. 16; endless if orderly."""
    consume_timeout: timedelta | float
    """A message that a listener holds for longer is given back. 15 minutes."""
    prefetch_count: int
    """Messages of a queue in hand at which no more are fetched. 1000."""
    prefetch_bytes: int
    """The same, in bytes of bodies. 100 MiB."""
    prefetch_span: int
    """The same, from the first unfinished to the last fetched offset. 2000."""
    invisible_time: timedelta | float
    """POP: how long a message is leased. 60 s."""
    hooks: "Sequence[ConsumeHook]"
    """Called before and after each listener."""
    offsets_path: str | os.PathLike[str]
    """Broadcasting: the file of this client's positions."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The options that every client has, as they hold."""

    nameservers: tuple[Address, ...]
    timeout_ms: int = 3_000
    tls: ssl.SSLContext | None = None
    credentials: "Credentials | None" = None
    client_id: str | None = None
    namespace: str = ""


def client_settings(options: ClientOptions) -> ClientSettings:
    """The options with what they leave open filled in."""
    usual = os.environ.get("ONELOG_NAMESERVER") or os.environ.get("NAMESRV_ADDR") or NAMESERVER
    return settings(ClientSettings, {**options, "nameserver": options.get("nameserver") or usual})


def settings(kind: type[S], options: Mapping[str, Any]) -> S:
    """The options that `kind`, a dataclass, has as fields: checked, in the units of the code.

    What is left open has its default there; options that are not there are another one's.
    """
    known = {field.name for field in fields(kind)}
    given = {}
    for name, value in options.items():
        field, checked = _FIELDS.get(name, (name, None))
        if field in known:
            given[field] = value if checked is None else checked(name, value)
    return kind(**given)


def milliseconds(name: str, given: timedelta | float) -> int:
    """A length of time, as users write it; `ConfigError` unless it is positive."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, not {given!r}")
    if not 0 < seconds < 2**31:
        raise ConfigError(f"{name} must be a positive time, and {given} is not")
    return max(1, round(seconds * 1000))


def whole(name: str, value: object, least: int) -> int:
    """A number, as users write it; `ConfigError` if it is too small."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, and {value} is not")
    return value


def check_names(owner: str, options: Mapping[str, object], kind: type) -> None:
    """`TypeError` for an option that `kind` does not have, or that is None."""
    known = kind.__annotations__
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            if name in ("access_key", "secret_key") and "credentials" in known:
                near = ["credentials=Credentials(user, password)"]
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{owner}() has no option {name!r}{hint}")
        if value is None:
            raise TypeError(f"{owner}(): option {name!r} may be left out, but not be None")


def tls_context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    """The context that connections are made with; None for plain ones.

    `True` encrypts and asks for no proof of identity: it takes the self-signed certificate that a
    broker makes for itself when it was given none, as RocketMQ's clients do. Others on the network
    cannot read the traffic then, but somebody could pose as the broker. A context of one's own
    verifies whatever it says:

        context = ssl.create_default_context(cafile="our-ca.pem")
        producer = Producer("orders-app", tls=context)

    Name servers and brokers serve encrypted and plain clients on the same ports.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool):
        raise TypeError(f"tls must be True, False or an ssl.SSLContext, not {tls!r}")
    return client_context() if tls else None


def _at_least(least: int) -> Callable[[str, object], int]:
    return lambda name, value: whole(name, value, least)


def _form(name: str, value: Compression) -> Form:
    if value not in FORMS:
        raise ConfigError(f"compression must be zlib, lz4 or zstd, not {value!r}")
    return FORMS[value]


def _is_broadcasting(name: str, value: object) -> bool:
    if value not in ("clustering", "broadcasting"):
        raise ConfigError(f"model is 'clustering' or 'broadcasting', and not {value!r}")
    return value == "broadcasting"


_FIELDS: dict[str, tuple[str, Callable[[str, Any], object] | None]] = {
    "nameserver": ("nameservers", lambda _, value: parse_addresses(value)),
    "tls": ("tls", lambda _, value: tls_context(value)),
    "timeout": ("timeout_ms", milliseconds),
    "hooks": ("hooks", lambda _, value: tuple(value)),
    "retries": ("retries", _at_least(0)),
    "body_bytes_max": ("body_bytes_max", _at_least(1)),
    "compress_over_bytes": ("compress_over_bytes", _at_least(0)),
    "compression": ("form", _form),
    "queues": ("queues", _at_least(1)),
    "model": ("broadcasting", _is_broadcasting),
    "batch_size": ("batch_size", _at_least(1)),
    "threads": ("concurrency", _at_least(1)),
    "concurrency": ("concurrency", _at_least(1)),
    "retries_max": ("retries_max", _at_least(0)),
    "consume_timeout": ("consume_timeout_ms", milliseconds),
    "prefetch_count": ("prefetch_count", _at_least(1)),
    "prefetch_bytes": ("prefetch_bytes", _at_least(1)),
    "prefetch_span": ("prefetch_span", _at_least(1)),
    "invisible_time": ("invisible_ms", milliseconds),
    "commit_interval": ("commit_interval_ms", milliseconds),
    "offsets_path": ("offsets_path", lambda _, value: Path(value)),
}
"""The options that are not taken as they are: which field each becomes, and what makes it that."""
