"""Policies of RabbitMQ's management API: `/api/policies` and `/api/operator-policies`."""

from typing import Any

from onelog.core.queues.policies import Kind, Policy
from onelog.errors import InvalidRequestError, QueueNotFoundError
from onelog.gateways.http.management_call import Call

Body = dict[str, Any]


def shown(policy: Policy) -> Body:
    """A policy as RabbitMQ shows it."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _kind(call: Call) -> Kind:
    is_operator = call.request.url.path.startswith("/api/operator-policies")
    return "operator" if is_operator else "policy"


async def list_policies(call: Call) -> list[Body]:
    """Those of a vhost, or of all."""
    found = call.broker.queues.declared.policies.listed(call.principal, _kind(call), call.vhosts)
    return [shown(each) for each in found]


async def get_policy(call: Call) -> Body:
    for each in await list_policies(call):
        if each["name"] == call.path["name"]:
            return each
    raise QueueNotFoundError(f"no policy '{call.path['name']}' in vhost '{call.vhost}'")


async def put_policy(call: Call) -> bool:
    """Make one, or change it; True if it was not there."""
    policies, name = call.broker.queues.declared.policies, call.path["name"]
    is_new = not policies.has(_kind(call), call.vhost, name)
    put(call, _kind(call), call.vhost, name, call.body)
    return is_new


def put(call: Call, kind: Kind, vhost: str, name: str, body: Body) -> None:
    """Make a policy of what a request, or definitions, say."""
    try:
        priority = int(body.get("priority", 0))
    except (TypeError, ValueError):
        raise InvalidRequestError("priority must be a number") from None
    pattern, definition = body.get("pattern"), body.get("definition")
    if not isinstance(pattern, str) or not isinstance(definition, dict):
        raise InvalidRequestError("a policy has a pattern, and a definition that is an object")
    apply_to = str(body.get("apply-to") or "all")
    policy = Policy(vhost, name, pattern, definition, priority, apply_to)
    call.broker.queues.declared.policies.put(call.principal, kind, policy)


async def delete_policy(call: Call) -> None:
    policies = call.broker.queues.declared.policies
    policies.delete(call.principal, _kind(call), call.vhost, call.path["name"])
