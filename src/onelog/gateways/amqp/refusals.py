"""Which of the broker's errors is which of AMQP's reply codes, and whom it ends.

Soft codes end the channel, hard ones the connection; an error on channel 0 always ends that.
"""

from onelog.errors import (
    AccessRefusedError,
    BrokerBusyError,
    EmptyMessageError,
    ExchangeNotFoundError,
    InvalidTopicError,
    MessageError,
    MessageTooLargeError,
    NotMasterError,
    NotPermittedError,
    OnelogError,
    PreconditionFailedError,
    QueueFullError,
    QueueNotFoundError,
    ReadOnlyQueueError,
    ResourceLockedError,
    StoreError,
    TopicNotFoundError,
    VhostNotFoundError,
    WireError,
)
from onelog.gateways import RefusedError, code_of
from onelog.wire.amqp.codes import FaultError, ReplyCode

REPLY_CODES: dict[type[OnelogError], ReplyCode] = {
    OnelogError: ReplyCode.INTERNAL_ERROR,
    VhostNotFoundError: ReplyCode.NOT_ALLOWED,
    ExchangeNotFoundError: ReplyCode.NOT_FOUND,
    QueueNotFoundError: ReplyCode.NOT_FOUND,
    TopicNotFoundError: ReplyCode.NOT_FOUND,
    AccessRefusedError: ReplyCode.ACCESS_REFUSED,
    NotPermittedError: ReplyCode.ACCESS_REFUSED,
    ResourceLockedError: ReplyCode.RESOURCE_LOCKED,
    PreconditionFailedError: ReplyCode.PRECONDITION_FAILED,
    ReadOnlyQueueError: ReplyCode.NOT_IMPLEMENTED,
    QueueFullError: ReplyCode.PRECONDITION_FAILED,
    MessageError: ReplyCode.PRECONDITION_FAILED,
    MessageTooLargeError: ReplyCode.PRECONDITION_FAILED,
    EmptyMessageError: ReplyCode.PRECONDITION_FAILED,
    InvalidTopicError: ReplyCode.PRECONDITION_FAILED,
    WireError: ReplyCode.SYNTAX_ERROR,
    StoreError: ReplyCode.RESOURCE_ERROR,
    BrokerBusyError: ReplyCode.RESOURCE_ERROR,
    NotMasterError: ReplyCode.CONNECTION_FORCED,
}


def reply_code(error: OnelogError) -> ReplyCode:
    if isinstance(error, FaultError):
        return error.code
    return code_of(error, REPLY_CODES, ReplyCode.INTERNAL_ERROR)


def not_found(text: str) -> RefusedError:
    """There is no such thing."""
    return RefusedError(ReplyCode.NOT_FOUND, text)


def refused(text: str) -> RefusedError:
    return RefusedError(ReplyCode.ACCESS_REFUSED, text)


def unmet(text: str) -> RefusedError:
    """It does not fit what there is."""
    return RefusedError(ReplyCode.PRECONDITION_FAILED, text)


def not_allowed(text: str) -> RefusedError:
    return RefusedError(ReplyCode.NOT_ALLOWED, text)


def not_implemented(text: str) -> RefusedError:
    return RefusedError(ReplyCode.NOT_IMPLEMENTED, text)
