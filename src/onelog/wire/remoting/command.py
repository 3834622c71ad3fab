"""A command: one request or one answer, as it travels in one frame.

Invariant: the `opaque` of a decoded command fits both header forms, so it can always be answered.
"""

from enum import IntEnum

import msgspec

from onelog.message import Buffer

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
REFUSED = -(2**31)
"""The code of a request that is handed out without its fields, because they are too long; its
remark says so. No table of handlers has it."""

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1


class Serialize(IntEnum):
    """The form of a header; it is the first byte of the header's length field."""

    JSON = 0
    COMPACT = 1


class Command(msgspec.Struct, frozen=True, gc=False):
    """One frame. `ext` holds the request's own fields, by name, all of them texts.

    `body` is a copy when small, and a view of the received bytes when large. A struct of msgspec
    and not a dataclass, because one is made per request and this is made in a third of the time.
    """

    code: int
    language: str = "JAVA"
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext: dict[str, str] = {}  # msgspec gives each command its own
    body: Buffer = b""
    serialize: int = 0

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & FLAG_ONEWAY)
