"""Bodies about users and what they may do (RocketMQ's ACL 2.0: UserInfo, AclInfo).

A user's `roles` and `signing`, and subjects `Role:name`, are OneLog's own; RocketMQ ignores them.
"""

from msgspec import field

from onelog.wire.remoting.body import Body, Name


class UserInfo(Body, frozen=True):
    """A user. Passwords go in and never come out."""

    password: Name | None = None
    roles: list[Name] | None = None
    signing: bool = True
    """Whether requests can be signed with the password: it is kept as it is then."""
    user_status: Name | None = None
    """`enable` or `disable`."""
    user_type: Name | None = None
    """`Super` or `Normal`."""
    username: Name = ""


class AuditEntry(Body, frozen=True):
    """What somebody did, or tried."""

    action: str = ""
    address: str = ""
    protocol: str = ""
    result: str = ""
    thing: str = ""
    time: int = 0
    user: str = ""


class PolicyEntry(Body, frozen=True):
    """What may be done to one thing."""

    actions: list[Name] = field(default_factory=list)
    decision: Name = "Allow"
    resource: Name = ""
    """`Topic:orders`, `Group:app-*`, `*`: a kind, and a name that may end in a star."""
    source_ips: list[Name] | None = None


class PolicyInfo(Body, frozen=True):
    """Some of what a subject may do."""

    entries: list[PolicyEntry] = field(default_factory=list)
    policy_type: Name | None = None


class AclInfo(Body, frozen=True):
    """All that a subject may do."""

    policies: list[PolicyInfo] = field(default_factory=list)
    subject: Name = ""
    """`User:alice`."""
