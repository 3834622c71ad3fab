"""The OpenAPI 3.1 document, made from the table of operations."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from onelog import __version__
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
_PATH_PARAMETERS = {
    "topic": ("The topic's name.", "orders"),
    "group": ("The group's name.", "billing"),
    "name": ("Its name.", "shop"),
    "id": ("The id.", "7F00000100002A9F0000000000000000"),
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document."""
    types = [each.result for each in operations]
    types += [each.body for each in operations if each.body is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    results = dict(zip(operations_ids(operations), schemas, strict=False))
    bodies = iter(schemas[len(operations) :])
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        body = None if operation.body is None else next(bodies)
        made = _operation(operation, results[operation.name], body)
        paths.setdefault(operation.path, {})[operation.method.lower()] = made
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


def operations_ids(operations: Sequence[Operation]) -> list[str]:
    """Their names, each of which there is once."""
    names = [each.name for each in operations]
    assert len(names) == len(set(names)), names
    return names


def _tag(operation: Operation) -> str:
    return operation.path.split("/")[2]


def _operation(operation: Operation, result: Any, body: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": result}
    if operation.method == "GET" and operation.example is not None:
        content["example"] = operation.example
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.text or (operation.act.__doc__ or "").strip(),
        "tags": [_tag(operation)],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {
            str(operation.status): {
                "description": "So it is.",
                "content": {"application/json": content},
            },
            "default": _PROBLEM_ANSWER,
        },
    }
    if operation.method == "GET":
        made["responses"]["304"] = {"description": "As it was: see If-None-Match."}
    if body is not None:
        sent: dict[str, Any] = {"schema": body}
        if operation.example is not None:
            sent["example"] = operation.example
        made["requestBody"] = {"required": True, "content": {"application/json": sent}}
    return made


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    found = []
    for name in re.findall(r"{(\w+)}", operation.path):
        text, example = _PATH_PARAMETERS[name]
        schema = {"type": "string", "minLength": 1, "maxLength": 255}
        found.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": text,
                "schema": schema,
                "example": example,
            }
        )
    return found


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([operation.query], ref_template=_REF)
    (schema,) = components.values()
    made = []
    for name, each in schema.get("properties", {}).items():
        about = dict(each)
        parameter = {"name": name, "in": "query", "schema": _without_null(about)}
        text = about.pop("description", "")
        if text:
            parameter["description"] = text
        made.append(parameter)
    return made


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
