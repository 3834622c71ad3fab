"""Users, roles and permissions of a broker: who may do what, and who changes that."""

from collections.abc import Callable

import pytest

from onelog.core.access import SELF, Action, Kind, Principal
from onelog.core.users.passwords import Proofs, is_proven, prove
from onelog.core.users.permissions import EVERYTHING, Rule, decide
from onelog.core.users.users import Role, Users
from onelog.errors import (
    InvalidRequestError,
    NotPermittedError,
    RoleNotFoundError,
    UserExistsError,
    UserNotFoundError,
)
from tests.core.world import World

BOB = Principal("bob", "test", "10.0.0.7:1234")
NOBODY = Principal("", "test", "10.0.0.7:1234")


@pytest.fixture
def users(world: World) -> Users:
    users = world.broker.users
    users.create_user(SELF, "ann", Proofs(), ("admin",))
    users.create_user(SELF, "bob", Proofs())
    return users


@pytest.mark.parametrize(
    ("rule", "name", "is_about"),
    [
        (Rule(("publish",), "topic", "orders", "literal"), "orders", True),
        (Rule(("publish",), "topic", "orders", "literal"), "orders2", False),
        (Rule(("publish",), "topic", "*", "literal"), "anything", True),
        (Rule(("publish",), "topic", "ord", "prefix"), "orders", True),
        (Rule(("publish",), "topic", "ord", "prefix"), "bord", False),
        (Rule(("publish",), "topic", "*-eu-*"), "orders-eu-1", True),
        (Rule(("publish",), "topic", "*-eu-*"), "orders-us-1", False),
        (Rule(("publish",), "topic", "a.c"), "abc", False),
        (Rule(("publish",), "group", "orders", "literal"), "orders", False),
        (Rule(("admin",), "*"), "orders", True),
        (Rule(("publish",), "topic", hosts=("10.0.0.7",)), "orders", True),
        (Rule(("publish",), "topic", hosts=("10.0.0.8",)), "orders", False),
    ],
)
def test_a_rule_is_about_the_things_that_it_names(rule: Rule, name: str, is_about: bool) -> None:
    assert decide([rule], "publish", ("topic", name), "10.0.0.7") is is_about


def test_a_rule_that_denies_goes_before_all_others() -> None:
    rules = [EVERYTHING, Rule(("consume",), "topic", "pay", "prefix", "deny")]
    assert decide(rules, "publish", ("topic", "payments"), "")
    assert not decide(rules, "consume", ("topic", "payments"), "")
    assert not decide(list(reversed(rules)), "consume", ("topic", "payments"), "")


def test_who_may_do_something_may_describe_the_thing() -> None:
    rules = [Rule(("publish",), "topic", "orders", "literal")]
    assert decide(rules, "describe", ("topic", "orders"), "")
    assert not decide(rules, "delete", ("topic", "orders"), "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": ("fly",), "kind": "topic"},
        {"actions": (), "kind": "topic"},
        {"actions": ("publish",), "kind": "planet"},
        {"actions": ("publish",), "kind": "topic", "name": ""},
        {"actions": ("publish",), "kind": "topic", "match": "regex"},
        {"actions": ("publish",), "kind": "topic", "effect": "maybe"},
    ],
)
def test_a_rule_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        Rule(**wrong)  # type: ignore[arg-type]


def test_without_users_everybody_may_do_everything(world: World) -> None:
    world.topic("orders")
    assert world.broker.users.may(NOBODY, "delete", ("topic", "orders"))


def test_the_first_user_is_an_administrator(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="the first user must have the role admin"):
        world.broker.users.create_user(SELF, "bob", Proofs())


@pytest.mark.parametrize(
    ("principal", "action", "thing", "may"),
    [
        (BOB, "publish", ("topic", "orders"), True),
        (BOB, "consume", ("topic", "orders"), False),
        (BOB, "publish", ("group", "any name of a sender"), True),
        (BOB, "describe", ("broker", "broker-a"), True),
        (BOB, "describe", ("broker", "users"), False),
        (BOB, "describe", ("broker", "names"), False),
        (BOB, "alter", ("broker", "users"), False),
        (NOBODY, "publish", ("topic", "orders"), False),
        (NOBODY, "describe", ("broker", "broker-a"), False),
        (Principal("eve", "test"), "publish", ("topic", "orders"), False),
        (Principal("ann", "test"), "delete", ("topic", "orders"), True),
        (SELF, "delete", ("topic", "orders"), True),
    ],
)
def test_users_may_do_what_their_rules_say(
    users: Users, principal: Principal, action: Action, thing: tuple[Kind, str], may: bool
) -> None:
    users.set_rules(SELF, "bob", (Rule(("publish",), "topic", "orders", "literal"),))
    assert users.may(principal, action, thing) is may


def test_a_change_is_seen_at_once(users: Users) -> None:
    assert not users.may(BOB, "publish", ("topic", "orders"))
    users.put_role(SELF, Role("senders", (Rule(("publish",), "topic"),)))
    users.change_user(SELF, "bob", roles=("senders",))
    assert users.may(BOB, "publish", ("topic", "orders"))
    users.change_user(SELF, "bob", disabled=True)
    assert not users.may(BOB, "publish", ("topic", "orders"))
    users.change_user(SELF, "bob", disabled=False)
    users.delete_role(SELF, "senders")
    assert users.user(SELF, "bob").roles == ()
    assert not users.may(BOB, "publish", ("topic", "orders"))


def test_who_does_not_log_in_has_a_role_if_that_is_allowed(users: Users) -> None:
    users.anonymous = True
    users.forget_answers()
    assert users.may(NOBODY, "publish", ("topic", "orders"))
    users.put_role(SELF, Role("anonymous", (Rule(("consume",), "topic", "news", "literal"),)))
    assert not users.may(NOBODY, "publish", ("topic", "orders"))
    assert users.may(NOBODY, "consume", ("topic", "news"))


def test_only_administrators_change_users(users: Users) -> None:
    changes: list[Callable[[], object]] = [
        lambda: users.create_user(BOB, "eve", Proofs()),
        lambda: users.change_user(BOB, "bob", roles=("admin",)),
        lambda: users.delete_user(BOB, "ann"),
        lambda: users.put_role(BOB, Role("r")),
        lambda: users.delete_role(BOB, "r"),
        lambda: users.set_rules(BOB, "bob", (EVERYTHING,)),
        lambda: users.all_users(BOB),
        lambda: users.rules(BOB, "ann"),
    ]
    for change in changes:
        with pytest.raises(NotPermittedError, match="bob may not"):
            change()


def test_an_administrator_is_left(users: Users) -> None:
    changes: list[Callable[[], object]] = [
        lambda: users.delete_user(SELF, "ann"),
        lambda: users.change_user(SELF, "ann", roles=()),
        lambda: users.change_user(SELF, "ann", disabled=True),
    ]
    for change in changes:
        with pytest.raises(InvalidRequestError, match="the last user with the role admin"):
            change()
    users.delete_user(SELF, "bob")
    users.delete_user(SELF, "ann")
    assert users.is_open


def test_what_is_not_there_or_is_there_already_is_said(users: Users) -> None:
    with pytest.raises(UserExistsError):
        users.create_user(SELF, "bob", Proofs())
    with pytest.raises(UserNotFoundError):
        users.delete_user(SELF, "eve")
    with pytest.raises(RoleNotFoundError):
        users.change_user(SELF, "bob", roles=("no such role",))
    with pytest.raises(RoleNotFoundError):
        users.set_rules(SELF, "role:none", ())
    with pytest.raises(InvalidRequestError):
        users.create_user(SELF, "a\x01b", Proofs())
    with pytest.raises(InvalidRequestError):
        users.put_role(SELF, Role("admin"))


def test_users_survive_a_crash(world: World) -> None:
    users = world.broker.users
    proofs = prove("secret", signing=True)
    users.create_user(SELF, "ann", proofs, ("admin",), ("monitoring",))
    users.put_role(SELF, Role("senders", (Rule(("publish",), "topic", "o", "prefix"),)))
    users.create_user(SELF, "bob", Proofs(), ("senders",))
    users.set_rules(SELF, "bob", (Rule(("consume",), "group", "g", "literal", "deny", ("::1",)),))
    before = users.all_users(SELF), users.all_roles(SELF)
    world.crash()
    users = world.broker.users
    assert (users.all_users(SELF), users.all_roles(SELF)) == before
    assert not users.is_open
    assert is_proven("secret", users.user(SELF, "ann").proofs)
    assert users.may(BOB, "publish", ("topic", "orders"))
    assert not users.may(BOB, "consume", ("topic", "orders"))


def test_the_broker_asks_from_the_first_user_on(world: World) -> None:
    world.topic("orders")
    broker = world.broker
    assert broker.topics.require(NOBODY, "orders")
    broker.users.create_user(SELF, "ann", Proofs(), ("admin",))
    with pytest.raises(NotPermittedError):
        broker.topics.require(NOBODY, "orders")
    _, seen = broker.topics.all(Principal("ann", "test"))
    assert "orders" in {each.name for each in seen}
    broker.users.create_user(SELF, "bob", Proofs())
    broker.users.set_rules(SELF, "bob", (Rule(("consume",), "topic", "news", "literal"),))
    _, seen = broker.topics.all(BOB)
    assert "orders" not in {each.name for each in seen}


def test_of_a_password_only_proofs_are_kept() -> None:
    proofs = prove("correct horse")
    assert "correct" not in repr(proofs)
    assert proofs.secret == ""
    assert is_proven("correct horse", proofs)
    assert not is_proven("correct horsf", proofs)
    assert not is_proven("", proofs)
    assert not is_proven("x" * 5_000, proofs)
    assert not is_proven("correct horse", Proofs())
    assert prove("correct horse").scrypt != proofs.scrypt
    with pytest.raises(InvalidRequestError):
        prove("")


def test_the_first_user_may_do_little_if_who_does_not_log_in_may_do_everything(
    world: World,
) -> None:
    users = world.broker.users
    users.anonymous = True
    users.create_user(NOBODY, "bob", Proofs())
    users.change_user(NOBODY, "bob", disabled=True)
    assert users.may(NOBODY, "alter", ("broker", "users"))
    users.put_role(NOBODY, Role("anonymous", ()))
    assert not users.may(NOBODY, "alter", ("broker", "users"))
