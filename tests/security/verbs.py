"""The table of `test_verbs`: what requests ask about who has no permission, protocol by protocol.

What has a + everybody may. The first refusal is the answer, so that a line is what somebody needs
first, and not all that he needs. A line `nothing` says after a colon why that is right.
"""

from onelog.wire.remoting.administration import RequestKind

TABLES: dict[str, dict[str, str]] = {
    "remoting": {
        "alter broker": """
            AUTH_CREATE_USER AUTH_DELETE_USER AUTH_UPDATE_USER CLEAN_EXPIRED_CONSUMEQUEUE
            DELETE_EXPIRED_COMMITLOG POP_ROLLBACK RESUME_CHECK_HALF_MESSAGE UPDATE_BROKER_CONFIG
        """,
        "alter group": """
            SET_MESSAGE_REQUEST_MODE
        """,
        "consume group": """
            ACK_MESSAGE BATCH_ACK_MESSAGE CHANGE_MESSAGE_INVISIBLETIME CONSUMER_SEND_MSG_BACK
            CONSUME_MESSAGE_DIRECTLY HEART_BEAT LITE_PULL_MESSAGE LOCK_BATCH_MQ NOTIFICATION
            PEEK_MESSAGE POLLING_INFO POP_MESSAGE PULL_MESSAGE QUERY_ASSIGNMENT
            QUERY_CONSUMER_OFFSET UNLOCK_BATCH_MQ UNREGISTER_CLIENT UPDATE_CONSUMER_OFFSET
        """,
        "consume topic": """
            QUERY_MESSAGE VIEW_MESSAGE_BY_ID
        """,
        "create topic": """
            CHANGE_BINDING
        """,
        "delete group": """
            DELETE_SUBSCRIPTIONGROUP
        """,
        "describe broker": """
            AUTH_CREATE_ACL AUTH_DELETE_ACL AUTH_GET_ACL AUTH_GET_USER AUTH_LIST_ACL AUTH_LIST_USER
            AUTH_UPDATE_ACL CLEAN_UNUSED_TOPIC GET_ALL_CONSUMER_OFFSET GET_ALL_MESSAGE_REQUEST_MODE
            GET_ALL_PRODUCER_INFO GET_BROKER_CONFIG GET_BROKER_CONSUME_STATS GET_BROKER_HA_STATUS
            GET_PRODUCER_CONNECTION_LIST GET_TIMER_METRICS VIEW_BROKER_STATS_DATA
        """,
        "describe broker+": """
            GET_ALL_DELAY_OFFSET GET_BROKER_RUNTIME_INFO GET_SYSTEM_TOPIC_LIST_FROM_BROKER
            GET_TIMER_CHECK_POINT
        """,
        "describe broker+, describe group": """
            GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        """,
        "describe broker+, describe topic": """
            GET_ALL_TOPIC_CONFIG
        """,
        "describe group": """
            CLONE_GROUP_OFFSET GET_CONSUMER_CONNECTION_LIST GET_CONSUMER_LIST_BY_GROUP
            GET_CONSUMER_RUNNING_INFO GET_CONSUME_STATS GET_SUBSCRIPTIONGROUP_CONFIG
            INVOKE_BROKER_TO_GET_CONSUMER_STATUS QUERY_CONSUME_QUEUE QUERY_CONSUME_TIME_SPAN
            QUERY_SUBSCRIPTION_BY_CONSUMER QUERY_TOPICS_BY_CONSUMER
            UPDATE_AND_CREATE_SUBSCRIPTIONGROUP UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        """,
        "describe topic": """
            DELETE_TOPIC_IN_BROKER GET_EARLIEST_MSG_STORETIME GET_MAX_OFFSET GET_MIN_OFFSET
            GET_TOPIC_CONFIG GET_TOPIC_STATS_INFO INVOKE_BROKER_TO_RESET_OFFSET
            QUERY_CORRECTION_OFFSET QUERY_TOPIC_CONSUME_BY_WHO RECALL_MESSAGE
            SEARCH_OFFSET_BY_TIMESTAMP SEND_BATCH_MESSAGE UPDATE_AND_CREATE_TOPIC
            UPDATE_AND_CREATE_TOPIC_LIST
        """,
        "describe vhost": """
            LIST_BINDINGS
        """,
        "nothing: each operation asks for itself, as it does over HTTP": """
            ASK_OPERATION RUN_OPERATION
        """,
        "nothing: a filter is looked at, and nothing that is stored": """
            CHECK_CLIENT_CONFIG
        """,
        "publish broker+, publish transaction": """
            COMMIT_STAGED QUERY_STAGED
        """,
        "publish group+": """
            END_TRANSACTION
        """,
        "publish topic": """
            SEND_MESSAGE SEND_MESSAGE_V2 SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2 STAGE_MESSAGES
        """,
    },
    "grpc": {
        "consume group": """
            AckMessage ChangeInvisibleDuration ForwardMessageToDeadLetterQueue PullMessage
        """,
        "describe group": """
            ReceiveMessage UpdateOffset
        """,
        "describe topic": """
            GetOffset QueryAssignment QueryOffset QueryRoute RecallMessage SendMessage
            SyncLiteSubscription
        """,
        "nothing: a client says that it is there, or goes": """
            Heartbeat NotifyClientTermination
        """,
        "publish group+": """
            EndTransaction Telemetry
        """,
    },
    "kafka": {
        "alter broker": """
            ALTER_USER_SCRAM_CREDENTIALS WRITE_TXN_MARKERS
        """,
        "consume group": """
            ALTER_SHARE_GROUP_OFFSETS HEARTBEAT JOIN_GROUP LEAVE_GROUP SYNC_GROUP
        """,
        "consume group, describe topic": """
            OFFSET_COMMIT
        """,
        "describe broker": """
            CREATE_ACLS DELETE_ACLS DESCRIBE_ACLS
            DESCRIBE_USER_SCRAM_CREDENTIALS
        """,
        "describe broker+, describe group": """
            LIST_GROUPS
        """,
        "describe broker, describe broker+, describe group, describe topic": """
            LIST_CONFIG_RESOURCES
        """,
        "describe broker+, describe topic": """
            ALTER_REPLICA_LOG_DIRS
        """,
        "describe broker+, describe transaction": """
            DESCRIBE_TRANSACTIONS LIST_TRANSACTIONS
        """,
        "describe group": """
            DELETE_GROUPS DELETE_SHARE_GROUP_OFFSETS DESCRIBE_SHARE_GROUP_OFFSETS OFFSET_DELETE
            SHARE_FETCH
        """,
        "describe topic": """
            ADD_PARTITIONS_TO_TXN ALTER_CONFIGS ALTER_PARTITION_REASSIGNMENTS
            CONSUMER_GROUP_HEARTBEAT CREATE_PARTITIONS CREATE_TOPICS DELETE_RECORDS DELETE_TOPICS
            DESCRIBE_CONFIGS DESCRIBE_LOG_DIRS DESCRIBE_PRODUCERS DESCRIBE_TOPIC_PARTITIONS
            ELECT_LEADERS FETCH INCREMENTAL_ALTER_CONFIGS LIST_OFFSETS METADATA OFFSET_FETCH
            OFFSET_FOR_LEADER_EPOCH PRODUCE SHARE_GROUP_HEARTBEAT
        """,
        "describe topic, publish transaction": """
            TXN_OFFSET_COMMIT
        """,
        "consume group, delete group, describe group: what they may do is told, too": """
            CONSUMER_GROUP_DESCRIBE DESCRIBE_GROUPS SHARE_GROUP_DESCRIBE
        """,
        "alter broker, create broker, describe broker+, publish broker+: the same": """
            DESCRIBE_CLUSTER
        """,
        "nothing: brokers are no secret, there are no quotas, share sessions are their maker's": """
            ALTER_CLIENT_QUOTAS DESCRIBE_CLIENT_QUOTAS DESCRIBE_QUORUM
            FIND_COORDINATOR LIST_PARTITION_REASSIGNMENTS SHARE_ACKNOWLEDGE
        """,
        "publish transaction": """
            ADD_OFFSETS_TO_TXN END_TXN INIT_PRODUCER_ID
        """,
    },
    "amqp": {
        "anything exchange/queue": """
            connection.open
        """,
        "consume exchange": """
            exchange.bind exchange.unbind
        """,
        "consume exchange+, create exchange+, publish exchange": """
            exchange.declare-other
        """,
        "consume exchange+, publish exchange": """
            exchange.bind-from-own
        """,
        "consume exchange, describe queue+": """
            queue.bind queue.unbind
        """,
        "consume queue": """
            basic.get queue.purge
        """,
        "create exchange": """
            exchange.declare
        """,
        "create queue": """
            queue.declare queue.declare-dead-letters
        """,
        "delete exchange": """
            exchange.delete
        """,
        "delete queue": """
            queue.delete
        """,
        "describe exchange": """
            exchange.declare-passive
        """,
        "describe queue": """
            basic.consume queue.bind-from-own queue.declare-passive
        """,
        "publish broker+, publish exchange": """
            tx.commit
        """,
        "publish exchange": """
            basic.publish basic.publish-default
        """,
    },
    "stomp": {
        "describe queue": """
            SEND SUBSCRIBE
        """,
        "describe vhost": """
            CONNECT
        """,
        "nothing: what this connection has made itself": """
            ABORT ACK COMMIT DISCONNECT NACK UNSUBSCRIBE
        """,
        "publish broker+": """
            BEGIN
        """,
    },
    "mqtt": {
        "consume mqtt": """
            SUBSCRIBE
        """,
        "nothing: what this connection has made itself; to connect is to log in": """
            CONNECT PINGREQ UNSUBSCRIBE
        """,
        "publish mqtt": """
            PUBLISH
        """,
    },
    "websocket": {
        "consume mqtt": """
            /mqtt:SUBSCRIBE
        """,
        "describe queue": """
            /stomp:SEND /stomp:SUBSCRIBE /ws:SEND /ws:SUBSCRIBE
        """,
        "publish mqtt": """
            /mqtt:PUBLISH
        """,
    },
    "http": {
        "alter broker": """
            DELETE /api/permissions/{vhost}/{user}
            DELETE /api/users/{user}
            POST /api/users/bulk-delete
            PUT /api/permissions/{vhost}/{user}
            PUT /api/users/{user}
            DELETE /api/connections/{name:path}
            DELETE /v1/connections/{id}
            DELETE /v1/roles/{name}
            DELETE /v1/users/{name}
            GET /api/whoami
            PATCH /v1/config
            PATCH /v1/users/{name}
            POST /v1/cluster/drain
            POST /v1/cluster/elect
            POST /v1/cluster/join
            POST /v1/cluster/promote
            POST /v1/cluster/truncate
            POST /v1/half-messages/resume
            POST /v1/users
        """,
        "alter vhost": """
            DELETE /api/operator-policies/{vhost}/{name}
            DELETE /api/policies/{vhost}/{name}
            PUT /api/operator-policies/{vhost}/{name}
            PUT /api/policies/{vhost}/{name}
        """,
        "consume exchange": """
            POST /api/bindings/{vhost}/e/{source}/{kind}/{destination}
            POST /v1/bindings
        """,
        "consume group": """
            POST /v1/groups/{group}/clone
            POST /v1/topics/{topic}/groups/{group}/ack
            POST /v1/topics/{topic}/groups/{group}/extend
            POST /v1/topics/{topic}/groups/{group}/nack
        """,
        "consume queue": """
            DELETE /api/queues/{vhost}/{name}/contents
            POST /api/queues/{vhost}/{name}/get
        """,
        "consume topic": """
            GET /v1/dead-letters/{group}
            GET /v1/messages/{id}
            POST /v1/dead-letters/{group}/resend
        """,
        "create exchange": """
            POST /v1/exchanges
            PUT /api/exchanges/{vhost}/{name}
        """,
        "create queue": """
            POST /v1/queues
            PUT /api/queues/{vhost}/{name}
        """,
        "create vhost": """
            PUT /api/vhosts/{vhost}
        """,
        "create vhost, describe vhost": """
            POST /api/definitions
            POST /api/definitions/{vhost}
        """,
        "delete topic": """
            DELETE /v1/dead-letters/{group}
        """,
        "delete vhost": """
            DELETE /api/vhosts/{vhost}
        """,
        "describe broker": """
            GET /api/permissions/{vhost}/{user}
            GET /api/users/without-permissions
            GET /api/users/{user}
            GET /api/users/{user}/permissions
            GET /api/users/{user}/topic-permissions
            GET /api/user-limits/{user}
            GET /api/vhosts/{vhost}/permissions
            GET /api/permissions
            GET /api/users
            GET /api/vhosts/{vhost}/channels
            GET /api/vhosts/{vhost}/connections
            GET /v1/audit
            GET /v1/cluster
            GET /v1/cluster/replicas
            GET /v1/config
            GET /v1/connections
            GET /v1/dead-letters
            GET /v1/delays
            GET /v1/half-messages
            GET /v1/lake
            GET /v1/messages/{id}/trace
            GET /v1/roles
            GET /v1/roles/{name}
            GET /v1/users
            GET /v1/users/{name}
            PATCH /v1/roles/{name}
            POST /v1/roles
        """,
        "describe broker+": """
            GET /api/healthchecks/node
            GET /api/nodes/{node}
            GET /api/nodes/{node}/memory
            GET /api/nodes/{node}/memory/relative
            GET /api/aliveness-test/{vhost}
            GET /api/health/checks/port-listener/{port}
            GET /api/health/checks/protocol-listener/{protocol}
            GET /api/health/checks/{check:path}
            GET /api/nodes
        """,
        "describe broker+, describe topic": """
            GET /v1/topics
        """,
        "describe broker+, describe transaction": """
            DELETE /v1/transactions/{id}
            GET /v1/transactions
        """,
        "describe broker, describe broker+": """
            GET /metrics
        """,
        "describe broker, describe broker+, describe group": """
            GET /v1/groups
        """,
        "describe broker, describe broker+, describe group, describe topic": """
            GET /v1/overview
        """,
        "describe broker, describe broker+, describe queue, describe vhost": """
            GET /api/overview
        """,
        "describe queue, describe vhost": """
            GET /api/vhosts/{vhost}
        """,
        "describe broker, describe queue": """
            GET /api/consumers/{vhost}
        """,
        "describe broker, describe vhost": """
            GET /api/connections/username/{user}
            GET /api/channels
            GET /api/channels/{name:path}
            GET /api/connections
            GET /api/connections/{name:path}
            GET /api/connections/{of}/channels
            GET /api/consumers
        """,
        "describe exchange": """
            DELETE /api/exchanges/{vhost}/{name}
            DELETE /v1/exchanges/{name}
            GET /api/exchanges/{vhost}/{name}
            GET /v1/route
        """,
        "describe group": """
            DELETE /v1/groups/{group}
            GET /v1/groups/{group}
            PATCH /v1/groups/{group}
            POST /v1/groups
            POST /v1/groups/{group}/reset
        """,
        "describe queue": """
            DELETE /api/message/{name:path}
            DELETE /api/queues/{vhost}/{name}
            DELETE /v1/queues/{name}
            DELETE /v1/queues/{name}/messages
            GET /api/message/{name:path}
            GET /api/queues/{vhost}
            GET /api/queues/{vhost}/{name}
            GET /v1/queues
            POST /api/message/{name:path}
        """,
        "describe topic": """
            DELETE /v1/topics/{topic}
            DELETE /v1/topics/{topic}/messages
            GET /v1/topics/{topic}
            GET /v1/topics/{topic}/follow
            GET /v1/topics/{topic}/groups
            GET /v1/topics/{topic}/messages
            GET /v1/topics/{topic}/peek
            GET /v1/topics/{topic}/queues
            GET /v1/topics/{topic}/route
            GET /v1/topics/{topic}/schema
            PATCH /v1/topics/{topic}
            POST /v1/topics
            POST /v1/topics/{topic}/groups/{group}/consume
            POST /v1/topics/{topic}/messages
            POST /v1/topics/{topic}/produce
            POST /v1/topics/{topic}/produce-json
            PUT /v1/topics/{topic}/schema
        """,
        "describe vhost": """
            DELETE /api/bindings/{vhost}/e/{source}/{kind}/{destination}/{props}
            GET /api/bindings
            GET /api/bindings/{vhost}
            GET /api/bindings/{vhost}/e/{source}/{kind}/{destination}
            GET /api/bindings/{vhost}/e/{source}/{kind}/{destination}/{props}
            GET /api/definitions
            GET /api/definitions/{vhost}
            GET /api/exchanges
            GET /api/exchanges/{vhost}
            GET /api/exchanges/{vhost}/{name}/bindings/{end}
            GET /api/operator-policies
            GET /api/operator-policies/{vhost}
            GET /api/operator-policies/{vhost}/{name}
            GET /api/policies
            GET /api/policies/{vhost}
            GET /api/policies/{vhost}/{name}
            GET /api/queues
            GET /api/queues/{vhost}/{name}/bindings
            GET /api/vhosts
            GET /v1/bindings
            GET /v1/exchanges
        """,
        "nothing: logging in, health, what there is none of, and what is asked in their name": """
            DELETE /api/cluster-name/{what:path}
            DELETE /api/global-parameters/{what:path}
            PUT /api/cluster-name
            PUT /api/cluster-name/{what:path}
            PUT /api/global-parameters/{what:path}
            GET /api/auth
            GET /api/cluster-name
            GET /api/global-parameters
            GET /api/global-parameters/{name}
            GET /api/parameters/{component}
            GET /api/parameters/{component}/{vhost}
            GET /api/user-limits
            GET /api/vhost-limits/{vhost}
            GET /api/vhosts/{vhost}/topic-permissions
            DELETE /api/parameters/{what:path}
            DELETE /api/topic-permissions/{what:path}
            DELETE /api/vhost-limits/{what:path}
            PUT /api/parameters/{what:path}
            PUT /api/topic-permissions/{what:path}
            PUT /api/vhost-limits/{what:path}
            DELETE /v1/delays/{id}
            GET /api/extensions
            GET /api/feature-flags
            GET /api/parameters
            GET /api/topic-permissions
            GET /api/vhost-limits
            GET /healthz
            GET /login
            GET /readyz
            GET /v1/session
            POST /login
            POST /logout
        """,
        "publish exchange": """
            POST /api/exchanges/{vhost}/{name}/publish
        """,
    },
}

REPLICATION = {"Greeting", "Report"}
"""What followers say. They have no names: who may follow gets all of the log, and who may is a
matter of machines (`replication.node.Followers`)."""

NAMESERVER = {
    RequestKind.QUESTION: """
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER GET_BROKER_CLUSTER_INFO GET_BROKER_MEMBER_GROUP
        GET_HAS_UNIT_SUB_TOPIC_LIST GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST GET_KVLIST_BY_NAMESPACE
        GET_KV_CONFIG GET_NAMESRV_CONFIG GET_ROUTEINFO_BY_TOPIC GET_SYSTEM_TOPIC_LIST_FROM_NS
        GET_TOPICS_BY_CLUSTER GET_UNIT_TOPIC_LIST
    """,
    RequestKind.CLUSTER_TRAFFIC: """
        BROKER_HEARTBEAT QUERY_DATA_VERSION REGISTER_BROKER UNREGISTER_BROKER
    """,
    RequestKind.ADMINISTRATION: """
        ADD_WRITE_PERM_OF_BROKER DELETE_KV_CONFIG DELETE_TOPIC_IN_NAMESRV PUT_KV_CONFIG
        REGISTER_TOPIC_IN_NAMESRV UPDATE_NAMESRV_CONFIG WIPE_WRITE_PERM_OF_BROKER
    """,
}
"""Name servers know no users: what each request does there."""
