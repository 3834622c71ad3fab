"""AMQP's reply codes, and the errors that carry one.

Soft errors end a channel, hard ones the connection. `FaultError` is a hard error that the bytes of
a peer are the reason of; the reader raises it, and it is a `WireError`.
"""

from enum import IntEnum

from onelog.errors import WireError


class ReplyCode(IntEnum):
    """Why something ended, or came back."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_soft(self) -> bool:
        """Whether only a channel ends."""
        return self in _SOFT


_SOFT = frozenset(
    (
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    )
)


class FaultError(WireError):
    """Bytes that break the protocol: the connection ends with this code."""

    def __init__(self, code: ReplyCode, text: str, channel: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.channel = channel


def reply_text(code: ReplyCode, text: str) -> str:
    """What a peer is told, cut to the length of a short string."""
    whole = f"{code.name} - {text}".encode()[:255]
    return whole.decode("utf-8", "ignore")
