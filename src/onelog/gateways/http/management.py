"""RabbitMQ's management API at `/api`, as far as tools need it: rabbitmqadmin, exporters, Flower.

Vhosts, exchanges, queues, bindings, messages, definitions, and lists of everything else. Names in
paths are quoted, `%2F` is the vhost `/`; values in bodies may be texts: rabbitmqadmin sends those.
"""

import asyncio
import base64
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onelog import __version__
from onelog.core.queues.queue import WorkQueue
from onelog.errors import (
    AccessRefusedError,
    InvalidRequestError,
    KeyNotFoundError,
    OnelogError,
    PreconditionFailedError,
    QueueNotFoundError,
)
from onelog.gateways import RABBITMQ_VERSION, GatewayContext
from onelog.gateways.http import (
    management_clients,
    management_nodes,
    management_users,
    management_views,
    policies,
)
from onelog.gateways.http.management_call import Body, Call
from onelog.gateways.http.management_nodes import NODE
from onelog.gateways.http.management_views import binding as binding_view
from onelog.gateways.http.management_views import channels_of, consumer, queue_stats
from onelog.gateways.http.management_views import exchange as exchange_view
from onelog.gateways.http.management_views import queue as queue_view
from onelog.gateways.http.problems import status_of
from onelog.gateways.http.rates import Rates
from onelog.gateways.http.requests import (
    answer,
    as_requested,
    body_of,
    called,
    in_turns,
    json_of,
    principal_of,
    require_admin,
)
from onelog.record.forms import amqp
from onelog.record.forms.amqp_fields import decode_properties, encode_properties

MESSAGES_MAX = 1_000
_TAKEN_AT_ONCE = 100
BODY_BYTES_MAX, VALUES_MAX = 1 << 20, 200_000
"""Of a request; those of a message and of definitions may be larger, but not have more values."""
PAGE_MAX = 500
_DEFAULT = "amq.default"
_ACK_MODES = (
    "ack_requeue_true",
    "ack_requeue_false",
    "reject_requeue_true",
    "reject_requeue_false",
)
_LARGE = "/api/definitions"
_BROWSERS = ("origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest")

Act = Callable[[Call], Awaitable[Any]]


# -- the broker ------------------------------------------------------------------------------------


async def overview(call: Call) -> Body:
    """What the first page of RabbitMQ's console has."""
    queues = call.broker.queues.declared.queues(call.principal)
    call.broker.admin.state(call.principal)
    clients = call.clients()
    totals: Counter[str] = Counter()
    await in_turns(queues, lambda each: totals.update(queue_stats(each)))
    ready, unacked = sum(each.ready for each in queues), sum(each.unacked for each in queues)
    vhosts = call.vhosts
    exchanges = sum(
        len(call.broker.publish.routing.exchanges(call.principal, each)) for each in vhosts
    )
    return {
        "management_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "OneLog",
        "product_version": __version__,
        "erlang_version": "",
        "cluster_name": call.broker.admin.config.cluster,
        "node": NODE,
        "rates_mode": "basic",
        "queue_totals": {
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        },
        "object_totals": {
            "queues": len(queues),
            "exchanges": exchanges,
            "channels": sum(len(each.channels) for each in clients),
            "consumers": sum(len(each.consumers) for each in queues),
            "connections": len(clients),
        },
        "message_stats": call.rates.of(call.broker.queues.declared, dict(totals)),
        "listeners": [
            {"node": NODE, "protocol": name, "ip_address": host, "port": port, "socket_opts": []}
            for name, (host, port) in management_nodes.listeners(call).items()
        ],
        "contexts": [],
        "statistics_db_event_queue": 0,
        "exchange_types": [{"name": each} for each in ("direct", "fanout", "headers", "topic")],
    }


async def whoami(call: Call) -> Body:
    tags = ["administrator"] if call.broker.users.is_admin(call.principal) else []
    return {"name": call.principal.name or "guest", "tags": tags}


async def nothing(call: Call) -> list[Body]:
    """What OneLog does not have, or names otherwise."""
    if "vhost" in call.path:
        _ = call.vhosts
    return []


async def refuse(call: Call) -> None:
    """What RabbitMQ would set here, and OneLog has elsewhere, or not at all."""
    if call.request.method == "DELETE":
        raise KeyNotFoundError("there is nothing of that name")
    raise InvalidRequestError(_ELSEWHERE[call.request.url.path.split("/")[2]])


# -- vhosts ----------------------------------------------------------------------------------------


async def list_vhosts(call: Call) -> list[Body]:
    """All of them, with their messages."""
    found = []
    for each in call.vhosts:
        queues = call.broker.queues.declared.queues(call.principal, each)
        ready = sum(queue.ready for queue in queues)
        unacked = sum(queue.unacked for queue in queues)
        found.append({"name": each, "messages": ready + unacked, "messages_ready": ready})
    return found


async def get_vhost(call: Call) -> Body:
    (found,) = await list_vhosts(call)
    for each in call.broker.publish.routing.vhosts(call.principal):
        if each.name == call.vhost:
            said = {"description": each.description, "tags": list(each.tags)}
            found |= {**said, "metadata": said, "tracing": False}
            found |= {"default_queue_type": "undefined", "cluster_state": {NODE: "running"}}
    return found


async def put_vhost(call: Call) -> bool:
    """Make one, or change what is said of it; True if it was not there."""
    routing = call.broker.publish.routing
    is_new = not routing.has_vhost(call.vhost)
    tags = call.body.get("tags") or ()
    tags = tags.split(",") if isinstance(tags, str) else tags
    if not all(isinstance(each, str) for each in tags):
        raise InvalidRequestError("tags are texts, in a list or parted by commas")
    if is_new or call.body:
        routing.declare_vhost(call.principal, call.vhost, call.text("description"), tags)
    return is_new


async def delete_vhost(call: Call) -> None:
    """Forget one, with all in it."""
    _ = call.vhosts
    call.broker.publish.routing.delete_vhost(call.principal, call.vhost)


# -- exchanges -------------------------------------------------------------------------------------


def _named(name: str) -> str:
    return "" if name == _DEFAULT else name


async def list_exchanges(call: Call) -> list[Body]:
    """Exchanges of a vhost, or of all."""
    found = call.broker.publish.routing.exchanges
    policies = call.broker.queues.declared.policies
    exchanges = (each for vhost in call.vhosts for each in found(call.principal, vhost))
    return await in_turns(exchanges, lambda each: exchange_view(each, policies))


async def get_exchange(call: Call) -> Body:
    name = _named(call.path["name"])
    exchange = call.broker.publish.routing.exchange(call.principal, call.vhost, name)
    return exchange_view(exchange, call.broker.queues.declared.policies)


async def put_exchange(call: Call) -> bool:
    """Declare one; True if it was not there."""
    _ = call.vhosts
    is_new = not call.broker.publish.routing.has_exchange(call.vhost, call.path["name"])
    call.broker.publish.routing.declare_exchange(
        call.principal,
        call.vhost,
        call.path["name"],
        call.text("type", "direct"),
        durable=call.flag("durable", True),
        auto_delete=call.flag("auto_delete"),
        internal=call.flag("internal"),
        arguments=call.table("arguments"),
    )
    return is_new


async def delete_exchange(call: Call) -> None:
    if_unused = call.request.query_params.get("if-unused") == "true"
    routing = call.broker.publish.routing
    routing.exchange(call.principal, call.vhost, call.path["name"])
    routing.delete_exchange(call.principal, call.vhost, call.path["name"], if_unused=if_unused)


async def publish(call: Call) -> Body:
    """Publish a message to an exchange."""
    payload, encoding = call.text("payload"), call.text("payload_encoding", "string")
    if encoding not in ("string", "base64"):
        raise InvalidRequestError(f"unsupported_encoding: {encoding!r:.80}")
    try:
        is_packed = encoding == "base64"
        body = base64.b64decode(payload, validate=True) if is_packed else payload.encode()
        given = call.table("properties")
        properties = encode_properties(given)
    except (ValueError, TypeError, KeyError) as wrong:
        raise InvalidRequestError(f"the message is not as it should be: {wrong}") from None
    counts: list[int] = []

    def start(done: Callable[..., None]) -> None:
        count = call.broker.publish.routing.publish(
            call.principal,
            call.vhost,
            _named(call.path["name"]),
            call.text("routing_key"),
            properties,
            body,
            done,
        )
        counts.append(count)
        if count == 0:
            done(None, None, None)

    _, _, error = await called(start)
    if error is not None:
        raise error
    return {"routed": counts[0] > 0}


# -- queues ----------------------------------------------------------------------------------------


async def list_queues(call: Call) -> list[Body]:
    """Queues of a vhost, or of all."""
    queues = call.broker.queues.declared.queues
    found = (each for vhost in call.vhosts for each in queues(call.principal, vhost))
    return await in_turns(found, partial(queue_view, call))


def _found(call: Call) -> WorkQueue:
    """The queue that the path names; exclusive ones, too."""
    for each in call.broker.queues.declared.queues(call.principal, call.vhosts[0]):
        if each.name == call.path["name"]:
            return each
    raise QueueNotFoundError(f"no queue '{call.path['name']}' in vhost '{call.vhost}'")


async def get_queue(call: Call) -> Body:
    """One queue, with its consumers."""
    queue, where = _found(call), channels_of(call)
    return {
        **queue_view(call, queue),
        "consumer_details": [consumer(queue, each, where) for each in queue.consumers],
    }


async def consumers(call: Call) -> list[Body]:
    """Who consumes, of all queues."""
    where = channels_of(call)
    found = (
        (queue, each)
        for vhost in call.vhosts
        for queue in call.broker.queues.declared.queues(call.principal, vhost)
        for each in list(queue.consumers)
    )
    return await in_turns(found, lambda each: consumer(*each, where))


async def put_queue(call: Call) -> bool:
    """Declare one; True if it was not there."""
    _ = call.vhosts
    is_new = not call.broker.queues.declared.has(call.vhost, call.path["name"])
    if is_new and call.path["name"].startswith("amq."):
        raise AccessRefusedError(
            f"queue name '{call.path['name']}' contains reserved prefix 'amq.*'"
        )
    call.broker.queues.declared.declare(
        call.principal,
        call.vhost,
        call.path["name"],
        durable=call.flag("durable", True),
        auto_delete=call.flag("auto_delete"),
        arguments=call.table("arguments"),
    )
    return is_new


async def delete_queue(call: Call) -> None:
    _found(call)
    query = call.request.query_params
    call.broker.queues.declared.delete(
        call.principal,
        call.vhost,
        call.path["name"],
        if_unused=query.get("if-unused") == "true",
        if_empty=query.get("if-empty") == "true",
    )


async def purge(call: Call) -> None:
    call.broker.queues.declared.purge(call.principal, call.vhost, call.path["name"])


async def get_messages(call: Call) -> list[Body]:
    """Take messages, and give them back or not, as `ackmode` says."""
    try:
        count = min(MESSAGES_MAX, int(call.body.get("count", 1)))
    except (TypeError, ValueError):
        raise InvalidRequestError("count must be a number") from None
    mode = call.text("ackmode", "ack_requeue_true")
    if mode not in _ACK_MODES:
        raise InvalidRequestError(f"ackmode is one of {', '.join(_ACK_MODES)}")
    taken: list[tuple[Any, WorkQueue, int]] = []
    try:
        made = await _taken(call, count, taken)
    except asyncio.CancelledError:
        if taken:
            taken[0][1].requeue([delivery[0] for delivery, _, _ in taken], counted=False)
        raise
    positions = [delivery[0] for delivery, _, _ in taken]
    if taken:
        queue = taken[0][1]
        if mode.endswith("requeue_true"):
            queue.requeue(positions, counted=mode.startswith("reject"))
        elif mode.startswith("reject"):
            queue.reject(positions)
        else:
            queue.ack(positions)
    return made


async def _taken(call: Call, count: int, taken: list[tuple[Any, WorkQueue, int]]) -> list[Body]:
    """Take so many messages, as far as there are some; what they look like."""
    for number in range(count):
        if not (number + 1) % _TAKEN_AT_ONCE:
            await asyncio.sleep(0)
        _, delivery, queue, left, error = await called(
            lambda done: call.broker.queues.declared.get(
                call.principal, call.vhost, call.path["name"], done
            )
        )
        if error is not None:
            raise error
        if delivery is None:
            break
        taken.append((delivery, queue, left))
    return await in_turns(taken, lambda each: _message(call, each[0], each[2]))


def _message(call: Call, delivery: Any, left: int) -> Body:
    content = amqp.read(delivery[2])
    body = bytes(content.body)
    encoding = call.text("encoding", "auto")
    try:
        payload = "" if encoding == "base64" else body.decode()
    except UnicodeDecodeError:
        encoding = "base64"
    if encoding == "base64":
        payload = base64.b64encode(body).decode()
    return {
        "payload_bytes": len(body),
        "redelivered": delivery[1] > 0,
        "exchange": content.exchange,
        "routing_key": content.key,
        "message_count": left,
        "properties": decode_properties(content.properties),
        "payload": payload,
        "payload_encoding": "base64" if encoding == "base64" else "string",
    }


# -- bindings --------------------------------------------------------------------------------------


async def list_bindings(call: Call) -> list[Body]:
    """Bindings: all, of a queue, from or to an exchange, or between two."""
    found = []
    source, destination = call.path.get("source"), call.path.get("destination")
    kind = "queue" if call.path.get("kind") == "q" else "exchange"
    if "name" in call.path:
        if call.path.get("end") == "source":
            source = call.path["name"]
        else:
            destination = call.path["name"]
            kind = "exchange" if "end" in call.path else "queue"
    for vhost in call.vhosts:
        bindings = call.broker.publish.routing.bindings(
            call.principal,
            vhost,
            None if source is None else _named(source),
            None if destination is None else (kind, destination),  # type: ignore[arg-type]
        )
        found += await in_turns(bindings, partial(binding_view, vhost))
    if "props" in call.path:
        found = [each for each in found if each["properties_key"] == call.path["props"]]
    return found


async def post_binding(call: Call) -> None:
    kind = "queue" if call.path["kind"] == "q" else "exchange"
    call.broker.publish.routing.bind(
        call.principal,
        call.vhost,
        call.path["source"],
        kind,  # type: ignore[arg-type]
        call.path["destination"],
        call.text("routing_key"),
        call.table("arguments"),
    )


async def get_binding(call: Call) -> Body:
    """The one that the path names."""
    for each in await list_bindings(call):
        return each
    raise QueueNotFoundError(f"there is no binding {call.path['props']!r:.80} there")


async def delete_binding(call: Call) -> None:
    await get_binding(call)
    for each in await list_bindings(call):
        call.broker.publish.routing.unbind(
            call.principal,
            call.vhost,
            each["source"],
            each["destination_type"],
            each["destination"],
            each["routing_key"],
            each["arguments"],
        )


# -- the table -------------------------------------------------------------------------------------

_ELSEWHERE = {
    "cluster-name": "the cluster's name is the setting broker.cluster",
    "global-parameters": "there are no global parameters but the cluster's name: broker.cluster",
    "topic-permissions": "what may be published is a permission: `onelog permission --help`",
    "vhost-limits": "a vhost has no limits of its own: set `max-length` with a policy",
    "parameters": "there are no plugins, and no parameters of them",
}
"""Where to do what RabbitMQ does at these paths."""
ROUTES = """
    /overview                          GET overview
    /nodes                             GET nodes
    /nodes/{node}                      GET get_node
    /nodes/{node}/memory               GET memory
    /nodes/{node}/memory/relative      GET relative_memory
    /cluster-name                      GET cluster_name PUT refuse
    /global-parameters                 GET global_parameters
    /global-parameters/{name}          GET global_parameter
    /auth                              GET auth
    /whoami                            GET whoami
    /users                             GET list_users
    /users/without-permissions         GET without_permissions
    /users/bulk-delete                 POST delete_users
    /users/{user}                      GET get_user PUT put_user DELETE delete_user
    /users/{user}/permissions          GET list_permissions
    /users/{user}/topic-permissions    GET nothing_of_user
    /permissions                       GET list_permissions
    /permissions/{vhost}/{user}   GET get_permission PUT put_permission DELETE delete_permission
    /user-limits/{user}                GET nothing_of_user
    /connections                       GET connections
    /connections/username/{user}       GET connections
    /connections/{of}/channels         GET channels
    /connections/{name:path}           GET get_connection DELETE close_connection
    /channels                          GET channels
    /channels/{name:path}              GET get_channel
    /vhosts/{vhost}/connections        GET connections
    /vhosts/{vhost}/channels           GET channels
    /extensions                        GET nothing
    /parameters                        GET nothing
    /parameters/{component}            GET nothing
    /parameters/{component}/{vhost}    GET nothing
    /vhost-limits                      GET nothing
    /vhost-limits/{vhost}              GET nothing
    /topic-permissions                 GET nothing
    /feature-flags                     GET nothing
    /user-limits                       GET nothing
    /cluster-name/{what:path}          PUT refuse DELETE refuse
    /global-parameters/{what:path}     PUT refuse DELETE refuse
    /topic-permissions/{what:path}     PUT refuse DELETE refuse
    /vhost-limits/{what:path}          PUT refuse DELETE refuse
    /parameters/{what:path}            PUT refuse DELETE refuse
    /policies                          GET list_policies
    /policies/{vhost}                  GET list_policies
    /policies/{vhost}/{name}           GET get_policy PUT put_policy DELETE delete_policy
    /operator-policies                 GET list_policies
    /operator-policies/{vhost}         GET list_policies
    /operator-policies/{vhost}/{name}  GET get_policy PUT put_policy DELETE delete_policy
    /healthchecks/node                 GET alive
    /aliveness-test/{vhost}            GET alive
    /health/checks/port-listener/{port}          GET listens
    /health/checks/protocol-listener/{protocol}  GET listens
    /health/checks/{check:path}        GET alive
    /vhosts                            GET list_vhosts
    /vhosts/{vhost}/permissions        GET list_permissions
    /vhosts/{vhost}/topic-permissions  GET nothing
    /vhosts/{vhost}                    GET get_vhost PUT put_vhost DELETE delete_vhost
    /consumers                         GET consumers
    /consumers/{vhost}                 GET consumers
    /exchanges                         GET list_exchanges
    /exchanges/{vhost}                 GET list_exchanges
    /exchanges/{vhost}/{name}          GET get_exchange PUT put_exchange DELETE delete_exchange
    /exchanges/{vhost}/{name}/publish  POST publish
    /exchanges/{vhost}/{name}/bindings/{end}  GET list_bindings
    /queues                            GET list_queues
    /queues/{vhost}                    GET list_queues
    /queues/{vhost}/{name}             GET get_queue PUT put_queue DELETE delete_queue
    /queues/{vhost}/{name}/contents    DELETE purge
    /queues/{vhost}/{name}/get         POST get_messages
    /queues/{vhost}/{name}/bindings    GET list_bindings
    /bindings                          GET list_bindings
    /bindings/{vhost}                  GET list_bindings
    /bindings/{vhost}/e/{source}/{kind}/{destination}          GET list_bindings POST post_binding
    /bindings/{vhost}/e/{source}/{kind}/{destination}/{props}  GET get_binding DELETE delete_binding
    /definitions                       GET export POST load
    /definitions/{vhost}               GET export POST load
"""
_PLACES = (management_clients, management_views, management_nodes, management_users, policies)


def _acts(line: str) -> tuple[str, dict[str, Act]]:
    """A path, and what each of its methods does."""
    path, *words = line.split()
    known: dict[str, Any] = {name: each for p in _PLACES for name, each in vars(p).items()}
    known |= globals()
    return path, {words[at]: known[words[at + 1]] for at in range(0, len(words), 2)}


ACTS = dict(map(_acts, ROUTES.strip().splitlines()))


def routes(context: GatewayContext) -> list[BaseRoute]:
    """What RabbitMQ's tools ask."""
    rates = Rates(context.clock)
    made = [
        Route(f"/api{path}", _endpoint(acts, rates), methods=list(acts))
        for path, acts in ACTS.items()
    ]
    for each in made:  # They may end in a slash.
        each.path_regex = re.compile(each.path_regex.pattern.removesuffix("$") + "/?$")
    return list[BaseRoute](made)


async def _body(request: Request) -> Body:
    """The body. It need not say that it is JSON, as `curl -d` does not, where no browser can have
    sent it: all of them say where a request comes from that changes something."""
    headers = request.headers
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return {}
    is_large = request.url.path.startswith(_LARGE) or request.url.path.endswith("/publish")
    bytes_max = None if is_large else BODY_BYTES_MAX
    if any(name in headers for name in _BROWSERS):
        return await json_of(request, Body, bytes_max)
    body = await body_of(request, bytes_max)
    if len(body) > BODY_BYTES_MAX and body.count(b":") > VALUES_MAX:
        raise InvalidRequestError(f"more than {VALUES_MAX} values in one request")
    try:
        return msgspec.json.decode(body or b"{}", type=Body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"not_json: {error}") from None


def _endpoint(acts: dict[str, Act], rates: Rates) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        is_read = request.method in ("GET", "HEAD")
        principal = principal_of(request) if is_read else require_admin(request)
        body: Body = {}
        try:
            if request.method in ("PUT", "POST"):
                body = await _body(request)
            made = await acts["GET" if is_read else request.method](
                Call(request, principal, body, rates)
            )
            if isinstance(made, list):
                made = as_requested(request, made, PAGE_MAX)
        except (InvalidRequestError, PreconditionFailedError) as error:  # For rabbitmqadmin.
            return answer({"error": "bad_request", "reason": str(error)}, 400)
        except OnelogError as error:
            if status_of(error) != HTTPStatus.NOT_FOUND:
                raise
            return answer({"error": "Object Not Found", "reason": str(error)}, 404)
        if isinstance(made, Response):
            return made
        if made is None or isinstance(made, bool):
            is_new = made is not False and request.method in ("PUT", "POST")
            return Response(status_code=201 if is_new else 204)
        return answer(made)

    return endpoint
