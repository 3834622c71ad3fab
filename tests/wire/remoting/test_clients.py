from onelog.wire.remoting.body import MessageQueue
from onelog.wire.remoting.clients import (
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
    CheckClientRequest,
    Connection,
    ConsumerConnection,
    ConsumerList,
    HeartbeatData,
    LockAnswer,
    LockRequest,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    RequestMode,
    SubscriptionData,
)
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import RemotingFrameReader
from tests.wire.remoting import captured

QUEUE = MessageQueue(broker_name="b", queue_id=1, topic="t")


def read(stream: bytes) -> Command:
    reader = RemotingFrameReader()
    reader.feed(stream)
    (command,) = reader.commands()
    return command


def test_a_real_heartbeat_is_read_and_written_the_same() -> None:
    command = read(captured.HEARTBEAT_JSON_498)
    heartbeat = HeartbeatData.decode(command.body)
    (consumer,) = heartbeat.consumer_data_set
    assert heartbeat.client_id == "192.0.2.2@28350#2646244728064"
    assert (consumer.group_name, consumer.consume_type) == ("g1", "CONSUME_PASSIVELY")
    assert {s.topic: s.sub_string for s in consumer.subscription_data_set} == {
        "%RETRY%g1": "*",
        "t1": "tagA || tagB",
    }
    # 4.9.8 knows neither of the two fields of 5.x; the rest is the same.
    assert heartbeat.encode().replace(b'"heartbeatFingerprint":0,', b"").replace(
        b',"withoutSub":false', b""
    ) == bytes(command.body)


def test_a_heartbeat_of_5_x_is_written_the_same() -> None:
    body = (
        b'{"clientID":"id","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
        b'{"classFilterMode":false,"codeSet":[65],"expressionType":"TAG","subString":"A||B",'
        b'"subVersion":1794761179589,"tagsSet":["A"],"topic":"t"}],"unitMode":false}],'
        b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
    )
    assert HeartbeatData.decode(body).encode() == body


def test_a_real_request_to_lock_is_read() -> None:
    request = LockRequest.decode(read(captured.LOCK_JSON_550).body)
    assert request.consumer_group == "g1"
    assert request.mq_set == [MessageQueue(broker_name="broker-a", queue_id=0, topic="%RETRY%g1")]


def test_answers_have_the_names_that_clients_read() -> None:
    assert ConsumerList(consumer_id_list=["a"]).encode() == b'{"consumerIdList":["a"]}'
    assert LockAnswer(lock_ok_mq_set=[QUEUE]).encode() == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":1,"topic":"t"}]}'
    )
    connection = Connection(client_id="i", client_addr="a")
    assert ProducerConnection(connection_set=[connection]).encode() == (
        b'{"connectionSet":[{"clientAddr":"a","clientId":"i","language":"JAVA","version":0}]}'
    )
    producer = ProducerInfo(client_id="i", remote_ip="1.1.1.1")
    assert ProducerTable(data={"g": [producer]}).encode() == (
        b'{"data":{"g":[{"clientId":"i","language":"JAVA","lastUpdateTimestamp":0,'
        b'"remoteIP":"1.1.1.1","version":0}]}}'
    )


def test_consumer_connections_are_written_as_rocketmq_writes_them() -> None:
    subscription = SubscriptionData(
        sub_string="A||B", tags_set=["A"], code_set=[65], sub_version=1794761179589, topic="t"
    )
    connection = ConsumerConnection(
        connection_set=[Connection(client_id="i", client_addr="a")],
        subscription_table={"t": subscription},
    )
    assert connection.encode() == (
        b'{"connectionSet":[{"clientAddr":"a","clientId":"i","language":"JAVA","version":0}],'
        b'"subscriptionTable":{"t":{"classFilterMode":false,"codeSet":[65],"expressionType":"TAG",'
        b'"subString":"A||B","subVersion":1794761179589,"tagsSet":["A"],"topic":"t"}}}'
    )
    assert ConsumerConnection.decode(connection.encode()) == connection


def test_assignments_survive_the_round_trip() -> None:
    answer = AssignmentAnswer(message_queue_assignments=[Assignment(message_queue=QUEUE)])
    assert AssignmentAnswer.decode(answer.encode()) == answer
    request = AssignmentRequest(topic="t", consumer_group="g", client_id="i", strategy_name="AVG")
    assert AssignmentRequest.decode(request.encode()) == request
    assert RequestMode.decode(b'{"mode":"POP","topic":"t"}') == RequestMode(mode="POP", topic="t")


def test_a_subscription_to_check_may_be_missing() -> None:
    assert CheckClientRequest.decode(b'{"clientId":"i"}').subscription_data is None
