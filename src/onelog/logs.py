"""Lines of the log. What peers call themselves, or have errors say, writes none of its own.

Whatever a message is made of, control characters in it are escaped, so that an event is one line,
and a terminal that shows it does nothing else. A traceback has more lines, which are indented.
"""

import logging
import re

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Lines(str):
    """Text of our own that has several lines, such as a stack."""

    __slots__ = ()


def escaped(text: str) -> str:
    """The text with its control characters, and what turns its direction, as in a literal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class LineFormatter(logging.Formatter):
    """Formats records so that nothing in them begins another line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, and its traceback, whose last line may say what a peer has said."""
        text = escaped(record.getMessage())
        for each in record.args if isinstance(record.args, tuple) else ():
            if isinstance(each, Lines):
                text = text.replace(escaped(each), each)
        parts = {"msg": text, "args": (), "exc_info": None, "exc_text": None}
        line = super().format(logging.makeLogRecord({**record.__dict__, **parts}))
        if record.exc_info:
            for each in self.formatException(record.exc_info).split("\n"):
                line += f"\n  {escaped(each)}"
        return line
