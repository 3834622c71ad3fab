"""RocketMQ's config files, copied from the master whose log is followed.

RocketMQ does not keep topics, groups and positions in its log, so its slaves ask for them now and
then. What it answers is what it would write into its own files; so do we, and whoever opens the
store as master takes them over (`config_files`). A OneLog master's log has them: nothing is copied.

Invariant: a file is replaced by a whole answer that can be read, or stays.
"""

import asyncio
import logging
from pathlib import Path

from onelog.errors import WireError
from onelog.net.peer import Peer
from onelog.rocketmq import config_files
from onelog.rocketmq.config_files import with_quoted_keys
from onelog.wire.remoting.body import Body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.groups import SubscriptionGroupTable
from onelog.wire.remoting.registration import TopicTable
from onelog.wire.remoting.stats import ConsumerOffsets, DelayOffsets, RequestModes, TimerMetrics

log = logging.getLogger(__name__)

TIMEOUT_MS = 10_000
CHECKPOINT_BYTES = 56
FILES: list[tuple[RequestCode, str, type[Body] | None]] = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, config_files.TOPICS_FILE, TopicTable),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, config_files.OFFSETS_FILE, ConsumerOffsets),
    (RequestCode.GET_ALL_DELAY_OFFSET, config_files.DELAY_FILE, DelayOffsets),
    (
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        config_files.GROUPS_FILE,
        SubscriptionGroupTable,
    ),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, config_files.MODES_FILE, RequestModes),
    (RequestCode.GET_TIMER_METRICS, "timermetrics", TimerMetrics),
    (RequestCode.GET_TIMER_CHECK_POINT, "timercheck", None),
]
"""What is asked for, in which file it is kept, and what it is; None for bytes."""


async def copy_files(host: str, port: int, folder: Path) -> None:
    """Copy them from the master into a config folder; `OnelogError` if it does not answer."""
    peer = await Peer.connect(host, port, timeout_ms=TIMEOUT_MS)
    try:
        for code, name, kind in FILES:
            answer = await peer.ask(code, timeout_ms=TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                await asyncio.to_thread(_keep, folder / name, bytes(answer.body), kind)
            else:
                log.debug("the master has no %s: %s", name, answer.remark)
    finally:
        await peer.close()


def _keep(path: Path, body: bytes, kind: type[Body] | None) -> None:
    if kind is None:
        if len(body) != CHECKPOINT_BYTES:
            raise WireError(f"{len(body)} bytes are no {path.name}")
    else:
        try:
            kind.decode_answer(with_quoted_keys(body.decode()).encode())
        except (UnicodeDecodeError, WireError) as error:
            raise WireError(f"the master's {path.name} cannot be read: {error}") from None
    if not path.exists() or path.read_bytes() != body:
        config_files.replace_file(path, body)
