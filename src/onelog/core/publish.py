"""The send path: messages come in one by one and reach the log one tick at a time.

`submit` checks a message and puts it on the tick's list; `end_of_tick` appends the whole list with
one write, counts it, asks `durability` whether it may be acknowledged, and wakes who waits for it.
Under load the lists grow by themselves, and with them the work that is done once instead of per
message.

Topics that take plain messages are kept with their queue count in `_open`, so that the common case
is one look-up and a few comparisons; everything else goes the long way through `_admit`.

Invariant: each receipt is answered exactly once. A message that cannot be stored spoils no other.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from random import Random
from typing import Any, cast

from onelog.core.catalog.topics import TopicConfig, Topics
from onelog.core.durable.durability import Durability
from onelog.core.durable.waiting import Waiting
from onelog.core.stats import Bucket, Stats
from onelog.errors import (
    BrokerBusyError,
    EmptyMessageError,
    FlushTimeoutError,
    InvalidQueueError,
    MessageError,
    MessageTooLargeError,
    OnelogError,
    PropertiesTooLargeError,
    StoreError,
    TopicPermissionError,
)
from onelog.message import PROPERTIES_BYTES_MAX, Appended, AppendedRun, NewMessage, NewRun, SysFlag
from onelog.names import LIGHT_QUEUE_PREFIX
from onelog.store.message_store import MessageStore

log = logging.getLogger(__name__)

OnStored = Callable[[Any, Any, OnelogError | None], None]
"""Called with the token that was submitted, where the message went (for several: a list, or an
`AppendedRun`), and what went wrong. With `FlushTimeoutError` both are given: the message is stored,
but not confirmed."""
Transform = Callable[[NewMessage], NewMessage]
Receipt = tuple[OnStored, Any, int]
"""Whom to tell, their token, and how many messages it is about; 0 for one message or one run."""

_TOPIC, _COPIES = (itemgetter(NewMessage._fields.index(name)) for name in ("topic", "inner_count"))
_PART_BODY = itemgetter(1)
_SIZE = itemgetter(Appended._fields.index("size"))

UNSETTLED_MAX = 200_000
"""Messages that may wait for the disk before new ones are refused."""


class Publisher:
    """Collects messages and appends them, tick by tick."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        durability: Durability,
        waiting: Waiting,
        stats: Stats,
        random: Random,
        call_soon: Callable[[Callable[[], None]], None],
        redirect_retry: Callable[[NewMessage, int | None], NewMessage],
        body_bytes_max: int,
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.before_store: list[tuple[bytes, Transform]] = []
        """Changes on the way to the log: bytes that a message's properties must contain, and what
        is made of such a message."""
        self.before_append: list[Callable[[], None]] = []
        """Called when a tick ends, for those who have something to `put_as_is` into it."""
        self._store = store
        self._topics = topics
        self._durability = durability
        self._waiting = waiting
        self._stats = stats
        self._random = random
        self._call_soon = call_soon
        self._redirect_retry = redirect_retry
        self._open: dict[str, int] = {}
        self._messages: list[NewMessage | NewRun] = []
        self._has_runs = False
        self._receipts: list[Receipt] = []
        self._unsettled = 0
        topics.on_change.append(self._topic_changed)

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        self._open.pop(name, None)

    # -- taking messages in --------------------------------------------------------------------

    def submit(self, message: NewMessage, on_stored: OnStored, token: Any = None) -> None:
        """Take a message for this tick; `on_stored` is called when its fate is known.

        What is wrong with the message itself is raised here.
        """
        if (
            not 0 <= message.queue_id < self._open.get(message.topic, 0)
            or not 0 < len(message.body) <= self.body_bytes_max
            or len(message.properties) > PROPERTIES_BYTES_MAX
        ):
            message = self._admit(message)
        # From here on this is `put`, without its call.
        for trigger, transform in self.before_store:
            if message.properties.find(trigger) >= 0:
                message = transform(message)
        if not self._messages:
            self._begin_tick()
        self._messages.append(message)
        self._receipts.append((on_stored, token, 0))

    def submit_plain(self, message: NewMessage, on_stored: OnStored, token: Any = None) -> bool:
        """`submit` for a message with nothing in it that `before_store` asks for.

        False, and nothing done, if it has to be looked at more closely.
        """
        if (
            not 0 <= message.queue_id < self._open.get(message.topic, 0)
            or not 0 < len(message.body) <= self.body_bytes_max
            or len(message.properties) > PROPERTIES_BYTES_MAX
        ):
            return False
        if not self._messages:
            self._begin_tick()
        self._messages.append(message)
        self._receipts.append((on_stored, token, 0))
        return True

    def put(self, message: NewMessage, on_stored: OnStored, token: Any = None) -> None:
        """Take a message that needs no check, because the broker itself made it or had it."""
        for trigger, transform in self.before_store:
            if message.properties.find(trigger) >= 0:  # Half the price of `in`.
                message = transform(message)
        if not self._messages:
            self._begin_tick()
        self._messages.append(message)
        self._receipts.append((on_stored, token, 0))

    def submit_run(self, run: NewRun, on_stored: OnStored, token: Any = None) -> None:
        """Take messages of one topic and queue that are acknowledged, or refused, together.

        They reach the log side by side, and pass no `before_store`: RocketMQ's batches have neither
        delays nor retries nor transactions.
        """
        if not 0 <= run.queue_id < self._open.get(run.topic, 0):
            run = self._admit_run(run)
        if not run.parts or not all(map(_PART_BODY, run.parts)):
            raise EmptyMessageError("a batch without messages, or with one that has no body")
        if not run.fits(self.body_bytes_max, PROPERTIES_BYTES_MAX):
            for message in run.messages():
                self._check_size(message)
        self.begin_tick()
        self._has_runs = True
        self._messages.append(run)
        self._receipts.append((on_stored, token, 0))

    def _admit_run(self, run: NewRun) -> NewRun:
        if self._topics.naming.is_retry(run.topic):
            raise MessageError("batch request does not support retry group")
        first = self._admit(NewMessage(run.topic, run.queue_id, b"-", sys_flag=run.sys_flag))
        return run._replace(queue_id=first.queue_id, sys_flag=first.sys_flag)

    def begin_tick(self) -> None:
        """See to it that this tick ends in an append; `BrokerBusyError` if it may not."""
        if not self._messages:
            self._begin_tick()

    def put_as_is(
        self, messages: Sequence[NewMessage], on_stored: OnStored, token: Any = None
    ) -> None:
        """Take messages that are stored side by side or not at all, in a tick that has begun.

        They are not checked, and pass no `before_store`.
        """
        self._messages += messages
        self._receipts.append((on_stored, token, len(messages)))

    def admitted(self, message: NewMessage) -> NewMessage:
        """The message as `submit` would take it, for those who put something else in its place."""
        return self._admit(message)

    def submit_retry(
        self, message: NewMessage, retries_max: int | None, on_stored: OnStored, token: Any = None
    ) -> None:
        """`submit` for a consumer's own retry, which may name how often it wants to retry."""
        self.put(self._admit(message, retries_max), on_stored, token)

    def put_now(self, message: NewMessage) -> Appended | None:
        """Append one plain message outside any tick; the caller sees to `account`, soon.

        None if it is not as plain as that: then it has to be submitted.
        """
        if (
            self._messages
            or not self._durability.immediate
            or not 0 <= message.queue_id < self._open.get(message.topic, 0)
            or not 0 < len(message.body) <= self.body_bytes_max
            or len(message.properties) > PROPERTIES_BYTES_MAX
        ):
            return None
        for trigger, _ in self.before_store:
            if message.properties.find(trigger) >= 0:
                return None
        try:
            return self._store.append((message,))[0]
        except Exception:
            # Submitting it finds out what to say about that.
            return None

    def _begin_tick(self) -> None:
        if self._unsettled > UNSETTLED_MAX:
            raise BrokerBusyError(
                f"{self._unsettled} messages wait for the disk; start flow control for a while"
            )
        self._call_soon(self.end_of_tick)

    def _admit(self, message: NewMessage, retries_max: int | None = None) -> NewMessage:
        """The message as it may be stored, or what is wrong with it."""
        topic = message.topic
        if topic in self._topics.unsendable:
            raise TopicPermissionError(f"sending message to topic[{topic}] is forbidden")
        config = self._topics.require(topic)
        if not config.writable:
            raise TopicPermissionError(f"sending message to topic[{topic}] is forbidden")
        self._check_size(message)
        if message.queue_id >= config.queues:
            raise InvalidQueueError(f"request queueId[{message.queue_id}] is illegal, {config}")
        if message.queue_id < 0:
            if config.write_queues == 0:
                raise InvalidQueueError(f"topic[{topic}] has no queue to write to")
            message = message._replace(queue_id=self._random.randrange(config.write_queues))
        if self._topics.naming.is_retry(topic):
            return self._redirect_retry(message, retries_max)
        if config.filter_type == "MULTI_TAG":
            return message._replace(sys_flag=message.sys_flag | SysFlag.MULTI_TAGS)
        self._open[topic] = config.queues
        return message

    def _check_size(self, message: NewMessage) -> None:
        if not len(message.body):
            raise EmptyMessageError("the message has no body")
        self.check_sizes(len(message.body), len(message.properties))

    def check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        """`MessageTooLargeError` or `PropertiesTooLargeError` if a message may not be so large."""
        if body_bytes > self.body_bytes_max:
            raise MessageTooLargeError(
                f"a body of {body_bytes} bytes is over the limit of {self.body_bytes_max}"
            )
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise PropertiesTooLargeError(
                f"properties of {properties_bytes} bytes are over the limit of "
                f"{PROPERTIES_BYTES_MAX}"
            )

    # -- writing -------------------------------------------------------------------------------

    def end_of_tick(self) -> None:
        """Append everything that came in this tick, and see to the receipts."""
        try:
            for add_more in self.before_append:
                add_more()
        except Exception:
            # The tick's messages are not to blame; left here, no tick would ever begin again.
            log.exception("something could not be added to a tick")
        messages, receipts = self._messages, self._receipts
        if not messages:
            return
        self._messages, self._receipts = [], []
        if self._has_runs:
            self._has_runs = False
            self._append_stretches(messages, receipts)
        else:
            self._append(cast(list[NewMessage], messages), receipts)

    def _append(self, messages: list[NewMessage], receipts: list[Receipt]) -> None:
        try:
            appended = self._store.append(messages)
        except StoreError as error:
            self._refuse(receipts, error, len(messages))
        except Exception:
            # Also what is no error of ours: a number that does not fit its field, say.
            self._one_by_one(messages, receipts)
        else:
            self._acknowledge(receipts, appended, len(appended))
            self.account(messages, appended)

    def _append_stretches(
        self, messages: list[NewMessage | NewRun], receipts: list[Receipt]
    ) -> None:
        """Append in the order of arrival: together what follows each other and is of one kind."""
        begin = at = 0
        stretch: list[Receipt] = []
        for receipt in receipts:
            if stretch and isinstance(messages[at], NewRun) != isinstance(messages[begin], NewRun):
                self._append_stretch(messages[begin:at], stretch)
                begin, stretch = at, []
            stretch.append(receipt)
            at += receipt[2] or 1
        self._append_stretch(messages[begin:], stretch)

    def _append_stretch(self, messages: list[NewMessage | NewRun], receipts: list[Receipt]) -> None:
        if isinstance(messages[0], NewRun):
            self._append_runs(cast(list[NewRun], messages), receipts)
        else:
            self._append(cast(list[NewMessage], messages), receipts)

    def _append_runs(self, runs: list[NewRun], receipts: list[Receipt]) -> None:
        try:
            appended = self._store.append_runs(runs)
        except StoreError as error:
            self._refuse(receipts, error, sum(len(run.parts) for run in runs))
        except Exception as error:
            if len(runs) > 1:
                for run, receipt in zip(runs, receipts, strict=True):
                    self._append_runs([run], [receipt])
            else:
                self._refuse(receipts, _named(error, runs[0].topic), len(runs[0].parts))
        else:
            self._acknowledge(receipts, appended, sum(len(run.parts) for run in runs))
            self._account_runs(runs, appended)

    def _acknowledge(
        self, receipts: list[Receipt], appended: Sequence[Appended | AppendedRun], count: int
    ) -> None:
        if self._durability.immediate:
            _answer(receipts, appended, None)
            return
        last = appended[-1]
        self._unsettled += count
        self._durability.when_safe(
            last.log_offset + last.size, partial(self._settle, receipts, appended, count)
        )

    def _settle(
        self,
        receipts: list[Receipt],
        appended: Sequence[Appended | AppendedRun],
        count: int,
        error: OnelogError | None,
    ) -> None:
        self._unsettled -= count
        if error is None or isinstance(error, FlushTimeoutError):
            _answer(receipts, appended, error)
        else:
            self._refuse(receipts, error, count)

    def _one_by_one(self, messages: list[NewMessage], receipts: list[Receipt]) -> None:
        """Some message of the tick cannot be stored: find out which, and store the others."""
        at = 0
        for receipt in receipts:
            count = receipt[2] or 1
            mine = messages[at : at + count]
            at += count
            try:
                appended = self._store.append(mine)
            except Exception as error:
                self._refuse([receipt], _named(error, mine[0].topic), count)
            else:
                self._acknowledge([receipt], appended, count)
                self.account(mine, appended)

    def _refuse(self, receipts: list[Receipt], error: OnelogError, count: int) -> None:
        self._stats.totals.put_failed += count
        _answer(receipts, None, error)

    def write_now(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append the broker's own messages at once, outside any tick, with nobody to tell."""
        appended = self._store.append(messages)
        self.account(messages, appended)
        return appended

    def write_runs_now(self, runs: Sequence[NewRun]) -> None:
        """`write_now` for runs."""
        self._account_runs(runs, self._store.append_runs(runs))

    def account(self, messages: Sequence[NewMessage], appended: list[Appended]) -> None:
        """Count what was stored, and wake who waits for it."""
        count = sum(map(_COPIES, messages))
        size = sum(map(_SIZE, appended))
        totals = self._stats.totals
        totals.put_count += count
        totals.put_bytes += size
        bucket = self._stats.topic_put.newest
        if len(set(map(_TOPIC, messages))) == 1:
            _add(bucket, messages[0].topic, count, size, len(messages))
        else:
            for message, where in zip(messages, appended, strict=True):
                _add(bucket, message.topic, message.inner_count, where.size, 1)
        if self._waiting.keys:
            for topic, queue_id in dict.fromkeys((each.topic, each.queue_id) for each in messages):
                self._waiting.arrived(topic, queue_id)
            for message in messages:
                for topic in message.extra_queues:
                    light = topic.startswith(LIGHT_QUEUE_PREFIX)
                    self._waiting.arrived(topic, 0 if light else message.queue_id)

    def _account_runs(self, runs: Sequence[NewRun], appended: Sequence[AppendedRun]) -> None:
        totals, bucket = self._stats.totals, self._stats.topic_put.newest
        for run, where in zip(runs, appended, strict=True):
            count = len(run.parts)
            totals.put_count += count
            totals.put_bytes += where.size
            _add(bucket, run.topic, count, where.size, count)
            if self._waiting.keys:
                self._waiting.arrived(run.topic, run.queue_id)


def _named(error: Exception, topic: str) -> OnelogError:
    """What is told of a message that cannot be stored."""
    if isinstance(error, OnelogError):
        return error
    log.warning("a message to %s cannot be stored", topic, exc_info=error)
    return MessageError(f"the message cannot be stored: {error}")


def _add(bucket: Bucket, topic: str, copies: int, size: int, times: int) -> None:
    cell = bucket.get(topic)
    if cell is None:
        bucket[topic] = [copies, size, times]
    else:
        cell[0] += copies
        cell[1] += size
        cell[2] += times


def _answer(
    receipts: list[Receipt],
    appended: Sequence[Appended | AppendedRun] | None,
    error: OnelogError | None,
) -> None:
    at = 0
    for on_stored, token, count in receipts:
        if appended is None:
            where: object = None
        elif count:
            where = appended[at : at + count]
            at += count
        else:
            where = appended[at]
            at += 1
        try:
            on_stored(token, where, error)
        except Exception:
            # One broken connection must not cost the others their answer.
            log.exception("an acknowledgement could not be handed over")
