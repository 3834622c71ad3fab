"""Who a client is: SASL's mechanisms PLAIN and AMQPLAIN.

There is one user, of the configuration. As with RabbitMQ, `guest` may come from the broker's own
machine only.
"""

import hmac

from onelog.config import AmqpConfig
from onelog.errors import WireError
from onelog.gateways.amqp.refusals import RefusedError
from onelog.record.forms.amqp_fields import decode_table
from onelog.wire.amqp.codes import ReplyCode

MECHANISMS = b"PLAIN AMQPLAIN"
GUEST = "guest"


def login(config: AmqpConfig, mechanism: str, response: bytes, is_local: bool) -> str:
    """The name of who has proved who they are; `RefusedError` if they have not."""
    if mechanism == "PLAIN":
        name, password = _plain(response)
    elif mechanism == "AMQPLAIN":
        name, password = _amqplain(response)
    else:
        raise RefusedError(
            ReplyCode.COMMAND_INVALID, f"unknown authentication mechanism '{mechanism}'"
        )
    is_right = hmac.compare_digest(password, config.password.encode())
    is_known = name == config.user
    if not is_right or not is_known or (name == GUEST and not is_local):
        raise RefusedError(
            ReplyCode.ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {mechanism}. For details see the "
            "broker logfile.",
        )
    return name


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
