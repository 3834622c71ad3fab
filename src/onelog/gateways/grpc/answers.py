"""Statuses: what became of a request, in the words of RocketMQ's proxy."""

from typing import Any

from onelog import errors
from onelog.gateways import code_of
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code

ERROR_CODES: dict[type[errors.OnelogError], Code] = {
    errors.WireError: Code.BAD_REQUEST,
    errors.ConfigError: Code.INTERNAL_SERVER_ERROR,
    errors.MessageError: Code.BAD_REQUEST,
    errors.EmptyMessageError: Code.MESSAGE_BODY_EMPTY,
    errors.MessageTooLargeError: Code.MESSAGE_BODY_TOO_LARGE,
    errors.PropertiesTooLargeError: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    errors.CompressionError: Code.MESSAGE_CORRUPTED,
    errors.MessageTypeError: Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    errors.InvalidTopicError: Code.ILLEGAL_TOPIC,
    errors.InvalidQueueError: Code.BAD_REQUEST,
    errors.OffsetOutOfRangeError: Code.ILLEGAL_OFFSET,
    errors.StoreError: Code.INTERNAL_SERVER_ERROR,
    errors.StoreFullError: Code.INTERNAL_SERVER_ERROR,
    errors.StoreCorruptError: Code.INTERNAL_SERVER_ERROR,
    errors.TopicNotFoundError: Code.TOPIC_NOT_FOUND,
    errors.TopicPermissionError: Code.FORBIDDEN,
    errors.SystemTopicError: Code.ILLEGAL_TOPIC,
    errors.GroupNotFoundError: Code.CONSUMER_GROUP_NOT_FOUND,
    errors.GroupPermissionError: Code.FORBIDDEN,
    errors.InvalidGroupError: Code.ILLEGAL_CONSUMER_GROUP,
    errors.SubscriptionNotFoundError: Code.BAD_REQUEST,
    errors.SubscriptionOutdatedError: Code.BAD_REQUEST,
    errors.FilterDisabledError: Code.INTERNAL_SERVER_ERROR,
    errors.FilterSyntaxError: Code.ILLEGAL_FILTER_EXPRESSION,
    errors.ConsumersOfflineError: Code.INTERNAL_SERVER_ERROR,
    errors.FlushTimeoutError: Code.MASTER_PERSISTENCE_TIMEOUT,
    errors.ReplicaTimeoutError: Code.SLAVE_PERSISTENCE_TIMEOUT,
    errors.ReplicasMissingError: Code.HA_NOT_AVAILABLE,
    errors.NotMasterError: Code.INTERNAL_SERVER_ERROR,
    errors.BrokerBusyError: Code.TOO_MANY_REQUESTS,
    errors.StatisticNotFoundError: Code.INTERNAL_SERVER_ERROR,
    errors.InvalidRequestError: Code.BAD_REQUEST,
    errors.PeerClosedError: Code.INTERNAL_SERVER_ERROR,
    errors.PeerTimeoutError: Code.PROXY_TIMEOUT,
    errors.NotPermittedError: Code.FORBIDDEN,
    errors.NotAuthenticatedError: Code.UNAUTHORIZED,
    errors.KeyNotFoundError: Code.NOT_FOUND,
    errors.NotSavedError: Code.INTERNAL_SERVER_ERROR,
    errors.LeaseNotFoundError: Code.INVALID_RECEIPT_HANDLE,
    errors.InvalidReceiptError: Code.INVALID_RECEIPT_HANDLE,
    errors.InvalidLeaseTimeError: Code.ILLEGAL_INVISIBLE_TIME,
    errors.TooManyLeasesError: Code.TOO_MANY_REQUESTS,
    errors.TransactionNotFoundError: Code.INVALID_TRANSACTION_ID,
    errors.TransactionForeignError: Code.INVALID_TRANSACTION_ID,
    errors.TransactionLateError: Code.INTERNAL_SERVER_ERROR,
    errors.RecallError: Code.INTERNAL_SERVER_ERROR,
    errors.StagedPartError: Code.INTERNAL_SERVER_ERROR,
    errors.BatchFencedError: Code.INTERNAL_SERVER_ERROR,
    errors.MembershipError: Code.INTERNAL_SERVER_ERROR,
    errors.ProducerStateError: Code.INTERNAL_SERVER_ERROR,
}
"""Every error that the core can raise. One that is not here is looked up by its nearest parent."""

OK = messages.Status(code=Code.OK, message="OK")


def status_of(error: errors.OnelogError) -> Any:
    """The status that a client gets for an error."""
    code = code_of(error, ERROR_CODES, Code.INTERNAL_SERVER_ERROR)
    return messages.Status(code=code, message=str(error))


_SEVERAL = messages.Status(code=Code.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")


def overall(statuses: dict[int, bytes]) -> bytes:
    """The status of a request with several entries, from theirs, by their codes."""
    if len(statuses) == 1:
        return next(iter(statuses.values()))
    return bytes(_SEVERAL.SerializeToString())
