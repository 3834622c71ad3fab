"""The official RocketMQ 5.x client for Python as a contestant; runs in an environment of its own.

Invariant: of the project it imports `benchmarks.contest` only, which needs no package.
"""

# Only the environment that the suite makes has it; its types are not for us to check.
import rocketmq

from benchmarks.contest import (
    BODY,
    LISTENER_THREADS,
    THREADS,
    Part,
    Tally,
    in_threads,
    send_in_threads,
    send_with_futures,
    told,
    watch,
)

RECEIVED_MAX = 32
INVISIBLE_S = 60


def configuration(part: Part) -> "rocketmq.ClientConfiguration":
    return rocketmq.ClientConfiguration(part.address, rocketmq.Credentials())


def message(part: Part) -> "rocketmq.Message":
    made = rocketmq.Message()
    made.topic = part.topic
    made.body = BODY
    return made


def producer(part: Part) -> "rocketmq.Producer":
    started = rocketmq.Producer(configuration(part), (part.topic,))
    started.startup()
    return started


def threads(part: Part) -> None:
    sending = producer(part)
    send_in_threads(lambda: sending.send(message(part)), part)


def futures(part: Part) -> None:
    sending = producer(part)
    send_with_futures(lambda: sending.send_async(message(part)), part)


def push(part: Part) -> None:
    tally = Tally()

    class Listener(rocketmq.MessageListener):  # type: ignore[misc]
        def consume(self, message: "rocketmq.Message") -> "rocketmq.ConsumeResult":
            tally.add()
            if message.delivery_attempt > 1:
                tally.redelivered += 1
            return rocketmq.ConsumeResult.SUCCESS

    consumer = rocketmq.PushConsumer(
        configuration(part),
        part.group,
        Listener(),
        {part.topic: rocketmq.FilterExpression()},
        consumption_thread_count=LISTENER_THREADS,
    )
    consumer.startup()
    watch(part, tally)


def simple(part: Part) -> None:
    subscription = {part.topic: rocketmq.FilterExpression()}
    consumer = rocketmq.SimpleConsumer(configuration(part), part.group, subscription)
    consumer.startup()

    def step(tally: Tally) -> None:
        for message in consumer.receive(RECEIVED_MAX, INVISIBLE_S):
            consumer.ack(message)
            tally.add()
            if message.delivery_attempt > 1:
                tally.redelivered += 1

    in_threads(THREADS, step, part)


MODES = {"threads": threads, "futures": futures, "push": push, "simple": simple}

if __name__ == "__main__":
    chosen = told()
    MODES[chosen.mode](chosen)
