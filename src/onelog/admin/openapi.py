"""The OpenAPI 3.1 document, made from the table of operations."""

from collections.abc import Sequence
from typing import Any

import msgspec

from onelog import __version__
from onelog.admin.broker import FUNCTIONS
from onelog.admin.operations import Operation

_REF = "#/components/schemas/{name}"
PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
_PROBLEM_ANSWER = {
    "description": "What went wrong.",
    "content": {
        "application/problem+json": {
            "schema": {"$ref": _REF.format(name="Problem")},
            "example": {
                "type": "urn:onelog:topic-not-found",
                "title": "Topic not found",
                "status": 404,
                "detail": "topic orders does not exist",
            },
        }
    },
}
_RULE = [{"actions": ["publish"], "kind": "topic", "name": "orders"}]
_ID = "7F00000100002A9F0000000000000000"
_NAMED = {"topic": "orders", "group": "billing", "name": "shop", "id": _ID}
_TABLE = {"name": "orders", "form": "delta", "files": 3, "size_bytes": 9000, "rows": 100}
EXAMPLES: dict[str, dict[str, Any]] = {
    "create_topic": {"name": "orders", "queues": 8},
    "update_topic": {"queues": 16, "permission": "rw"},
    "send_message": {"body": '{"order": 1}', "keys": ["order-1"], "tags": "paid"},
    "put_schema": {"schema": {"format": "avro", "schema": '{"type": "string"}'}},
    "create_group": {"name": "billing", "retry_times_max": 5},
    "update_group": {"retry_times_max": 3},
    "reset_group": {"topic": "orders", "to": "earliest", "dry_run": True},
    "clone_group": {"source": "billing"},
    "resend_letters": {"ids": [], "dry_run": True},
    "resume_half": {"id": _ID},
    "change_config": {"broker.trace": False},
    "promote": {"node": 1},
    "drain": {"node": 1},
    "join": {"node": 2},
    "elect": {"node": 1},
    "truncate": {"node": 1},
    "get_lake": {"folder": "lake", "trouble": None, "queries": [], "reads": [], "tables": [_TABLE]},
    "declare_exchange": {"name": "shop", "kind": "topic"},
    "declare_queue": {"name": "jobs", "arguments": {"x-max-length": 1000}},
    "bind": {"source": "shop", "destination": "jobs", "key": "order.*"},
    "create_user": {"name": "ann", "password": "correct horse", "roles": ["admin"]},
    "update_user": {"permissions": _RULE},
    "create_role": {"name": "senders", "permissions": _RULE},
    "update_role": {"permissions": _RULE},
}
"""Bodies that could be sent; of a GET, an answer."""


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document."""
    names = [each.name for each in operations]
    assert len(names) == len(set(names)), names
    kinds = [each.result for each in operations] + [each.arguments for each in operations]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation, result in zip(operations, schemas, strict=False):
        arguments = components[operation.arguments.__name__]
        made = _operation(operation, result, arguments)
        paths.setdefault(operation.path, {})[operation.method.lower()] = made
    for kind in {each.arguments.__name__ for each in operations}:
        del components[kind]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OneLog",
            "version": __version__,
            "description": "Administration of a OneLog broker. What changes something is for who "
            "is on the broker's machine, unless security.remote_admin says otherwise; it needs "
            "content-type: application/json, and If-Match is respected.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in sorted({_tag(each) for each in operations})],
        "paths": paths,
        "components": {"schemas": {**components, "Problem": PROBLEM}},
    }


def _tag(operation: Operation) -> str:
    return operation.path.split("/")[2]


def _operation(operation: Operation, result: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    example = EXAMPLES.get(operation.name)
    examples = {} if example is None else {"example": example}
    answer = {"schema": result, **({} if operation.takes_body else examples)}
    properties = dict(arguments["properties"])
    required = [each for each in arguments["required"] if each not in operation.path_names]
    parameters = [
        _parameter("path", name, properties.pop(name), _NAMED[name])
        for name in operation.path_names
    ]
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": (FUNCTIONS[operation.name].__doc__ or "").strip(),
        "tags": [_tag(operation)],
        "parameters": parameters,
        "responses": {
            str(operation.status): {
                "description": "So it is.",
                "content": {"application/json": answer},
            },
            "default": _PROBLEM_ANSWER,
        },
    }
    if operation.method == "GET":
        made["responses"]["304"] = {"description": "As it was: see If-None-Match."}
    if operation.takes_body:
        body = {**arguments, "properties": properties, "required": required}
        schema = properties[operation.whole] if operation.whole else body
        content = {"application/json": {"schema": schema, **examples}}
        made["requestBody"] = {"required": True, "content": content}
    else:
        parameters += [_parameter("query", name, each) for name, each in properties.items()]
    return made


def _parameter(where: str, name: str, schema: dict[str, Any], example: str = "") -> dict[str, Any]:
    text = schema.get("description") or ""
    schema = {key: each for key, each in _without_null(schema).items() if key != "description"}
    return {
        "name": name,
        "in": where,
        "schema": schema,
        **({"required": True, "example": example} if where == "path" else {}),
        **({"description": text} if text else {}),
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not there is left out, never null."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if choices:
        rest = {key: each for key, each in schema.items() if key not in ("anyOf", "default")}
        return {**choices[0], **rest} if len(choices) == 1 else {**rest, "anyOf": choices}
    if "enum" in schema:
        kept = [each for each in schema["enum"] if each is not None]
        return {"enum": kept}
    return schema
