"""Sharing partitions out among the members of a group, on the broker's side: uniform and range.

Invariant: every partition of a topic that somebody subscribes to has one owner, a subscriber.
"""

from collections.abc import Callable, Mapping, Sequence

Partition = tuple[str, int]
"""A topic and a partition of it."""
Subscriptions = Mapping[str, Sequence[str]]
"""The topics of each member."""
Owners = Mapping[Partition, str]
"""Which member has a partition now."""
Shares = dict[str, set[Partition]]
Assignor = Callable[[Subscriptions, Mapping[str, int], Owners], Shares]
"""Takes subscriptions, the number of partitions of each topic, and who has what now."""


def uniform(subscriptions: Subscriptions, partitions: Mapping[str, int], owners: Owners) -> Shares:
    """As many to each as can be, and as few as can be taken away from anybody."""
    shares: Shares = {member: set() for member in subscriptions}
    left: list[Partition] = []
    subscribers = _subscribers(subscriptions, partitions)
    total = sum(partitions[topic] for topic in subscribers)
    # Nobody keeps more than a fair share; where not all want the same, that is only an upper bound.
    fair = -(-total // len(shares)) if shares else 0
    extra = total % len(shares) if shares else 0
    full = 0
    for topic in sorted(subscribers):
        for number in range(partitions[topic]):
            owner = owners.get((topic, number))
            if owner in shares and owner in subscribers[topic]:
                kept = len(shares[owner])
                if kept < fair - (1 if extra and full >= extra else 0):
                    shares[owner].add((topic, number))
                    if extra and kept + 1 == fair:
                        full += 1
                    continue
            left.append((topic, number))
    for topic, number in left:
        member = min(subscribers[topic], key=lambda each: (len(shares[each]), each))
        shares[member].add((topic, number))
    return shares


def ranges(subscriptions: Subscriptions, partitions: Mapping[str, int], owners: Owners) -> Shares:
    """A stretch of each topic to each of its subscribers, in the order of their ids."""
    shares: Shares = {member: set() for member in subscriptions}
    for topic, members in _subscribers(subscriptions, partitions).items():
        each, extra = divmod(partitions[topic], len(members))
        begin = 0
        for index, member in enumerate(members):
            end = begin + each + (index < extra)
            shares[member].update((topic, number) for number in range(begin, end))
            begin = end
    return shares


def _subscribers(
    subscriptions: Subscriptions, partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            if partitions.get(topic, 0):
                found.setdefault(topic, []).append(member)
    return found


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": ranges}
