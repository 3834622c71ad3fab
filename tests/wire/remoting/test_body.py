import importlib
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onelog
from onelog.errors import WireError
from onelog.wire.remoting.body import Body, MessageQueue
from onelog.wire.remoting.clients import HeartbeatData, LockRequest
from onelog.wire.remoting.registration import RegisterBrokerBody
from onelog.wire.remoting.routes import TopicRouteData
from onelog.wire.remoting.stats import ConsumeStats


def test_members_that_are_missing_null_or_unknown_do_no_harm() -> None:
    queue = MessageQueue.decode(b'{"topic":"t","brokerName":null,"what":[1]}')
    assert queue == MessageQueue(topic="t")


def test_texts_are_taken_for_numbers_as_fastjson_does() -> None:
    assert MessageQueue.decode(b"{queueId:'3'}") == MessageQueue(queue_id=3)


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b'{"queueId":"x"}', b'{"queueId":{}}', b"\xff"])
def test_what_is_no_such_body_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        MessageQueue.decode(data)


@pytest.mark.parametrize("quote", ['"', "'"])
def test_references_in_a_heartbeat_are_followed_whether_it_is_plain_json_or_not(
    quote: str,
) -> None:
    body = """
        {"clientID":"c","consumerDataSet":[
            {"groupName":"g","subscriptionDataSet":[{"topic":"t","subString":"a","tagsSet":["a"]}]},
            {"groupName":"h","subscriptionDataSet":[
                {"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}]}
    """.replace('"', quote)
    first, second = HeartbeatData.decode(memoryview(body.encode())).consumer_data_set
    assert first.subscription_data_set == second.subscription_data_set
    assert second.subscription_data_set[0].topic == "t"


def test_an_answer_may_be_longer_than_a_request() -> None:
    queues = ",".join(f"{{'brokerName':'b','queueId':{i},'topic':'t'}}:{{}}" for i in range(5_000))
    body = f"{{'offsetTable':{{{queues}}}}}".encode()
    assert len(ConsumeStats.decode_answer(body).offset_table) == 5_000
    with pytest.raises(WireError, match="more than 16000 keys and values"):
        ConsumeStats.decode(body)


@pytest.mark.parametrize("quote", ['"', "'"])
def test_numbers_that_would_share_a_hash_are_no_queue_ids_and_no_keys(quote: str) -> None:
    same = [str(1 + index * (2**61 - 1)) for index in range(3)]
    queues = ",".join(f'{{"queueId":{each}}}' for each in same)
    brokers = ",".join(f'"{each}":"a"' for each in same)
    for kind, text in (
        (LockRequest, f'{{"mqSet":[{queues}]}}'),
        (TopicRouteData, f'{{"brokerDatas":[{{"brokerAddrs":{{{brokers}}}}}]}}'),
    ):
        with pytest.raises(WireError, match="2147483647"):
            kind.decode(text.replace('"', quote).encode())


def test_views_are_read_too() -> None:
    assert MessageQueue.decode(memoryview(b'{"topic":"t"}')).topic == "t"


@given(
    st.sampled_from([MessageQueue, HeartbeatData, ConsumeStats, RegisterBrokerBody]),
    st.binary(max_size=30)
    | st.text('{}[]:,"topicConsumerDataSet0179.eE-', max_size=40).map(str.encode)
    | st.integers(1, 100_000).map(lambda depth: b'{"a":' * depth),
)
def test_garbage_raises_wire_error_and_nothing_else(kind: type[Body], data: bytes) -> None:
    try:
        kind.decode(data)
    except WireError:
        pass


SOURCE = Path(onelog.__file__).parent
ANSWERS = {"TopicRouteData", "ConsumerStatus", "KvTables"}
"""What is decoded there and comes from a name server, a client that was asked, or a file."""


def bodies_decoded_in(package: str) -> dict[str, type[Body]]:
    """The bodies that the modules of a package decode, by name."""
    found = {}
    for path in (SOURCE / package).rglob("*.py"):
        names = re.findall(r"\b([A-Z]\w+)\.decode(?:_request)?\(", path.read_text("utf-8"))
        place = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
        module = importlib.import_module(f"onelog.{place}")
        for name in names:
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, Body):
                found[kind.__name__] = kind
    return found


def unbounded(kind: msgspec.inspect.Type, where: str) -> list[str]:
    """The texts in a type that may be of any length."""
    match kind:
        case msgspec.inspect.StrType():
            return [] if kind.max_length else [where]
        case msgspec.inspect.ListType():
            return unbounded(kind.item_type, where)
        case msgspec.inspect.DictType():
            return unbounded(kind.key_type, where) + unbounded(kind.value_type, where)
        case msgspec.inspect.UnionType():
            return [each for member in kind.types for each in unbounded(member, where)]
        case msgspec.inspect.StructType():
            return [
                each
                for field in kind.fields
                for each in unbounded(field.type, f"{kind.cls.__name__}.{field.name}")
            ]
        case _:
            return []


def test_every_text_in_the_body_of_a_request_is_bounded() -> None:
    asked = bodies_decoded_in("gateways/remoting") | bodies_decoded_in("nameserver")
    asked = {name: kind for name, kind in asked.items() if name not in ANSWERS}
    assert {"HeartbeatData", "LockRequest", "TopicConfigList", "RequestMode"} <= asked.keys()
    kinds = [*asked.values(), RegisterBrokerBody]
    found = [each for kind in kinds for each in unbounded(msgspec.inspect.type_info(kind), "")]
    assert found == []
