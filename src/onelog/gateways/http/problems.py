"""What a client of the HTTP port is told of an error: a status, and a problem (RFC 9457)."""

import re
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from onelog.errors import (
    BatchFencedError,
    BrokerBusyError,
    BrokerNotFoundError,
    ConfigError,
    ConsumersOfflineError,
    ExchangeNotFoundError,
    FilterDisabledError,
    FilterSyntaxError,
    FlushTimeoutError,
    GroupExistsError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupOnlineError,
    GroupPermissionError,
    InvalidAddressError,
    InvalidGroupError,
    InvalidLeaseTimeError,
    InvalidRequestError,
    KeyNotFoundError,
    LeaseNotFoundError,
    MembershipError,
    MessageError,
    MessageNotFoundError,
    MessageTooLargeError,
    NameserversUnreachableError,
    NotAuthenticatedError,
    NotCoordinatorError,
    NotLeaderError,
    NotMasterError,
    NotPermittedError,
    OffsetOutOfRangeError,
    OnelogError,
    PartlyDoneError,
    PeerClosedError,
    PeerTimeoutError,
    PreconditionFailedError,
    ProducerStateError,
    QueueFullError,
    QueueNotAssignedError,
    QueueNotFoundError,
    RecallError,
    RegistryError,
    ReplicasMissingError,
    RequestRefusedError,
    RequestTimeoutError,
    ResourceLockedError,
    RoleNotFoundError,
    SendFailedError,
    StagedPartError,
    StatisticNotFoundError,
    StoreError,
    StoreFullError,
    SubscriptionNotFoundError,
    SubscriptionOutdatedError,
    SystemTopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicPermissionError,
    TransactionForeignError,
    TransactionLateError,
    TransactionNotFoundError,
    UndecodableError,
    UserExistsError,
    UserNotFoundError,
    VhostNotFoundError,
    WireError,
)
from onelog.gateways import code_of

STATUSES: dict[type[OnelogError], HTTPStatus] = {
    WireError: HTTPStatus.BAD_REQUEST,
    ConfigError: HTTPStatus.UNPROCESSABLE_ENTITY,
    MessageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    MessageTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    OffsetOutOfRangeError: HTTPStatus.NOT_FOUND,
    StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    TopicNotFoundError: HTTPStatus.NOT_FOUND,
    TopicPermissionError: HTTPStatus.FORBIDDEN,
    TopicExistsError: HTTPStatus.CONFLICT,
    SystemTopicError: HTTPStatus.FORBIDDEN,
    GroupNotFoundError: HTTPStatus.NOT_FOUND,
    UserNotFoundError: HTTPStatus.NOT_FOUND,
    RoleNotFoundError: HTTPStatus.NOT_FOUND,
    UserExistsError: HTTPStatus.CONFLICT,
    GroupPermissionError: HTTPStatus.FORBIDDEN,
    GroupExistsError: HTTPStatus.CONFLICT,
    GroupOnlineError: HTTPStatus.CONFLICT,
    GroupNotEmptyError: HTTPStatus.CONFLICT,
    InvalidGroupError: HTTPStatus.UNPROCESSABLE_ENTITY,
    SubscriptionNotFoundError: HTTPStatus.NOT_FOUND,
    SubscriptionOutdatedError: HTTPStatus.CONFLICT,
    FilterDisabledError: HTTPStatus.FORBIDDEN,
    FilterSyntaxError: HTTPStatus.UNPROCESSABLE_ENTITY,
    ConsumersOfflineError: HTTPStatus.CONFLICT,
    FlushTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    ReplicasMissingError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotMasterError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotLeaderError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotCoordinatorError: HTTPStatus.SERVICE_UNAVAILABLE,
    RegistryError: HTTPStatus.BAD_GATEWAY,
    BrokerBusyError: HTTPStatus.TOO_MANY_REQUESTS,
    StatisticNotFoundError: HTTPStatus.NOT_FOUND,
    InvalidRequestError: HTTPStatus.BAD_REQUEST,
    InvalidAddressError: HTTPStatus.BAD_REQUEST,
    PeerClosedError: HTTPStatus.BAD_GATEWAY,
    PeerTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    NotPermittedError: HTTPStatus.FORBIDDEN,
    NotAuthenticatedError: HTTPStatus.UNAUTHORIZED,
    KeyNotFoundError: HTTPStatus.NOT_FOUND,
    NameserversUnreachableError: HTTPStatus.BAD_GATEWAY,
    RequestRefusedError: HTTPStatus.BAD_GATEWAY,
    RequestTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    PartlyDoneError: HTTPStatus.BAD_GATEWAY,
    BrokerNotFoundError: HTTPStatus.NOT_FOUND,
    MessageNotFoundError: HTTPStatus.NOT_FOUND,
    TransactionNotFoundError: HTTPStatus.NOT_FOUND,
    TransactionForeignError: HTTPStatus.CONFLICT,
    TransactionLateError: HTTPStatus.CONFLICT,
    LeaseNotFoundError: HTTPStatus.NOT_FOUND,
    InvalidLeaseTimeError: HTTPStatus.UNPROCESSABLE_ENTITY,
    RecallError: HTTPStatus.CONFLICT,
    SendFailedError: HTTPStatus.BAD_GATEWAY,
    QueueNotAssignedError: HTTPStatus.CONFLICT,
    StagedPartError: HTTPStatus.CONFLICT,
    BatchFencedError: HTTPStatus.CONFLICT,
    UndecodableError: HTTPStatus.UNPROCESSABLE_ENTITY,
    VhostNotFoundError: HTTPStatus.NOT_FOUND,
    ExchangeNotFoundError: HTTPStatus.NOT_FOUND,
    QueueNotFoundError: HTTPStatus.NOT_FOUND,
    ResourceLockedError: HTTPStatus.CONFLICT,
    PreconditionFailedError: HTTPStatus.BAD_REQUEST,
    QueueFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    MembershipError: HTTPStatus.CONFLICT,
    ProducerStateError: HTTPStatus.CONFLICT,
}
"""Every error that a request can end in. One that is not here has the status of its parent."""


def status_of(error: OnelogError) -> HTTPStatus:
    """The status that tells of this error."""
    return code_of(error, STATUSES, HTTPStatus.INTERNAL_SERVER_ERROR)


def kind_of(error: OnelogError) -> str:
    """The error's name as problems have it: `topic-not-found`."""
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def problem(
    status: int, detail: str, kind: str = "", headers: dict[str, str] | None = None
) -> Response:
    """An answer that says what went wrong."""
    title = HTTPStatus(status).phrase
    content = {
        "type": f"urn:onelog:{kind}" if kind else "about:blank",
        "title": kind.replace("-", " ").capitalize() if kind else title,
        "status": int(status),
        "detail": detail,
    }
    return Response(msgspec.json.encode(content), status, headers, "application/problem+json")


def problem_of(error: OnelogError) -> Response:
    """The same for an error of ours."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    if status == HTTPStatus.UNAUTHORIZED:
        headers = {"www-authenticate": 'Basic realm="OneLog", charset="UTF-8"'}
    return problem(status, str(error), kind_of(error), headers)
