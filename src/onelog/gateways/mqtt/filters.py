"""Topics and filters: which there may be, and which filter matches which topic.

    filter           levels with `/` between them; `+` is any level, a last `#` any number of them
    shared filter    `$share/GROUP/FILTER`: of those who have it in one group, one gets each message

Invariant: a filter that begins with a wildcard matches no topic that begins with `$` (4.7.2).
"""

from typing import NamedTuple

from onelog.core.routing.names import swapped
from onelog.wire.mqtt.codes import PacketError, Reason

LEVELS_MAX = 200
"""What deeper trees are used for is nobody's topic."""
SYS = "$SYS"
"""What the broker's own topics begin with."""
_SHARE = "$share/"


class PublishTopic(NamedTuple):
    """A topic that messages are published to."""

    text: str
    key: str
    """What it is to `amq.topic`."""
    is_closed: bool = False
    """Whether it is not for this client: the broker's own, or not permitted."""

    @classmethod
    def of(cls, text: str, *, is_closed: bool = False) -> "PublishTopic":
        """What there is to know of a topic."""
        return cls(text, swapped(text), is_closed or text.startswith(SYS))


class Filter(NamedTuple):
    """A filter in its parts."""

    group: str
    """Of a shared one; else empty."""
    text: str
    levels: list[str]

    def matches(self, topic: list[str]) -> bool:
        """Whether a topic of these levels is meant."""
        levels = self.levels
        if topic[0][:1] == "$" and levels[0] in ("+", "#"):
            return False
        for at, level in enumerate(levels):
            if level == "#":
                return True
            if at == len(topic) or (level != "+" and level != topic[at]):
                return False
        return len(levels) == len(topic)


def read_filter(text: str) -> Filter:
    """The parts of a filter, if it is one."""
    group, rest = "", text
    if text.startswith(_SHARE):
        group, sign, rest = text[len(_SHARE) :].partition("/")
        if not group or not sign or "+" in group or "#" in group:
            raise _not_valid(text)
    levels = rest.split("/")
    if not rest or len(levels) > LEVELS_MAX:
        raise _not_valid(text)
    for at, level in enumerate(levels):
        if level == "#":
            if at != len(levels) - 1:
                raise _not_valid(text)
        elif level != "+" and ("+" in level or "#" in level):
            raise _not_valid(text)
    return Filter(group, rest, levels)


def _not_valid(text: str) -> PacketError:
    return PacketError(f"{text[:80]!r} is no filter of topics", Reason.TOPIC_FILTER_INVALID)
