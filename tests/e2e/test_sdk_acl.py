"""A RocketMQ broker that wants signatures takes those of the SDK, and nothing else."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog.client.admin.admin import Admin
from onelog.client.admin.groups import GroupChange
from onelog.client.admin.topics import TopicChange
from onelog.client.consumer.push.consumer import PushConsumer
from onelog.client.credentials import Credentials
from onelog.client.message import Message, ReceivedMessage
from onelog.client.options import ProducerOptions
from onelog.client.producer.producer import Producer
from onelog.client.producer.transactions import TransactionState
from onelog.errors import NotPermittedError
from tests.e2e.onelog_peer import COMMAND
from tests.e2e.processes import wait_until
from tests.e2e.rocketmq_peer import RocketmqPeer

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(200)]

USER = Credentials("onelog-user", "a secret / of some+length=")
_PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"


class GuardedPeer(RocketmqPeer):
    """RocketMQ with authentication switched on."""

    def _write(self, name: str, settings: dict[str, object]) -> Path:
        if name == "broker.conf":
            account = {"username": USER.access_key, "password": USER.secret_key}
            inner = {"accessKey": USER.access_key, "secretKey": USER.secret_key}
            settings |= {
                "authenticationEnabled": "true",
                "authenticationProvider": f"{_PROVIDERS}.DefaultAuthenticationProvider",
                "authenticationMetadataProvider": (
                    f"{_PROVIDERS}.LocalAuthenticationMetadataProvider"
                ),
                "initAuthenticationUser": json.dumps(account),
                "innerClientAuthenticationCredentials": json.dumps(inner),
            }
        return super()._write(name, settings)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqPeer]:
    with GuardedPeer(tmp_path_factory.mktemp("guarded")) as running:
        yield running


def test_whatever_is_signed_is_taken(guarded: RocketmqPeer, topic: str) -> None:
    seen: list[ReceivedMessage] = []
    with Producer(
        "signers",
        nameserver=guarded.nameservers,
        credentials=USER,
        checker=lambda message: TransactionState.UNKNOWN,
        timeout=10,
    ) as producer:
        producer.send(Message(topic, b"plain", tags="t", properties={"colour": "grün"}))
        producer.send(Message(topic, b"compressed " * 1000))
        producer.send_oneway(Message(topic, b"one-way"))
        producer.send_batch([Message(topic, b"batch 1"), Message(topic, b"batch 2")])
        producer.send_transaction(
            Message(topic, b"transaction"), lambda *_: TransactionState.COMMIT
        )
        with PushConsumer(
            "readers", nameserver=guarded.nameservers, credentials=USER, start="first"
        ) as consumer:

            @consumer.subscribe(topic)
            def listen(message: ReceivedMessage) -> None:
                seen.append(message)
                if message.tags == "t" and message.delivery_attempt == 1:
                    raise LookupError("once more, to have it sent back")

            consumer.start()
            wait_until(lambda: len(seen) >= 7, "all messages, and one of them again", 60)
    assert sorted({message.body for message in seen}) == sorted(
        [b"plain", b"compressed " * 1000, b"one-way", b"batch 1", b"batch 2", b"transaction"]
    )


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (None, "username cannot be null"),
        (Credentials(USER.access_key, "another secret"), "check signature failed"),
        (Credentials("nobody", USER.secret_key), "User:nobody is not found"),
    ],
    ids=["unsigned", "wrong secret", "unknown user"],
)
def test_whatever_else_is_refused_with_the_brokers_words(
    guarded: RocketmqPeer, credentials: Credentials | None, says: str, topic: str
) -> None:
    with Producer("signers", nameserver=guarded.nameservers, credentials=USER) as producer:
        producer.send(Message("guarded-topic", b"to make the topic"))
    options: ProducerOptions = {"nameserver": guarded.nameservers, "retries": 0}
    if credentials is not None:
        options["credentials"] = credentials
    with Producer("strangers", **options) as producer:
        with pytest.raises(NotPermittedError, match=says) as refused:
            producer.send(Message("guarded-topic", b"x"))
    assert guarded.broker_address in str(refused.value)


def test_an_administrator_is_known_by_its_signature(guarded: RocketmqPeer, topic: str) -> None:
    with Admin.connect(guarded.nameservers, credentials=USER, timeout_ms=10_000) as admin:
        assert admin.topics.create(topic, TopicChange()) == (guarded.broker_name,)
        admin.groups.create(f"{topic}-group", GroupChange())
        assert admin.topics.describe(topic).settings
    with Admin.connect(guarded.nameservers, timeout_ms=10_000) as stranger:
        with pytest.raises(NotPermittedError, match="username cannot be null"):
            stranger.topics.delete(topic)


def test_admin_commands_are_signed_with_what_the_environment_says(
    guarded: RocketmqPeer, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(USER.secret_key + "\n")
    known = {
        "ONELOG_NAMESERVER": guarded.nameservers,
        "ONELOG_ACCESS_KEY": USER.access_key,
        "ONELOG_SECRET_KEY_FILE": str(tmp_path / "secret"),
    }

    def onelog(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(COMMAND), *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    made = onelog(known, "topic", "create", topic)
    assert (made.returncode, made.stderr) == (0, "")
    unsigned = onelog({"ONELOG_NAMESERVER": guarded.nameservers}, "topic", "delete", topic, "-y")
    assert unsigned.returncode == 2
    assert "username cannot be null" in unsigned.stderr
    deleted = onelog(known, "topic", "delete", topic, "-y")
    assert (deleted.returncode, deleted.stderr) == (0, "")
