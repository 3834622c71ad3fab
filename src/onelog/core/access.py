"""Who asks, and whether they may.

Everything that is done for a peer is done for a `Principal`. Without users everybody may do
everything; `core.users` decides once there are some.
"""

from typing import Literal, NamedTuple

from onelog.errors import NotPermittedError

Action = Literal["publish", "consume", "create", "alter", "delete", "describe"]
"""Whoever lets somebody do one of the others should let him describe the same thing, too: clients
have to find out what they work with. The retry topics of a group come with the group."""
Kind = Literal["topic", "group", "broker", "exchange", "queue", "vhost"]
Resource = tuple[Kind, str]
"""What something is done to, and its name."""


class Principal(NamedTuple):
    """Somebody who asks: who they say they are, in which protocol, and from where."""

    name: str
    protocol: str
    address: str = ""


SELF = Principal("broker", "none")
"""The broker, when it does something of its own accord."""


class Access:
    """Lets everybody do everything."""

    is_open = True
    """Whether that is so: who is in a hurry need not ask then."""

    def may(self, who: Principal, action: Action, resource: Resource) -> bool:
        """Whether they may."""
        return True

    def check(self, who: Principal, action: Action, resource: Resource) -> None:
        """`NotPermittedError` if they may not."""
        if not self.is_open and not self.may(who, action, resource):
            error = NotPermittedError(
                f"{who.name or who.address} may not {action} {resource[0]} {resource[1]}"
            )
            error.kind = resource[0]
            raise error
