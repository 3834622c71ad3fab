"""Other brokers of the cluster, called in Kafka's protocol.

Invariant: every question is answered, or raises `PeerTimeoutError` or `PeerClosedError`.
"""

import asyncio
import base64
import hashlib
import hmac
import itertools
import secrets
import struct
from collections.abc import Callable

from onelog.errors import PeerClosedError, PeerTimeoutError
from onelog.gateways.kafka.cluster.view import KafkaNode
from onelog.net.connection import Connection, FramedSession, Outbox
from onelog.net.peer import LIMITS, OpenedConnection
from onelog.net.tls import Tls
from onelog.wire.kafka import schema
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.frame import KafkaFrameReader, encode_request
from onelog.wire.kafka.schema import Fields

TIMEOUT_SECONDS = 3.0
_ANSWER_BYTES_MAX = 16 << 20
_NUMBER = struct.Struct(">i")
_MECHANISM, _ITERATIONS_MAX = "SCRAM-SHA-256", 16_384
"""More than that nobody here has, and they are counted in the loop."""


class _Caller(FramedSession):
    """One connection to another broker."""

    _reader: KafkaFrameReader

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._reader = KafkaFrameReader(_ANSWER_BYTES_MAX, _NUMBER.size)
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[ApiKey, int, asyncio.Future[Fields]]] = {}

    def ask(self, key: ApiKey, version: int, fields: Fields) -> "asyncio.Future[Fields]":
        number = next(self._numbers)
        answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._pending[number] = key, version, answer
        self.connection.send(encode_request(key, version, number, "onelog", fields))
        return answer

    def _handle_read(self) -> None:
        for frame in self._reader.frames():
            (number,) = _NUMBER.unpack_from(frame)
            key, version, answer = self._pending.pop(number)
            tagged = version in schema.apis()[key].flexible
            at = schema.skip_tags(frame, 4) if tagged else 4
            fields = schema.decode_response(key, version, frame, at)
            if not answer.done():
                answer.set_result(fields)

    def connection_lost(self) -> None:
        pending, self._pending = self._pending, {}
        for _, _, answer in pending.values():
            if not answer.done():
                answer.set_exception(PeerClosedError("the other broker is gone"))


async def _log_in(caller: _Caller, name: str, password: str) -> None:
    """By SCRAM: the password itself is for nobody's ears; `PeerClosedError` if it is not taken."""
    nonce = secrets.token_urlsafe(18)
    await caller.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": _MECHANISM})

    async def say(text: str) -> dict[str, str]:
        sent = {"auth_bytes": text.encode()}
        answer = await caller.ask(ApiKey.SASL_AUTHENTICATE, 2, sent)
        if answer["error_code"]:
            raise PeerClosedError(
                f"another broker does not let the user {name!r} in (security.broker_user): all "
                "brokers need the same users, and this one not `--no-signing`"
            )
        parts = bytes(answer["auth_bytes"]).decode().split(",")
        return {part[:1]: part[2:] for part in parts}

    known_as = name.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={known_as},r={nonce}"
    challenge = await say(f"n,,{bare}")
    if not (
        challenge.get("r", "").startswith(nonce)
        and challenge.get("s")
        and challenge.get("i", "").isdigit()
    ):
        raise PeerClosedError("another broker does not log users in as it should: is it OneLog?")
    ending = f"c=biws,r={challenge['r']}"
    salted = hashlib.pbkdf2_hmac(
        "sha256",
        password.encode(),
        base64.b64decode(challenge["s"]),
        min(int(challenge["i"]), _ITERATIONS_MAX),
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    said = f"{bare},r={challenge['r']},s={challenge['s']},i={challenge['i']},{ending}".encode()
    mask = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
    await say(f"{ending},p={base64.b64encode(proof).decode()}")


class Peers:
    """The brokers that this one has called."""

    def __init__(
        self,
        find: Callable[[int], KafkaNode | None],
        tls: Tls,
        login: Callable[[], tuple[str, str]] = lambda: ("", ""),
    ) -> None:
        """`login` tells as whom to log in, and by which password; without a name, nobody does."""
        self._find = find
        self._tls = tls
        self._login = login
        self._callers: dict[int, tuple[KafkaNode, _Caller]] = {}
        self._connecting = asyncio.Lock()

    async def ask(self, node_id: int, key: ApiKey, version: int, fields: Fields) -> Fields:
        """What another broker answers."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                caller = await self._connected(node_id)
                return await caller.ask(key, version, fields)
        except TimeoutError:
            raise PeerTimeoutError(f"broker {node_id} does not answer") from None

    async def _connected(self, node_id: int) -> _Caller:
        async with self._connecting:
            node = self._find(node_id)
            if node is None:
                raise PeerClosedError(f"there is no broker {node_id}")
            known = self._callers.get(node_id)
            if known is not None and known[0] == node and not known[1].connection.closing:
                return known[1]
            made: list[_Caller] = []

            def make(connection: Connection) -> _Caller:
                made.append(_Caller(connection))
                return made[0]

            loop = asyncio.get_running_loop()
            tls = await self._tls.client_context()
            connection = OpenedConnection(make, Outbox(loop), LIMITS)
            try:
                await loop.create_connection(lambda: connection, node.host, node.port, ssl=tls)
            except OSError as error:
                raise PeerClosedError(f"no connection to broker {node_id}: {error}") from None
            name, password = self._login()
            if name:
                try:
                    await _log_in(made[0], name, password)
                except PeerClosedError:
                    connection.close()
                    raise
            self._callers[node_id] = node, made[0]
            return made[0]

    def close(self) -> None:
        """Ask nothing more."""
        for _, caller in self._callers.values():
            caller.connection.close()
