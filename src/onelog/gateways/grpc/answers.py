"""Statuses: what became of a request, as RocketMQ's proxy tells it."""

from typing import Any

from onelog.errors import (
    BatchFencedError,
    BrokerBusyError,
    CompressionError,
    ConfigError,
    ConsumersOfflineError,
    EmptyMessageError,
    FilterDisabledError,
    FilterSyntaxError,
    FlushTimeoutError,
    GroupNotFoundError,
    GroupPermissionError,
    InvalidGroupError,
    InvalidLeaseTimeError,
    InvalidQueueError,
    InvalidReceiptError,
    InvalidRequestError,
    InvalidTopicError,
    KeyNotFoundError,
    LeaseNotFoundError,
    MembershipError,
    MessageError,
    MessageTooLargeError,
    MessageTypeError,
    NotAuthenticatedError,
    NotMasterError,
    NotPermittedError,
    NotSavedError,
    OffsetOutOfRangeError,
    OnelogError,
    PeerClosedError,
    PeerTimeoutError,
    ProducerStateError,
    PropertiesTooLargeError,
    RecallError,
    ReplicasMissingError,
    ReplicaTimeoutError,
    StagedPartError,
    StatisticNotFoundError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    SubscriptionNotFoundError,
    SubscriptionOutdatedError,
    SystemTopicError,
    TooManyLeasesError,
    TopicNotFoundError,
    TopicPermissionError,
    TransactionForeignError,
    TransactionLateError,
    TransactionNotFoundError,
    WireError,
)
from onelog.gateways import code_of
from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code

ERROR_CODES: dict[type[OnelogError], Code] = {
    WireError: Code.BAD_REQUEST,
    ConfigError: Code.INTERNAL_SERVER_ERROR,
    MessageError: Code.BAD_REQUEST,
    EmptyMessageError: Code.MESSAGE_BODY_EMPTY,
    MessageTooLargeError: Code.MESSAGE_BODY_TOO_LARGE,
    PropertiesTooLargeError: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    CompressionError: Code.MESSAGE_CORRUPTED,
    MessageTypeError: Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    InvalidTopicError: Code.ILLEGAL_TOPIC,
    InvalidQueueError: Code.BAD_REQUEST,
    OffsetOutOfRangeError: Code.ILLEGAL_OFFSET,
    StoreError: Code.INTERNAL_SERVER_ERROR,
    StoreFullError: Code.INTERNAL_SERVER_ERROR,
    StoreCorruptError: Code.INTERNAL_SERVER_ERROR,
    TopicNotFoundError: Code.TOPIC_NOT_FOUND,
    TopicPermissionError: Code.FORBIDDEN,
    SystemTopicError: Code.ILLEGAL_TOPIC,
    GroupNotFoundError: Code.CONSUMER_GROUP_NOT_FOUND,
    GroupPermissionError: Code.FORBIDDEN,
    InvalidGroupError: Code.ILLEGAL_CONSUMER_GROUP,
    SubscriptionNotFoundError: Code.BAD_REQUEST,
    SubscriptionOutdatedError: Code.BAD_REQUEST,
    FilterDisabledError: Code.INTERNAL_SERVER_ERROR,
    FilterSyntaxError: Code.ILLEGAL_FILTER_EXPRESSION,
    ConsumersOfflineError: Code.INTERNAL_SERVER_ERROR,
    FlushTimeoutError: Code.MASTER_PERSISTENCE_TIMEOUT,
    ReplicaTimeoutError: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ReplicasMissingError: Code.HA_NOT_AVAILABLE,
    NotMasterError: Code.INTERNAL_SERVER_ERROR,
    BrokerBusyError: Code.TOO_MANY_REQUESTS,
    StatisticNotFoundError: Code.INTERNAL_SERVER_ERROR,
    InvalidRequestError: Code.BAD_REQUEST,
    PeerClosedError: Code.INTERNAL_SERVER_ERROR,
    PeerTimeoutError: Code.PROXY_TIMEOUT,
    NotPermittedError: Code.FORBIDDEN,
    NotAuthenticatedError: Code.UNAUTHORIZED,
    KeyNotFoundError: Code.NOT_FOUND,
    NotSavedError: Code.INTERNAL_SERVER_ERROR,
    LeaseNotFoundError: Code.INVALID_RECEIPT_HANDLE,
    InvalidReceiptError: Code.INVALID_RECEIPT_HANDLE,
    InvalidLeaseTimeError: Code.ILLEGAL_INVISIBLE_TIME,
    TooManyLeasesError: Code.TOO_MANY_REQUESTS,
    TransactionNotFoundError: Code.INVALID_TRANSACTION_ID,
    TransactionForeignError: Code.INVALID_TRANSACTION_ID,
    TransactionLateError: Code.INTERNAL_SERVER_ERROR,
    RecallError: Code.INTERNAL_SERVER_ERROR,
    StagedPartError: Code.INTERNAL_SERVER_ERROR,
    BatchFencedError: Code.INTERNAL_SERVER_ERROR,
    MembershipError: Code.INTERNAL_SERVER_ERROR,
    ProducerStateError: Code.INTERNAL_SERVER_ERROR,
}
"""Every error that the core can raise. One that is not here is looked up by its nearest parent."""

OK = messages.Status(code=Code.OK, message="OK")


class RefusedError(OnelogError):
    """A request that is refused with a code of the protocol's own."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_of(error: OnelogError) -> Any:
    """The status that tells a client of an error."""
    if isinstance(error, RefusedError):
        code = error.code
    else:
        code = code_of(error, ERROR_CODES, Code.INTERNAL_SERVER_ERROR)
    return messages.Status(code=code, message=str(error))
