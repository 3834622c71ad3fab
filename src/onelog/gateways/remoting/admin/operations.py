"""Operations of `onelog.admin`, which `onelog` asks a broker for by their names.

ASK_OPERATION    operation, and its arguments as JSON  -> its result, as JSON
RUN_OPERATION    the same, for those that change something
"""

import asyncio
import logging
from functools import partial

from onelog.errors import OnelogError, PeerTimeoutError
from onelog.gateways.remoting.session import BrokerSession, Handler, Success
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command

log = logging.getLogger(__name__)
_running: set[asyncio.Task[bytes]] = set()
"""The loop itself does not hold them."""


def operate(session: BrokerSession, command: Command) -> None:
    work = session.gateway.context.operate(
        session.principal,
        command.ext.get("operation", ""),
        bytes(command.body),
        command.code == RequestCode.RUN_OPERATION,
        session.connection.remote,
    )
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(partial(_ended, session, command))


def _ended(session: BrokerSession, command: Command, task: asyncio.Task[bytes]) -> None:
    _running.discard(task)
    error = None if task.cancelled() else task.exception()
    if session.connection.closing or task.cancelled():
        return
    if error is None:
        session.answer(command, Success(body=task.result()))
    elif isinstance(error, TimeoutError):
        session.fail(command, PeerTimeoutError("it took too long: look whether it was done"))
    elif isinstance(error, OnelogError):
        session.fail(command, error)
    else:
        log.error("an operation of %s failed", session.connection, exc_info=error)
        session.reply(command, ResponseCode.SYSTEM_ERROR, remark=type(error).__name__)


HANDLERS: dict[int, Handler] = {
    RequestCode.ASK_OPERATION: operate,
    RequestCode.RUN_OPERATION: operate,
}
