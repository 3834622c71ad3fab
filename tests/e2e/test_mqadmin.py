"""mqadmin 5.5.0, the tool of RocketMQ's administrators, against OneLog and the real RocketMQ.

Each command runs as people run it: as a process of its own, judged by what it prints.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Server
from tests.e2e.java_clients import Facts, Scenario, mqadmin
from tests.e2e.onelog_peer import OnelogPeer
from tests.e2e.processes import wait_until
from tests.e2e.remoting_probe import call

pytestmark = [pytest.mark.e2e_java, pytest.mark.timeout(300)]

GET_KV_CONFIG = 101
GET_CONSUMER_LIST_BY_GROUP = 38
QUERY_CONSUMER_OFFSET = 14
TOPIC = "Administered"
MOVED = "Moved"
MESSAGES = 20
QUEUES = 4


@dataclass(frozen=True, slots=True)
class Admin:
    """mqadmin beside a producer and a consumer that are at work on TOPIC."""

    server: Server
    home: Path
    sent: Facts

    def __call__(self, *command: str) -> str:
        output = mqadmin(self.home, self.server.nameservers, *command)
        assert "Exception" not in output, output
        return output

    def fails(self, *command: str) -> str:
        output = mqadmin(self.home, self.server.nameservers, *command)
        assert "Exception" in output, output
        return output


def rows(output: str) -> list[list[str]]:
    """The words of each line that is not a heading."""
    return [line.split() for line in output.splitlines() if line.split() and line[0] != "#"]


def entries(output: str, separator: str) -> dict[str, str]:
    """The lines `name <separator> value` as a dictionary."""
    pairs = (line.partition(separator) for line in output.splitlines() if separator in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


@pytest.fixture(scope="module")
def admin(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    home = tmp_path_factory.mktemp("admin")
    with Scenario(home, "5.5.0", "linger", server.nameservers, topic=TOPIC) as clients:
        yield Admin(server, home, clients.wait_for("ready"))


def test_cluster_list_shows_the_broker(admin: Admin) -> None:
    server = admin.server
    (row,) = rows(admin("clusterList"))
    assert row[:4] == [server.cluster, server.broker_name, "0", server.broker_address]
    assert re.fullmatch(r"V\d+_\d+_\d+", row[4]), row
    assert row[-1] == "true"


def test_broker_status_counts_messages_and_bytes(admin: Admin) -> None:
    status = entries(admin("brokerStatus", "-b", admin.server.broker_address), ":")
    assert status["brokerVersionDesc"].startswith("V")
    assert int(status["bootTimestamp"]) > 1_700_000_000_000
    assert int(status["msgPutTotalTodayNow"]) >= MESSAGES
    assert int(status["commitLogMaxOffset"]) > int(status["commitLogMinOffset"]) >= 0
    assert 0 <= float(status["commitLogDiskRatio"]) <= 1
    assert "days" in status["runtime"]
    for rate in ("putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferredTps"):
        assert all(float(number) >= 0 for number in status[rate].split())


def test_topic_list_has_the_topic_the_system_topics_and_the_groups(admin: Admin) -> None:
    topics = {row[0] for row in rows(admin("topicList"))}
    assert {TOPIC, f"%RETRY%{TOPIC}-group", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= topics
    consumers = [row for row in rows(admin("topicList", "-c")) if row[1] == TOPIC]
    assert consumers == [[admin.server.cluster, TOPIC, f"{TOPIC}-group"]]


def test_topic_route_names_broker_and_queues(admin: Admin) -> None:
    route = admin("topicRoute", "-t", TOPIC)
    assert f'0:"{admin.server.broker_address}"' in route
    assert f'"brokerName":"{admin.server.broker_name}"' in route
    assert '"perm":6' in route
    assert f'"readQueueNums":{QUEUES}' in route
    assert f'"writeQueueNums":{QUEUES}' in route


def test_topic_status_shows_every_queue_with_its_offsets(admin: Admin) -> None:
    queues = [row for row in rows(admin("topicStatus", "-t", TOPIC)) if len(row) == 6]
    assert [int(row[1]) for row in queues] == list(range(QUEUES))
    assert {row[2] for row in queues} == {"0"}
    assert sum(int(row[3]) for row in queues) == MESSAGES
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row[4]) for row in queues)


def test_a_topic_is_created_changed_and_deleted(admin: Admin) -> None:
    address, cluster = admin.server.broker_address, admin.server.cluster
    created = admin("updateTopic", "-b", address, "-t", "ShortLived", "-r", "3", "-w", "3")
    assert f"create topic to {address} success." in created
    assert '"writeQueueNums":3' in admin("topicRoute", "-t", "ShortLived")
    changed = admin("updateTopic", "-c", cluster, "-t", "ShortLived", "-r", "5", "-w", "4")
    assert "success" in changed
    route = admin("topicRoute", "-t", "ShortLived")
    assert '"readQueueNums":5' in route
    assert '"writeQueueNums":4' in route
    deleted = admin("deleteTopic", "-c", cluster, "-t", "ShortLived")
    assert f"delete topic [ShortLived] from cluster [{cluster}] success." in deleted
    assert "delete topic [ShortLived] from NameServer success." in deleted
    assert "CODE: 17" in admin.fails("topicRoute", "-t", "ShortLived")


def test_an_ordered_topic_gets_its_order_configuration(admin: Admin) -> None:
    server = admin.server
    admin("updateTopic", "-c", server.cluster, "-t", "Ordered", "-r", "2", "-w", "2", "-o", "true")
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Ordered"}
    answer = call(server.nameservers, GET_KV_CONFIG, fields)
    assert answer.fields["value"] == f"{server.broker_name}:2"


def test_consumer_progress_shows_the_group_and_its_lag_per_queue(admin: Admin) -> None:
    (group,) = [row for row in rows(admin("consumerProgress")) if row[0] == f"{TOPIC}-group"]
    assert group[1] == "1"
    assert group[3:5] == ["PUSH", "CLUSTERING"]
    progress = admin("consumerProgress", "-g", f"{TOPIC}-group")
    queues = [row for row in rows(progress) if row[0] == TOPIC]
    assert [row[1:3] for row in queues] == [
        [admin.server.broker_name, str(queue)] for queue in range(QUEUES)
    ]
    assert sum(int(row[3]) for row in queues) == MESSAGES
    assert [row[3] for row in queues] == [row[4] for row in queues]
    assert "Consume Diff Total: 0" in progress


def test_connections_of_consumers_and_producers_are_listed(admin: Admin) -> None:
    consumers = admin("consumerConnection", "-g", f"{TOPIC}-group")
    assert re.search(rf"@{TOPIC}-group-one\s+127\.0\.0\.1:\d+\s+JAVA\s+V5_5_0", consumers)
    assert re.search(rf"^{TOPIC}\s+\*$", consumers, re.MULTILINE)
    assert re.search(rf"^%RETRY%{TOPIC}-group\s+\*$", consumers, re.MULTILINE)
    assert "ConsumeType: CONSUME_PASSIVELY" in consumers
    assert "MessageModel: CLUSTERING" in consumers
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in consumers
    producers = admin("producerConnection", "-g", f"{TOPIC}-producer", "-t", TOPIC)
    assert re.search(rf"@producer-{TOPIC}-producer\s+127\.0\.0\.1:\d+\s+JAVA\s+V5_5_0", producers)


WAYS: dict[str, Callable[[Facts], list[str]]] = {
    "queryMsgById": lambda sent: ["-t", TOPIC, "-i", sent["offset_id"]],
    "queryMsgByUniqueKey": lambda sent: ["-t", TOPIC, "-i", sent["unique_key"]],
    "queryMsgByOffset": lambda sent: [
        *("-t", TOPIC, "-b", sent["broker"]),
        *("-i", str(sent["queue"]), "-o", str(sent["offset"])),
    ],
}


@pytest.mark.parametrize("command", list(WAYS))
def test_a_message_is_found_with_all_it_has(admin: Admin, command: str) -> None:
    output = admin(command, *WAYS[command](admin.sent))
    message = entries(output, ":")
    assert message["Topic"] == TOPIC
    assert message["Tags"] == "[tag]"
    assert message["Keys"] == f"[key{MESSAGES - 1}]"
    assert message["Queue ID"] == str(admin.sent["queue"])
    assert message["Queue Offset"] == str(admin.sent["offset"])
    assert message["Reconsume Times"] == "0"
    assert message["Store Host"] == admin.server.broker_address
    assert f"UNIQ_KEY={admin.sent['unique_key']}" in message["Properties"]
    assert f"number={MESSAGES - 1}" in message["Properties"]
    assert message.get("OffsetID", admin.sent["offset_id"]) == admin.sent["offset_id"]
    assert f"consumerGroup={TOPIC}-group, trackType=CONSUMED" in output
    # mqadmin leaves the body in a file, and names it.
    body = Path(message["Message Body Path"])
    assert body.read_text().startswith(f"{MESSAGES - 1:016x}")
    body.unlink()


def test_a_message_is_found_by_its_key(admin: Admin) -> None:
    (row,) = rows(admin("queryMsgByKey", "-t", TOPIC, "-k", f"key{MESSAGES - 1}"))
    assert row[0] == admin.sent["unique_key"]
    assert row[1:3] == [str(admin.sent["queue"]), str(admin.sent["offset"])]


def test_print_msg_prints_every_message(admin: Admin) -> None:
    output = admin("printMsg", "-t", TOPIC, "-d", "true")
    numbers = [int(digits, 16) for digits in re.findall(r"BODY: ([0-9a-f]{16})", output)]
    assert sorted(numbers) == list(range(MESSAGES))


@pytest.fixture(scope="module")
def moved(admin: Admin) -> Iterator[Scenario]:
    """A second pair of clients, on the topic MOVED, whose group may be moved about."""
    nameservers = admin.server.nameservers
    with Scenario(admin.home, "5.5.0", "linger", nameservers, topic=MOVED) as clients:
        clients.wait_for("ready")
        yield clients


def test_a_group_goes_back_in_time_and_over_its_backlog(admin: Admin, moved: Scenario) -> None:
    group = ["-g", f"{MOVED}-group", "-t", MOVED]
    reset = admin("resetOffsetByTime", *group, "-s", "0")
    offsets = [row for row in rows(reset) if row[0] == admin.server.broker_name]
    assert sorted(row[1:] for row in offsets) == [[str(queue), "0"] for queue in range(QUEUES)]
    # The running consumer is told, and gets everything once more.
    for facts in moved.lines(30):
        if facts["total"] >= 2 * MESSAGES:
            break
    skipped = admin("skipAccumulatedMessage", *group)
    offsets = [row for row in rows(skipped) if row[0] == admin.server.broker_name]
    assert sum(int(row[2]) for row in offsets) == MESSAGES


@pytest.mark.usefixtures("moved")
def test_a_group_is_created_and_takes_over_the_offsets_of_another(admin: Admin) -> None:
    server = admin.server
    created = admin("updateSubGroup", "-c", server.cluster, "-g", "Copy", "-s", "true", "-r", "3")
    assert f"create subscription group to {server.broker_address} success." in created
    assert "retryMaxTimes=3" in created
    cloned = admin("cloneGroupOffset", "-s", f"{MOVED}-group", "-d", "Copy", "-t", MOVED)
    assert "clone group offset success" in cloned
    offsets = committed_offsets(admin, "Copy")
    assert offsets == committed_offsets(admin, f"{MOVED}-group")
    assert sum(offsets) == MESSAGES


def committed_offsets(admin: Admin, group: str) -> list[int]:
    offsets = []
    for queue in range(QUEUES):
        fields = {"consumerGroup": group, "topic": MOVED, "queueId": str(queue)}
        answer = call(admin.server.broker_address, QUERY_CONSUMER_OFFSET, fields)
        assert answer.code == 0, answer
        offsets.append(int(answer.fields["offset"]))
    return offsets


def test_stats_all_lists_topic_and_group(admin: Admin) -> None:
    (row,) = rows(admin("statsAll", "-t", TOPIC))
    assert row[:3] == [TOPIC, f"{TOPIC}-group", "0"]
    assert all(float(number) >= 0 for number in row[3:])


def test_get_broker_config_prints_names_and_ports(admin: Admin) -> None:
    config = entries(admin("getBrokerConfig", "-b", admin.server.broker_address), "=")
    assert config["brokerName"] == admin.server.broker_name
    assert config["brokerClusterName"] == admin.server.cluster
    assert config["brokerId"] == "0"
    assert config["listenPort"] == admin.server.broker_address.split(":")[1]
    assert config["flushDiskType"] == "ASYNC_FLUSH"


def test_key_value_configuration_is_kept_by_the_name_server(admin: Admin) -> None:
    fields = {"namespace": "TESTS", "key": "colour"}
    stored = admin("updateKvConfig", "-s", "TESTS", "-k", "colour", "-v", "green")
    assert "create or update kv config to namespace success." in stored
    assert call(admin.server.nameservers, GET_KV_CONFIG, fields).fields["value"] == "green"
    deleted = admin("deleteKvConfig", "-s", "TESTS", "-k", "colour")
    assert "delete kv config from namespace success." in deleted
    assert call(admin.server.nameservers, GET_KV_CONFIG, fields).code == 22


def test_wiping_the_write_permission_takes_the_broker_out_of_sending(admin: Admin) -> None:
    broker = admin.server.broker_name
    try:
        wiped = admin("wipeWritePerm", "-b", broker)
        assert re.search(rf"wipe write perm of broker\[{broker}\] .* OK, [1-9]\d*", wiped)
        assert '"perm":4' in admin("topicRoute", "-t", TOPIC)
    finally:
        restored = admin("addWritePerm", "-b", broker)
    assert re.search(rf"add write perm of broker\[{broker}\] .* OK, [1-9]\d*", restored)
    assert '"perm":6' in admin("topicRoute", "-t", TOPIC)


OTHERS = (
    f"topicClusterList -t {TOPIC}",
    f"allocateMQ -t {TOPIC} -i 127.0.0.1",
    f"consumerStatus -g {TOPIC}-group",
    f"getConsumerConfig -g {TOPIC}-group",
    f"setConsumeMode -c CLUSTER -t {TOPIC} -g Popping -m POP -q 8",
    f"updateTopicPerm -b ADDRESS -t {TOPIC} -p 6",
    "brokerConsumeStats -b ADDRESS",
    "updateBrokerConfig -b ADDRESS -k transactionCheckMax -v 15",
    "sendMsgStatus -b NAME -c 2 -s 16",
    "cleanExpiredCQ -b ADDRESS",
    "deleteExpiredCommitLog -b ADDRESS",
    f"checkMsgSendRT -t {TOPIC} -a 2 -s 16",
    f"queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b ADDRESS",
    f"printMsgByQueue -t {TOPIC} -a NAME -i 0",
    f"consumeMessage -t {TOPIC} -b NAME -i 0 -o 0 -c 2",
    f"sendMessage -t {TOPIC} -p hello",
    "producer -b ADDRESS",
    "getNamesrvConfig",
    "haStatus -b ADDRESS",
    "exportMetadata -b ADDRESS -f HOME",
    "exportConfigs -c CLUSTER -f HOME",
    "exportMetrics -c CLUSTER -f HOME",
    "exportPopRecord -b ADDRESS -d true",
    "cleanUnusedTopic -b ADDRESS",
    f"updateOrderConf -m put -t {TOPIC} -v NAME:4",
    f"updateOrderConf -m get -t {TOPIC}",
    f"updateOrderConf -m delete -t {TOPIC}",
)
"""What has no test of its own here."""


@pytest.mark.parametrize("command", OTHERS)
def test_the_command_works(admin: Admin, command: str) -> None:
    server = admin.server
    meant = {
        "ADDRESS": server.broker_address,
        "NAME": server.broker_name,
        "CLUSTER": server.cluster,
        "HOME": str(admin.home),
    }
    output = admin(*(meant.get(word, word) for word in command.split()))
    assert "[error]" not in output.lower()
    assert "not supported" not in output


def test_topics_and_groups_are_made_from_files(admin: Admin) -> None:
    address = admin.server.broker_address
    topics, groups = admin.home / "topics.json", admin.home / "groups.json"
    names = ["Listed-1", "Listed-2"]
    topics.write_text(
        json.dumps([{"topicName": each, "readQueueNums": 3, "writeQueueNums": 3} for each in names])
    )
    groups.write_text(json.dumps([{"groupName": each, "retryMaxTimes": 4} for each in names]))
    made = admin("updateTopicList", "-b", address, "-f", str(topics))
    assert f"submit batch of topic config to {address} success" in made
    made = admin("updateSubGroupList", "-b", address, "-f", str(groups))
    assert f"submit batch of group config to {address} success" in made
    for name in names:
        assert '"writeQueueNums":3' in admin("topicRoute", "-t", name)
        assert re.search(r"retryMaxTimes\s*=\s*4", admin("getConsumerConfig", "-g", name))
    deleted = admin("deleteSubGroup", "-b", address, "-g", names[0], "-r", "true")
    assert f"delete subscription group [{names[0]}] from broker [{address}] success." in deleted
    assert "retryMaxTimes" not in admin("getConsumerConfig", "-g", names[0])


def test_the_times_of_a_cluster_are_shown_again_and_again(admin: Admin) -> None:
    command = ("clusterRT", "-a", "2", "-s", "16", "-i", "1", "-c", admin.server.cluster)
    with pytest.raises(subprocess.TimeoutExpired) as ended:
        mqadmin(admin.home, admin.server.nameservers, *command, timeout_s=15)
    shown = (ended.value.output or b"").decode()
    row = re.search(
        rf"^{admin.server.cluster}\s+{admin.server.broker_name}\s+\S+\s+2\s+0", shown, re.M
    )
    assert row, shown


REFUSED = (
    "getBrokerLiteInfo -b ADDRESS",
    "updateNamesrvConfig -k clientRequestThreadPoolNums -v 8",
    "getColdDataFlowCtrInfo -b ADDRESS",
    "updateStaticTopic -t Static -qn 4 -c CLUSTER",
)
"""What is answered with an error, and why is in docs/protocols/rocketmq.md."""


@pytest.mark.parametrize("command", REFUSED)
def test_what_onelog_does_not_have_is_refused(admin: Admin, command: str) -> None:
    if admin.server.name != "onelog":
        pytest.skip("RocketMQ has it")
    server = admin.server
    meant = {"ADDRESS": server.broker_address, "CLUSTER": server.cluster}
    admin.fails(*(meant.get(word, word) for word in command.split()))


USERS = (
    ("createUser -u root -p secret-1 -t Super", "create user to ADDRESS success"),
    ("createUser -u ann -p secret-2 -t Normal", "create user to ADDRESS success"),
    ("updateUser -u ann -p secret-3", "update user to ADDRESS success"),
    ("getUser -u ann", r"ann\s+\S+\s+Normal\s+enable"),
    ("listUser", r"root\s+\S+\s+Super"),
    ("createAcl -s User:ann -r Topic:orders -a Pub,Sub -d Allow", "create acl to ADDRESS success"),
    ("updateAcl -s User:ann -r Topic:orders -a Pub -d Allow", "update acl to ADDRESS success"),
    ("getAcl -s User:ann", r"User:ann\s+Custom\s+Topic:orders\s+\[Pub\]"),
    ("listAcl", r"User:ann\s+Custom\s+Topic:orders"),
    ("deleteAcl -s User:ann", "delete acl to ADDRESS success"),
    ("deleteUser -u ann", "delete user to ADDRESS success"),
)


def test_users_and_their_permissions(tmp_path: Path) -> None:
    settings = {"ONELOG_SECURITY_ANONYMOUS": "true"}
    with OnelogPeer(tmp_path / "server", settings=settings) as server:
        for command, expected in USERS:
            name, *rest = command.split()
            output = mqadmin(tmp_path, server.nameservers, name, "-b", server.broker_address, *rest)
            assert re.search(expected.replace("ADDRESS", server.broker_address), output, re.I), (
                output
            )


def test_users_and_permissions_are_copied_to_another_broker(tmp_path: Path) -> None:
    settings = {"ONELOG_SECURITY_ANONYMOUS": "true"}
    with (
        OnelogPeer(tmp_path / "one", settings=settings) as one,
        OnelogPeer(tmp_path / "other", settings=settings) as other,
    ):
        places = ("-f", one.broker_address, "-t", other.broker_address)

        def run(peer: OnelogPeer, command: str) -> str:
            name, *rest = command.split()
            return mqadmin(tmp_path, one.nameservers, name, "-b", peer.broker_address, *rest)

        def copy(*command: str) -> str:
            return mqadmin(tmp_path, one.nameservers, *command, *places)

        for command, _ in (USERS[1], USERS[5]):
            run(one, command)
        assert "a user needs a password" in copy("copyUser", "-u", "ann")
        run(other, "createUser -u ann -p secret-4 -t Super")
        assert "copy user of ann" in copy("copyUser", "-u", "ann")
        assert "copy acl of User:ann" in copy("copyAcl", "-s", "User:ann")
        shown = run(other, "getUser -u ann")
        assert re.search(r"ann\s+\S+\s+Normal\s+enable", shown), shown
        shown = run(other, "getAcl -s User:ann")
        assert re.search(r"User:ann\s+CUSTOM\s+Topic:orders\s+\[Pub, Sub\]", shown), shown


def test_monitoring_joins_its_group_and_goes_on_until_it_is_ended(admin: Admin) -> None:
    def monitor() -> str:
        # Its first round is after twenty seconds.
        with pytest.raises(subprocess.TimeoutExpired) as ended:
            mqadmin(admin.home, admin.server.nameservers, "startMonitoring", timeout_s=40)
        return (ended.value.output or b"").decode()

    def is_there() -> bool:
        wanted = {"consumerGroup": "__MONITOR_CONSUMER"}
        answer = call(admin.server.broker_address, GET_CONSUMER_LIST_BY_GROUP, wanted)
        return answer.code == 0 and bool(json.loads(answer.body)["consumerIdList"])

    with ThreadPoolExecutor() as pool:
        shown = pool.submit(monitor)
        wait_until(is_there, "the monitor in its group", 40)
        assert "Exception" not in shown.result()
