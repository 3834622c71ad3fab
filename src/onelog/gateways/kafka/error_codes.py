"""What Kafka's clients are told of the core's errors."""

from onelog import errors
from onelog.gateways import code_of
from onelog.wire.kafka.codes import ApiKey, ErrorCode

ERROR_CODES: dict[type[errors.OnelogError], ErrorCode] = {
    errors.WireError: ErrorCode.INVALID_REQUEST,
    errors.CompressionError: ErrorCode.CORRUPT_MESSAGE,
    errors.ConfigError: ErrorCode.INVALID_CONFIG,
    errors.MessageError: ErrorCode.INVALID_RECORD,
    errors.MessageTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    errors.InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.SystemTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.TopicNotFoundError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.InvalidQueueError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.TopicPermissionError: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.StoreError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.StoreFullError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.StoreCorruptError: ErrorCode.CORRUPT_MESSAGE,
    errors.FlushTimeoutError: ErrorCode.REQUEST_TIMED_OUT,
    errors.BrokerBusyError: ErrorCode.REQUEST_TIMED_OUT,
    errors.InvalidRequestError: ErrorCode.INVALID_REQUEST,
    errors.NotPermittedError: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    errors.UserNotFoundError: ErrorCode.RESOURCE_NOT_FOUND,
    errors.UserExistsError: ErrorCode.INVALID_REQUEST,
    errors.RoleNotFoundError: ErrorCode.INVALID_REQUEST,
    errors.PeerClosedError: ErrorCode.REQUEST_TIMED_OUT,
    errors.PeerTimeoutError: ErrorCode.REQUEST_TIMED_OUT,
    errors.RequestRefusedError: ErrorCode.REQUEST_TIMED_OUT,
    errors.NotLeaderError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.NotMasterError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.ReplicasMissingError: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.NotCoordinatorError: ErrorCode.NOT_COORDINATOR,
    errors.GroupNotFoundError: ErrorCode.GROUP_ID_NOT_FOUND,
    errors.GroupPermissionError: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    errors.InvalidGroupError: ErrorCode.INVALID_GROUP_ID,
    errors.MembershipError: ErrorCode.UNKNOWN_MEMBER_ID,
    errors.UnknownMemberError: ErrorCode.UNKNOWN_MEMBER_ID,
    errors.IllegalGenerationError: ErrorCode.ILLEGAL_GENERATION,
    errors.RebalanceInProgressError: ErrorCode.REBALANCE_IN_PROGRESS,
    errors.InconsistentProtocolError: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    errors.FencedInstanceError: ErrorCode.FENCED_INSTANCE_ID,
    errors.MemberIdRequiredError: ErrorCode.MEMBER_ID_REQUIRED,
    errors.GroupFullError: ErrorCode.GROUP_MAX_SIZE_REACHED,
    errors.GroupNotEmptyError: ErrorCode.NON_EMPTY_GROUP,
    errors.InvalidSessionTimeoutError: ErrorCode.INVALID_SESSION_TIMEOUT,
    errors.FencedMemberEpochError: ErrorCode.FENCED_MEMBER_EPOCH,
    errors.StaleMemberEpochError: ErrorCode.STALE_MEMBER_EPOCH,
    errors.UnreleasedInstanceError: ErrorCode.UNRELEASED_INSTANCE_ID,
    errors.UnsupportedAssignorError: ErrorCode.UNSUPPORTED_ASSIGNOR,
    errors.FilterSyntaxError: ErrorCode.INVALID_REGULAR_EXPRESSION,
    errors.InvalidRegexError: ErrorCode.INVALID_REGULAR_EXPRESSION,
    errors.ProducerStateError: ErrorCode.INVALID_TXN_STATE,
    errors.InvalidProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.TransactionStateError: ErrorCode.INVALID_TXN_STATE,
    errors.NotInTransactionError: ErrorCode.TRANSACTION_ABORTABLE,
    errors.ProducerFencedError: ErrorCode.PRODUCER_FENCED,
    errors.ProducerIdMismatchError: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    errors.InvalidTransactionTimeoutError: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    errors.TransactionEndingError: ErrorCode.CONCURRENT_TRANSACTIONS,
    errors.LeaseNotFoundError: ErrorCode.INVALID_RECORD_STATE,
    errors.RoutingError: ErrorCode.INVALID_REQUEST,
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


def error_code(error: errors.OnelogError) -> ErrorCode:
    """The code that tells a client of this error."""
    if isinstance(error, errors.NotPermittedError) and error.kind in _NOT_PERMITTED:
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


def coordinator_code(error: errors.OnelogError) -> ErrorCode:
    """The code for who asks the coordinator of a group or transaction, and has to ask again."""
    code = error_code(error)
    return _TOLD_BY_COORDINATORS.get(code, code)


def error_code_in(key: int, version: int, error: errors.OnelogError) -> ErrorCode:
    """The code that tells of this error in the answer to a request of this version."""
    code = coordinator_code(error) if key in _COORDINATED else error_code(error)
    if code in _SINCE:
        older, since = _SINCE[code]
        known_from = since.get(ApiKey(key))
        return code if known_from is not None and version >= known_from else older
    return code
