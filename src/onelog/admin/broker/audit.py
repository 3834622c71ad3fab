"""What administrators did, by REST."""

from typing import Annotated

from msgspec import Meta, Struct

from onelog.admin.operations import Ask, Limit, Listing, Operation
from onelog.core.users.audit import Entry
from onelog.gateways.http.requests import looked_up


class AuditQuery(Struct, forbid_unknown_fields=True):
    """How many, and whose."""

    limit: Limit = 100
    user: Annotated[str, Meta(max_length=255, description="Whose actions only.")] = ""


async def list_audit(ask: Ask) -> Listing[Entry]:
    """The last ones, newest first."""
    broker, query = ask.context.broker, ask.query
    find = lambda: broker.users.audited(ask.principal, query.limit, query.user)  # noqa: E731 - for a worker
    found = await looked_up(ask.context, find)
    return Listing(found, len(found))


OPERATIONS = [
    Operation(
        "GET",
        "/v1/audit",
        "What administrators did, newest first",
        list_audit,
        Listing[Entry],
        AuditQuery,
    ),
]
