"""Requests about who may do what. Nobody is asked who they are here: there are no rules to keep.

Each is refused as Kafka does where no authorizer is configured.
"""

from onelog.gateways.kafka.session import Handler, KafkaSession, Request
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

_REFUSED: Fields = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "there are no ACLs here: whoever reaches the port may read and write",
}


def describe_acls(session: KafkaSession, request: Request) -> Fields:
    """DESCRIBE_ACLS."""
    return dict(_REFUSED)


def create_acls(session: KafkaSession, request: Request) -> Fields:
    """CREATE_ACLS: an answer for each."""
    return {"results": [_REFUSED for _ in request.fields["creations"]]}


def delete_acls(session: KafkaSession, request: Request) -> Fields:
    """DELETE_ACLS: an answer for each filter."""
    return {"filter_results": [_REFUSED for _ in request.fields["filters"]]}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
}
