"""Direct reply-to: answers that are never stored."""

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from onelog.gateways.amqp.replies import REPLY_TO
from tests.gateways.amqp.live import channel, connected, got, name, url
from tests.waiting import wait_until

__all__ = ["channel", "url"]


def test_an_answer_comes_back(channel: BlockingChannel, url: str) -> None:
    answers: list[tuple[str | None, bytes]] = []
    channel.basic_consume(
        REPLY_TO, lambda *told: answers.append((told[2].correlation_id, told[3])), auto_ack=True
    )
    with connected(url) as connection:
        server = connection.channel()
        queue = name(server, exclusive=False)
        properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id="c1")
        channel.basic_publish("", queue, b"question", properties)
        _, found, body = got(server, queue)
        assert body == b"question"
        assert found.reply_to.startswith(REPLY_TO + ".")
        assert server.queue_declare(found.reply_to, passive=True).method.message_count == 0
        same = pika.BasicProperties(correlation_id=found.correlation_id)
        server.basic_publish("", found.reply_to, b"answer", same)
        wait_until(lambda: channel.connection.process_data_events(0.01) or answers)
        assert answers == [("c1", b"answer")]
        server.queue_delete(queue)
        channel.close()
        # Nobody waits there any more.
        server.confirm_delivery()
        server.basic_publish("", found.reply_to, b"late")


@pytest.mark.parametrize(
    ("tags", "auto_ack", "text"),
    [(("a",), False, "reply consumer cannot acknowledge"), (("a", "b"), True, "already set")],
)
def test_there_is_one_consumer_of_answers_and_it_does_not_acknowledge(
    channel: BlockingChannel, tags: tuple[str, ...], auto_ack: bool, text: str
) -> None:
    for tag in tags[:-1]:
        channel.basic_consume(REPLY_TO, print, auto_ack=auto_ack, consumer_tag=tag)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_consume(REPLY_TO, print, auto_ack=auto_ack, consumer_tag=tags[-1])
    assert caught.value.reply_code == 406
    assert text in caught.value.reply_text


def test_a_name_that_nobody_has_is_not_found(channel: BlockingChannel) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare(REPLY_TO + ".nobody", passive=True)
    assert caught.value.reply_code == 404
