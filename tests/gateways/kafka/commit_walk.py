"""Who may commit positions, and who may not: the life of two groups, with commits at every step.

`walk` does it with a broker, whichever it is; `EXPECTED` is what Kafka 4.3.1 answers, first to an
OffsetCommit, then to a TxnOffsetCommit.
"""

import asyncio

from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields
from tests.gateways.kafka.raw import RawClient, raw

TOPIC = "walked"
_SAID = b"\0\0\0\0\0\1\0\6walked\0\0\0\0"
ANN, BOB = "A" * 22, "B" * 22
Codes = tuple[int, int]

OK, ILLEGAL, UNKNOWN, REBALANCING, GONE, STALE, FENCED = 0, 22, 25, 27, 69, 113, 82
EXPECTED: dict[str, Codes] = {
    "nobody commits to a group that is not there": (OK, OK),
    "a member of a group that is not there": (GONE, ILLEGAL),
    "nobody, while a client has got its id": (OK, OK),
    "a client that has got its id, with a generation": (UNKNOWN, UNKNOWN),
    "the leader, while it decides": (REBALANCING, OK),
    "the leader, with an older generation, while it decides": (ILLEGAL, ILLEGAL),
    "nobody, while there are members": (UNKNOWN, OK),
    "a member": (OK, OK),
    "a member of an older generation": (ILLEGAL, ILLEGAL),
    "a member of a later generation": (ILLEGAL, ILLEGAL),
    "a member that claims no generation": (ILLEGAL, ILLEGAL),
    "a stranger": (UNKNOWN, UNKNOWN),
    "a member that claims to be a static one": (UNKNOWN, UNKNOWN),
    "a member, while another one joins": (OK, OK),
    "the one that joins": (OK, OK),
    "a member that has left, while the others join": (UNKNOWN, UNKNOWN),
    "a member that has left": (UNKNOWN, UNKNOWN),
    "a member that has left, with the new generation": (UNKNOWN, UNKNOWN),
    "the last member, that has left": (UNKNOWN, UNKNOWN),
    "the last member, with the generation of its leaving": (UNKNOWN, UNKNOWN),
    "nobody, when all have left": (OK, OK),
    "nobody with a generation, when all have left": (UNKNOWN, UNKNOWN),
    "a newer member": (OK, OK),
    "a newer member of an older epoch": (STALE, ILLEGAL),
    "a newer member of a later epoch": (STALE, ILLEGAL),
    "a newer member without an epoch": (STALE, ILLEGAL),
    "nobody, while there are newer members": (UNKNOWN, OK),
    "a newer stranger": (UNKNOWN, UNKNOWN),
    "a newer member that has left, beside others": (UNKNOWN, UNKNOWN),
    "a newer member that has left, without an epoch": (UNKNOWN, UNKNOWN),
    "the last newer member, that has left": (UNKNOWN, UNKNOWN),
    "nobody, when all newer members have left": (OK, OK),
    "a static newer member that is away, with its epoch": (STALE, ILLEGAL),
}


class Walk:
    """The walk of one client, and what it heard."""

    def __init__(self, client: RawClient, at: str, name: str) -> None:
        self.client, self.at, self.name = client, at, name
        self.heard: dict[str, Codes] = {}

    async def begin(self) -> None:
        """Make a transactional id; a broker that has just started needs a while for that."""
        asked = {"transactional_id": self.name, "transaction_timeout_ms": 60_000}
        for key_type in (0, 1):
            for key in (self.name, self.name + "-newer"):
                fields = {"key_type": key_type, "coordinator_keys": [key]}
                await self.client.ask(ApiKey.FIND_COORDINATOR, 4, fields)
        while True:
            self.producer = await self.client.ask(ApiKey.INIT_PRODUCER_ID, 2, asked)
            listed = await self._commit(self.name, "", -1, None)
            if self.producer["error_code"] == 0 == listed:
                break
            await asyncio.sleep(0.1)
        await self.client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [self.name]})

    async def commit(
        self, what: str, member: str, generation: int, instance: str | None = None, group: str = ""
    ) -> None:
        """Commit in both ways, and remember the answers."""
        group = group or self.name
        normal = await self._commit(group, member, generation, instance)
        if what == "a member of a group that is not there":
            group += "-too"  # It would be there by now in some brokers.
        in_transaction = await self._commit_in_transaction(group, member, generation, instance)
        self.heard[what] = normal, in_transaction

    async def _commit(self, group: str, member: str, generation: int, instance: str | None) -> int:
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "group_instance_id": instance,
            "topics": self._topics,
        }
        answer = await self.client.ask(ApiKey.OFFSET_COMMIT, 9, fields)
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    @property
    def _topics(self) -> list[Fields]:
        partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        return [{"name": TOPIC, "partitions": [partition]}]

    async def _commit_in_transaction(
        self, group: str, member: str, generation: int, instance: str | None
    ) -> int:
        producer = {
            "transactional_id": self.name,
            "producer_id": self.producer["producer_id"],
            "producer_epoch": self.producer["producer_epoch"],
        }
        while True:  # Kafka answers the end of the one before a little early.
            added = await self.client.ask(
                ApiKey.ADD_OFFSETS_TO_TXN, 3, {**producer, "group_id": group}
            )
            if added["error_code"] == 0:
                break
            await asyncio.sleep(0.02)
        fields = {
            **producer,
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": instance,
            "topics": self._topics,
        }
        answer = await self.client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, fields)
        await self.client.ask(ApiKey.END_TXN, 3, {**producer, "committed": False})
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    async def classic(self) -> None:
        """A group of the classic kind, from its first member to its last."""
        ask, commit = self.client.ask, self.commit
        await commit("nobody commits to a group that is not there", "", -1)
        await ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [self.name]})
        await commit("a member of a group that is not there", "eve", 1)
        ann = (await ask(ApiKey.JOIN_GROUP, 5, self._joining("")))["member_id"]
        await commit("nobody, while a client has got its id", "", -1)
        await commit("a client that has got its id, with a generation", ann, 0)
        joined = await ask(ApiKey.JOIN_GROUP, 5, self._joining(ann))
        number = joined["generation_id"]
        await commit("the leader, while it decides", ann, number)
        await commit("the leader, with an older generation, while it decides", ann, number - 1)
        shares = [{"member_id": ann, "assignment": b""}]
        syncing = {"group_id": self.name, "generation_id": number, "member_id": ann}
        await ask(ApiKey.SYNC_GROUP, 3, {**syncing, "assignments": shares})
        await commit("nobody, while there are members", "", -1)
        await commit("a member", ann, number)
        await commit("a member of an older generation", ann, number - 1)
        await commit("a member of a later generation", ann, number + 1)
        await commit("a member that claims no generation", ann, -1)
        await commit("a stranger", "eve", number)
        await commit("a member that claims to be a static one", ann, number, "till")
        async with raw(self.at) as other:
            bob = (await other.ask(ApiKey.JOIN_GROUP, 5, self._joining("")))["member_id"]
            other.tell(ApiKey.JOIN_GROUP, 5, self._joining(bob))
            await self._until_in_group(bob)
            await commit("a member, while another one joins", ann, number)
            await commit("the one that joins", bob, number)
            await self._leave(ann)
            await commit("a member that has left, while the others join", ann, number)
            number = (await other.hear(ApiKey.JOIN_GROUP, 5))["generation_id"]
        await commit("a member that has left", ann, number - 1)
        await commit("a member that has left, with the new generation", ann, number)
        await self._leave(bob)
        await commit("the last member, that has left", bob, number)
        await commit("the last member, with the generation of its leaving", bob, number + 1)
        await commit("nobody, when all have left", "", -1)
        await commit("nobody with a generation, when all have left", "", number)

    def _joining(self, member: str) -> Fields:
        return {
            "group_id": self.name,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": _SAID}],
        }

    async def _until_in_group(self, member: str) -> None:
        found: list[str] = []
        while member not in found:
            told = await self.client.ask(ApiKey.DESCRIBE_GROUPS, 4, {"groups": [self.name]})
            found = [each["member_id"] for each in told["groups"][0]["members"]]

    async def _leave(self, member: str) -> None:
        members = [{"member_id": member, "group_instance_id": None}]
        fields = {"group_id": self.name, "members": members}
        await self.client.ask(ApiKey.LEAVE_GROUP, 3, fields)

    async def newer(self) -> None:
        """A group of the newer kind."""
        group = self.name + "-newer"

        async def commit(what: str, member: str, epoch: int) -> None:
            await self.commit(what, member, epoch, group=group)

        async def beat(member: str, epoch: int, instance: str | None = None) -> int:
            fields = {
                "group_id": group,
                "member_id": member,
                "member_epoch": epoch,
                "instance_id": instance,
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": [TOPIC],
                "server_assignor": None,
                "rack_id": None,
                "topic_partitions": [],
            }
            answer = await self.client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
            assert answer["error_code"] == 0, answer
            found: int = answer["member_epoch"]
            return found

        epoch = await beat(ANN, 0)
        await commit("a newer member", ANN, epoch)
        await commit("a newer member of an older epoch", ANN, epoch - 1)
        await commit("a newer member of a later epoch", ANN, epoch + 1)
        await commit("a newer member without an epoch", ANN, -1)
        await commit("nobody, while there are newer members", "", -1)
        await commit("a newer stranger", "eve", epoch)
        await beat(BOB, 0)
        await beat(ANN, -1)
        await commit("a newer member that has left, beside others", ANN, epoch)
        await commit("a newer member that has left, without an epoch", ANN, -1)
        await beat(BOB, -1)
        await commit("the last newer member, that has left", BOB, epoch)
        await commit("nobody, when all newer members have left", "", -1)
        epoch = await beat(ANN, 0, "till")
        await beat(ANN, -2, "till")
        await commit("a static newer member that is away, with its epoch", ANN, epoch)
        await beat(ANN, -1, "till")


async def walk(at: str, name: str) -> dict[str, Codes]:
    """What a broker answers at every step."""
    async with raw(at) as client:
        taken = Walk(client, at, name)
        await client.make_topic(TOPIC)
        await taken.begin()
        await taken.classic()
        await taken.newer()
        return taken.heard
