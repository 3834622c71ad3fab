"""What operations do in the broker that is asked: a function of the same name for each of them."""

from collections.abc import Awaitable, Callable
from typing import Any

from onelog.admin.broker import clusters, groups, history, lake, routing, topics, users
from onelog.admin.broker.call import Call as Call
from onelog.admin.table import OPERATIONS

_PLACES = (clusters, lake, topics, groups, history, routing, users)
FUNCTIONS: dict[str, Callable[[Call, Any], Awaitable[Any]]] = {
    each.name: next(getattr(place, each.name) for place in _PLACES if hasattr(place, each.name))
    for each in OPERATIONS
}
