"""Where a query begins and ends, as people write it.

    earliest, latest, group                      words
    {"orders": {"broker-a:0": 5, "1": -2}}       offsets; -2 is the earliest, -1 the latest
    -2h, -1d12h, -90s                            so long ago
    2026-05-01T10:30:00Z, 1793528400000          a time; without a zone it is UTC

Invariant: a `Boundary` says what was meant without knowing the topics; whether it fits them is for
`offsets` to find out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

import msgspec

from onelog.errors import ConfigError

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-((?:\d{1,9}(?:ms|[smhd]))+)", re.ASCII)
_PART = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)
_QUEUE = re.compile(r"(?:([^:\s]+):)?(\d{1,9})", re.ASCII)
_TIME_MAX = 1 << 62

_decode = msgspec.json.Decoder().decode


class BoundaryKind(Enum):
    """What a boundary counts from."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    OFFSETS = "offsets"
    TIME = "time"
    AGO = "ago"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in all queues of a query. `ms` is a time, or a span before now."""

    kind: BoundaryKind
    ms: int = 0
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic and queue (`broker:queue`, or `queue` where there is one broker)."""

    def time_ms(self, now_ms: int) -> int:
        assert self.kind in (BoundaryKind.TIME, BoundaryKind.AGO)
        return max(0, now_ms - self.ms) if self.kind is BoundaryKind.AGO else self.ms


EARLIEST = Boundary(BoundaryKind.EARLIEST)
LATEST = Boundary(BoundaryKind.LATEST)
GROUP = Boundary(BoundaryKind.GROUP)
_WORDS = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}


def parse_boundary(option: str, text: str) -> Boundary:
    """What startingOffsets and endingOffsets take."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if (ago := _AGO.fullmatch(word)) is not None:
        return Boundary(BoundaryKind.AGO, _span_ms(ago.group(1)))
    if word.startswith("{"):
        return Boundary(BoundaryKind.OFFSETS, offsets=_offsets(option, word))
    raise ConfigError(
        f"option {option} is earliest, latest, group, a span as -2h, or offsets as "
        f'{{"orders": {{"broker-a:0": 5}}}}, and not {text!r}; times go into '
        f"{option.replace('Offsets', 'Timestamp')}"
    )


def parse_time(option: str, text: str) -> Boundary:
    """What startingTimestamp and endingTimestamp take."""
    word = text.strip()
    if word == "now":
        return Boundary(BoundaryKind.AGO, 0)
    if word.isdecimal() and word.isascii() and int(word) < _TIME_MAX:
        return Boundary(BoundaryKind.TIME, int(word))
    if (ago := _AGO.fullmatch(word)) is not None:
        return Boundary(BoundaryKind.AGO, _span_ms(ago.group(1)))
    try:
        moment = datetime.fromisoformat(word)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return Boundary(BoundaryKind.TIME, max(0, round(moment.timestamp() * 1000)))
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"option {option} is milliseconds since the epoch, a time as 2026-05-01T10:30:00Z, or "
            f"a span as -2h, and not {text!r}"
        ) from None


def _span_ms(text: str) -> int:
    return sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text))


def parse_assignment(text: str) -> dict[str, tuple[str, ...]]:
    """What assign takes: by topic, queues as `broker:queue` or `queue`."""
    option = "assign"
    found: dict[str, tuple[str, ...]] = {}
    for topic, queues in _objects(option, text).items():
        if not isinstance(queues, list) or not queues:
            raise ConfigError(f"option {option}: {topic} needs a list of queues as broker-a:0")
        found[topic] = tuple(dict.fromkeys(_queue(option, topic, str(each)) for each in queues))
    return found


def _offsets(option: str, text: str) -> dict[str, dict[str, int]]:
    content = _objects(option, text)
    inner = content.get("offsets")
    if isinstance(inner, dict) and all(isinstance(each, dict) for each in inner.values()):
        content = inner  # A line out of a checkpoint, which says more than where to begin.
    found: dict[str, dict[str, int]] = {}
    for topic, queues in content.items():
        if not isinstance(queues, dict):
            raise ConfigError(f"option {option}: {topic} needs offsets by queue, as broker-a:0")
        for queue, offset in queues.items():
            _queue(option, topic, queue)
            if type(offset) is not int or not EARLIEST_OFFSET <= offset < 1 << 63:
                raise ConfigError(
                    f"option {option}: {offset!r} is no offset for queue {queue} of {topic}; "
                    "-2 is the earliest and -1 the latest"
                )
            if offset == EARLIEST_OFFSET and option == "endingOffsets":
                raise ConfigError(
                    f"option {option}: queue {queue} of {topic} cannot end with the earliest (-2)"
                )
        found[topic] = queues
    return found


def _objects(option: str, text: str) -> dict[str, object]:
    try:
        content = _decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"option {option} is not JSON ({error}): {text[:200]!r}") from None
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"option {option} is no JSON object with topics in it: {text[:200]!r}")
    return content


def _queue(option: str, topic: str, text: str) -> str:
    if _QUEUE.fullmatch(text) is None:
        raise ConfigError(
            f"option {option}: {text!r} is no queue of {topic}; write broker-a:0, or 0 where the "
            "topic is on one broker"
        )
    return text
