"""What every store of handled keys promises, whatever is behind it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from onelog.client.extras.idempotent import Claim, HandledKeys

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Subject:
    """A store, and how time passes for it."""

    store: HandledKeys
    other_group: HandledKeys
    """The same place, for another consumer group."""
    pass_ms: Callable[[int], None]


def a_free_key_is_given_to_one(subject: Subject) -> None:
    store = subject.store
    assert store.claim("k", "me", HOUR_MS) is Claim.YOURS
    assert store.claim("k", "you", HOUR_MS) is Claim.BUSY
    assert store.claim("k", "me", HOUR_MS) is Claim.BUSY
    assert store.claim("another", "you", HOUR_MS) is Claim.YOURS
    assert store.claim("K", "you", HOUR_MS) is Claim.YOURS


def a_handled_key_stays_handled(subject: Subject) -> None:
    store = subject.store
    assert store.claim("k", "me", HOUR_MS) is Claim.YOURS
    store.finish("k", "me", HOUR_MS)
    assert store.claim("k", "me", HOUR_MS) is Claim.DONE
    assert store.claim("k", "you", HOUR_MS) is Claim.DONE
    store.release("k", "me")
    store.release("k", "done-by-nobody")
    assert store.claim("k", "you", HOUR_MS) is Claim.DONE


def a_released_key_is_free(subject: Subject) -> None:
    store = subject.store
    assert store.claim("k", "me", HOUR_MS) is Claim.YOURS
    store.release("k", "you")
    assert store.claim("k", "you", HOUR_MS) is Claim.BUSY
    store.release("k", "me")
    assert store.claim("k", "you", HOUR_MS) is Claim.YOURS


def a_key_is_free_when_its_lease_is_over(subject: Subject) -> None:
    store = subject.store
    assert store.claim("k", "crashed", 300) is Claim.YOURS
    assert store.claim("k", "you", HOUR_MS) is Claim.BUSY
    subject.pass_ms(301)
    assert store.claim("k", "you", HOUR_MS) is Claim.YOURS
    assert store.claim("k", "me", HOUR_MS) is Claim.BUSY
    # The one that was believed dead must not take the key from the other.
    store.release("k", "crashed")
    assert store.claim("k", "me", HOUR_MS) is Claim.BUSY
    # But if it comes to an end after all, the work is done.
    store.finish("k", "crashed", HOUR_MS)
    assert store.claim("k", "me", HOUR_MS) is Claim.DONE
    store.release("k", "you")
    assert store.claim("k", "me", HOUR_MS) is Claim.DONE


def a_handled_key_is_forgotten_after_its_time(subject: Subject) -> None:
    store = subject.store
    assert store.claim("k", "me", HOUR_MS) is Claim.YOURS
    store.finish("k", "me", 300)
    assert store.claim("k", "you", HOUR_MS) is Claim.DONE
    subject.pass_ms(301)
    assert store.claim("k", "you", HOUR_MS) is Claim.YOURS


def work_that_ends_after_its_lease_is_still_noted(subject: Subject) -> None:
    store = subject.store
    assert store.claim("k", "slow", 300) is Claim.YOURS
    subject.pass_ms(301)
    store.finish("k", "slow", HOUR_MS)
    assert store.claim("k", "you", HOUR_MS) is Claim.DONE


def groups_have_keys_of_their_own(subject: Subject) -> None:
    assert subject.store.claim("k", "me", HOUR_MS) is Claim.YOURS
    assert subject.other_group.claim("k", "you", HOUR_MS) is Claim.YOURS
    subject.store.finish("k", "me", HOUR_MS)
    assert subject.other_group.claim("k", "me", HOUR_MS) is Claim.BUSY


def long_and_strange_keys_are_told_apart(subject: Subject) -> None:
    keys = ["k" * 5000, "k" * 5000 + "!", "it's", '"x"; DROP', "ключ", "%s", ":p1 ?", "a b", "{0}"]
    for key in keys:
        assert subject.store.claim(key, "me", HOUR_MS) is Claim.YOURS
        subject.store.finish(key, "me", HOUR_MS)
    for key in keys:
        assert subject.store.claim(key, "me", HOUR_MS) is Claim.DONE


def of_many_that_claim_at_once_one_wins(subject: Subject) -> None:
    threads_count, keys = 8, [f"key-{number}" for number in range(20)]
    barrier = threading.Barrier(threads_count)
    won: list[str] = []
    errors: list[BaseException] = []

    def claim_all(owner: str) -> None:
        try:
            for key in keys:
                barrier.wait(30)
                if subject.store.claim(key, owner, HOUR_MS) is Claim.YOURS:
                    won.append(key)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=claim_all, args=(str(n),)) for n in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(won) == sorted(keys)


PROMISES: list[Callable[[Subject], None]] = [
    a_free_key_is_given_to_one,
    a_handled_key_stays_handled,
    a_released_key_is_free,
    a_key_is_free_when_its_lease_is_over,
    a_handled_key_is_forgotten_after_its_time,
    work_that_ends_after_its_lease_is_still_noted,
    groups_have_keys_of_their_own,
    long_and_strange_keys_are_told_apart,
    of_many_that_claim_at_once_one_wins,
]
