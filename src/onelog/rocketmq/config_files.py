"""RocketMQ's config files, read and written: topics, groups, positions, delay levels, modes.

A store that RocketMQ wrote is taken over with them, once; later OneLog's own tables count. They can
be written again for the way back.

    topics.json             dataVersion, topicConfigTable {name: settings}
    subscriptionGroup.json  dataVersion, subscriptionGroupTable {name: settings}
    consumerOffset.json     offsetTable {"topic@group": {0: 123}}     keys without quotes
    delayOffset.json        offsetTable {1: 10}                       keys without quotes
    messageRequestMode.json messageRequestModeMap {topic: {group: mode}}

Each has the previous content beside it as `.bak`, which counts where the file itself is unreadable.

RocketMQ does not keep topics, groups and positions in its log, so its slaves ask for them now and
then. What it answers is what it would write into its own files; so do we, and the node that opens
the store as master takes them over. A OneLog master's log has them: nothing is copied.

Invariant: a file is replaced by a whole answer that can be read, or stays.
"""

import asyncio
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from onelog.core.access import SELF
from onelog.core.assembly import Assembly
from onelog.core.cursors.offsets import cursor_key
from onelog.core.durable.tables import Change, DataVersion
from onelog.core.membership.assignment import RequestMode
from onelog.errors import StoreCorruptError, StoreError, WireError
from onelog.net.peer import Peer
from onelog.private_files import make_folder, write
from onelog.rocketmq.tables import (
    delay_body,
    group_body,
    group_from_body,
    modes_body,
    offsets_body,
    topic_body,
    topic_from_body,
    version_body,
)
from onelog.wire.remoting.body import Body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.groups import SubscriptionGroupTable
from onelog.wire.remoting.registration import DataVersion as VersionBody
from onelog.wire.remoting.registration import TopicTable
from onelog.wire.remoting.stats import ConsumerOffsets, DelayOffsets, RequestModes, TimerMetrics

log = logging.getLogger(__name__)

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAY_FILE = "delayOffset.json"
MODES_FILE = "messageRequestMode.json"

_STRING_OR_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|(?<=[{,\s])(-?\d+)(?=\s*:)', re.DOTALL)
_QUOTED_NUMBER_KEY = re.compile(r'"(\d+)"(?=\s*:)')

B = TypeVar("B", bound=Body)


def with_quoted_keys(text: str) -> str:
    """Plain JSON for what fastjson wrote: there, a number that is a key has no quotes."""
    return _STRING_OR_BARE_KEY.sub(lambda found: f'"{found[1]}"' if found[1] else found[0], text)


def read(path: Path, kind: type[B]) -> B | None:
    """A config file, or its backup; None if there is neither."""
    trouble: Exception | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            if text := candidate.read_text("utf-8").strip():
                return kind.decode_answer(with_quoted_keys(text).encode())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, WireError) as error:
            log.warning("%s is unreadable: %s", candidate, error)
            trouble = trouble or error
    if trouble is not None:
        raise StoreCorruptError(
            f"{path} cannot be read ({trouble}), nor its backup; repair it, or move it away to "
            "start without what it says"
        ) from trouble
    return None


# -- taking over ---------------------------------------------------------------------------------


def load(folder: Path) -> list[Change]:
    """What the files say, as changes of our own tables. Nothing if there are no files."""
    changes = [*_settings(folder), *_positions(folder)]
    if changes:
        log.info("taking over RocketMQ's topics, groups and positions from %s", folder)
    return changes


def _settings(folder: Path) -> Iterator[Change]:
    if topics := read(folder / TOPICS_FILE, TopicTable):
        for name, topic in topics.topic_config_table.items():
            yield "topics", name, msgspec.to_builtins(replace(topic_from_body(topic), name=name))
        yield _version("topics", topics.data_version)
    if groups := read(folder / GROUPS_FILE, SubscriptionGroupTable):
        for name, group in groups.subscription_group_table.items():
            yield "groups", name, msgspec.to_builtins(replace(group_from_body(group), name=name))
        yield _version("groups", groups.data_version)


def _version(of: str, version: VersionBody) -> Change:
    return ("versions", of, msgspec.to_builtins(DataVersion(version.counter, version.timestamp)))


def _positions(folder: Path) -> Iterator[Change]:
    if offsets := read(folder / OFFSETS_FILE, ConsumerOffsets):
        for key, queues in offsets.offset_table.items():
            if "@" in key:
                yield "offsets", key, {str(queue): offset for queue, offset in queues.items()}
    if delay := read(folder / DELAY_FILE, DelayOffsets):
        for level, offset in delay.offset_table.items():
            yield "delay", str(level), offset
    if modes := read(folder / MODES_FILE, RequestModes):
        for topic, by_group in modes.message_request_mode_map.items():
            for group, mode in by_group.items():
                kept = RequestMode(
                    "POP" if mode.mode == "POP" else "PULL", mode.pop_share_queue_num
                )
                yield "request_modes", cursor_key(group, topic), msgspec.to_builtins(kept)


# -- the way back --------------------------------------------------------------------------------


def export(core: Assembly) -> None:
    """Write the five files, so that RocketMQ's own broker can go on with the store.

    Each is next to what it had before as `.bak`.
    """
    topics, groups, broker = core.topics, core.groups, core.broker
    core.offsets.flush()
    core.timers.export_checkpoint()
    contents: dict[str, Body] = {
        TOPICS_FILE: TopicTable(
            data_version=version_body(topics.version),
            topic_config_table={each.name: topic_body(each) for each in topics.all()},
        ),
        GROUPS_FILE: SubscriptionGroupTable(
            data_version=version_body(groups.version),
            subscription_group_table={each.name: group_body(each) for each in groups.all()},
        ),
        OFFSETS_FILE: offsets_body(*broker.cursors.positions(SELF)),
        DELAY_FILE: delay_body(*broker.admin.delayed(SELF)),
        MODES_FILE: modes_body(core.request_modes.all()),
    }
    for name, content in contents.items():
        text = msgspec.json.format(content.encode(), indent=1).decode()
        if name in (OFFSETS_FILE, DELAY_FILE):
            text = _QUOTED_NUMBER_KEY.sub(r"\1", text)
        replace_file(core.store.folder / "config" / name, text.encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a config file anew, and keep what it said before beside it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        make_folder(path.parent)
        write(temporary, content)
        if path.exists():
            os.replace(path, path.with_name(path.name + ".bak"))
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}") from error


TIMEOUT_MS = 10_000
CHECKPOINT_BYTES = 56
MASTERS_FILES: list[tuple[RequestCode, str, type[Body] | None]] = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, TOPICS_FILE, TopicTable),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS_FILE, ConsumerOffsets),
    (RequestCode.GET_ALL_DELAY_OFFSET, DELAY_FILE, DelayOffsets),
    (
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        GROUPS_FILE,
        SubscriptionGroupTable,
    ),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, MODES_FILE, RequestModes),
    (RequestCode.GET_TIMER_METRICS, "timermetrics", TimerMetrics),
    (RequestCode.GET_TIMER_CHECK_POINT, "timercheck", None),
]
"""What is asked for, in which file it is kept, and what it is; None for bytes."""


async def copy_files(host: str, port: int, folder: Path) -> None:
    """Copy them from the master into a config folder; `OnelogError` if it does not answer."""
    peer = await Peer.connect(host, port, timeout_ms=TIMEOUT_MS)
    try:
        for code, name, kind in MASTERS_FILES:
            answer = await peer.ask(code, timeout_ms=TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                await asyncio.to_thread(_keep_file, folder / name, bytes(answer.body), kind)
            else:
                log.debug("the master has no %s: %s", name, answer.remark)
    finally:
        await peer.close()


def _keep_file(path: Path, body: bytes, kind: type[Body] | None) -> None:
    if kind is None:
        if len(body) != CHECKPOINT_BYTES:
            raise WireError(f"{len(body)} bytes are no {path.name}")
    else:
        try:
            kind.decode_answer(with_quoted_keys(body.decode()).encode())
        except (UnicodeDecodeError, WireError) as error:
            raise WireError(f"the master's {path.name} cannot be read: {error}") from None
    if not path.exists() or path.read_bytes() != body:
        replace_file(path, body)
