"""Requests about topics: what there are, making, growing and deleting them, and what they hold.

A Kafka topic is a topic, a partition is a queue. Each partition has one broker as its leader and
only replica; of a broker that is alone, itself.
"""

from collections import Counter
from dataclasses import replace
from operator import itemgetter

from onelog.core.catalog.placements import Placement
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import InvalidRequestError, OnelogError, TopicNotFoundError
from onelog.gateways import RefusedError
from onelog.gateways.kafka.cluster.view import Cluster
from onelog.gateways.kafka.configs import check_configs, shown_configs
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.list_offsets import queue_of
from onelog.gateways.kafka.names import (
    NO_ID,
    check_new_topic,
    check_topic,
    listed_topics,
    require_readable,
    require_topic,
    topic_id,
    visible_topics,
)
from onelog.gateways.kafka.session import (
    Handler,
    KafkaSession,
    Request,
    Steps,
    agreed,
    refusal_in,
)
from onelog.message import QUEUE_ID_MAX
from onelog.names import VIEW_TOPICS
from onelog.wire.kafka.codes import ApiKey, ErrorCode
from onelog.wire.kafka.schema import Fields

_ENTRY_BYTES = 20
"""What a message takes in the index of its partition."""


def delete_records(session: KafkaSession, request: Request) -> Steps:
    """DELETE_RECORDS: partitions begin later."""
    broker, principal = session.broker, session.principal
    results = []
    for topic in request.fields["topics"]:
        name = topic["name"]
        partitions = []
        for each in topic["partitions"]:
            yield
            partition = each["partition_index"]
            answer: Fields = {"partition_index": partition, "low_watermark": -1, "error_code": 0}
            with refusal_in(answer):
                session.require_administrator()
                require_topic(broker, principal, name)
                queue_id = queue_of(session, name, partition)
                start = broker.topics.delete_before(principal, name, queue_id, each["offset"])
                answer["low_watermark"] = start
            partitions.append(answer)
        results.append({"name": name, "partitions": partitions})
    return {"topics": results}


def describe_log_dirs(session: KafkaSession, request: Request) -> None:
    """DESCRIBE_LOG_DIRS: one folder with everything.

    Partitions share the log's files. What one takes there is not known; its index is told.
    """
    broker, principal = session.broker, session.principal
    wanted = request.fields["topics"]
    by_topic = (
        {each.name: None for each in visible_topics(broker, principal)}
        if wanted is None
        else {each["topic"]: set(each["partitions"]) for each in wanted}
    )
    there = {name: _here(session, name, some) for name, some in by_topic.items()}

    def find() -> Fields:
        state = broker.admin.log_state(principal)
        topics = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": partition,
                        "partition_size": _ENTRY_BYTES
                        * (
                            broker.topics.max_offset(principal, name, queue_id, rough=True)
                            - broker.topics.min_offset(principal, name, queue_id)
                        ),
                        "offset_lag": 0,
                        "is_future_key": False,
                    }
                    for partition, queue_id in numbers.items()
                ],
            }
            for name, numbers in there.items()
        ]
        return {"results": [{"error_code": 0, "log_dir": str(state.folder), "topics": topics}]}

    session.look_up(request, find)


def _here(session: KafkaSession, topic: str, some: set[int] | None) -> dict[int, int]:
    """The partitions of a topic that this broker has, all or of some, and their queues."""
    config, cluster = session.broker.topics.find(session.principal, topic), session.gateway.cluster
    found: dict[int, int] = {}
    for queue_id in range(0 if config is None else config.queues):
        partition = cluster.partition(topic, queue_id)
        if partition is not None and (some is None or partition in some):
            found[partition] = queue_id
    return found


_ALL_OPERATIONS = 0xDF8
"""Of a topic: read, write, create, delete, alter, describe, and those with configs."""
_CLUSTER_OPERATIONS = 0x1FA0
_PAGE_PARTITIONS_MAX = 2_000


_Described = dict[frozenset[tuple[str, str]], list[Fields]]
"""Settings as they are told, by those that were given: most topics of a request have the same.
"""


# -- asking ------------------------------------------------------------------------------------


def metadata(session: KafkaSession, request: Request) -> Steps:
    """METADATA: the broker, and topics; one that is not there is made, if both sides agree."""
    fields, version = request.fields, request.version
    cluster, wanted = session.gateway.cluster, fields["topics"]
    topics: list[Fields] = []
    if wanted is None or (version == 0 and not wanted):
        for config in listed_topics(session.broker, session.principal):
            topics.append(_described(cluster, config))
            yield
    else:
        may_create = fields.get("allow_auto_topic_creation", True)
        for each in {(each["name"], each.get("topic_id")): each for each in wanted}.values():
            topics.append(_topic(session, each, may_create))
            yield
        if version < 12:
            for each in topics:
                each["name"] = each["name"] or ""  # Before, a name could not be missing.
    if fields.get("include_topic_authorized_operations"):
        for each in topics:
            if not each["error_code"]:
                each["topic_authorized_operations"] = session.operations(
                    "topic", each["name"], _ALL_OPERATIONS
                )
    answer: Fields = {
        "brokers": cluster.endpoints(),
        "cluster_id": session.broker.admin.config.cluster,
        "controller_id": cluster.controller_id,
        "topics": topics,
    }
    if fields.get("include_cluster_authorized_operations"):
        answer["cluster_authorized_operations"] = session.operations(
            "broker", session.broker.admin.config.name, _CLUSTER_OPERATIONS
        )
    return answer


def _topic(session: KafkaSession, wanted: Fields, may_create: bool) -> Fields:
    name, id_ = wanted["name"], wanted.get("topic_id", NO_ID)
    if name is None:
        name = session.gateway.ids.name_of(id_)
        if name is None:
            return {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": id_}
    try:
        return _described(session.gateway.cluster, _found_or_made(session, name, may_create))
    except OnelogError as error:
        # Who asks by id does not learn the name.
        results = {"name": name, "topic_id": NO_ID} if wanted["name"] else {"name": None, **wanted}
        return {**results, "error_code": error_code(error)}


def _found_or_made(session: KafkaSession, name: str, may_create: bool) -> TopicConfig:
    broker, principal = session.broker, session.principal
    check_topic(name)
    try:
        return require_readable(broker, principal, name)
    except TopicNotFoundError:
        if (
            not may_create
            or not broker.admin.config.auto_create_topics
            or session.gateway.cluster.follows
        ):
            raise
    check_new_topic(name)
    queues = session.gateway.context.loaded.config.kafka.topic_partitions
    _make(session, TopicConfig(name, queues, queues), [], {})
    return require_topic(broker, principal, name)


def _described(cluster: Cluster, config: TopicConfig) -> Fields:
    leaders = {node: _leader(cluster, node) for node in set(cluster.leaders(config))}
    return {
        "error_code": 0,
        "name": config.name,
        "topic_id": topic_id(config),
        "is_internal": config.name in VIEW_TOPICS,
        "partitions": [
            {**leaders[node], "partition_index": each}
            for each, node in enumerate(cluster.leaders(config))
        ],
    }


def _leader(cluster: Cluster, node: int) -> Fields:
    found: Fields = {"eligible_leader_replicas": [], "last_known_elr": []}
    if node not in cluster.live and not (cluster.follows and node >= 0):
        return found | {
            "error_code": ErrorCode.LEADER_NOT_AVAILABLE,
            "leader_id": -1,
            "leader_epoch": -1,
            "replica_nodes": [node],
            "isr_nodes": [],
            "offline_replicas": [node],
        }
    leader = {"error_code": 0, "leader_id": node, "leader_epoch": cluster.leader_epoch}
    return found | leader | cluster.copies(node)


def describe_topic_partitions(session: KafkaSession, request: Request) -> Steps:
    """DESCRIBE_TOPIC_PARTITIONS: the same in pages, by name and partition."""
    fields, cursor = request.fields, request.fields["cursor"]
    names = sorted({each["name"] for each in fields["topics"]}) or sorted(
        each.name for each in listed_topics(session.broker, session.principal)
    )
    room = max(1, min(fields["response_partition_limit"], _PAGE_PARTITIONS_MAX))
    results: list[Fields] = []
    for name in names:
        yield
        begin = 0
        if cursor is not None:
            if name < cursor["topic_name"]:
                continue
            if name == cursor["topic_name"]:
                begin = max(0, cursor["partition_index"])
        if room <= 0:
            return {
                "topics": results,
                "next_cursor": {"topic_name": name, "partition_index": begin},
            }
        topic = _topic(session, {"name": name}, may_create=False)
        partitions = topic.get("partitions", [])[begin:]
        results.append({**topic, "partitions": partitions[:room]})
        if len(partitions) > room:
            queue_id = {"topic_name": name, "partition_index": begin + room}
            return {"topics": results, "next_cursor": queue_id}
        room -= len(partitions)
    return {"topics": results}


def elect_leaders(session: KafkaSession, request: Request) -> Steps:
    """ELECT_LEADERS: every partition has its leader, the only one that it can have."""
    wanted = request.fields["topic_partitions"] or []
    results = []
    for topic in wanted:
        yield
        config = session.broker.topics.find(session.principal, topic["topic"])
        queues = 0 if config is None else session.gateway.cluster.partitions(config)
        results.append(
            {
                "topic": topic["topic"],
                "partition_result": [
                    {
                        "partition_id": each,
                        "error_code": ErrorCode.ELECTION_NOT_NEEDED
                        if 0 <= each < queues
                        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        "error_message": None,
                    }
                    for each in topic["partitions"]
                ],
            }
        )
    return {"error_code": 0, "replica_election_results": results}


def describe_cluster(session: KafkaSession, request: Request) -> Fields:
    cluster = session.gateway.cluster
    answer: Fields = {
        "cluster_id": session.broker.admin.config.cluster,
        "controller_id": cluster.controller_id,
        "brokers": [
            {"broker_id": each.node_id, "host": each.host, "port": each.port}
            for each in cluster.brokers()
        ],
    }
    if request.fields["include_cluster_authorized_operations"]:
        answer["cluster_authorized_operations"] = session.operations(
            "broker", session.broker.admin.config.name, _CLUSTER_OPERATIONS
        )
    return answer


def list_partition_reassignments(session: KafkaSession, request: Request) -> Fields:
    """LIST_PARTITION_REASSIGNMENTS: partitions stay where they are."""
    return {"error_code": 0, "error_message": None, "topics": []}


def describe_client_quotas(session: KafkaSession, request: Request) -> Fields:
    """DESCRIBE_CLIENT_QUOTAS: nobody has one."""
    return {"error_code": 0, "error_message": None, "entries": []}


def alter_client_quotas(session: KafkaSession, request: Request) -> Steps:
    """ALTER_CLIENT_QUOTAS: refused, because nothing would follow from a quota."""
    results = []
    for entry in request.fields["entries"]:
        yield
        answer: Fields = {"error_code": 0, "error_message": None, "entity": entry["entity"]}
        with refusal_in(answer):
            session.require_administrator()
            if names := [each["key"] for each in entry["ops"] if not each["remove"]]:
                raise InvalidRequestError(f"{names[0]}: clients have no quotas here")
        results.append(answer)
    return {"entries": results}


# -- changing ----------------------------------------------------------------------------------


def create_topics(session: KafkaSession, request: Request) -> Steps:
    wanted_topics, results = _named_once(request.fields["topics"])
    described: _Described = {}
    for wanted in wanted_topics:
        yield
        answer: Fields = {"name": wanted["name"], "error_code": 0, "error_message": None}
        with refusal_in(answer):
            _create(session, wanted, request.fields["validate_only"], answer, described)
        results.append(answer)
    return {"topics": results}


def _named_once(topics: list[Fields]) -> tuple[list[Fields], list[Fields]]:
    """Those that a request names once; and the answers for those that it names again."""
    keys = [each["name"] or each.get("topic_id") for each in topics]
    counts = Counter(keys)
    again: dict[object, Fields] = {}
    for each, key in zip(topics, keys, strict=True):
        if counts[key] > 1:
            again[key] = {
                "name": each["name"],
                "topic_id": each.get("topic_id", NO_ID),
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": "Duplicate topic name.",
            }
    return [each for each, key in zip(topics, keys, strict=True) if key not in again], list(
        again.values()
    )


def _create(
    session: KafkaSession,
    wanted: Fields,
    validate_only: bool,
    answer: Fields,
    described: _Described,
) -> None:
    broker, principal, name = session.broker, session.principal, wanted["name"]
    session.require_administrator()
    check_new_topic(name)
    if broker.topics.find(principal, name) is not None or name in VIEW_TOPICS:
        raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    count, copies, placed = (
        wanted["num_partitions"],
        wanted["replication_factor"],
        wanted["assignments"],
    )
    nodes: list[int] = []
    replicas = session.gateway.context.loaded.config.replication.replicas
    if placed:
        _check_placement(session, placed, count, copies)
        placed = sorted(placed, key=itemgetter("partition_index"))
        nodes = [each["broker_ids"][0] for each in placed]
        count = len(placed)
    else:
        if copies != -1 and not 1 <= copies <= replicas:
            reason = f"a replication factor of {copies}; each partition is on {replicas} nodes"
            raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
        if count == -1:
            count = session.gateway.context.loaded.config.kafka.topic_partitions
    if not 0 < count <= QUEUE_ID_MAX + 1:
        reason = f"{count} partitions; a topic has 1 to {QUEUE_ID_MAX + 1}"
        raise RefusedError(ErrorCode.INVALID_PARTITIONS, reason)
    given = {each["name"]: each["value"] for each in wanted["configs"]}
    attributes = check_configs(given)
    config = TopicConfig(name, count, count, attributes=attributes)
    if not validate_only:
        answer["topic_id"] = topic_id(_make(session, config, nodes, answer))
    shown = described.get(frozenset(attributes.items()))
    if shown is None:
        shown = described[frozenset(attributes.items())] = [
            {"name": each.name, "value": each.value, "config_source": each.source}
            for each in shown_configs(config, session.gateway.context.loaded.config)
        ]
    answer |= {"num_partitions": count, "replication_factor": replicas, "configs": shown}


def _make(
    session: KafkaSession, config: TopicConfig, nodes: list[int], results: Fields
) -> TopicConfig:
    """Create a topic, on these brokers or any; in a cluster, all have to agree first."""
    broker, cluster = session.broker, session.gateway.cluster
    if cluster.is_alone:
        broker.topics.create(session.principal, config)
        return broker.topics.require(session.principal, config.name)
    config = replace(config, created_ms=session.gateway.clock.now_ms())
    placement = Placement(config.created_ms, [], config.attributes)
    if nodes:
        placement = placement.grown_to(nodes)
    else:
        placement = placement.grown(config.queues, cluster.round(config.name))
    cluster.propose(config.name, placement, results)
    return config


def _check_placement(session: KafkaSession, placed: list[Fields], count: int, copies: int) -> None:
    """`RefusedError` for an assignment of partitions to brokers that cannot be."""
    if count != -1 or copies != -1:
        reason = "partitions are either counted or assigned, not both"
        raise RefusedError(ErrorCode.INVALID_REQUEST, reason)
    numbers = sorted(each["partition_index"] for each in placed)
    if numbers != list(range(len(placed))):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions do not follow 0, 1, ..."
        )
    _check_brokers(session, placed)


def _check_brokers(session: KafkaSession, placed: list[Fields]) -> None:
    """`RefusedError` unless each of these partitions is to be on one broker that is there."""
    live = session.gateway.cluster.live
    if all(len(each["broker_ids"]) == 1 and live.issuperset(each["broker_ids"]) for each in placed):
        return
    known = ", ".join(map(str, sorted(live)))
    reason = f"a partition is assigned to others than one of the brokers {known}"
    raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def create_partitions(session: KafkaSession, request: Request) -> Steps:
    """CREATE_PARTITIONS: topics only grow."""
    wanted_topics, results = _named_once(request.fields["topics"])
    for wanted in wanted_topics:
        yield
        answer: Fields = {"name": wanted["name"], "error_code": 0, "error_message": None}
        with refusal_in(answer):
            _grow(session, wanted, request.fields["validate_only"], answer)
        results.append(answer)
    return {"results": results}


def _grow(session: KafkaSession, wanted: Fields, validate_only: bool, results: Fields) -> None:
    broker, principal, count = session.broker, session.principal, wanted["count"]
    session.require_administrator()
    config, cluster = require_topic(broker, principal, wanted["name"]), session.gateway.cluster
    before = cluster.partitions(config)
    if not before < count <= QUEUE_ID_MAX + 1:
        reason = f"topic {config.name} has {before} partitions: it cannot have {count} then"
        raise RefusedError(ErrorCode.INVALID_PARTITIONS, reason)
    placed = wanted["assignments"]
    if placed is not None:
        if len(placed) != count - before:
            reason = f"{len(placed)} assignments for {count - before} new partitions"
            raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
        _check_brokers(session, placed)
    if validate_only:
        return
    if cluster.is_alone:
        grown = replace(config, read_queues=count, write_queues=count)
        broker.topics.create(principal, grown)
        return
    placement = cluster.placed[config.name].placement
    if placed is not None:
        placement = placement.grown_to([each["broker_ids"][0] for each in placed])
    else:
        # They go on where the last ones ended.
        nodes = cluster.round(config.name)
        first = before % len(nodes)
        placement = placement.grown(count - before, nodes[first:] + nodes[:first])
    cluster.propose(config.name, placement, results)


def delete_topics(session: KafkaSession, request: Request) -> Steps:
    """DELETE_TOPICS, by name or by id."""
    broker, principal = session.broker, session.principal
    fields = request.fields
    wanted = fields.get("topics") or [{"name": each} for each in fields.get("topic_names", ())]
    wanted, results = _named_once(wanted)
    for each in wanted:
        yield
        name, id_ = each["name"], each.get("topic_id", NO_ID)
        by_id = name is None
        answer: Fields = {"name": name, "topic_id": id_, "error_code": 0, "error_message": None}
        with refusal_in(answer):
            session.require_administrator()
            if by_id:
                name = answer["name"] = session.gateway.ids.name_of(id_)
            if name is None:
                answer["error_code"] = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                config = require_topic(broker, principal, name)
                answer["topic_id"] = topic_id(config)
                if session.gateway.cluster.is_alone:
                    broker.topics.delete(principal, name)
                else:
                    gone = Placement(config.created_ms, [], {}, session.gateway.clock.now_ms())
                    session.gateway.cluster.propose(name, gone, answer)
        results.append(answer)
    return {"responses": results}


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.METADATA: agreed(metadata, again=True),
    ApiKey.DESCRIBE_CLUSTER: agreed(describe_cluster),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: agreed(describe_topic_partitions),
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.CREATE_TOPICS: agreed(create_topics),
    ApiKey.CREATE_PARTITIONS: agreed(create_partitions),
    ApiKey.DELETE_TOPICS: agreed(delete_topics),
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}
