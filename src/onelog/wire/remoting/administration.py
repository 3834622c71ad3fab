"""What each request does: ask, work as a client, speak for a broker, or administer.

What administers deletes, resets or reconfigures something that others rely on. Until there are
users with permissions, that is for peers on the server's own machine (`security.remote_admin` lets
the others in); everything else is for whoever can connect.

Invariant: a request that is not in the table counts as administration, and a test says so.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from onelog.wire.remoting.codes import RequestCode

H = TypeVar("H")


class Kind(Enum):
    """What a request does."""

    QUESTION = "changes nothing"
    CLIENT_WORK = "what producers and consumers do"
    CLUSTER_TRAFFIC = "what brokers tell name servers about themselves"
    ADMINISTRATION = "deletes, resets or reconfigures"


_KINDS: dict[Kind, tuple[RequestCode, ...]] = {
    Kind.QUESTION: (
        RequestCode.QUERY_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.POLLING_INFO,
        RequestCode.QUERY_STAGED,
    ),
    Kind.CLIENT_WORK: (
        # Sending creates topics, and heartbeats create groups, if the broker is set to allow that.
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RECALL_MESSAGE,
        RequestCode.STAGE_MESSAGES,
        RequestCode.COMMIT_STAGED,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        # A consumer's commit looks like somebody else's correction of it.
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ),
    Kind.CLUSTER_TRAFFIC: (
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,
    ),
    Kind.ADMINISTRATION: (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.POP_ROLLBACK,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    ),
}

KINDS: dict[int, Kind] = {code: kind for kind, codes in _KINDS.items() for code in codes}
"""What each request does."""


def from_afar(handlers: Mapping[int, H], refuse: H) -> dict[int, H]:
    """Handlers as other machines get them: `refuse` is in the place of what administers."""
    return {
        code: refuse if KINDS.get(code, Kind.ADMINISTRATION) is Kind.ADMINISTRATION else handler
        for code, handler in handlers.items()
    }


def refusal(code: int, host: str) -> str:
    """Why a request of that machine was not carried out, and what to do."""
    return (
        f"{RequestCode(code).name} is for administrators on the server's own machine, and {host} "
        f"is another one: do it there, or set security.remote_admin=true there"
    )
