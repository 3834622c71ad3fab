"""Requests about who may do what, and about passwords. Nobody is asked who they are here.

Those about ACLs are refused as Kafka does where no authorizer is configured. There are no users,
and none can be made.
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


def describe_user_scram_credentials(session: KafkaSession, request: Request) -> Fields:
    """DESCRIBE_USER_SCRAM_CREDENTIALS: of all users, there are none; of one, it is not known."""
    told = [
        {
            "user": each["name"], "error_code": ErrorCode.RESOURCE_NOT_FOUND,
            "error_message": "there are no users here",
        }
        for each in request.fields["users"] or ()
    ]  # fmt: skip
    return {"error_code": 0, "error_message": None, "results": told}


def alter_user_scram_credentials(session: KafkaSession, request: Request) -> Fields:
    """ALTER_USER_SCRAM_CREDENTIALS: an answer for each user."""
    fields = request.fields
    names = sorted({each["name"] for each in (*fields["deletions"], *fields["upsertions"])})
    told = [
        {
            "user": name, "error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "error_message": "clients do not log in here: passwords would not be asked for",
        }
        for name in names
    ]  # fmt: skip
    return {"results": told}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
