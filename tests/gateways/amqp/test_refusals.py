"""Which error is which of AMQP's codes."""

import inspect

import pytest

from onelog import errors
from onelog.errors import OnelogError
from onelog.gateways import RefusedError
from onelog.gateways.amqp.refusals import REPLY_CODES, not_allowed, reply_code
from onelog.wire.amqp.codes import FaultError, ReplyCode

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, OnelogError) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_code(kind: type[OnelogError]) -> None:
    error = kind.__new__(kind)
    assert isinstance(reply_code(error), ReplyCode)


def test_what_is_amqps_own_has_its_code() -> None:
    assert reply_code(not_allowed("no")) == ReplyCode.NOT_ALLOWED
    assert reply_code(RefusedError(ReplyCode.NOT_FOUND, "")) == ReplyCode.NOT_FOUND
    assert reply_code(FaultError(ReplyCode.FRAME_ERROR, "")) == ReplyCode.FRAME_ERROR
    assert REPLY_CODES[errors.QueueNotFoundError].is_soft
