"""Operations by their names, as `onelog` asks for them over RocketMQ's protocol."""

import asyncio
from typing import Any

import msgspec

from onelog.admin.broker import FUNCTIONS
from onelog.admin.broker.call import Call
from onelog.admin.table import OPERATIONS
from onelog.core.access import Principal
from onelog.errors import InvalidRequestError, NotPermittedError
from onelog.gateways import GatewayContext

SECONDS_MAX = 60.0
_NAMED = {each.name: each for each in OPERATIONS}
_encoder = msgspec.json.Encoder(enc_hook=str)


async def operate(
    context: GatewayContext,
    principal: Principal,
    name: str,
    given: bytes,
    may_change: bool,
    origin: tuple[str, int],
) -> bytes:
    """What comes of an operation, as JSON."""
    operation = _NAMED.get(name)
    if operation is None:
        raise InvalidRequestError(f"this broker has no operation {name!r:.80}")
    if operation.changes and not may_change:
        raise NotPermittedError(f"{name} changes something, and is not only asked for")
    try:
        arguments: Any = msgspec.json.decode(given or b"{}", type=operation.arguments)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"an argument is not as it should be: {error}") from None
    call = Call(context, principal, may_change, origin, {})
    async with asyncio.timeout(SECONDS_MAX):
        return _encoder.encode(await FUNCTIONS[name](call, arguments))
