"""RocketMQ's protocol: no request tells a user anything about what he has no permission for."""

import json
import re
from pathlib import Path

import pytest

from onelog.core.users.passwords import signature
from onelog.gateways.remoting.gateway import HANDLERS
from onelog.net.peer import Peer
from onelog.server import BrokerServer
from onelog.wire.remoting.codes import RequestCode, ResponseCode
from onelog.wire.remoting.command import Command
from onelog.wire.remoting.signature import signed_content
from tests.gateways.remoting.live import Client
from tests.gateways.remoting.live import client as connected
from tests.security.secrets import ABSENT, NOBODY, OWNER, SECRET, TRACE, context, hidden, state

NUMBERS = (
    "queueId queueOffset offset commitOffset maxMsgNums sysFlag suspendTimeoutMillis subVersion "
    "timestamp beginTimestamp endTimestamp maxNum invisibleTime pollTime bornTime initMode "
    "delayLevel consumerSendMsgBack originTopic tranStateTableOffset commitLogOffset "
    "commitOrRollback readQueueNums writeQueueNums perm topicSysFlag batch attempt index count "
    "bornTimestamp flag reconsumeTimes defaultTopicQueueNums maxReconsumeTimes d e f g h j l "
    "fromTransactionCheck clientVersion"
).split()
NAMES = (
    "topic group consumerGroup producerGroup groupName srcGroup destGroup compareGroup clientId "
    "clientID clientAddr username subject resource filter key query originTopic topics "
    "statsKey subscription a b n msgId originMsgId transactionId"
).split()
UNTOLD = {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
QUICK_MS = 60_000


def about(name: str, own: str, offset: int) -> dict[str, str]:
    """Fields of every request there is, all of them about one thing."""
    ext = dict.fromkeys(NUMBERS, "0") | dict.fromkeys(NAMES, name)
    ext |= {
        "a": own,
        "producerGroup": own,
        "consumerGroup": own,
        "group": own,
        "i": "",
        "k": "false",
        "offset": str(offset),
        "commitLogOffset": str(offset),
        "defaultTopic": "TBW102",
        "c": "TBW102",
        "maxNum": "9",
        "maxMsgNums": "9",
        "endTimestamp": str(1 << 50),
        "expressionType": "TAG",
        "exp": "*",
        "expType": "TAG",
        "subscription": "*",
        "statsName": "TOPIC_PUT_NUMS",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        "perm": "6",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "sysFlag": "4",
        "invisibleTime": "60000",
        "extraInfo": f"0 0 60000 0 0 {name} broker 0 0",
        "resource": f"Topic:{name}",
        "subject": f"User:{name}",
        "brokerName": "broker-a",
    }
    return ext


def body_about(name: str, own: str) -> bytes:
    """A body with what any request may have in one."""
    queue = {"topic": name, "brokerName": "broker-a", "queueId": 0}
    return json.dumps(
        {
            "clientID": "c",
            "consumerGroup": own,
            "clientId": "c",
            "mqSet": [queue],
            "topic": name,
            "group": own,
            "groupName": own,
            "messageModel": "CLUSTERING",
            "allocateStrategy": "AVG",
            "strategyName": "AVG",
            "subscriptionData": {"topic": name, "subString": "*"},
            "topicConfigList": [{"topicName": name}],
            "topicName": name,
            "username": name,
            "consumerDataSet": [],
            "producerDataSet": [],
            "subject": f"User:{name}",
            "policies": [],
            "groupConfigTable": {},
            "messageRequestMode": "PULL",
            "acks": [],
            "topicList": [name],
            "groupConfigList": [{"groupName": name}],
            "password": "p",
            "userType": "Normal",
        }
    ).encode()


async def ask(
    client: Client, login: tuple[str, str], code: RequestCode, ext: dict[str, str], body: bytes
) -> Command:
    signed = {**ext, "AccessKey": login[0]}
    signed["Signature"] = signature(login[1], signed_content(signed), body).decode()
    peer: Peer = client.peer
    return await peer.ask(RequestCode(code), signed, body, QUICK_MS)


def told(answer: Command, name: str) -> tuple[int, bytes, bytes]:
    """What an answer says, but for the name that was asked about."""
    rest = {key: value for key, value in answer.ext.items() if key not in UNTOLD}
    remark = re.sub(rb"\d{2,}", b"N", (answer.remark or "").encode())
    text = b"\n".join((repr(sorted(rest.items())).encode(), remark))
    return answer.code, hidden(text, name), hidden(bytes(answer.body), name)


async def compare(
    server: BrokerServer, client: Client, login: tuple[str, str], code: RequestCode, own: str
) -> str:
    """What is wrong with the answers to a request, asked about what is there and what is not."""
    answers = []
    first = server.core.store.min_offset(SECRET, 0)
    place = int(server.core.store.find_by_key(SECRET, SECRET, 0, 1 << 50, 1)[0])
    assert first == 0
    for name, offset in ((SECRET, place), (ABSENT, place)):
        group = own or name
        answer = await ask(client, login, code, about(name, group, offset), body_about(name, group))
        answers.append(told(answer, name))
    volatile = {RequestCode.GET_BROKER_RUNTIME_INFO}
    if TRACE in b"".join(answers[0][1:]) or TRACE in b"".join(answers[1][1:]):
        return f"tells a name: {answers}"
    if answers[0] != answers[1] and code not in volatile:
        return f"tells that something is there: {answers}"
    return ""


@pytest.mark.parametrize("login", [NOBODY, OWNER], ids=["nobody", "owner"])
async def test_no_request_tells_what_is_there(tmp_path: Path, login: tuple[str, str]) -> None:
    wrong: dict[str, str] = {}
    async with context(tmp_path) as server, connected(server) as client:
        before = state(server)
        for code in map(RequestCode, sorted(HANDLERS)):
            for own in ("",) if login is NOBODY else ("", "own"):
                if found := await compare(server, client, login, code, own):
                    wrong[f"{RequestCode(code).name} {own}"] = found
            if state(server) != before:
                wrong[RequestCode(code).name] = "changes something"
                before = state(server)
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


async def test_who_does_not_sign_is_told_nothing(tmp_path: Path) -> None:
    async with context(tmp_path) as server, connected(server) as client:
        for code in map(RequestCode, sorted(HANDLERS)):
            ext = about(SECRET, SECRET, 0)
            answer = await client.peer.ask(code, ext, body_about(SECRET, SECRET), QUICK_MS)
            assert answer.code == ResponseCode.NO_PERMISSION, code.name
            assert "No accessKey" in (answer.remark or "")
