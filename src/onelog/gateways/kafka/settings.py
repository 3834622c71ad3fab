"""Requests about settings of topics and groups, and what is told of the broker's own."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from onelog.core.catalog.topics import TopicConfig
from onelog.errors import ConfigError, InvalidRequestError
from onelog.gateways.kafka.configs import (
    BROKER_SOURCE,
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    TOPIC_CONFIGS,
    ConfigType,
    Shown,
    attribute,
    check_configs,
    shown_configs,
)
from onelog.gateways.kafka.groups.group_settings import (
    GROUP,
    GROUP_CONFIGS,
    alter_group,
    shown_group_configs,
)
from onelog.gateways.kafka.kept_settings import BROKERS, KEPT, METRICS, alter_broker, alter_metrics
from onelog.gateways.kafka.names import require_readable, require_topic, visible_topics
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps, agreed, refusal_in
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

TOPIC, BROKER, CLIENT_METRICS = 2, 4, 16
"""Kafka's numbers for what settings are of."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""What is done to a setting."""

Changes = Callable[[Mapping[str, str], Fields], dict[str, str | None]]
"""Which settings of those that something has a request changes, and to what; None: a default."""


def describe_configs(session: KafkaSession, request: Request) -> Steps:
    results = []
    known: dict[tuple[int, str, frozenset[str] | None], Fields] = {}
    for resource in request.fields["resources"]:
        yield
        named = resource["configuration_keys"]
        wanted = None if named is None else frozenset(named)
        key = resource["resource_type"], resource["resource_name"], wanted
        if key in known:
            results.append(known[key])
            continue
        answer: Fields = {
            "error_code": 0,
            "error_message": None,
            "resource_type": resource["resource_type"],
            "resource_name": resource["resource_name"],
            "configs": [],
        }
        with refusal_in(answer):
            answer["configs"] = [
                _described(each, request.fields)
                for each in _shown(session, resource)
                if wanted is None or each.name in wanted
            ]
        known[key] = answer
        results.append(answer)
    return {"results": results}


def _shown(session: KafkaSession, resource: Fields) -> list[Shown]:
    kind, name = resource["resource_type"], resource["resource_name"]
    loaded = session.gateway.context.loaded.config
    if kind == TOPIC:
        return shown_configs(require_readable(session.broker, session.principal, name), loaded)
    if kind == BROKER:
        node_id = session.gateway.cluster.node_id
        if name not in ("", str(node_id)):
            raise InvalidRequestError(f"this is not broker {name!r}, but {node_id}")
        session.broker.users.check(session.principal, "describe", ("broker", "names"))
        return session.gateway.kept_settings.shown(name)
    if kind == CLIENT_METRICS:
        session.broker.users.check(session.principal, "describe", ("broker", "names"))
        return session.gateway.kept_settings.shown_metrics(name)
    if kind == GROUP:
        group = session.broker.groups.find(session.principal, name)
        return shown_group_configs(group, loaded.kafka)
    raise InvalidRequestError(f"settings of kind {kind} are unknown here")


def _described(shown: Shown, fields: Fields) -> Fields:
    results: Fields = {
        "name": shown.name,
        "value": shown.value,
        "read_only": shown.read_only,
        "config_source": shown.source,
        "is_sensitive": False,
        "config_type": shown.kind,
        "documentation": None,
    }
    if fields.get("include_synonyms"):
        results["synonyms"] = [{"name": shown.name, "value": shown.value, "source": shown.source}]
        if shown.source not in (DEFAULT_SOURCE, BROKER_SOURCE, CLUSTER_SOURCE):
            results["synonyms"].append(
                {"name": shown.name, "value": shown.default, "source": DEFAULT_SOURCE}
            )
    return results


def alter_configs(session: KafkaSession, request: Request) -> Steps:
    """ALTER_CONFIGS: those that are named, and no others."""

    def changed(known: Mapping[str, str], resource: Fields) -> dict[str, str | None]:
        names = {TOPIC: tuple(TOPIC_CONFIGS), GROUP: tuple(GROUP_CONFIGS)}.get(
            resource["resource_type"], tuple(known)
        )
        wanted: dict[str, str | None] = {name: None for name in names if attribute(name) in known}
        given = {each["name"]: _given(each["name"], each["value"]) for each in resource["configs"]}
        if len(given) < len(resource["configs"]):
            raise InvalidRequestError("a setting is named twice")
        return wanted | given

    return _altered(session, request, changed)


def incremental_alter_configs(session: KafkaSession, request: Request) -> Steps:
    """INCREMENTAL_ALTER_CONFIGS: set, reset, add to lists, take from lists."""
    return _altered(session, request, _changes)


def _changes(given: Mapping[str, str], resource: Fields) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {}
    for each in resource["configs"]:
        name, operation, value = each["name"], each["config_operation"], each["value"]
        if name in wanted:
            raise InvalidRequestError(f"{name} is named twice")
        if operation == DELETE:
            wanted[name] = None
        elif operation == SET:
            wanted[name] = _given(name, value)
        elif operation in (APPEND, SUBTRACT) and (default := _list_default(name)) is not None:
            known = given.get(attribute(name), default)
            words = [word for word in known.split(",") if word]
            some = (value or "").split(",")
            words = [word for word in words if word not in some]
            wanted[name] = ",".join(words + some if operation == APPEND else words)
        else:
            raise ConfigError(f"operation {operation} is not for {name}")
    return wanted


def _list_default(name: str) -> str | None:
    """The default of a setting that is a list of words; None for others."""
    setting = TOPIC_CONFIGS.get(name) or KEPT.get(name)
    return setting.default if setting is not None and setting.kind == ConfigType.LIST else None


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequestError(f"{name} is set to nothing (null)")
    return value


def _altered(session: KafkaSession, request: Request, changes: Changes) -> Steps:
    results = []
    resources = request.fields["resources"]
    counts = Counter((each["resource_type"], each["resource_name"]) for each in resources)
    for resource in resources:
        yield
        kind, name = resource["resource_type"], resource["resource_name"]
        answer: Fields = {
            "error_code": 0,
            "error_message": None,
            "resource_type": kind,
            "resource_name": name,
        }
        with refusal_in(answer):
            session.require_administrator()
            if counts[kind, name] > 1:
                raise InvalidRequestError(f"{name!r} is named twice in one request")
            is_trial = request.fields["validate_only"]
            if kind == GROUP:
                group = session.broker.groups.find(session.principal, name)
                given = {} if group is None else group.attributes
                alter_group(session, name, changes(given, resource), is_trial, answer)
            elif kind == TOPIC:
                topic = require_topic(session.broker, session.principal, name)
                _alter(session, topic, changes(topic.attributes, resource), is_trial, answer)
            elif kind in (BROKER, CLIENT_METRICS):
                prefix, alter = (
                    (BROKERS, alter_broker) if kind == BROKER else (METRICS, alter_metrics)
                )
                given = session.gateway.kept_settings.given(prefix + name)
                alter(session, name, changes(given, resource), is_trial, answer)
            else:
                raise InvalidRequestError(f"settings of kind {kind} cannot be changed here")
        results.append(answer)
    return {"responses": results}


def _alter(
    session: KafkaSession,
    topic: TopicConfig,
    wanted: Mapping[str, str | None],
    is_trial: bool,
    results: Fields,
) -> None:
    given = check_configs({name: value for name, value in wanted.items() if value is not None})
    for name in wanted:
        if name not in TOPIC_CONFIGS:
            raise ConfigError(f"Kafka's topics have no setting {name!r}")
    changed = set(map(attribute, wanted))
    kept = {name: value for name, value in topic.attributes.items() if name not in changed}
    cluster = session.gateway.cluster
    if not is_trial and cluster.is_alone:
        altered = replace(topic, attributes=kept | given)
        session.broker.topics.create(session.principal, altered)
    elif not is_trial:
        placement = replace(cluster.placed[topic.name].placement, attributes=kept | given)
        cluster.propose(topic.name, placement, results)


def list_config_resources(session: KafkaSession, request: Request) -> Steps:
    """LIST_CONFIG_RESOURCES: what has settings; version 0 asks for those of clients' metrics."""
    kinds = request.fields.get("resource_types", [CLIENT_METRICS]) or [
        TOPIC,
        BROKER,
        CLIENT_METRICS,
        GROUP,
    ]
    found: list[Fields] = []
    yield
    if TOPIC in kinds:
        found += [
            {"resource_name": each.name, "resource_type": TOPIC}
            for each in visible_topics(session.broker, session.principal)
        ]
    if GROUP in kinds:
        _, groups = session.broker.groups.all(session.principal)
        found += [
            {"resource_name": each.name, "resource_type": GROUP}
            for each in groups
            if not GROUP_CONFIGS.keys().isdisjoint(each.attributes)
        ]
    if BROKER in kinds:
        found += [
            {"resource_name": str(each.node_id), "resource_type": BROKER}
            for each in session.gateway.cluster.brokers()
        ]
    may, principal = session.broker.users.may, session.principal
    if CLIENT_METRICS in kinds and may(principal, "describe", ("broker", "names")):
        found += [
            {"resource_name": each, "resource_type": CLIENT_METRICS}
            for each in session.gateway.kept_settings.metrics()
        ]
    return {"error_code": 0, "config_resources": found}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DESCRIBE_CONFIGS: agreed(describe_configs),
    ApiKey.ALTER_CONFIGS: agreed(alter_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: agreed(incremental_alter_configs),
    ApiKey.LIST_CONFIG_RESOURCES: agreed(list_config_resources),
}
