"""What keeps a consumer from its messages, said once.

Whatever fails is tried again every second. Invariant: the log has a warning when a reason is new,
and not another one for as long as it stays the same.
"""

import logging

from onelog.errors import OnelogError, TopicNotFoundError
from onelog.names import RETRY_PREFIX

log = logging.getLogger(__name__)


class Complaints:
    """The reasons why topics are not shared out."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def tell(self, topic: str, error: OnelogError) -> None:
        """A topic could not be shared out."""
        reason = str(error)
        is_news = self._reasons.get(topic) != reason
        self._reasons[topic] = reason
        # That a topic is missing was said at the start, and a retry topic comes when it is needed.
        is_usual = topic.startswith(RETRY_PREFIX) or isinstance(error, TopicNotFoundError)
        level = logging.WARNING if is_news and not is_usual else logging.DEBUG
        log.log(level, "the queues of %s cannot be shared out now: %s", topic, reason)

    def settle(self, topic: str) -> None:
        """It was shared out."""
        if self._reasons.pop(topic, None) is not None:
            log.info("the queues of %s are shared out again", topic)
