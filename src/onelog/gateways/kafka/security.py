"""Who a client is, and who may do what: logging in by SASL, passwords, and ACLs.

SASL_HANDSHAKE names a mechanism, SASL_AUTHENTICATE carries its messages:

    PLAIN           user and password
    SCRAM-SHA-...   the exchange of RFC 5802
    OAUTHBEARER     a token that somebody whom `security.jwks` names has signed (RFC 7628)

While there are users, a client that has not logged in may ask for versions, and nothing else; as in
Kafka, anything else ends the connection. Tokens without frames, which followed the handshake of
version 0, are not understood: no client of the last years sends them.

ACLs are permissions of users:

    Kafka                              here
    READ, WRITE                        consume, publish
    ALTER, ALTER_CONFIGS               alter
    DESCRIBE, DESCRIBE_CONFIGS         describe
    ALL, CLUSTER_ACTION                admin
    CLUSTER, TRANSACTIONAL_ID          broker, transaction

An ACL for somebody who is not there makes a user without a password. While there are no users,
ACLs are refused as Kafka does where no authorizer is configured; unless who does not log in may do
everything, by `security.anonymous`: Kafka's super.users=User:ANONYMOUS.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from onelog.core.access import Principal
from onelog.core.users.logins import ANOTHER, ScramExchange
from onelog.core.users.passwords import DIGESTS, ITERATIONS, ITERATIONS_MAX, Proofs, scram_keys
from onelog.core.users.permissions import ANY, Rule
from onelog.core.users.users import ADMIN_ROLE, User
from onelog.errors import (
    InvalidRequestError,
    NotAuthenticatedError,
    NotPermittedError,
    OnelogError,
    UserNotFoundError,
)
from onelog.gateways import RefusedError
from onelog.gateways.kafka.session import (
    OPERATIONS,
    Handler,
    KafkaSession,
    Request,
    Steps,
    refusal,
    refusal_in,
)
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
    if mechanism is None:
        return _refused("a handshake has to come before: SASL_HANDSHAKE")
    if len(data) > AUTH_BYTES_MAX:
        return _refused(f"{len(data)} bytes of SASL: at most {AUTH_BYTES_MAX} are allowed")
    logins = session.broker.users.logins
    origin = "kafka", session.connection.remote_address
    if mechanism == PLAIN:
        parts = data.split(b"\0")
        if len(parts) != 3:
            return _refused("that is no message of PLAIN: authorization, user and password")
        if parts[0] not in (b"", parts[1]):
            return _refused(ANOTHER)
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


_REFUSED: Fields = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "there are no users yet: make the first one with `onelog user create`",
}
_DONE: Fields = {"error_code": 0, "error_message": None}
_KINDS = {2: "topic", 3: "group", 4: "broker", 5: "transaction"}
_ACTIONS: dict[int, str] = {2: "admin", **OPERATIONS, 9: "admin"}
_OPERATIONS = {
    "admin": 2,
    "consume": 3,
    "publish": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
}
_ANY, _MATCH, _LITERAL, _PREFIXED = 1, 2, 3, 4
_DENY, _ALLOW = 2, 3
_CLUSTER = "kafka-cluster"
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class Acl(NamedTuple):
    """One of Kafka's, in its numbers."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def fields(self) -> Fields:
        """Who may, or may not, do what from where."""
        return {
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation,
            "permission_type": self.permission,
        }

    @property
    def thing(self) -> tuple[int, str, int]:
        return self.kind, self.name, self.pattern


def _acls(user: User) -> Iterator[Acl]:
    """Those that a user's permissions are; what Kafka has no word for is left out."""
    numbers = {name: number for number, name in _KINDS.items()}
    for rule in user.rules:
        pattern = _PREFIXED if rule.match == "prefix" else _LITERAL
        if rule.match == "regex" or (rule.match == "pattern" and rule.name != ANY):
            continue
        kinds = [numbers[rule.kind]] if rule.kind in numbers else []
        for kind in numbers.values() if rule.kind == ANY else kinds:
            name = _CLUSTER if kind == numbers["broker"] else rule.name
            permission = _DENY if rule.effect == "deny" else _ALLOW
            for host in rule.hosts or ("*",):
                for action in rule.actions:
                    operation = _OPERATIONS[action]
                    yield Acl(kind, name, pattern, f"User:{user.name}", host, operation, permission)


def _rule(fields: Fields) -> tuple[str, Rule]:
    """The user and the permission that an ACL is."""
    kind = _KINDS.get(fields["resource_type"])
    action = _ACTIONS.get(fields["operation"])
    prefix, _, name = fields["principal"].partition(":")
    if kind is None or action is None or prefix != "User" or name in ("", ANY):
        raise InvalidRequestError(
            "an ACL is about a topic, a group, the cluster or a transactional id, and for one user "
            f"(User:name): {fields['principal']}"
        )
    match = "prefix" if fields["resource_pattern_type"] == _PREFIXED else "literal"
    resource = ANY if kind == "broker" else fields["resource_name"]
    effect = "deny" if fields["permission_type"] == _DENY else "allow"
    hosts = () if fields["host"] == "*" else (fields["host"],)
    return name, Rule((action,), kind, resource, match, effect, hosts)  # type: ignore[arg-type]


def _is_wanted(acl: Acl, wanted: Fields) -> bool:
    """Whether a filter means it."""
    kind, pattern = wanted["resource_type_filter"], wanted["pattern_type_filter"]
    name = wanted["resource_name_filter"]
    if pattern == _MATCH and name is not None:
        is_named = (
            name.startswith(acl.name) if acl.pattern == _PREFIXED else acl.name in (name, ANY)
        )
    else:
        is_named = name in (None, acl.name) and pattern in (_ANY, _MATCH, acl.pattern)
    return (
        is_named
        and kind in (_ANY, acl.kind)
        and wanted["principal_filter"] in (None, acl.principal)
        and wanted["host_filter"] in (None, acl.host)
        and wanted["operation"] in (_ANY, acl.operation)
        and wanted["permission_type"] in (_ANY, acl.permission)
    )


def describe_acls(session: KafkaSession, request: Request) -> Steps:
    users = session.broker.users
    if users.needs_admin:
        return dict(_REFUSED)
    by_thing: dict[tuple[int, str, int], list[Fields]] = {}
    for user in users.all_users(session.principal):
        yield
        for acl in _acls(user):
            if _is_wanted(acl, request.fields):
                by_thing.setdefault(acl.thing, []).append(acl.fields())
    resources = [
        {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
        for (kind, name, pattern), acls in by_thing.items()
    ]
    return {"error_code": 0, "error_message": None, "resources": resources}


def create_acls(session: KafkaSession, request: Request) -> Steps:
    """CREATE_ACLS: an answer for each."""
    users, principal = session.broker.users, session.principal
    creations = request.fields["creations"]
    if users.needs_admin:
        return {"results": [_REFUSED for _ in creations]}
    results = []
    for each in creations:
        yield
        answer = dict(_DONE)
        with refusal_in(answer):
            session.require_administrator()
            name, rule = _rule(each)
            try:
                rules = users.rules(principal, name)
            except UserNotFoundError:
                users.create_user(principal, name, Proofs())
                rules = ()
            if rule not in rules:
                users.set_rules(principal, name, (*rules, rule))
        results.append(answer)
    return {"results": results}


def delete_acls(session: KafkaSession, request: Request) -> Steps:
    """DELETE_ACLS: an answer for each filter."""
    users = session.broker.users
    filters = request.fields["filters"]
    if users.needs_admin:
        return {"filter_results": [_REFUSED for _ in filters]}
    results = []
    for each in filters:
        matching: list[Acl] = []
        try:
            session.require_administrator()
            for user in users.all_users(session.principal):
                matching += _deleted(session, user, each)
                yield
        except OnelogError as error:
            results.append({**refusal(error), "matching_acls": []})
            continue
        gone = [
            {
                **_DONE,
                **acl.fields(),
                "resource_type": acl.kind,
                "resource_name": acl.name,
                "pattern_type": acl.pattern,
            }
            for acl in matching
        ]
        results.append({**_DONE, "matching_acls": gone})
    return {"filter_results": results}


def _deleted(session: KafkaSession, user: User, wanted: Fields) -> list[Acl]:
    """Take what a filter means from a user's permissions."""
    gone: list[Acl] = []
    left: list[Rule] = []
    for rule in user.rules:
        kept = []
        for action in rule.actions:
            single = replace(rule, actions=(action,))
            acls = list(_acls(replace(user, rules=(single,))))
            if acls and all(_is_wanted(acl, wanted) for acl in acls):
                gone += acls
            else:
                kept.append(action)
        if kept:
            left.append(replace(rule, actions=tuple(kept)))
    if gone:
        session.broker.users.set_rules(session.principal, user.name, tuple(left))
    return gone


def describe_user_scram_credentials(session: KafkaSession, request: Request) -> Steps:
    users = session.broker.users
    names = [each["name"] for each in request.fields["users"] or ()]
    known = {user.name: user for user in users.all_users(session.principal)}
    results = []
    counts = Counter(names)
    for name in counts or [each.name for each in known.values() if each.proofs.scram]:
        yield
        user = known.get(name)
        infos = [
            {"mechanism": number, "iterations": user.proofs.scram[each].iterations}
            for number, each in _MECHANISMS.items()
            if user is not None and each in user.proofs.scram
        ]
        code, text = 0, None
        if counts[name] > 1:
            code, text = ErrorCode.DUPLICATE_RESOURCE, f"user {name!r} is asked about twice"
        elif not infos:
            code, text = ErrorCode.RESOURCE_NOT_FOUND, f"there is no password of user {name!r}"
        infos = [] if code else infos
        results.append(
            {"user": name, "error_code": code, "error_message": text, "credential_infos": infos}
        )
    return {"error_code": 0, "error_message": None, "results": results}


def alter_user_scram_credentials(session: KafkaSession, request: Request) -> Steps:
    """ALTER_USER_SCRAM_CREDENTIALS: an answer for each user.

    Where there are no users the first one becomes an administrator, as with `onelog user create`;
    only who is on the broker's own machine can make that one.
    """
    fields = request.fields
    changes: dict[str, list[Fields]] = {}
    for each in (*fields["deletions"], *fields["upsertions"]):
        changes.setdefault(each["name"], []).append(each)
    results = []
    for name, wanted in changes.items():
        yield
        answer: Fields = {"user": name, "error_code": 0, "error_message": None}
        with refusal_in(answer):
            session.require_administrator()
            _alter_scram(session, name, wanted)
        results.append(answer)
    return {"results": results}


def _alter_scram(session: KafkaSession, name: str, changes: Sequence[Fields]) -> None:
    users, principal = session.broker.users, session.principal
    users.check(principal, "alter", ("broker", "users"))
    roles = (ADMIN_ROLE,) if users.needs_admin else ()
    if roles and not session.is_local:
        raise NotPermittedError("the first user is made on the broker's own machine")
    user = users.users.known.get(name)
    scram = {} if user is None else dict(user.proofs.scram)
    _check_scram(name, changes)
    for each in changes:
        mechanism = _MECHANISMS[each["mechanism"]]
        if "salted_password" not in each:
            if mechanism not in scram:
                raise UserNotFoundError(f"user {name!r} has no password of {mechanism}")
            del scram[mechanism]
        else:
            salted, salt = bytes(each["salted_password"]), bytes(each["salt"])
            scram[mechanism] = scram_keys(mechanism, salted, salt, each["iterations"])
    if user is None:
        users.create_user(principal, name, Proofs(scram=scram), roles)
        return
    proofs = replace(user.proofs, scram=scram)
    if not scram and not proofs.scrypt and not user.rules:
        users.delete_user(principal, name)  # Kafka's users are their credentials.
    else:
        users.change_user(principal, name, proofs=proofs)


def _check_scram(name: str, changes: Sequence[Fields]) -> None:
    """What Kafka finds wrong with changes of a user's credentials."""
    if not name:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "a user needs a name")
    numbers = Counter(each["mechanism"] for each in changes)
    for each in changes:
        number = each["mechanism"]
        if number not in _MECHANISMS:
            reason = f"there is no SCRAM mechanism {number}"
            raise RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, reason)
        if numbers[number] > 1:
            reason = f"{_MECHANISMS[number]} of user {name!r} is changed twice"
            raise RefusedError(ErrorCode.DUPLICATE_RESOURCE, reason)
        iterations = each.get("iterations", ITERATIONS)
        if not ITERATIONS <= iterations <= ITERATIONS_MAX:
            reason = f"{iterations} iterations; {ITERATIONS} to {ITERATIONS_MAX} may be"
            raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)
        if "salted_password" in each and not (each["salted_password"] and each["salt"]):
            reason = f"a credential of user {name!r} without a salt or password"
            raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)


assert set(_MECHANISMS.values()) == set(DIGESTS)
HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    ApiKey.SASL_HANDSHAKE: handshake,
    ApiKey.SASL_AUTHENTICATE: authenticate,
}
