"""What properties look like of messages that are just to be stored: known by one look.

Most messages differ in their unique key only. So what surrounds that key is remembered, if nothing
in it asks for more than storing, and another message with the same around it need not be searched.
"""

from onelog.message import RECORD_CRC, UNIQUE_KEY
from onelog.rocketmq.intents import NEEDLES
from onelog.rocketmq.priorities import LITE_NEEDLE, PRIORITY_NEEDLE

UNIQUE_KEY_NEEDLE = UNIQUE_KEY.encode() + b"\x01"
INNER_NEEDLE = b"INNER_"
"""How the properties begin that say into which queues, and how often, a record is entered. They are
the store's; from a client they would count at the next recovery."""
POP_NEEDLE = b"POP_"
CRC_NEEDLE = RECORD_CRC.encode()
_NOT_PLAIN = (
    *NEEDLES,
    INNER_NEEDLE,
    POP_NEEDLE,
    CRC_NEEDLE,
    UNIQUE_KEY_NEEDLE,
    PRIORITY_NEEDLE,
    LITE_NEEDLE,
)
_FORMS_MAX = 1_024
_FORM_BYTES_MAX = 512
_MISSES_PER_FORM = 16
"""Learning one of so many keeps messages that are all different from filling the table."""


class PlainForms(dict[tuple[bytes, bytes, bytes], bytes]):
    """What comes before the unique key, whether it is ended, what follows; and the missing end."""

    misses = 0

    def missed(self, properties: bytes) -> None:
        """A message whose properties were searched: now and then, learn its form."""
        self.misses += 1
        if self.misses % _MISSES_PER_FORM:
            return
        before, _, rest = properties.partition(UNIQUE_KEY_NEEDLE)
        unique, ended, after = rest.partition(b"\x02")
        around = before + b"\x02" + after
        if (
            unique
            and (not before or before[-1] == 2)
            and len(around) <= _FORM_BYTES_MAX
            and not any(around.find(needle) >= 0 for needle in _NOT_PLAIN)
        ):
            if len(self) >= _FORMS_MAX:
                self.clear()
            self[before, ended, after] = b"" if properties[-1] == 2 else b"\x02"
