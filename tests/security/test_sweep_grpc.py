"""gRPC: no call tells a user anything about what he has no permission for."""

import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from onelog.wire.grpc import messages
from onelog.wire.grpc.codes import Code
from tests.gateways.grpc.live import address
from tests.security.secrets import ABSENT, NOBODY, OWNER, SECRET, TRACE, context, hidden, state

DATE = "20260101T000000Z"
NUMBER = {"batch_size": 1, "invisible_duration": 30, "client_type": 3, "max_attempts": 3}
PATHS = sorted(messages.methods())


def metadata(login: tuple[str, str] | None) -> list[tuple[str, str]]:
    given = [("x-mq-client-id", "sweep"), ("x-mq-language", "PYTHON"), ("x-mq-date-time", DATE)]
    if login is None:
        return given
    signed = hmac.digest(login[1].encode(), DATE.encode(), "sha1").hex().upper()
    value = (
        f"MQv2-HMAC-SHA1 Credential={login[0]}, SignedHeaders=x-mq-date-time, Signature={signed}"
    )
    return [*given, ("authorization", value)]


def about(kind: Any, name: str, group: str, depth: int = 0) -> Any:
    """A message of any kind that names one thing wherever it can."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        is_list = field.is_repeated
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry or depth > 6:
                continue
            inner = about(
                type(getattr(made, field.name).add())
                if is_list
                else type(getattr(made, field.name)),
                name,
                group,
                depth + 1,
            )
            if is_list:
                del getattr(made, field.name)[:]
                getattr(made, field.name).append(inner)
            elif field.name == "group":
                inner.name = group
                getattr(made, field.name).CopyFrom(inner)
            elif (
                field.containing_oneof is None
                or made.WhichOneof(field.containing_oneof.name) is None
            ):
                getattr(made, field.name).CopyFrom(inner)
            continue
        value: Any = {9: name, 12: b"x", 8: False}.get(field.type, NUMBER.get(field.name, 0))
        if field.name == "resource_namespace":
            continue
        if is_list:
            getattr(made, field.name).append(value)
        else:
            setattr(made, field.name, value)
    return made


async def called(
    channel: grpc.aio.Channel, path: str, request: Any, login: tuple[str, str] | None
) -> list[Any]:
    """All answers of a call."""
    answer = messages.methods()[path][1]
    make: Callable[..., Any] = channel.stream_stream
    call = make(
        path,
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=answer.FromString,
    )(iter([request]), metadata=metadata(login), timeout=20)
    found = []
    try:
        async for each in call:
            found.append(each)
            if path.endswith("Telemetry"):
                break
    except grpc.aio.AioRpcError as error:
        found.append(f"{error.code()} {error.details()}")
    return found


def flat(answers: list[Any], name: str) -> bytes:
    text = hidden(" | ".join(map(str, answers)).encode(), name)
    return re.sub(rb"\d{6,}|nanos: \d+|seconds: \d+", b"N", text)


@pytest.mark.parametrize("login", [NOBODY, OWNER], ids=["nobody", "owner"])
async def test_no_call_tells_what_is_there(tmp_path: Path, login: tuple[str, str]) -> None:
    wrong: dict[str, str] = {}
    async with (
        context(tmp_path) as server,
        grpc.aio.insecure_channel(address(server)) as channel,
    ):
        before = state(server)
        for path in PATHS:
            kind = messages.methods()[path][0]
            for own in ("",) if login is NOBODY else ("", "own"):
                answers = []
                for name in (SECRET, ABSENT):
                    request = about(kind, name, own or name)
                    answers.append(flat(await called(channel, path, request, login), name))
                if answers[0] != answers[1] or TRACE in answers[0]:
                    wrong[f"{path} {own}"] = str(answers)
            if state(server) != before:
                wrong[path] = "changes something"
                before = state(server)
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


async def test_who_does_not_sign_is_refused(tmp_path: Path) -> None:
    async with (
        context(tmp_path) as server,
        grpc.aio.insecure_channel(address(server)) as channel,
    ):
        for path in PATHS:
            request = about(messages.methods()[path][0], SECRET, SECRET)
            answer = (await called(channel, path, request, None))[0]
            if isinstance(answer, str):
                assert "signed by a user" in answer, path
            else:
                assert answer.status.code == Code.UNAUTHORIZED, path
