"""Requests about what partitions hold: deleting their first messages, and the space they take."""

from onelog.errors import OnelogError
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.list_offsets import queue_of
from onelog.gateways.kafka.names import require_topic, visible_topics
from onelog.gateways.kafka.session import Handler, KafkaSession, Request, Steps
from onelog.wire.kafka.codes import ApiKey
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
            try:
                session.require_administrator()
                require_topic(broker, principal, name)
                queue_id = queue_of(session, name, partition)
                start = broker.topics.delete_before(principal, name, queue_id, each["offset"])
                answer["low_watermark"] = start
            except OnelogError as error:
                answer["error_code"] = error_code(error)
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


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}
