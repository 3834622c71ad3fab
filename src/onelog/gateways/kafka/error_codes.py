"""What Kafka's clients are told of the core's errors."""

from onelog.errors import (
    BrokerBusyError,
    CompressionError,
    ConfigError,
    FencedInstanceError,
    FencedMemberEpochError,
    FilterSyntaxError,
    FlushTimeoutError,
    GroupFullError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupPermissionError,
    IllegalGenerationError,
    InconsistentProtocolError,
    InvalidGroupError,
    InvalidProducerEpochError,
    InvalidQueueError,
    InvalidRegexError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    LeaseNotFoundError,
    MemberIdRequiredError,
    MembershipError,
    MessageError,
    MessageTooLargeError,
    NotCoordinatorError,
    NotInTransactionError,
    NotLeaderError,
    NotMasterError,
    NotPermittedError,
    OffsetOutOfRangeError,
    OnelogError,
    OutOfOrderSequenceError,
    PeerClosedError,
    PeerTimeoutError,
    ProducerFencedError,
    ProducerIdMismatchError,
    ProducerStateError,
    RebalanceInProgressError,
    ReplicasMissingError,
    RequestRefusedError,
    RoleNotFoundError,
    RoutingError,
    StaleMemberEpochError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    SystemTopicError,
    TopicNotFoundError,
    TopicPermissionError,
    TransactionEndingError,
    TransactionStateError,
    UnknownMemberError,
    UnreleasedInstanceError,
    UnsupportedAssignorError,
    UserExistsError,
    UserNotFoundError,
    WireError,
)
from onelog.gateways import code_of
from onelog.wire.kafka.codes import ApiKey, ErrorCode

ERROR_CODES: dict[type[OnelogError], ErrorCode] = {
    WireError: ErrorCode.INVALID_REQUEST,
    CompressionError: ErrorCode.CORRUPT_MESSAGE,
    ConfigError: ErrorCode.INVALID_CONFIG,
    MessageError: ErrorCode.INVALID_RECORD,
    MessageTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    SystemTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    TopicNotFoundError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    InvalidQueueError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    TopicPermissionError: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    StoreError: ErrorCode.KAFKA_STORAGE_ERROR,
    StoreFullError: ErrorCode.KAFKA_STORAGE_ERROR,
    StoreCorruptError: ErrorCode.CORRUPT_MESSAGE,
    FlushTimeoutError: ErrorCode.REQUEST_TIMED_OUT,
    BrokerBusyError: ErrorCode.REQUEST_TIMED_OUT,
    InvalidRequestError: ErrorCode.INVALID_REQUEST,
    NotPermittedError: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    UserNotFoundError: ErrorCode.RESOURCE_NOT_FOUND,
    UserExistsError: ErrorCode.INVALID_REQUEST,
    RoleNotFoundError: ErrorCode.INVALID_REQUEST,
    PeerClosedError: ErrorCode.REQUEST_TIMED_OUT,
    PeerTimeoutError: ErrorCode.REQUEST_TIMED_OUT,
    RequestRefusedError: ErrorCode.REQUEST_TIMED_OUT,
    NotLeaderError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NotMasterError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ReplicasMissingError: ErrorCode.NOT_ENOUGH_REPLICAS,
    NotCoordinatorError: ErrorCode.NOT_COORDINATOR,
    GroupNotFoundError: ErrorCode.GROUP_ID_NOT_FOUND,
    GroupPermissionError: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    InvalidGroupError: ErrorCode.INVALID_GROUP_ID,
    MembershipError: ErrorCode.UNKNOWN_MEMBER_ID,
    UnknownMemberError: ErrorCode.UNKNOWN_MEMBER_ID,
    IllegalGenerationError: ErrorCode.ILLEGAL_GENERATION,
    RebalanceInProgressError: ErrorCode.REBALANCE_IN_PROGRESS,
    InconsistentProtocolError: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    FencedInstanceError: ErrorCode.FENCED_INSTANCE_ID,
    MemberIdRequiredError: ErrorCode.MEMBER_ID_REQUIRED,
    GroupFullError: ErrorCode.GROUP_MAX_SIZE_REACHED,
    GroupNotEmptyError: ErrorCode.NON_EMPTY_GROUP,
    InvalidSessionTimeoutError: ErrorCode.INVALID_SESSION_TIMEOUT,
    FencedMemberEpochError: ErrorCode.FENCED_MEMBER_EPOCH,
    StaleMemberEpochError: ErrorCode.STALE_MEMBER_EPOCH,
    UnreleasedInstanceError: ErrorCode.UNRELEASED_INSTANCE_ID,
    UnsupportedAssignorError: ErrorCode.UNSUPPORTED_ASSIGNOR,
    FilterSyntaxError: ErrorCode.INVALID_REGULAR_EXPRESSION,
    InvalidRegexError: ErrorCode.INVALID_REGULAR_EXPRESSION,
    ProducerStateError: ErrorCode.INVALID_TXN_STATE,
    InvalidProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
    OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    TransactionStateError: ErrorCode.INVALID_TXN_STATE,
    NotInTransactionError: ErrorCode.TRANSACTION_ABORTABLE,
    ProducerFencedError: ErrorCode.PRODUCER_FENCED,
    ProducerIdMismatchError: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    InvalidTransactionTimeoutError: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    TransactionEndingError: ErrorCode.CONCURRENT_TRANSACTIONS,
    LeaseNotFoundError: ErrorCode.INVALID_RECORD_STATE,
    RoutingError: ErrorCode.INVALID_REQUEST,
}
"""Every error that a request can end in. One that is not here has the code of its parent."""
_SINCE: dict[ErrorCode, tuple[ErrorCode, dict[ApiKey, int]]] = {
    ErrorCode.PRODUCER_FENCED: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        {
            ApiKey.INIT_PRODUCER_ID: 4,
            ApiKey.ADD_PARTITIONS_TO_TXN: 2,
            ApiKey.ADD_OFFSETS_TO_TXN: 2,
            ApiKey.END_TXN: 2,
        },
    ),
    ErrorCode.TRANSACTION_ABORTABLE: (
        ErrorCode.INVALID_TXN_STATE,
        {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4},
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: (ErrorCode.ILLEGAL_GENERATION, {ApiKey.OFFSET_COMMIT: 9}),
    ErrorCode.STALE_MEMBER_EPOCH: (ErrorCode.ILLEGAL_GENERATION, {ApiKey.OFFSET_COMMIT: 9}),
}
"""Codes that only some versions of some APIs know, and what others are told instead."""


_NOT_PERMITTED = {
    "topic": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "transaction": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def error_code(error: OnelogError) -> ErrorCode:
    """The code that tells a client of this error."""
    if isinstance(error, NotPermittedError) and error.kind in _NOT_PERMITTED:
        return _NOT_PERMITTED[error.kind]
    return code_of(error, ERROR_CODES, ErrorCode.UNKNOWN_SERVER_ERROR)


_TOLD_BY_COORDINATORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


_COORDINATED = {
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.OFFSET_COMMIT,
}


def coordinator_code(error: OnelogError) -> ErrorCode:
    """The code for who asks the coordinator of a group or transaction, and has to ask again."""
    code = error_code(error)
    return _TOLD_BY_COORDINATORS.get(code, code)


def error_code_in(key: int, version: int, error: OnelogError) -> ErrorCode:
    """The code that tells of this error in the answer to a request of this version."""
    code = coordinator_code(error) if key in _COORDINATED else error_code(error)
    if code in _SINCE:
        older, since = _SINCE[code]
        known_from = since.get(ApiKey(key))
        return code if known_from is not None and version >= known_from else older
    return code
