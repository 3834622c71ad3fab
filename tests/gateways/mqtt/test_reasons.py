"""The table of reasons: every error has one."""

import onelog.errors
from onelog.errors import BrokerBusyError, NotPermittedError, OnelogError, QueueFullError
from onelog.gateways.mqtt.session import REASONS, reason_of
from onelog.wire.mqtt.codes import PacketError, Reason


def test_every_error_has_a_reason_that_says_no() -> None:
    kinds = [
        each
        for each in vars(onelog.errors).values()
        if isinstance(each, type) and issubclass(each, OnelogError)
    ]
    assert OnelogError in REASONS
    for kind in kinds:
        assert reason_of(kind("text")) >= 0x80


def test_what_clients_can_do_something_about_has_its_own() -> None:
    assert reason_of(NotPermittedError("")) == Reason.NOT_AUTHORIZED
    assert reason_of(QueueFullError("")) == Reason.QUOTA_EXCEEDED
    assert reason_of(BrokerBusyError("")) == Reason.QUOTA_EXCEEDED
    assert reason_of(PacketError("", Reason.TOPIC_ALIAS_INVALID)) == Reason.TOPIC_ALIAS_INVALID
