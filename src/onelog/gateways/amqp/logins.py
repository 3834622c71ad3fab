"""Who a client is: SASL's mechanisms PLAIN, AMQPLAIN and EXTERNAL.

Where the broker has users, these log in with their passwords, or by the certificate that they have
shown (EXTERNAL: it names a user, as `security.certificate_user` says). Where it has none, everybody
on its own machine is `guest`, with the password that RabbitMQ gives him.
"""

from onelog.errors import WireError
from onelog.gateways.amqp.refusals import RefusedError
from onelog.record.forms.amqp_fields import decode_table
from onelog.wire.amqp.codes import ReplyCode

MECHANISMS = b"PLAIN AMQPLAIN"
EXTERNAL = "EXTERNAL"
GUEST = "guest"


def credentials(mechanism: str, response: bytes) -> tuple[str, str]:
    """The name and the password that a client gives."""
    if mechanism == "PLAIN":
        name, password = _plain(response)
    elif mechanism == "AMQPLAIN":
        name, password = _amqplain(response)
    else:
        raise RefusedError(
            ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'"
        )
    return name, password.decode("utf-8", "replace")


def refusal(mechanism: str) -> RefusedError:
    """What whoever cannot log in is told."""
    return RefusedError(
        ReplyCode.ACCESS_REFUSED,
        f"Login was refused using authentication mechanism {mechanism}. For details see the "
        "broker logfile.",
    )


def _plain(response: bytes) -> tuple[str, bytes]:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise RefusedError(ReplyCode.SYNTAX_ERROR, "a response of PLAIN has three parts")
    return parts[1].decode("utf-8", "replace"), parts[2]


def _amqplain(response: bytes) -> tuple[str, bytes]:
    try:
        table = decode_table(response)
    except WireError as error:
        raise RefusedError(ReplyCode.SYNTAX_ERROR, f"AMQPLAIN: {error}") from None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if isinstance(password, str):
        password = password.encode()
    if not isinstance(name, str) or not isinstance(password, bytes):
        raise RefusedError(
            ReplyCode.SYNTAX_ERROR, "AMQPLAIN auth info is missing LOGIN or PASSWORD field"
        )
    return name, password
