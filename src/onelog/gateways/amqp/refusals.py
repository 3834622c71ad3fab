"""Which of the broker's errors is which of AMQP's reply codes, and whom it ends.

Soft codes end the channel, hard ones the connection; an error on channel 0 always ends that.
"""

from onelog import errors
from onelog.gateways import RefusedError, code_of
from onelog.wire.amqp.codes import FaultError, ReplyCode

REPLY_CODES: dict[type[errors.OnelogError], ReplyCode] = {
    errors.OnelogError: ReplyCode.INTERNAL_ERROR,
    errors.VhostNotFoundError: ReplyCode.NOT_ALLOWED,
    errors.ExchangeNotFoundError: ReplyCode.NOT_FOUND,
    errors.QueueNotFoundError: ReplyCode.NOT_FOUND,
    errors.TopicNotFoundError: ReplyCode.NOT_FOUND,
    errors.AccessRefusedError: ReplyCode.ACCESS_REFUSED,
    errors.NotPermittedError: ReplyCode.ACCESS_REFUSED,
    errors.ResourceLockedError: ReplyCode.RESOURCE_LOCKED,
    errors.PreconditionFailedError: ReplyCode.PRECONDITION_FAILED,
    errors.ReadOnlyQueueError: ReplyCode.NOT_IMPLEMENTED,
    errors.QueueFullError: ReplyCode.PRECONDITION_FAILED,
    errors.MessageError: ReplyCode.PRECONDITION_FAILED,
    errors.MessageTooLargeError: ReplyCode.PRECONDITION_FAILED,
    errors.EmptyMessageError: ReplyCode.PRECONDITION_FAILED,
    errors.InvalidTopicError: ReplyCode.PRECONDITION_FAILED,
    errors.WireError: ReplyCode.SYNTAX_ERROR,
    errors.StoreError: ReplyCode.RESOURCE_ERROR,
    errors.BrokerBusyError: ReplyCode.RESOURCE_ERROR,
    errors.NotMasterError: ReplyCode.CONNECTION_FORCED,
}


def reply_code(error: errors.OnelogError) -> ReplyCode:
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
