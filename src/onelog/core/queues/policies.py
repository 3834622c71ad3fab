"""Policies: what queues and exchanges have without having been declared with it, by their name.

A policy is for the queues and exchanges of a vhost whose name a pattern is found in. Of those that
fit, the one of the highest priority counts, and beside it the operator policy of the highest
priority. What something was declared with stands before its policy, but of limits the lower one
counts; operators can only lower limits. Of an exchange, policies say the alternate exchange.

    table "policies"   {kind@vhost@name: {"pattern", "definition", "priority", "apply_to"}}
                       kind is `policy` or `operator`; a definition names arguments without `x-`

Invariant: a queue's terms are those of its arguments and its policies, from when either changes,
and so is an exchange's alternate exchange.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from onelog.core.access import Access, Principal
from onelog.core.durable.tables import Tables, in_parts
from onelog.core.filters.patterns import Pattern, compile_pattern
from onelog.core.queues.arguments import ARGUMENTS, QueueLimits, limits_of
from onelog.core.queues.queue import WorkQueue
from onelog.core.routing.exchanges import ALTERNATE, Exchange
from onelog.errors import FilterSyntaxError, PreconditionFailedError, QueueNotFoundError
from onelog.names import join_key, split_key

log = logging.getLogger(__name__)

Kind = Literal["policy", "operator"]
POLICIES_MAX = 10_000
_LIMITS = [name[2:] for name, each in ARGUMENTS.items() if each.policy == "limit"]
_OF_EXCHANGES = (ALTERNATE,)
_OTHERS = [name[2:] for name, each in ARGUMENTS.items() if each.policy == "other"]
_WITHOUT_MEANING = frozenset(
    (
        "queue-mode",
        "queue-version",
        "queue-master-locator",
        "queue-leader-locator",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "dead-letter-strategy",
        "initial-cluster-size",
        "target-group-size",
        "max-age",
        "stream-max-segment-size-bytes",
        "ha-mode",
        "ha-params",
        "ha-sync-mode",
        "ha-sync-batch-size",
        "ha-promote-on-shutdown",
        "ha-promote-on-failure",
    )
)
"""What is about RabbitMQ's inside, or about replicas, which OneLog's whole log has."""
_LIMITS_WITHOUT_MEANING = ("max-in-memory-length", "max-in-memory-bytes")
_APPLY_TO = {
    "all": ("classic", "quorum", "stream", "exchange"),
    "queues": ("classic", "quorum", "stream"),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
    "streams": ("stream",),
    "exchanges": ("exchange",),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What the queues and exchanges have whose names the pattern is found in."""

    vhost: str
    name: str
    pattern: str
    definition: Mapping[str, Any]
    priority: int = 0
    apply_to: str = "all"


class Policies:
    """All policies of a broker; a durable table."""

    name = "policies"

    def __init__(
        self,
        access: Access,
        tables: Tables,
        changed: Callable[[str], None],
        check_use: Callable[[Principal, Policy], None],
    ) -> None:
        """`changed` is called with a vhost whose policies are others now.

        `check_use` refuses who may not do himself what a policy would do.
        """
        self._access = access
        self._check_use = check_use
        self._tables = tables
        self._changed = changed
        self._known: dict[str, tuple[Policy, Pattern]] = {}

    def apply(self, key: str, value: Any) -> None:
        """Make one change."""
        if value is None:
            self._known.pop(key, None)
        else:
            kind, vhost, name = split_key(key, 3)
            policy = Policy(vhost, name, **value)
            _check("operator" if kind == "operator" else "policy", policy)
            self._known[key] = policy, compile_pattern(policy.pattern)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Every policy."""
        for part in in_parts(self._known):
            yield {key: _as_json(policy) for key, (policy, _) in part}

    # -- changing ------------------------------------------------------------------------------

    def listed(self, principal: Principal, kind: Kind, vhosts: list[str]) -> list[Policy]:
        for vhost in vhosts:
            self._access.check(principal, "describe", ("vhost", vhost))
        return [each for each, _ in self._of(kind) if each.vhost in vhosts]

    def put(self, principal: Principal, kind: Kind, policy: Policy) -> None:
        """Make a policy, or change it."""
        self._access.check(principal, "alter", ("vhost", policy.vhost))
        _check(kind, policy)
        self._check_use(principal, policy)
        key = join_key(kind, policy.vhost, policy.name)
        if key not in self._known and len(self._known) >= POLICIES_MAX:
            raise PreconditionFailedError(f"there are {POLICIES_MAX} policies, which is the limit")
        self._tables.write([(self.name, key, _as_json(policy))])
        self._changed(policy.vhost)

    def has(self, kind: Kind, vhost: str, name: str) -> bool:
        """Whether there is such a policy; to be told only who may know."""
        return join_key(kind, vhost, name) in self._known

    def delete(self, principal: Principal, kind: Kind, vhost: str, name: str) -> None:
        """Forget a policy."""
        self._access.check(principal, "alter", ("vhost", vhost))
        key = join_key(kind, vhost, name)
        if key not in self._known:
            raise QueueNotFoundError(f"no policy '{name}' in vhost '{vhost}'")
        self._tables.write([(self.name, key, None)])
        self._changed(vhost)

    def vhost_deleted(self, vhost: str) -> None:
        """A vhost is gone, and with it its policies."""
        gone = [key for key, (policy, _) in self._known.items() if policy.vhost == vhost]
        self._tables.write([(self.name, key, None) for key in gone])

    # -- what they mean ------------------------------------------------------------------------

    def _of(self, kind: Kind) -> Iterator[tuple[Policy, Pattern]]:
        start = join_key(kind, "")
        return (each for key, each in self._known.items() if key.startswith(start))

    @staticmethod
    def matching(policy: Policy, queues: Iterable[WorkQueue]) -> list[WorkQueue]:
        """Those of some queues that a policy is for."""
        pattern, kinds = compile_pattern(policy.pattern), _APPLY_TO.get(policy.apply_to, ())
        return [
            each
            for each in queues
            if each.vhost == policy.vhost and each.kind in kinds and pattern.is_in(each.name)
        ]

    def of_queue(self, kind: Kind, queue: WorkQueue) -> Policy | None:
        """The policy that counts for a queue."""
        return self._that_counts(kind, queue.vhost, queue.kind, queue.name)

    def of_exchange(self, exchange: Exchange) -> Policy | None:
        """The policy that counts for an exchange; the default one has none."""
        if not self._known or not exchange.name:
            return None
        return self._that_counts("policy", exchange.vhost, "exchange", exchange.name)

    def alternate(self, exchange: Exchange) -> str | None:
        """The alternate exchange that a policy gives an exchange."""
        policy = self.of_exchange(exchange)
        return None if policy is None else policy.definition.get(ALTERNATE)

    def _that_counts(self, kind: Kind, vhost: str, what: str, name: str) -> Policy | None:
        fitting = [
            policy
            for policy, pattern in self._of(kind)
            if policy.vhost == vhost
            and what in _APPLY_TO.get(policy.apply_to, ())
            and pattern.is_in(name)
        ]
        return max(fitting, key=lambda each: each.priority, default=None)

    def effective(self, queue: WorkQueue) -> dict[str, Any]:
        """What policies say of a queue, operators' limits included."""
        policy, limits = self.of_queue("policy", queue), self.of_queue("operator", queue)
        found = dict(policy.definition) if policy else {}
        for name, value in (limits.definition if limits else {}).items():
            found[name] = min(found[name], value) if name in found else value
        return found

    def limits(self, queue: WorkQueue, own: QueueLimits) -> QueueLimits:
        """A queue's terms, with its policies; `own` are those that it was declared with."""
        if not self._known or queue.is_stream:
            return own
        arguments = dict(queue.arguments)
        for name, value in self.effective(queue).items():
            if name in _LIMITS and f"x-{name}" in arguments:
                value = min(value, arguments[f"x-{name}"])
            if name in _LIMITS or (name in _OTHERS and f"x-{name}" not in arguments):
                arguments[f"x-{name}"] = value
        try:
            return limits_of(
                arguments,
                queue.label,
                durable=queue.durable,
                exclusive=queue.exclusive,
                auto_delete=queue.auto_delete,
            )
        except PreconditionFailedError as error:
            log.warning("a policy is not for %s: %s", queue.label, error)
            return own


def _as_json(policy: Policy) -> dict[str, Any]:
    return {key: each for key, each in asdict(policy).items() if key not in ("vhost", "name")}


def _check(kind: Kind, policy: Policy) -> None:
    """`PreconditionFailedError`, in RabbitMQ's words, if a policy makes no sense."""
    if not policy.definition:
        raise PreconditionFailedError("Validation failed: no policy provided")
    if policy.apply_to not in _APPLY_TO:
        known = ", ".join(_APPLY_TO)
        raise PreconditionFailedError(
            f"Validation failed: apply-to should be one of {known}, actually was {policy.apply_to}"
        )
    allowed = (
        (*_LIMITS, *_OTHERS, *_OF_EXCHANGES, *_WITHOUT_MEANING)
        if kind == "policy"
        else (*_LIMITS, *_LIMITS_WITHOUT_MEANING)
    )
    unknown = [name for name in policy.definition if name not in allowed]
    if unknown:
        raise PreconditionFailedError(
            f"Validation failed: {unknown} are not recognised policy settings"
        )
    if not isinstance(policy.definition.get(ALTERNATE, ""), str):
        raise PreconditionFailedError(
            f"Validation failed: {policy.definition[ALTERNATE]!r} is not a valid {ALTERNATE}"
        )
    try:
        compile_pattern(policy.pattern)
    except FilterSyntaxError as error:
        raise PreconditionFailedError(
            f"Validation failed: pattern should be a regular expression: {error}"
        ) from None
    named = {f"x-{name}": value for name, value in policy.definition.items()}
    named.pop("x-dead-letter-routing-key", None)
    label = f"policy '{policy.name}' in vhost '{policy.vhost}'"
    limits_of(named, label, durable=True, exclusive=False, auto_delete=False)
