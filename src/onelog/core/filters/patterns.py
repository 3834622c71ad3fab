"""Regular expressions that peers send: subscriptions to topics, policies for queues.

They run on RE2, whose time grows with the length of the text and with nothing else; Kafka's own
brokers use it, too. What it cannot do in such time it refuses when the pattern comes: look-ahead,
look-behind, references to groups. How large a pattern may be is limited, because the time for
each character of a text grows with that.

Invariant: whatever the pattern, it is compiled, or `FilterSyntaxError` says why it is not; to
search a name takes less than a millisecond.
"""

import functools

from onelog.errors import FilterSyntaxError

CHARACTERS_MAX = 1_000
_STEPS_MAX = 2_000
"""Of the program that a pattern becomes: `x{1000}` is a thousand of them."""
_PATTERNS_MAX, _KNOWN_MAX = 64, 20_000
_MEMORY_BYTES = 256 << 10
"""What each pattern may use while it is matched; with less at hand it is slower."""


class Pattern:
    """A pattern that was compiled."""

    __slots__ = ("_compiled", "_known", "text")

    def __init__(self, text: str) -> None:
        import re2  # Few brokers have peers with patterns.

        options = re2.Options()
        options.max_mem = _MEMORY_BYTES
        options.never_capture = True
        options.log_errors = False
        self.text = text
        self._known: dict[str, bool] = {}
        try:
            self._compiled = re2.compile(text, options)
        except (re2.error, UnicodeEncodeError) as error:
            raise FilterSyntaxError(f"{text[:200]!r} is no pattern: {_reason(error)}") from None
        if self._compiled.programsize > _STEPS_MAX:
            raise FilterSyntaxError(
                f"{text[:200]!r} is too large: its repetitions make {self._compiled.programsize} "
                f"steps of it, and {_STEPS_MAX} is the limit"
            )

    def is_in(self, name: str) -> bool:
        """Whether some part of a name matches."""
        return self._compiled.search(name.encode("utf-8", "replace")) is not None

    def is_all_of(self, name: str) -> bool:
        """Whether a name matches as a whole; remembered, since topics are asked for again."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._compiled.fullmatch(name.encode("utf-8", "replace")) is not None
            self._known[name] = known
        return known


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if "perl operator" in text or "escape sequence" in text:
        text += " (look-ahead, look-behind and references to groups are not served)"
    return text


@functools.lru_cache(maxsize=_PATTERNS_MAX)
def compile_pattern(text: str) -> Pattern:
    """What a peer's pattern means; `FilterSyntaxError`."""
    if len(text) > CHARACTERS_MAX:
        raise FilterSyntaxError(
            f"the pattern has {len(text)} characters; the limit is {CHARACTERS_MAX}"
        )
    return Pattern(text)
