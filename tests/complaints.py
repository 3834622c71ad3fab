"""What a program complained of that ran beside the tests."""

import re

_HELD = re.compile(r".*the event loop (?:was|is) held.*\n(?:  .*\n)*")


def complaints(err: str) -> str:
    """What it wrote to stderr, without that the machine, which is busy, has held up its loop."""
    return _HELD.sub("", err)
