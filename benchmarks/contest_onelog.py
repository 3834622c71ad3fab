"""OneLog's SDK as a contestant, against OneLog or the real RocketMQ: both speak remoting.

The same shapes as the official client's: threads that send, one thread with futures, a push
consumer with as many listener threads; and asyncio, which the official client has not.
"""

import asyncio
import threading

import uvloop

from benchmarks.contest import (
    BODY,
    FAILURE_PAUSE_S,
    LISTENER_THREADS,
    ON_THE_WAY,
    Part,
    Tally,
    send_in_threads,
    send_with_futures,
    told,
    watch,
)
from onelog.client import AsyncProducer, Message, Producer, PushConsumer, ReceivedMessage
from onelog.errors import OnelogError


def threads(part: Part) -> None:
    with Producer(part.group, nameserver=part.address) as producer:
        send_in_threads(lambda: producer.send(Message(part.topic, BODY)), part)


def futures(part: Part) -> None:
    with Producer(part.group, nameserver=part.address) as producer:
        send_with_futures(lambda: producer.send_async(Message(part.topic, BODY)), part)


def on_a_loop(part: Part) -> None:
    tally = Tally()

    async def go_on(producer: AsyncProducer) -> None:
        while True:
            try:
                await producer.send(Message(part.topic, BODY))
            except OnelogError as error:
                tally.fail(error)
                await asyncio.sleep(FAILURE_PAUSE_S)
            else:
                tally.add()

    async def main() -> None:
        async with AsyncProducer(part.group, nameserver=part.address) as producer:
            await asyncio.gather(*(go_on(producer) for _ in range(ON_THE_WAY)))

    threading.Thread(target=uvloop.run, args=(main(),), daemon=True).start()
    watch(part, tally)


def push(part: Part, *, pop: bool = False) -> None:
    tally = Tally()

    def listener(message: ReceivedMessage) -> None:
        tally.add()
        if message.delivery_attempt > 1:
            tally.redelivered += 1

    consumer = PushConsumer(
        part.group, nameserver=part.address, start="first", threads=LISTENER_THREADS, pop=pop
    )
    consumer.subscribe(part.topic, listener=listener)
    consumer.start()
    watch(part, tally)


def push_pop(part: Part) -> None:
    push(part, pop=True)


MODES = {
    "threads": threads,
    "futures": futures,
    "asyncio": on_a_loop,
    "push": push,
    "pop": push_pop,
}

if __name__ == "__main__":
    chosen = told()
    MODES[chosen.mode](chosen)
