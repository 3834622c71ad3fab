"""What a client of the HTTP port is told of an error: a status, and a problem (RFC 9457)."""

import re
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from onelog import errors
from onelog.gateways import code_of

STATUSES: dict[type[errors.OnelogError], HTTPStatus] = {
    errors.WireError: HTTPStatus.BAD_REQUEST,
    errors.ConfigError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.MessageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.MessageTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.OffsetOutOfRangeError: HTTPStatus.NOT_FOUND,
    errors.StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.TopicNotFoundError: HTTPStatus.NOT_FOUND,
    errors.TopicPermissionError: HTTPStatus.FORBIDDEN,
    errors.TopicExistsError: HTTPStatus.CONFLICT,
    errors.SystemTopicError: HTTPStatus.FORBIDDEN,
    errors.GroupNotFoundError: HTTPStatus.NOT_FOUND,
    errors.UserNotFoundError: HTTPStatus.NOT_FOUND,
    errors.RoleNotFoundError: HTTPStatus.NOT_FOUND,
    errors.UserExistsError: HTTPStatus.CONFLICT,
    errors.GroupPermissionError: HTTPStatus.FORBIDDEN,
    errors.GroupExistsError: HTTPStatus.CONFLICT,
    errors.GroupOnlineError: HTTPStatus.CONFLICT,
    errors.GroupNotEmptyError: HTTPStatus.CONFLICT,
    errors.InvalidGroupError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.SubscriptionNotFoundError: HTTPStatus.NOT_FOUND,
    errors.SubscriptionOutdatedError: HTTPStatus.CONFLICT,
    errors.FilterDisabledError: HTTPStatus.FORBIDDEN,
    errors.FilterSyntaxError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.ConsumersOfflineError: HTTPStatus.CONFLICT,
    errors.FlushTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    errors.ReplicasMissingError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotMasterError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotLeaderError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotCoordinatorError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.RegistryError: HTTPStatus.BAD_GATEWAY,
    errors.BrokerBusyError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.StatisticNotFoundError: HTTPStatus.NOT_FOUND,
    errors.InvalidRequestError: HTTPStatus.BAD_REQUEST,
    errors.InvalidAddressError: HTTPStatus.BAD_REQUEST,
    errors.PeerClosedError: HTTPStatus.BAD_GATEWAY,
    errors.PeerTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    errors.NotPermittedError: HTTPStatus.FORBIDDEN,
    errors.NotAuthenticatedError: HTTPStatus.UNAUTHORIZED,
    errors.KeyNotFoundError: HTTPStatus.NOT_FOUND,
    errors.NameserversUnreachableError: HTTPStatus.BAD_GATEWAY,
    errors.RequestRefusedError: HTTPStatus.BAD_GATEWAY,
    errors.RequestTimeoutError: HTTPStatus.GATEWAY_TIMEOUT,
    errors.PartlyDoneError: HTTPStatus.BAD_GATEWAY,
    errors.BrokerNotFoundError: HTTPStatus.NOT_FOUND,
    errors.MessageNotFoundError: HTTPStatus.NOT_FOUND,
    errors.TransactionNotFoundError: HTTPStatus.NOT_FOUND,
    errors.TransactionForeignError: HTTPStatus.CONFLICT,
    errors.TransactionLateError: HTTPStatus.CONFLICT,
    errors.LeaseNotFoundError: HTTPStatus.NOT_FOUND,
    errors.InvalidLeaseTimeError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.RecallError: HTTPStatus.CONFLICT,
    errors.SendFailedError: HTTPStatus.BAD_GATEWAY,
    errors.QueueNotAssignedError: HTTPStatus.CONFLICT,
    errors.StagedPartError: HTTPStatus.CONFLICT,
    errors.BatchFencedError: HTTPStatus.CONFLICT,
    errors.UndecodableError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.VhostNotFoundError: HTTPStatus.NOT_FOUND,
    errors.ExchangeNotFoundError: HTTPStatus.NOT_FOUND,
    errors.QueueNotFoundError: HTTPStatus.NOT_FOUND,
    errors.ResourceLockedError: HTTPStatus.CONFLICT,
    errors.PreconditionFailedError: HTTPStatus.BAD_REQUEST,
    errors.QueueFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.MembershipError: HTTPStatus.CONFLICT,
    errors.ProducerStateError: HTTPStatus.CONFLICT,
}
"""Every error that a request can end in. One that is not here has the status of its parent."""


def status_of(error: errors.OnelogError) -> HTTPStatus:
    """The status that tells of this error."""
    return code_of(error, STATUSES, HTTPStatus.INTERNAL_SERVER_ERROR)


def kind_of(error: errors.OnelogError) -> str:
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


def problem_of(error: errors.OnelogError) -> Response:
    """The same for an error of ours."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    if status == HTTPStatus.UNAUTHORIZED:
        headers = {"www-authenticate": 'Basic realm="OneLog", charset="UTF-8"'}
    return problem(status, str(error), kind_of(error), headers)
