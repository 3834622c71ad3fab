"""Who may be the next master of a set, by what its registry says. Nothing here acts.

Somebody who had everything: an intact member of the in-sync set, or, if all members are back and
may have lost something, the best of them. A registry that has lost its data (or has an older copy
of it: nodes know of later epochs) says nothing of who had everything. Then all nodes must be there,
none of them empty or in doubt: the best of all of them has what any of them has.
"""

from typing import NamedTuple

from onelog.replication.registry import ProgressEntry, View


class Candidates(NamedTuple):
    """Who may be the next master."""

    ids: frozenset[int] = frozenset()
    why: str = ""
    """Why nobody may."""
    anew: bool = False
    """Whether the set begins anew: the in-sync set that the registry has tells nothing."""


def progress_of(view: View, number: int) -> ProgressEntry:
    """How far a node is."""
    return view.progress.get(number) or ProgressEntry()


def is_ready(view: View, number: int) -> bool:
    """Whether a node has said how far it is, without a master."""
    return progress_of(view, number).vacancy == view.state_revision


def rank(view: View, number: int) -> tuple[bool, bool, int, int, int]:
    """The better a node, the higher."""
    node, progress = view.nodes[number], progress_of(view, number)
    return not node.draining, progress.fit, progress.epoch, progress.end, -number


def last_epoch(view: View, *, strangers: bool = True) -> int:
    """The newest epoch that the registry, or any node that is there, knows of.

    `strangers`: also one whose store may be of another set.
    """
    progress = [
        progress_of(view, each) for each in view.nodes if strangers or not view.nodes[each].new
    ]
    known = max((max(each.epoch, each.known_epoch) for each in progress), default=0)
    return max(known, view.state.epoch if view.state else 0)


def members_of(view: View) -> set[int]:
    """Who of the in-sync set is there, with the store that was in it."""
    in_sync = view.state.in_sync if view.state else ()
    return {each for each in in_sync if each in view.nodes and not view.nodes[each].new}


def find(view: View, replicas: int, *, is_patient: bool) -> Candidates:
    """Who may be the next master of a set of which `replicas` nodes are to be.

    `is_patient`: whether it has been waited for others long enough for a set to be founded.
    """
    nodes, state = view.nodes, view.state
    if last_epoch(view, strangers=False) > (state.epoch if state else 0):
        return _anew(view, state.replicas if state else replicas)
    if state is None:
        whole = len(nodes) >= replicas or (0 in nodes and is_patient)
        return Candidates(frozenset(nodes if whole else ()))
    members = members_of(view)
    intact = frozenset(each for each in members if nodes[each].intact)
    if intact or len(members) == len(state.in_sync):
        return Candidates(intact or frozenset(members))
    away = sorted(set(state.in_sync) - members)
    return Candidates(
        why=f"no master can be elected before {_listed(away, view)} is there, which may have "
        "messages that no other has: start it with its own store. `onelog cluster elect N` makes "
        "node N master as it is, and gives up what it lacks"
    )


def _anew(view: View, replicas: int) -> Candidates:
    """The registry knows less than the nodes."""
    nodes = view.nodes
    whole = frozenset(
        number
        for number, node in nodes.items()
        if node.intact and not node.new and progress_of(view, number).known_epoch
    )
    if not any(progress_of(view, each).end for each in nodes):
        whole = frozenset(nodes)  # Nothing was ever written.
    if len(whole) >= replicas:
        return Candidates(whole, anew=True)
    lacking = ", ".join(
        f"node {number} ({'may lack messages' if progress_of(view, number).end else 'empty'})"
        for number in sorted(nodes.keys() - whole)
    )
    return Candidates(
        why=f"etcd has lost what it knew of this set, whose last epoch was {last_epoch(view)}: a "
        f"master is elected when all {replicas} nodes are there with their stores; so far "
        f"{len(whole)} are{f', and not counted: {lacking}' if lacking else ''}. "
        "`onelog cluster elect N` makes node N master as it is, and gives up what it lacks"
    )


def _listed(numbers: list[int], view: View) -> str:
    there = {each for each in numbers if each in view.nodes}
    return ", ".join(
        f"node {each} (its store was replaced, or is an old copy)"
        if each in there
        else f"node {each}"
        for each in numbers
    )
