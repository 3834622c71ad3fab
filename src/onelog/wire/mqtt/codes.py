"""Numbers of MQTT: packets, versions, reasons; and the error that has one of them."""

from enum import IntEnum

from onelog.errors import WireError

V31 = 3
V311 = 4
V5 = 5
"""Protocol levels, as CONNECT names them."""
PACKET_ID_MAX = 65_535
REMAINING_BYTES_MAX = 268_435_455
"""What four bytes of seven bits can say."""


class Packet(IntEnum):
    """What a packet is: the upper four bits of its first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Reason(IntEnum):
    """Reason codes of version 5 (its section 2.4)."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


class ReturnCode(IntEnum):
    """What CONNACK says in the versions before 5."""

    ACCEPTED = 0
    UNSUPPORTED_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


RETURN_CODES: dict[int, ReturnCode] = {
    Reason.SUCCESS: ReturnCode.ACCEPTED,
    Reason.UNSUPPORTED_VERSION: ReturnCode.UNSUPPORTED_VERSION,
    Reason.CLIENT_ID_NOT_VALID: ReturnCode.IDENTIFIER_REJECTED,
    Reason.BAD_USER_OR_PASSWORD: ReturnCode.BAD_USER_OR_PASSWORD,
    Reason.NOT_AUTHORIZED: ReturnCode.NOT_AUTHORIZED,
    Reason.BANNED: ReturnCode.NOT_AUTHORIZED,
}
"""What older clients are told in the place of a reason; the others are `SERVER_UNAVAILABLE`."""


class PacketError(WireError):
    """A packet that breaks the rules, and the reason that its sender is told."""

    def __init__(self, text: str, reason: Reason = Reason.MALFORMED_PACKET) -> None:
        super().__init__(text)
        self.reason = reason
