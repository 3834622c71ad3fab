"""Leases that the broker renews for consumers that ask for it, until they acknowledge or are gone.

A push consumer does not know how long its listener takes. So its messages are leased for a minute,
and for longer whenever that is nearly over: 1, 3, 5, 10, 30 minutes, an hour. After three hours the
message comes again. Who is gone gives back what it has, a second later.

A renewed lease has another handle, and the consumer shows the receipt that it was given: `take`
knows the one for the other.
"""

import asyncio
import heapq
import logging
from collections.abc import Sequence
from typing import NamedTuple

from onelog.core.access import SELF
from onelog.errors import BrokerBusyError, NotSavedError, OnelogError, StoreError
from onelog.gateways import GatewayContext
from onelog.jobs import Job

log = logging.getLogger(__name__)

AHEAD_MS = 10_000
"""How long before its end a lease is renewed; a quarter of it, if it is short."""
LONGEST_MS = 3 * 3_600_000
GONE_MS = 1_000
PERIODS_MS = [each * 60_000 for each in (1, 3, 5, 10, 30, 60)]
AGAIN_MS = 400
_PASSING = (StoreError, BrokerBusyError, NotSavedError)
"""A disk that is full or busy may be better soon, while the lease still runs: it is tried again."""
_ROUND = 500
"""Leases that are renewed at a time."""


class RenewedLease(NamedTuple):
    """A message that a consumer has."""

    group: str
    topic: str
    queue_id: int
    offset: int
    handle: int


RenewedLeases = dict[str, RenewedLease]
"""What one client has, by the receipts it was given."""


class _Batch(NamedTuple):
    check_ms: int
    number: int
    holder: RenewedLeases
    receipts: list[str]
    began_ms: int
    times: int


class Renewal:
    """All leases that are renewed."""

    def __init__(self, context: GatewayContext) -> None:
        self._broker = context.broker
        self._clock = context.clock
        self._batches: list[_Batch] = []
        self._number = 0
        self._job = Job("renewing leases of gRPC consumers")
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def keep(
        self, holder: RenewedLeases, kept: Sequence[tuple[str, RenewedLease]], invisible_ms: int
    ) -> None:
        """A consumer was given messages for so long."""
        holder.update(kept)
        now_ms = self._clock.now_ms()
        self._add(holder, [receipt for receipt, _ in kept], now_ms, 0, invisible_ms)

    def _add(
        self,
        holder: RenewedLeases,
        receipts: list[str],
        began_ms: int,
        times: int,
        invisible_ms: int,
    ) -> None:
        self._number += 1
        ahead_ms = min(AHEAD_MS, invisible_ms // 4)
        check_ms = self._clock.now_ms() + invisible_ms - ahead_ms
        batch = _Batch(check_ms, self._number, holder, receipts, began_ms, times)
        heapq.heappush(self._batches, batch)
        if self._timer is None or self._batches[0] is batch:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._batches and not self._is_closed:
            left_ms = max(0, self._batches[0].check_ms - self._clock.now_ms())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left_ms / 1000, self._renew)

    def _renew(self) -> None:
        with self._job:
            done = 0
            now_ms = self._clock.now_ms()
            while self._batches and self._batches[0].check_ms <= now_ms and done < _ROUND:
                done += self._renew_batch(heapq.heappop(self._batches), now_ms)
        self._set_timer()

    def _renew_batch(self, batch: _Batch, now_ms: int) -> int:
        holder = batch.holder
        receipts = [receipt for receipt in batch.receipts if receipt in holder]
        if now_ms - batch.began_ms >= LONGEST_MS:
            for receipt in receipts:
                del holder[receipt]  # It comes again when its time is up.
            return len(receipts)
        period_ms = PERIODS_MS[min(batch.times, len(PERIODS_MS) - 1)]
        left, again, extend = [], [], self._broker.queues.extend
        for receipt in receipts:
            group, topic, queue_id, offset, handle = kept = holder[receipt]
            try:
                handle = extend(SELF, group, topic, queue_id, offset, handle, period_ms)
            except _PASSING as error:
                log.info("a lease is not renewed yet: %s", error)
                again.append(receipt)
            except OnelogError as error:
                log.info("a lease was not renewed: %s", error)
                del holder[receipt]
            else:
                holder[receipt] = kept._replace(handle=handle)
                left.append(receipt)
        if left:
            self._add(holder, left, batch.began_ms, batch.times + 1, period_ms)
        if again:
            self._add(holder, again, batch.began_ms, batch.times, AGAIN_MS)
        return len(receipts) + 1

    def release(self, holder: RenewedLeases) -> None:
        """Who has these messages is gone."""
        for group, topic, queue_id, offset, handle in holder.values():
            try:
                self._broker.queues.extend(SELF, group, topic, queue_id, offset, handle, GONE_MS)
            except OnelogError as error:
                log.debug("a lease was over already: %s", error)
        holder.clear()

    def close(self) -> None:
        """Renew nothing more; who asks the next broker has until the end of the lease."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
