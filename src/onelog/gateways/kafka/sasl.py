"""Logging in: SASL_HANDSHAKE names a mechanism, SASL_AUTHENTICATE carries its messages.

    PLAIN           user and password
    SCRAM-SHA-...   the exchange of RFC 5802
    OAUTHBEARER     a token that somebody whom `security.jwks` names has signed (RFC 7628)

While there are users, a client that has not logged in may ask for versions, and nothing else; as in
Kafka, anything else ends the connection. Tokens without frames, which followed the handshake of
version 0, are not understood: no client of the last years sends them.
"""

from onelog.core.access import Principal
from onelog.core.users.logins import ScramExchange
from onelog.core.users.passwords import DIGESTS
from onelog.errors import NotAuthenticatedError, OnelogError
from onelog.gateways.kafka.session import Handler, KafkaSession, Request
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
AUTH_BYTES_MAX = 64 << 10


def mechanisms(session: KafkaSession) -> list[str]:
    tokens = [OAUTHBEARER] if session.gateway.context.loaded.config.security.jwks else []
    return [PLAIN, *DIGESTS, *tokens]


def handshake(session: KafkaSession, request: Request) -> Fields:
    offered = mechanisms(session)
    wanted = request.fields["mechanism"]
    if wanted not in offered or request.version == 0:
        return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": offered}
    session.sasl = wanted
    return {"error_code": 0, "mechanisms": offered}


def authenticate(session: KafkaSession, request: Request) -> Fields | None:
    data: bytes = bytes(request.fields["auth_bytes"])
    mechanism = session.sasl
    if mechanism is None or len(data) > AUTH_BYTES_MAX:
        return _refused("a handshake has to come before: SASL_HANDSHAKE")
    logins = session.broker.users.logins
    origin = "kafka", session.connection.remote_address
    if mechanism == PLAIN:
        parts = data.split(b"\0")
        if len(parts) != 3:
            return _refused("that is no message of PLAIN: authorization, user and password")
        try:
            name, password = parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError:
            return _refused("user and password are text in UTF-8")
        logins.log_in(name, password, *origin, lambda found: _answer_login(session, request, found))
        return None
    if mechanism == OAUTHBEARER:
        token = _bearer(data)
        logins.log_in_by_token(token, *origin, lambda found: _answer_login(session, request, found))
        return None
    return _scram(session, request, mechanism, data)


def _scram(session: KafkaSession, request: Request, mechanism: str, data: bytes) -> Fields | None:
    logins = session.broker.users.logins
    origin = "kafka", session.connection.remote_address
    exchange = session.scram
    try:
        if not isinstance(exchange, ScramExchange):
            exchange = session.scram = logins.scram(mechanism, *origin)
            return {"error_code": 0, "error_message": None, "auth_bytes": exchange.first(data)}
        session.scram = None
        if busy := logins.has_to_wait(origin[1]):
            _answer_login(session, request, NotAuthenticatedError(busy))
            return None
        answer, principal = exchange.final(data)
    except NotAuthenticatedError:
        name = exchange.name if isinstance(exchange, ScramExchange) else ""
        session.scram = None
        logins.fail(name, *origin, lambda found: _answer_login(session, request, found))
        return None
    session.log_in(principal)
    return {"error_code": 0, "error_message": None, "auth_bytes": answer}


def _bearer(data: bytes) -> str:
    """The token in a client's first message: `n,,^Aauth=Bearer TOKEN^A^A`."""
    for field in data.decode("ascii", "replace").split("\x01"):
        if field.lower().startswith("auth=bearer "):
            return field[len("auth=bearer ") :].strip()
    return ""


def _answer_login(session: KafkaSession, request: Request, found: Principal | OnelogError) -> None:
    if isinstance(found, Principal):
        session.log_in(found)
        session.answer(request, {"error_code": 0, "error_message": None, "auth_bytes": b""})
        return
    session.answer(request, _refused(f"Authentication failed: {found}"))
    session.connection.close()


def _refused(why: str) -> Fields:
    return {
        "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
        "error_message": why,
        "auth_bytes": b"",
    }


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.SASL_HANDSHAKE: handshake,
    ApiKey.SASL_AUTHENTICATE: authenticate,
}
