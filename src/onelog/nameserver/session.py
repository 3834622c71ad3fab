"""What a name server answers, request by request.

A handler takes the session and the command, and returns the answer's fields and body; what goes
wrong is raised and becomes an answer through `ERROR_CODES`. Putting and deleting keys is answered
once the file is written.
"""

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from onelog.clock import Clock
from onelog.errors import (
    InvalidRequestError,
    KeyNotFoundError,
    NotPermittedError,
    NotSavedError,
    OnelogError,
    TopicNotFoundError,
    WireError,
)
from onelog.nameserver.kv import ORDER_TOPICS, KvConfig
from onelog.nameserver.routes import (
    UNIT_FLAG,
    UNIT_SUBSCRIBED_FLAG,
    Endpoint,
    Registration,
    RouteTable,
)
from onelog.net.connection import Connection, is_here
from onelog.net.register import is_register
from onelog.net.remoting import ServerSession
from onelog.wire.remoting import fields
from onelog.wire.remoting.administration import is_remote_request, refusal
from onelog.wire.remoting.body import Body
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.frame import REQUEST_HEADER_BYTES_MAX, CompactHeaders
from onelog.wire.remoting.registration import DataVersion, decode_registration
from onelog.wire.remoting.routes import BrokerMemberGroupAnswer, TopicRouteData

log = logging.getLogger(__name__)


class Switches(msgspec.Struct, frozen=True, rename="camel"):
    """What can be changed while running, under RocketMQ's names."""

    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = True
    """As brokers wish; RocketMQ's own name servers have to be told so."""
    delete_topic_with_broker_registration: bool = False


SWITCH_NAMES = dict(zip(Switches.__struct_encode_fields__, Switches.__struct_fields__, strict=True))
FIXED_NAMES = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})
"""Settings that nobody may change over the network: they name files."""


@dataclass(slots=True)
class Registry:
    """Everything that the sessions of one name server share."""

    routes: RouteTable
    kv: KvConfig
    clock: Clock
    broker_expiry_ms: int
    save_kv: Callable[[Callable[[NotSavedError | None], None]], None]
    """Write the key-value file, then call back."""
    switches: Switches = field(default_factory=Switches)
    config_updates: bool = False
    """Whether UPDATE_NAMESRV_CONFIG is obeyed at all."""
    remote_admin: bool = False
    """Whether administrators may be on other machines."""
    headers: CompactHeaders = field(default_factory=CompactHeaders)

    def switch(self, switches: Switches) -> None:
        """Put other switches in force."""
        self.switches = switches
        self.routes.acting_masters = switches.support_acting_master
        self.routes.delete_missing_topics = switches.delete_topic_with_broker_registration


class Success(NamedTuple):
    """A successful answer."""

    ext: dict[str, str] | None = None
    body: bytes = b""


class NameserverSession(ServerSession[Success]):
    """One client, broker or admin tool."""

    def __init__(self, connection: Connection, registry: Registry) -> None:
        super().__init__(
            connection, header_bytes_max=REQUEST_HEADER_BYTES_MAX, headers=registry.headers
        )
        self.registry = registry
        self.may_administer = registry.remote_admin or is_here(
            connection.remote[0], connection.local[0]
        )
        self.handlers = HANDLERS if self.may_administer else _HANDLERS_FROM_AFAR

    def answer(self, command: Command, answer: Success) -> None:
        """Send a successful answer."""
        self.reply(command, ext=answer.ext, body=answer.body)

    def fail(self, command: Command, error: OnelogError) -> None:
        """Answer a request that went wrong."""
        self.reply(command, ERROR_CODES[type(error)], remark=str(error))

    def closed(self) -> None:
        """The connection is gone, and with it the brokers that registered over it."""
        for endpoint in self.registry.routes.channel_closed(self):
            log.info("broker %r of %r left: its connection closed", endpoint[1], endpoint[0])


Handler = Callable[[NameserverSession, Command], Success | None]

ERROR_CODES: dict[type[OnelogError], ResponseCode] = {
    InvalidRequestError: ResponseCode.SYSTEM_ERROR,
    WireError: ResponseCode.SYSTEM_ERROR,
    NotSavedError: ResponseCode.SYSTEM_ERROR,
    NotPermittedError: ResponseCode.NO_PERMISSION,
    TopicNotFoundError: ResponseCode.TOPIC_NOT_EXIST,
    KeyNotFoundError: ResponseCode.QUERY_NOT_FOUND,
}


# Brokers.


def _endpoint(command: Command) -> Endpoint:
    return Endpoint(fields.text(command.ext, "clusterName"), fields.text(command.ext, "brokerAddr"))


def register_broker(session: NameserverSession, command: Command) -> Success:
    ext, registry = command.ext, session.registry
    endpoint = _endpoint(command)
    name = fields.text(ext, "brokerName")
    ha_address = fields.text(ext, "haServerAddr")
    broker_id = fields.number(ext, "brokerId")
    expected_crc = fields.number(ext, "bodyCrc32", 0)
    if expected_crc and zlib.crc32(command.body) & 0x7FFFFFFF != expected_crc:
        raise InvalidRequestError("crc32 not match")
    body = decode_registration(command.body, fields.flag(ext, "compressed"), command.version)
    registration = Registration(
        endpoint,
        name,
        broker_id,
        ha_address,
        body,
        fields.number(ext, "heartbeatTimeoutMillis", registry.broker_expiry_ms),
        fields.flag(ext, "enableActingMaster") if "enableActingMaster" in ext else None,
        ext.get("__ZONE_NAME"),
    )
    is_new = registry.routes.data_version(endpoint) is None
    master = registry.routes.register(registration, session, registry.clock.now_ms())
    if master is None:
        raise InvalidRequestError("register broker failed")
    if is_new:
        log.info("broker %r (%d) of %r joined at %r", name, broker_id, *endpoint)
    answer = {}
    if master.address is not None:
        answer["masterAddr"] = master.address
    if master.ha_address is not None:
        answer["haServerAddr"] = master.ha_address
    return Success(answer, _order_topics(registry))


def _order_topics(registry: Registry) -> bytes:
    if not registry.switches.return_order_topic_config_to_broker:
        return b""
    try:
        return registry.kv.namespace(ORDER_TOPICS).encode()
    except KeyNotFoundError:
        return b""


def unregister_broker(session: NameserverSession, command: Command) -> Success:
    """UNREGISTER_BROKER: of an administrator, or of the machine that registered the broker."""
    fields.number(command.ext, "brokerId")
    endpoint = _endpoint(command)
    if not session.may_administer:
        host = session.connection.remote[0]
        for holder in session.registry.routes.channels(endpoint.address):
            assert isinstance(holder, NameserverSession)
            if holder.connection.remote[0] != host:
                session.refuse(
                    f"broker {endpoint.address} was registered by another machine than {host}: "
                    f"unregister it there, or on the name server's own machine"
                )
    if session.registry.routes.unregister(endpoint, fields.text(command.ext, "brokerName")):
        log.info("broker %r of %r left: it said so", endpoint.address, endpoint.cluster)
    return Success()


def broker_heartbeat(session: NameserverSession, command: Command) -> Success:
    registry = session.registry
    registry.routes.heartbeat(_endpoint(command), registry.clock.now_ms())
    return Success()


def query_data_version(session: NameserverSession, command: Command) -> Success:
    """QUERY_DATA_VERSION: whether a broker has to send its topics, which is also a heartbeat."""
    registry, endpoint = session.registry, _endpoint(command)
    known = registry.routes.data_version(endpoint)
    is_changed = known is None or known != DataVersion.decode(command.body)
    registry.routes.heartbeat(endpoint, registry.clock.now_ms())
    body = known.encode() if known is not None else b""
    return Success({"changed": "true" if is_changed else "false"}, body)


# Topics.


def route_of_topic(session: NameserverSession, command: Command) -> Success:
    """GET_ROUTEINFO_BY_TOPIC. Standard JSON for all: older clients read it as well."""
    ext, registry = command.ext, session.registry
    topic = fields.text(ext, "topic")
    zone = ext.get("__ZONE_NAME") if fields.flag(ext, "__ZONE_MODE") else None
    route = registry.routes.route(topic, zone)
    if route is None:
        raise TopicNotFoundError(f"No topic route info in name server for the topic: {topic}")
    if registry.switches.order_message_enable:
        conf = registry.kv.get(ORDER_TOPICS, topic)
        route = msgspec.structs.replace(route, order_topic_conf=conf)
    return Success(body=route.encode())


def _query(ask: Callable[[RouteTable, Command], Body]) -> Handler:
    """A handler that answers with what the table says."""

    def handler(session: NameserverSession, command: Command) -> Success:
        return Success(body=ask(session.registry.routes, command).encode())

    return handler


def _members(routes: RouteTable, command: Command) -> BrokerMemberGroupAnswer:
    cluster = fields.text(command.ext, "clusterName")
    members = routes.members(cluster, fields.text(command.ext, "brokerName"))
    return BrokerMemberGroupAnswer(broker_member_group=members)


def _change_perm(change: Callable[[RouteTable, str], int], did: str, counted: str) -> Handler:
    def handler(session: NameserverSession, command: Command) -> Success:
        name = fields.text(command.ext, "brokerName")
        count = change(session.registry.routes, name)
        log.info("%s %s broker %r: %d topics", session.connection, did, name, count)
        return Success({counted: str(count)})

    return handler


def delete_topic(session: NameserverSession, command: Command) -> Success:
    topic = fields.text(command.ext, "topic")
    session.registry.routes.delete_topic(topic, command.ext.get("clusterName"))
    return Success()


def register_topic(session: NameserverSession, command: Command) -> Success:
    """REGISTER_TOPIC_IN_NAMESRV. As in RocketMQ, unknown brokers are logged, not refused."""
    topic = fields.text(command.ext, "topic")
    queues = TopicRouteData.decode(command.body).queue_datas
    if not session.registry.routes.register_topic(topic, queues):
        log.warning("%s registered topic %r on unknown brokers", session.connection, topic)
    return Success()


# Keys and values.


def _check_may_change(session: NameserverSession, command: Command) -> None:
    """Administrators change every key; brokers on other machines what their cluster agrees on."""
    if session.may_administer:
        return
    host, namespace = session.connection.remote[0], command.ext.get("namespace", "")
    for cluster, holder in session.registry.routes.clusters_and_channels():
        assert isinstance(holder, NameserverSession)
        if is_register(namespace, cluster) and holder.connection.remote[0] == host:
            return
    session.refuse(
        f"{refusal(command.code, host)}; only the register of a cluster may be changed by the"
        " machines that its brokers registered from"
    )


def put_kv(session: NameserverSession, command: Command) -> None:
    """PUT_KV_CONFIG. OneLog's own field `expected` is the value that it takes the place of."""
    _check_may_change(session, command)
    ext = command.ext
    value = fields.text(ext, "value")
    session.registry.kv.put(
        fields.text(ext, "namespace"), fields.text(ext, "key"), value, ext.get("expected")
    )
    _save(session, command)


def delete_kv(session: NameserverSession, command: Command) -> None:
    _check_may_change(session, command)
    ext = command.ext
    session.registry.kv.delete(fields.text(ext, "namespace"), fields.text(ext, "key"))
    _save(session, command)


def _save(session: NameserverSession, command: Command) -> None:
    def saved(error: NotSavedError | None) -> None:
        if error is None:
            session.reply(command)
        else:
            session.fail(command, error)

    session.registry.save_kv(saved)


def get_kv(session: NameserverSession, command: Command) -> Success:
    namespace, key = fields.text(command.ext, "namespace"), fields.text(command.ext, "key")
    value = session.registry.kv.get(namespace, key)
    if value is None:
        raise KeyNotFoundError(f"No config item, Namespace: {namespace} Key: {key}")
    return Success({"value": value})


def list_kv(session: NameserverSession, command: Command) -> Success:
    """GET_KVLIST_BY_NAMESPACE. Nothing but its version, if that is OneLog's own field `known`."""
    namespace, kv = fields.text(command.ext, "namespace"), session.registry.kv
    version = {"version": kv.version(namespace)}
    if command.ext.get("known") == version["version"]:
        return Success(version)
    return Success(version, kv.namespace(namespace).encode())


# The name server's own configuration.


def update_config(session: NameserverSession, command: Command) -> Success:
    """UPDATE_NAMESRV_CONFIG: off unless the operator allowed it (see CVE-2023-37582)."""
    registry = session.registry
    if not registry.config_updates:
        raise NotPermittedError("changing the name server's configuration is switched off")
    try:
        lines = bytes(command.body).decode().splitlines()
    except UnicodeDecodeError:
        raise WireError("the configuration is not UTF-8") from None
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    if properties.keys() & FIXED_NAMES:
        raise NotPermittedError("Can not update config in black list.")
    changes = {
        SWITCH_NAMES[name]: value.lower() == "true"
        for name, value in properties.items()
        if name in SWITCH_NAMES
    }
    registry.switch(msgspec.structs.replace(registry.switches, **changes))
    log.info("%s changed %s", session.connection, ", ".join(changes) or "nothing")
    return Success()


def get_config(session: NameserverSession, command: Command) -> Success:
    switches = session.registry.switches
    lines = [
        f"{name}={str(getattr(switches, field)).lower()}\n" for name, field in SWITCH_NAMES.items()
    ]
    return Success(body="".join(lines).encode())


HANDLERS: dict[int, Handler] = {
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.GET_KV_CONFIG: get_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: list_kv,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.GET_BROKER_MEMBER_GROUP: _query(_members),
    RequestCode.GET_BROKER_CLUSTER_INFO: _query(lambda routes, _: routes.cluster_info()),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _change_perm(
        RouteTable.wipe_write, "took write permission from", "wipeTopicCount"
    ),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _change_perm(
        RouteTable.add_write, "gave write permission to", "addTopicCount"
    ),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of_topic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _query(lambda routes, _: routes.topics()),
    RequestCode.GET_TOPICS_BY_CLUSTER: _query(
        lambda routes, command: routes.topics_of_cluster(fields.text(command.ext, "cluster"))
    ),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _query(lambda routes, _: routes.system_topics()),
    RequestCode.GET_UNIT_TOPIC_LIST: _query(lambda routes, _: routes.topics_with_flags(UNIT_FLAG)),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _query(
        lambda routes, _: routes.topics_with_flags(UNIT_SUBSCRIBED_FLAG)
    ),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _query(
        lambda routes, _: routes.topics_with_flags(UNIT_SUBSCRIBED_FLAG, UNIT_FLAG)
    ),
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
}


_HANDLERS_FROM_AFAR = is_remote_request(HANDLERS, NameserverSession.refuse_remote) | {
    RequestCode.PUT_KV_CONFIG: put_kv,
    RequestCode.DELETE_KV_CONFIG: delete_kv,
}
"""Which keys brokers on other machines may change, these two say themselves."""
