"""Options: every mistake is named, with what to do about it."""

import pickle
import ssl

import pytest

from onelog.errors import ConfigError
from onelog.spark.options import NAMES, TopicSelection, read_options, write_options
from onelog.spark.read.boundaries import GROUP, BoundaryKind

ORDERS = {"subscribe": "orders"}


def refusal(**options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_options(options)
    return str(caught.value)


def test_the_least_that_must_be_said_is_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONELOG_NAMESERVER", "ns-1:9876;ns-2:9876")
    found = read_options(ORDERS)
    assert found.link is not None
    assert found.link.nameserver == "ns-1:9876;ns-2:9876"
    assert found.subscription == TopicSelection(topics=("orders",))
    assert (found.start, found.end, found.columns, found.decode) == (None, None, None, None)
    assert found.fail_on_data_loss
    assert not found.commit_offsets
    assert pickle.loads(pickle.dumps(found)) == found


def test_names_are_known_in_any_spelling() -> None:
    found = read_options({"SUBSCRIBE": "a, b,a", "failondataloss": "False", "minPartitions": "7"})
    assert found.subscription.topics == ("a", "b")
    assert not found.fail_on_data_loss
    assert found.partitions_min == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribes": "x"}, ["option subscribes is unknown", "did you mean subscribe?"]),
        ({"starting_offsets": "x"}, ["starting_offsets is unknown", "startingOffsets"]),
        ({"kafka.group.id": "x"}, ["kafka.group.id is unknown", "leave it out"]),
        ({"zzz": "x"}, ["zzz is unknown", "nameserver", "subscribe"]),
        ({"path": "orders"}, ["path", "subscribe", "store"]),
        ({}, ["no topic", "subscribe, subscribePattern and assign"]),
        ({"subscribe": " "}, ["option subscribe is empty"]),
        ({"subscribe": ","}, ["option subscribe names nothing"]),
        ({"subscribe": "a", "assign": "{}"}, ["subscribe and assign exclude each other"]),
        ({"subscribe": "a", "subscribePattern": "b"}, ["exclude each other"]),
        ({"subscribePattern": "a("}, ["subscribePattern", "no regular expression"]),
        ({**ORDERS, "minPartitions": "0"}, ["minPartitions", "from 1 on"]),
        ({**ORDERS, "minPartitions": "many"}, ["minPartitions", "whole number", "many"]),
        ({**ORDERS, "maxOffsetsPerTrigger": "-5"}, ["maxOffsetsPerTrigger", "-5"]),
        ({**ORDERS, "failOnDataLoss": "maybe"}, ["failOnDataLoss", "true or false"]),
        ({**ORDERS, "nameserver": "nowhere"}, ["option nameserver", "host:port"]),
        ({**ORDERS, "accessKey": "me"}, ["accessKey", "secretKey"]),
        ({**ORDERS, "securityToken": "t"}, ["securityToken", "accessKey"]),
        ({**ORDERS, "commitOffsets": "true"}, ["commitOffsets", "group"]),
        ({**ORDERS, "startingOffsets": "group"}, ["startingOffsets", "group"]),
        (
            {**ORDERS, "startingOffsets": "earliest", "startingTimestamp": "-2h"},
            ["startingOffsets and startingTimestamp exclude each other"],
        ),
        ({**ORDERS, "endingOffsets": "earliest"}, ["endingOffsets", "nothing to read"]),
        (
            {**ORDERS, "startingTimestamp": "2000", "endingTimestamp": "1000"},
            ["endingTimestamp", "before startingTimestamp"],
        ),
        ({"store": "/s", "nameserver": "h:1"}, ["nameserver does not go with store"]),
        ({"store": "/s", "group": "g"}, ["group does not go with store"]),
        ({**ORDERS, "onCorruption": "skip"}, ["onCorruption needs the option store"]),
        ({"store": "/s", "onCorruption": "hide"}, ["onCorruption is fail or skip", "hide"]),
        ({**ORDERS, "schema": "a int"}, ["schema needs the option decode"]),
        ({**ORDERS, "decode": "xml"}, ["decode is json or avro or protobuf or string"]),
        (
            {**ORDERS, "decode": "json", "schema": "a int", "schemaFile": "f"},
            ["schema and schemaFile exclude each other"],
        ),
        ({**ORDERS, "decode": "json", "messageType": "M"}, ["messageType", "protobuf"]),
    ],
)
def test_a_mistake_is_refused_by_name(options: dict[str, str], said: list[str]) -> None:
    message = refusal(**options)
    for part in said:
        assert part in message


def test_what_spark_adds_by_itself_is_no_mistake() -> None:
    read_options({**ORDERS, "path": "", "serialization.format": "1"})


def test_a_store_needs_no_topic_and_no_name_server() -> None:
    found = read_options({"store": "/data", "splitBy": "queue", "onCorruption": "skip"})
    assert (found.store, found.link, found.subscription) == ("/data", None, TopicSelection())
    assert (found.split_by, found.on_corruption) == ("queue", "skip")


def test_one_table_can_be_read_and_written() -> None:
    options = {
        "nameserver": "h:1",
        "topic": "orders",
        "minPartitions": "4",
        "delivery": "exactly-once",
    }
    assert read_options(options).subscription.topics == ("orders",)
    assert write_options(options).topic == "orders"
    assert write_options({"nameserver": "h:1", "subscribe": "orders"}).topic == "orders"
    assert write_options({"nameserver": "h:1", "subscribe": "a,b"}).topic is None


def test_a_numbered_batch_names_its_job_and_its_number() -> None:
    options = {"topic": "orders", "txnAppId": "job", "txnVersion": "0"}
    assert write_options(options).transaction == ("job", 0)
    assert write_options({"topic": "orders"}).transaction is None
    for name in ("txnAppId", "txnVersion"):
        with pytest.raises(ConfigError, match=name):
            write_options({key: value for key, value in options.items() if key != name})


def test_a_store_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match="option store is for reading"):
        write_options({"store": "/data", "topic": "t"})


def test_secrets_are_not_shown() -> None:
    found = read_options({**ORDERS, "accessKey": "me", "secretKey": "hidden", "tls": "true"})
    assert found.link is not None
    assert "hidden" not in repr(found)
    options = found.link.client_options()
    assert options["credentials"].secret_key == "hidden"
    assert isinstance(options["tls"], ssl.SSLContext)


def test_a_group_can_be_where_a_query_begins() -> None:
    found = read_options({**ORDERS, "startingOffsets": "group", "group": "g"})
    assert found.start == GROUP
    assert found.group == "g"


def test_a_span_stays_a_span_until_the_query_runs() -> None:
    found = read_options({**ORDERS, "startingOffsets": "-1d12h", "endingTimestamp": "-30m"})
    assert found.start is not None
    assert (found.start.kind, found.start.ms) == (BoundaryKind.AGO, 36 * 3_600_000)
    assert found.start.time_ms(40 * 3_600_000) == 4 * 3_600_000


def test_no_tags_and_every_tag_are_the_same() -> None:
    assert read_options({**ORDERS, "tags": " * "}).tags is None
    assert read_options({**ORDERS, "tags": "a || b"}).tags == ("a", "b")


def test_every_option_says_what_it_is() -> None:
    assert all(NAMES.values())
    assert len({name.lower() for name in NAMES}) == len(NAMES)
