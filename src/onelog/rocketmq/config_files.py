"""RocketMQ's config files, read and written: topics, groups, positions, delay levels, modes.

A store that RocketMQ wrote is taken over with them, once; later OneLog's own tables count. They can
be written again for the way back.

    topics.json             dataVersion, topicConfigTable {name: settings}
    subscriptionGroup.json  dataVersion, subscriptionGroupTable {name: settings}
    consumerOffset.json     offsetTable {"topic@group": {0: 123}}     keys without quotes
    delayOffset.json        offsetTable {1: 10}                       keys without quotes
    messageRequestMode.json messageRequestModeMap {topic: {group: mode}}

Each has the previous content beside it as `.bak`, which counts where the file itself is unreadable.
"""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from onelog.core.broker import Broker
from onelog.core.catalog.groups import GroupConfig
from onelog.core.catalog.topics import TopicConfig
from onelog.core.cursors.offsets import cursor_key
from onelog.core.durable.tables import Change, DataVersion
from onelog.core.membership.assignment import RequestMode
from onelog.errors import StoreCorruptError, StoreError

log = logging.getLogger(__name__)

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAY_FILE = "delayOffset.json"
MODES_FILE = "messageRequestMode.json"

_STRING_OR_BARE_KEY = re.compile(r'"(?:\\.|[^"\\])*"|(?<=[{,\s])(-?\d+)(?=\s*:)', re.DOTALL)
_QUOTED_NUMBER_KEY = re.compile(r'"(\d+)"(?=\s*:)')

Json = dict[str, Any]


def parse(text: str) -> Any:
    """JSON in fastjson's dialect: a number that is a key needs no quotes."""

    def quoted(found: re.Match[str]) -> str:
        return f'"{found[1]}"' if found[1] is not None else found[0]

    return msgspec.json.decode(_STRING_OR_BARE_KEY.sub(quoted, text))


def read(path: Path) -> Json | None:
    """A config file, or its backup; None if there is neither."""
    trouble: Exception | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            text = candidate.read_text("utf-8").strip()
            content = parse(text) if text else None
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            log.warning("%s is unreadable: %s", candidate, error)
            trouble = trouble or error
            continue
        if isinstance(content, dict):
            return content
    if trouble is not None:
        raise StoreCorruptError(
            f"{path} cannot be read ({trouble}), nor its backup; repair it, or move it away to "
            "start without what it says"
        ) from trouble
    return None


# -- settings as RocketMQ writes them ------------------------------------------------------------


def topic_from_json(name: str, settings: Mapping[str, Any]) -> TopicConfig:
    """A topic's settings."""
    multi = settings.get("topicFilterType") == "MULTI_TAG"
    return TopicConfig(
        name,
        int(settings.get("readQueueNums", 16)),
        int(settings.get("writeQueueNums", 16)),
        int(settings.get("perm", 6)),
        "MULTI_TAG" if multi else "SINGLE_TAG",
        bool(settings.get("order", False)),
        int(settings.get("topicSysFlag", 0)),
        {str(key): str(value) for key, value in (settings.get("attributes") or {}).items()},
    )


def topic_to_json(config: TopicConfig) -> Json:
    """The inverse of `topic_from_json`."""
    return {
        "attributes": config.attributes,
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": config.filter_type,
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


def group_from_json(name: str, settings: Mapping[str, Any]) -> GroupConfig:
    """A group's settings."""
    return GroupConfig(
        name,
        consume_enable=bool(settings.get("consumeEnable", True)),
        consume_from_min_enable=bool(settings.get("consumeFromMinEnable", True)),
        consume_broadcast_enable=bool(settings.get("consumeBroadcastEnable", True)),
        consume_message_orderly=bool(settings.get("consumeMessageOrderly", False)),
        retry_queues=int(settings.get("retryQueueNums", 1)),
        retry_times_max=int(settings.get("retryMaxTimes", 16)),
        retry_policy=settings.get("groupRetryPolicy"),
        broker_id=int(settings.get("brokerId", 0)),
        slow_broker_id=int(settings.get("whichBrokerWhenConsumeSlowly", 1)),
        notify_members=bool(settings.get("notifyConsumerIdsChangedEnable", True)),
        sys_flag=int(settings.get("groupSysFlag", 0)),
        consume_timeout_minutes=int(settings.get("consumeTimeoutMinute", 15)),
        attributes={str(k): str(v) for k, v in (settings.get("attributes") or {}).items()},
    )


def group_to_json(config: GroupConfig) -> Json:
    """The inverse of `group_from_json`."""
    return {
        "attributes": config.attributes,
        "brokerId": config.broker_id,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.consume_message_orderly,
        "consumeTimeoutMinute": config.consume_timeout_minutes,
        "groupName": config.name,
        "groupRetryPolicy": config.retry_policy or {"type": "CUSTOMIZED"},
        "groupSysFlag": config.sys_flag,
        "notifyConsumerIdsChangedEnable": config.notify_members,
        "retryMaxTimes": config.retry_times_max,
        "retryQueueNums": config.retry_queues,
        "whichBrokerWhenConsumeSlowly": config.slow_broker_id,
    }


def version_to_json(version: DataVersion) -> Json:
    """A data version."""
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp_ms,
    }


# -- taking over ---------------------------------------------------------------------------------


def load(folder: Path) -> list[Change]:
    """What the files say, as changes of our own tables. Nothing if there are no files."""
    try:
        changes = [
            *_topics(folder),
            *_groups(folder),
            *_offsets(folder),
            *_delay(folder),
            *_modes(folder),
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreCorruptError(
            f"the config files in {folder} do not have RocketMQ's form: {error}"
        ) from error
    if changes:
        log.info("taking over RocketMQ's topics, groups and positions from %s", folder)
    return changes


def _topics(folder: Path) -> list[Change]:
    content = read(folder / TOPICS_FILE)
    if content is None:
        return []
    return [
        *(
            ("topics", name, msgspec.to_builtins(topic_from_json(name, settings)))
            for name, settings in (content.get("topicConfigTable") or {}).items()
        ),
        _version("topics", content),
    ]


def _groups(folder: Path) -> list[Change]:
    content = read(folder / GROUPS_FILE)
    if content is None:
        return []
    return [
        *(
            ("groups", name, msgspec.to_builtins(group_from_json(name, settings)))
            for name, settings in (content.get("subscriptionGroupTable") or {}).items()
        ),
        _version("groups", content),
    ]


def _version(of: str, content: Json) -> Change:
    version = content.get("dataVersion") or {}
    value = DataVersion(int(version.get("counter", 0)), int(version.get("timestamp", 0)))
    return ("versions", of, msgspec.to_builtins(value))


def _offsets(folder: Path) -> list[Change]:
    content = read(folder / OFFSETS_FILE) or {}
    return [
        ("offsets", key, {str(int(queue)): int(offset) for queue, offset in queues.items()})
        for key, queues in (content.get("offsetTable") or {}).items()
        if "@" in key
    ]


def _delay(folder: Path) -> list[Change]:
    content = read(folder / DELAY_FILE) or {}
    return [
        ("delay", str(int(level)), int(offset))
        for level, offset in (content.get("offsetTable") or {}).items()
    ]


def _modes(folder: Path) -> list[Change]:
    content = read(folder / MODES_FILE) or {}
    return [
        ("request_modes", cursor_key(group, topic), msgspec.to_builtins(_mode(settings)))
        for topic, groups in (content.get("messageRequestModeMap") or {}).items()
        for group, settings in groups.items()
    ]


def _mode(settings: Mapping[str, Any]) -> RequestMode:
    is_pop = settings.get("mode") == "POP"
    return RequestMode("POP" if is_pop else "PULL", int(settings.get("popShareQueueNum", 0)))


# -- the way back --------------------------------------------------------------------------------


def export(broker: Broker) -> None:
    """Write the five files, so that RocketMQ's own broker can go on with the store.

    Each is next to what it had before as `.bak`.
    """
    topics, groups = broker.topics, broker.groups
    broker.offsets.flush()
    broker.timers.export_checkpoint()
    contents: dict[str, Json] = {
        TOPICS_FILE: {
            "dataVersion": version_to_json(topics.version),
            "topicConfigTable": {each.name: topic_to_json(each) for each in topics.all()},
        },
        GROUPS_FILE: {
            "dataVersion": version_to_json(groups.version),
            "forbiddenTable": {},
            "subscriptionGroupTable": {each.name: group_to_json(each) for each in groups.all()},
        },
        OFFSETS_FILE: {
            "offsetTable": {cursor_key(*cursor): at for cursor, at in broker.offsets.all().items()}
        },
        DELAY_FILE: {
            "offsetTable": {
                level: position for level, (position, _) in broker.delay.progress().items()
            }
        },
        MODES_FILE: {"messageRequestModeMap": _modes_to_json(broker.request_modes.all())},
    }
    for name, content in contents.items():
        text = msgspec.json.format(msgspec.json.encode(content), indent=1).decode()
        if name in (OFFSETS_FILE, DELAY_FILE):
            text = _QUOTED_NUMBER_KEY.sub(r"\1", text)
        _replace(broker.store.folder / "config" / name, text)


def _modes_to_json(modes: Mapping[tuple[str, str], RequestMode]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for (topic, group), mode in modes.items():
        found.setdefault(topic, {})[group] = {
            "consumerGroup": group,
            "mode": mode.mode,
            "popShareQueueNum": mode.share,
            "topic": topic,
        }
    return found


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8")
        if path.exists():
            os.replace(path, path.with_name(path.name + ".bak"))
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}") from error
