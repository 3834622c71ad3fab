"""What each request does: ask, work as a client, speak for a broker, or administer.

What administers deletes, resets or reconfigures something that others rely on. Where there are no
users with permissions, that is for peers on the server's own machine (`security.remote_admin` lets
the others in); everything else is for whoever can connect.

Invariant: a request that is not in the table counts as administration, and a test says so.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from onelog.wire.remoting.codes import RequestCode

H = TypeVar("H")


class RequestKind(Enum):
    """What a request does."""

    QUESTION = "changes nothing"
    CLIENT_WORK = "what producers and consumers do"
    CLUSTER_TRAFFIC = "what brokers register with name servers"
    ADMINISTRATION = "deletes, resets or reconfigures"


_KINDS: dict[RequestKind, str] = {
    RequestKind.QUESTION: """
        QUERY_MESSAGE QUERY_CONSUMER_OFFSET GET_ALL_TOPIC_CONFIG GET_BROKER_CONFIG
        GET_BROKER_RUNTIME_INFO SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET
        GET_EARLIEST_MSG_STORETIME VIEW_MESSAGE_BY_ID GET_CONSUMER_LIST_BY_GROUP
        CHECK_CLIENT_CONFIG GET_ALL_CONSUMER_OFFSET GET_ALL_DELAY_OFFSET GET_TIMER_CHECK_POINT
        GET_TIMER_METRICS GET_KV_CONFIG GET_KVLIST_BY_NAMESPACE GET_ROUTEINFO_BY_TOPIC
        GET_BROKER_CLUSTER_INFO GET_ALL_SUBSCRIPTIONGROUP_CONFIG GET_SUBSCRIPTIONGROUP_CONFIG
        GET_TOPIC_STATS_INFO GET_CONSUMER_CONNECTION_LIST GET_PRODUCER_CONNECTION_LIST
        GET_ALL_PRODUCER_INFO GET_ALL_TOPIC_LIST_FROM_NAMESERVER GET_CONSUME_STATS
        GET_BROKER_CONSUME_STATS GET_TOPICS_BY_CLUSTER QUERY_TOPIC_CONSUME_BY_WHO
        QUERY_TOPICS_BY_CONSUMER QUERY_SUBSCRIPTION_BY_CONSUMER QUERY_CONSUME_TIME_SPAN
        QUERY_CORRECTION_OFFSET QUERY_CONSUME_QUEUE GET_SYSTEM_TOPIC_LIST_FROM_NS
        GET_SYSTEM_TOPIC_LIST_FROM_BROKER GET_UNIT_TOPIC_LIST GET_HAS_UNIT_SUB_TOPIC_LIST
        GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST GET_TOPIC_CONFIG GET_CONSUMER_RUNNING_INFO
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS VIEW_BROKER_STATS_DATA GET_NAMESRV_CONFIG
        GET_BROKER_HA_STATUS GET_BROKER_MEMBER_GROUP GET_ALL_MESSAGE_REQUEST_MODE
        QUERY_ASSIGNMENT POLLING_INFO QUERY_STAGED LIST_BINDINGS ASK_OPERATION
    """,
    # Sending creates topics, and heartbeats create groups, if the broker is set to allow that. A
    # consumer's commit (UPDATE_CONSUMER_OFFSET) looks like somebody else's correction of it.
    RequestKind.CLIENT_WORK: """
        SEND_MESSAGE SEND_MESSAGE_V2 SEND_BATCH_MESSAGE SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2
        CONSUMER_SEND_MSG_BACK END_TRANSACTION RECALL_MESSAGE STAGE_MESSAGES COMMIT_STAGED
        HEART_BEAT UNREGISTER_CLIENT UPDATE_CONSUMER_OFFSET LOCK_BATCH_MQ UNLOCK_BATCH_MQ
        PULL_MESSAGE LITE_PULL_MESSAGE POP_MESSAGE PEEK_MESSAGE NOTIFICATION ACK_MESSAGE
        BATCH_ACK_MESSAGE CHANGE_MESSAGE_INVISIBLETIME
    """,
    RequestKind.CLUSTER_TRAFFIC: """
        REGISTER_BROKER UNREGISTER_BROKER BROKER_HEARTBEAT QUERY_DATA_VERSION
    """,
    RequestKind.ADMINISTRATION: """
        UPDATE_AND_CREATE_TOPIC UPDATE_AND_CREATE_TOPIC_LIST DELETE_TOPIC_IN_BROKER
        DELETE_TOPIC_IN_NAMESRV REGISTER_TOPIC_IN_NAMESRV CLEAN_UNUSED_TOPIC
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        DELETE_SUBSCRIPTIONGROUP INVOKE_BROKER_TO_RESET_OFFSET CLONE_GROUP_OFFSET
        SET_MESSAGE_REQUEST_MODE CONSUME_MESSAGE_DIRECTLY RESUME_CHECK_HALF_MESSAGE POP_ROLLBACK
        DELETE_EXPIRED_COMMITLOG CLEAN_EXPIRED_CONSUMEQUEUE UPDATE_BROKER_CONFIG PUT_KV_CONFIG
        DELETE_KV_CONFIG WIPE_WRITE_PERM_OF_BROKER ADD_WRITE_PERM_OF_BROKER
        UPDATE_NAMESRV_CONFIG AUTH_CREATE_USER AUTH_UPDATE_USER AUTH_DELETE_USER AUTH_GET_USER
        AUTH_LIST_USER AUTH_CREATE_ACL AUTH_UPDATE_ACL AUTH_DELETE_ACL AUTH_GET_ACL AUTH_LIST_ACL
        CHANGE_BINDING RUN_OPERATION
    """,
}

KINDS: dict[int, RequestKind] = {
    RequestCode[name]: kind for kind, names in _KINDS.items() for name in names.split()
}
"""What each request does."""


def is_remote_request(handlers: Mapping[int, H], refuse: H) -> dict[int, H]:
    """Handlers as other machines get them: `refuse` is in the place of what administers."""
    return {
        code: refuse
        if KINDS.get(code, RequestKind.ADMINISTRATION) is RequestKind.ADMINISTRATION
        else handler
        for code, handler in handlers.items()
    }


def refusal(code: int, host: str) -> str:
    """Why a request of that machine was not carried out, and what to do."""
    return (
        f"{RequestCode(code).name} is for administrators on the server's own machine, and {host} "
        f"is another one: do it there, or set security.remote_admin=true there"
    )
