"""What clients are told when the broker says no."""

from onelog.errors import (
    BrokerBusyError,
    MessageTooLargeError,
    NotMasterError,
    NotPermittedError,
    OnelogError,
    PropertiesTooLargeError,
    QueueFullError,
    StoreError,
    WireError,
)
from onelog.gateways import code_of
from onelog.wire.mqtt.codes import PacketError, Reason

REASONS: dict[type[OnelogError], Reason] = {
    NotPermittedError: Reason.NOT_AUTHORIZED,
    QueueFullError: Reason.QUOTA_EXCEEDED,
    BrokerBusyError: Reason.QUOTA_EXCEEDED,
    MessageTooLargeError: Reason.PACKET_TOO_LARGE,
    PropertiesTooLargeError: Reason.PACKET_TOO_LARGE,
    WireError: Reason.MALFORMED_PACKET,
    StoreError: Reason.IMPLEMENTATION_SPECIFIC,
    NotMasterError: Reason.USE_ANOTHER_SERVER,
    OnelogError: Reason.UNSPECIFIED,
}


def reason_of(error: OnelogError) -> Reason:
    """The reason that an error is told as."""
    if isinstance(error, PacketError):
        return error.reason
    return code_of(error, REASONS, Reason.UNSPECIFIED)
