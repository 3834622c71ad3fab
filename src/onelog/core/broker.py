"""The broker, as gateways see it: eight facets over one core, and nothing else.

Whatever is done for a peer, or told to one, is a method of a facet, has `principal` as its first
argument, and is refused to those who may not. No method blocks, none is a coroutine: an answer that
has to wait is given later, by a callback.
"""

from dataclasses import dataclass

from onelog.core.admin import Admin
from onelog.core.catalog.topic_catalog import TopicCatalog
from onelog.core.cursors.cursors import Cursors
from onelog.core.membership.group_membership import GroupMembership
from onelog.core.publish import Publisher
from onelog.core.queues.receiving import Receiving
from onelog.core.transactions.transactions import Transactions
from onelog.core.users.users import Users


@dataclass(frozen=True, slots=True, eq=False)
class Broker:
    """One broker; `assembly` builds it, opens it, keeps it going and closes it."""

    topics: TopicCatalog
    groups: GroupMembership
    queues: Receiving
    cursors: Cursors
    publish: Publisher
    transactions: Transactions
    users: Users
    admin: Admin
