"""A node's roles on real stores: in which order they change, and what is acknowledged meanwhile."""

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.clock import ManualClock
from onelog.config import ReplicationConfig
from onelog.errors import NotMasterError, OnelogError, StoreFullError
from onelog.replication.epochs import Epochs
from onelog.replication.leader import NEW_SHARE, Leader, NodeRuntime
from onelog.replication.link import Touched
from onelog.replication.replica import AGAIN_MS, HAND_OVER_MS, Replica
from onelog.replication.roles import InSync, Role
from onelog.store.damage import Damage
from onelog.store.message_store import MessageStore
from tests.replication.wired import STORE, MemoryLink, message

CONFIG = ReplicationConfig(ack="majority", replicas=3, etcd="judge:2379")


class FakeCore:
    """What it was opened as, and told since."""

    def __init__(self, follows: bool) -> None:
        self.follows = follows
        self.told: list[str] = []

    def follow(self, touched: Touched) -> None:
        self.told.append("follow")

    def confirmed(self, touched: Touched) -> None:
        self.told.append("confirmed")

    def flush(self) -> None:
        self.told.append("flush")

    def fence(self) -> None:
        self.told.append("fence")

    def refuse_writes(self, reason: str | None) -> None:
        self.told.append("refuse" if reason else "write again")

    def master_is(self, address: str) -> None:
        self.told.append(f"master is {address}")


class World:
    """One replica, whose surroundings do things when they are told to."""

    def __init__(self, folder: Path, node_id: int, config: ReplicationConfig = CONFIG) -> None:
        self.clock = ManualClock()
        self.store = MessageStore.open(folder, STORE, self.clock, gated=True)
        self.core = FakeCore(follows=True)
        self.cores = [self.core]
        self.dialed = ""
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.rebuilds: list[Callable[[], None]] = []
        self.proposed: list[frozenset[int]] = []
        self.slow = False
        self.trouble: OnelogError | None = None
        self.replica = Replica(
            node_id,
            self.store,
            Epochs(folder),
            config,
            self,
            NodeRuntime(self.clock, self.schedule, lambda call: call(), _at_once),
            propose_in_sync=self.proposed.append,
        )
        self.replica.start()

    def schedule(self, delay_ms: int, call: Callable[[], None]) -> None:
        self.later.append((self.clock.now_ms() + delay_ms, call))

    def run(self, ms: int) -> None:
        """Let time go on."""
        end = self.clock.now_ms() + ms
        while due := [each for each in self.later if each[0] <= end]:
            first = min(due, key=lambda each: each[0])
            self.later.remove(first)
            self.clock.advance(max(0, first[0] - self.clock.now_ms()))
            first[1]()
        self.clock.advance(end - self.clock.now_ms())

    def rebuild(
        self,
        role: Role,
        leader: Leader | None,
        between: Callable[[], None],
        then: Callable[[OnelogError | None], None],
    ) -> None:
        def work() -> None:
            error = None
            try:
                between()
            except OnelogError as failed:
                error = failed
            if self.trouble is None:
                self.core = FakeCore(follows=not role.is_master)
                self.cores.append(self.core)
            then(error or self.trouble)

        if self.slow:
            self.rebuilds.append(work)
        else:
            work()

    def dial(self, address: str) -> None:
        self.dialed = address

    def write(self, *bodies: bytes) -> int:
        self.store.append([message(body) for body in bodies])
        return int(self.store.log_end)


def _at_once(work: Callable[[], None], then: Callable[[], None]) -> None:
    work()
    then()


def master_of(epoch: int, node: int = 0) -> Role:
    return Role(True, epoch, node, f"host:{node}", f"ha:{node}")


def follower_of(node: int, epoch: int) -> Role:
    return Role(False, epoch, node, f"host:{node}", f"ha:{node}")


def in_sync(*ids: int, revision: int = 1) -> InSync:
    return InSync(frozenset(ids), 3, revision)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds = []

    def made(number: int, config: ReplicationConfig = CONFIG) -> World:
        worlds.append(World(tmp_path / str(number), number, config))
        return worlds[-1]

    yield made
    for world in worlds:
        world.replica.close()
        world.store.close()


def connect(leader: World, follower: World) -> Callable[[], None]:
    """A connection between two; what it returns moves bytes until there are none."""
    down, up = MemoryLink(), MemoryLink()
    leading = leader.replica.accepted(down, "follower")
    following = follower.replica.dialed(up, "master")

    def settle() -> None:
        while down.sent or up.sent:
            for link, session in ((up, leading), (down, following)):
                data = bytes(link.sent)
                link.sent.clear()
                if data:
                    session.received(data)

    settle()
    return settle


Make = Callable[..., World]


def test_a_node_begins_as_a_follower_of_nobody(make: Make) -> None:
    world = make(0)
    assert world.core.follows
    assert world.core.told == ["master is "]
    assert world.dialed == ""


def test_the_first_master_of_an_empty_log_opens_at_once(make: Make) -> None:
    world = make(0)
    world.replica.become(master_of(1), in_sync(0))
    assert not world.core.follows
    assert world.replica.epochs.entries == [(1, 0)]


def test_a_master_opens_when_its_whole_log_is_confirmed(make: Make) -> None:
    one, two = make(0), make(1)
    one.replica.become(master_of(1), in_sync(0, 1))
    one.write(b"a")
    two.replica.become(follower_of(0, 1), in_sync(0, 1))
    assert two.dialed == "ha:0"
    connect(one, two)
    assert two.store.log_end == one.store.log_end
    one.replica.close()

    two.replica.become(master_of(2, 1), in_sync(1, 2))
    end = two.store.log_end
    assert two.store.confirmed == end or two.core.follows
    three = make(2)
    three.replica.become(follower_of(1, 2), in_sync(1, 2))
    connect(two, three)
    assert not two.core.follows
    assert two.store.confirmed == end
    assert two.replica.epochs.last == 2


def test_nothing_is_acknowledged_after_the_word_that_another_is_master(make: Make) -> None:
    world = make(0)
    world.replica.become(master_of(1), in_sync(0, 1))
    leader = world.replica.leader
    assert leader is not None
    answers: list[OnelogError | None] = []
    leader.when_replicated(world.write(b"a"), answers.append)
    world.slow = True
    world.replica.become(follower_of(1, 2), in_sync(1, revision=2))
    assert [isinstance(each, OnelogError) for each in answers] == [True]
    assert "fence" in world.core.told
    leader.when_replicated(0, answers.append)
    assert isinstance(answers[1], NotMasterError)
    world.rebuilds.pop()()
    assert world.core.follows
    assert world.dialed == "ha:1"


def test_of_roles_that_come_while_one_is_being_taken_only_the_last_counts(make: Make) -> None:
    world = make(0)
    world.slow = True
    world.replica.become(master_of(1), in_sync(0))
    world.replica.become(follower_of(1, 2), in_sync(1, revision=2))
    world.replica.become(follower_of(2, 3), in_sync(2, revision=3))
    assert len(world.rebuilds) == 1
    world.rebuilds.pop()()
    assert world.core.told == ["fence"]  # It was opened for a role that is over.
    world.rebuilds.pop()()
    assert world.core.follows
    assert world.dialed == "ha:2"


def test_what_only_the_old_master_had_is_cut_when_it_follows(make: Make) -> None:
    one, two = make(0), make(1)
    one.replica.become(master_of(1), in_sync(0, 1))
    shared = one.write(b"a")
    two.replica.become(follower_of(0, 1), in_sync(0, 1))
    settle = connect(one, two)
    one.run(200)
    settle()
    one.write(b"nobody else has this")
    two.replica.become(master_of(2, 1), in_sync(0, 1, revision=2))
    one.replica.become(follower_of(1, 2), in_sync(0, 1, revision=2))
    connect(two, one)
    assert one.store.log_end == shared
    assert not two.core.follows
    two.write(b"the next")
    two.run(200)
    connect(two, one)
    assert one.store.log_end == two.store.log_end


def test_a_hand_over_is_ready_when_the_target_has_everything(make: Make) -> None:
    one, two = make(0), make(1)
    one.replica.become(master_of(1), in_sync(0, 1))
    two.replica.become(follower_of(0, 1), in_sync(0, 1))
    settle = connect(one, two)
    one.write(b"a")
    said: list[str] = []
    one.replica.prepare_hand_over(1, said.append)
    assert one.core.told[-2:] == ["flush", "refuse"]
    assert said == []
    one.run(200)
    settle()
    one.run(10)
    assert said == [""]


def test_a_hand_over_to_one_that_does_not_catch_up_is_given_up(make: Make) -> None:
    world = make(0)
    world.replica.become(master_of(1), in_sync(0, 1))
    world.write(b"a")
    said: list[str] = []
    world.replica.prepare_hand_over(1, said.append)
    world.run(HAND_OVER_MS + 100)
    assert said == [f"node 1 did not get the whole log in {HAND_OVER_MS} ms"]
    assert world.core.told[-1] == "write again"


def test_nobody_waits_for_a_hand_over_to_one_that_has_not_been_heard_of_for_long(
    make: Make,
) -> None:
    world = make(0)
    world.replica.become(master_of(1), in_sync(0, 1))
    world.run(CONFIG.lag_ms + 200)
    said: list[str] = []
    world.replica.prepare_hand_over(1, said.append)
    assert said == ["node 1 does not keep up"]
    assert "refuse" not in world.core.told


def test_a_new_master_with_enough_followers_does_not_wait_long_for_the_one_that_led_before(
    make: Make,
) -> None:
    """Which is in the in-sync set, and the follower that is there is not."""
    one, two = make(1), make(2)
    one.replica.become(master_of(1), in_sync(0, 1))
    two.replica.become(follower_of(1, 1), in_sync(0, 1))
    connect(one, two)
    one.run(100)
    assert one.proposed == [{0, 1, 2}]
    one.replica.in_sync_is(in_sync(0, 1, 2, revision=2))
    one.run(CONFIG.lag_ms // NEW_SHARE + 100)
    assert one.proposed[1:] == [{1, 2}]


def test_a_new_master_without_enough_followers_waits_for_all_that_may_come(make: Make) -> None:
    world = make(1)
    world.replica.become(master_of(1), in_sync(0, 1))
    world.run(CONFIG.lag_ms // 2)
    assert world.replica.leader is not None
    assert world.replica.leader.recorded == {0, 1}
    assert world.proposed == []


def test_a_role_that_cannot_be_taken_is_tried_again_and_the_node_says_that_it_is_unfit(
    make: Make,
) -> None:
    world = make(0)
    world.trouble = StoreFullError("no room")
    world.replica.become(master_of(1), in_sync(0))
    assert not world.replica.progress().fit
    assert "no room" in world.replica.hindrance
    assert world.replica.leader is None
    world.trouble = None
    world.run(AGAIN_MS)
    assert not world.core.follows
    assert world.replica.progress().fit


def test_a_master_says_that_it_is_unfit_as_soon_as_its_disk_takes_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(0)
    world.replica.become(master_of(1), in_sync(0))
    allocate, full = os.posix_fallocate, True

    def refuse(fd: int, at: int, size: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        allocate(fd, at, size)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    # Each to a topic of its own, whose queue wants room.
    for number in range(2):
        with pytest.raises(StoreFullError):
            world.store.append([message(b"%d" % number, f"new-{number}")])
        assert not world.replica.progress().fit
    full = False
    world.store.append([message(b"1", "new-1")])
    assert world.replica.progress().fit


def test_a_master_without_followers_says_after_a_while_that_it_is_unfit(make: Make) -> None:
    world = make(0)
    world.replica.become(master_of(1), in_sync(0, 1))
    assert world.replica.progress().fit
    world.run(3 * CONFIG.lag_ms)
    assert not world.replica.progress().fit


def test_a_log_that_may_be_torn_is_cut_to_what_is_certain_once_there_is_a_master(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make(0), make(1)
    one.replica.become(master_of(1), in_sync(0, 1))
    two.replica.become(follower_of(0, 1), in_sync(0, 1))
    settle = connect(one, two)
    one.write(b"a")
    one.run(200)
    settle()
    assert two.store.log_end == one.store.log_end
    two.replica.identity.is_torn = True
    certain = two.store.confirmed
    assert certain < two.store.log_end
    two.replica.become(follower_of(0, 2), in_sync(0, 1))
    assert two.store.log_end == one.store.log_end  # It may be all that is left.
    connect(one, two)
    assert f"were cut from the log at {certain} (it may be torn" in caplog.text
    assert two.store.log_end == one.store.log_end


# -- what is not cut -----------------------------------------------------------------------------


def confirmed_set(make: Make, config: ReplicationConfig = CONFIG) -> tuple[World, World, int]:
    """A master and a follower with the same confirmed log, and where that ends."""
    one, two = make(0), make(1, config)
    one.replica.become(master_of(1), in_sync(0, 1))
    two.replica.become(follower_of(0, 1), in_sync(0, 1))
    settle = connect(one, two)
    end = one.write(b"a")
    for _ in range(3):
        one.run(200)
        settle()
        two.run(200)
    assert one.store.confirmed == two.store.confirmed == end
    return one, two, end


def behind(make: Make, one: World, two: World) -> World:
    """A node that is elected, as it should not be: it has not what the others have confirmed."""
    three = make(2)
    three.replica.become(follower_of(0, 1), in_sync(0, 1))
    connect(one, three)
    settle = connect(one, two)
    end = one.write(b"b")
    for revision in range(2, 5):
        one.replica.in_sync_is(in_sync(0, 1, revision=revision))
        one.run(200)
        settle()
        two.run(200)
    assert two.store.confirmed == end > three.store.log_end
    three.replica.become(master_of(2, 2), in_sync(2))
    return three


def lacking(make: Make, epoch: int = 2) -> World:
    """A master that began with nothing, as nobody should who is elected."""
    world = make(7)
    world.replica.become(master_of(epoch, 7), in_sync(7))
    world.write(b"another")
    return world


def test_what_is_confirmed_is_not_cut_for_a_master_that_lacks_it(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, _ = confirmed_set(make)
    three = behind(make, one, two)
    end = two.store.log_end
    two.replica.become(follower_of(2, 2), in_sync(2))
    connect(three, two)
    assert two.store.log_end == two.store.confirmed == end
    assert "nothing is cut here" in caplog.text
    assert "`onelog cluster truncate 1`" in caplog.text
    assert not two.replica.identity.doubt


def test_nothing_is_cut_for_a_master_of_another_history(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    _, two, end = confirmed_set(make)
    two.replica.become(follower_of(7, 2), in_sync(7))
    connect(lacking(make), two)
    assert two.store.log_end == end
    assert "have nothing in common: if this node has the messages that count" in caplog.text


def test_what_the_registry_knows_to_be_confirmed_is_not_cut_either(make: Make) -> None:
    """After a start a node knows that of less."""
    one, two, end = confirmed_set(make)
    one.write(b"more")
    one.replica.identity.confirmed = one.store.log_end
    assert one.store.confirmed < one.store.log_end
    two.replica.become(master_of(2, 1), in_sync(1, revision=2))
    one.replica.become(follower_of(1, 2), in_sync(1, revision=2))
    connect(two, one)
    assert one.store.log_end > end


def test_a_word_has_a_node_truncate_once(make: Make) -> None:
    _, two, end = confirmed_set(make)
    two.replica.become(follower_of(7, 2), in_sync(7))
    young = lacking(make)
    two.replica.may_truncate()
    connect(young, two)
    assert two.store.log_end == young.store.log_end != end
    assert two.replica.identity.doubt  # It lacks what it had said that it has.
    two.run(200)
    again = make(8)
    again.replica.become(master_of(3, 8), in_sync(8))
    two.replica.become(follower_of(8, 3), in_sync(8))
    two.store.tail.confirm(two.store.log_end)
    connect(again, two)
    assert two.store.log_end == young.store.log_end


def test_a_word_that_was_not_needed_is_forgotten(make: Make) -> None:
    one, two, end = confirmed_set(make)
    two.replica.may_truncate()
    connect(one, two)
    two.run(200)
    two.replica.become(follower_of(7, 2), in_sync(7))
    connect(lacking(make), two)
    assert two.store.log_end == end


def test_with_unclean_elections_a_node_follows_whoever_is_elected(make: Make) -> None:
    one, two, shared = confirmed_set(make, dataclasses.replace(CONFIG, unclean=True))
    three = behind(make, one, two)
    two.replica.become(follower_of(2, 2), in_sync(2))
    connect(three, two)
    assert two.store.log_end == shared


def test_what_cannot_be_kept_aside_is_not_cut(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, shared = confirmed_set(make)
    end = one.write(b"nobody else has this")
    two.replica.become(master_of(2, 1), in_sync(0, 1, revision=2))
    one.replica.become(follower_of(1, 2), in_sync(0, 1, revision=2))
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=10))
    connect(two, one)
    assert one.store.log_end == end
    assert "has not the room to keep" in caplog.text
    monkeypatch.setattr(shutil, "disk_usage", usage)
    connect(two, one)
    assert one.store.log_end == shared
    (kept,) = (one.store.folder / "onelog-cut").iterdir()
    assert b"nobody else has this" in kept.read_bytes()


def test_a_damaged_log_is_in_doubt_until_it_is_whole_again(make: Make) -> None:
    """A master may die while it is had from it again."""
    one, two, end = confirmed_set(make)
    two.store.damage = (Damage(0, end, "a bad disk"),)
    two.replica.become(follower_of(0, 1), in_sync(0, 1))
    connect(one, two)
    assert two.replica.identity.doubt
    assert two.store.log_end == end


def test_how_far_a_node_was_is_told_with_the_epoch_of_the_last_byte(make: Make) -> None:
    one, _, end = confirmed_set(make)
    assert one.replica.progress().held == (1, end)
    assert one.replica.has(1, end)
    assert not one.replica.has(2, end)  # A copy from before epoch 2.
    assert not one.replica.has(1, end + 1)
    assert not one.replica.is_empty()
    assert make(3).replica.is_empty()
