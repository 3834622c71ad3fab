"""How the brokers of a cluster agree: each reads the same register, and changes it step by step.

    node/NUMBER         "name host port" of a broker
    topic/NAME          a placement (`core.catalog.placements`); of a deleted topic, when that was
    coordinator/SLOT    the number of the broker that looks after a slot
    group/NAME          the settings of a share group

Whoever wants a change puts a text in the place of the one it knows; if another was quicker, it
fails, and nothing is changed. Then it carries out its own part, and has the others look. A broker
that was away does its part when it is back. Every broker keeps the placements that it knows: it
needs the name server for what is new, and if that one has lost its file, it gets them back.

Topics that somebody made without Kafka are put into the register by the brokers that have them.

Invariant: a topic that a broker has goes only if the register says that this one was deleted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import cast

import msgspec

from onelog.core.access import SELF, Principal
from onelog.core.catalog.placements import Placement
from onelog.core.catalog.topics import TopicConfig
from onelog.errors import BrokerBusyError, ConfigError, OnelogError
from onelog.gateways import GatewayContext
from onelog.gateways.kafka.cluster.peers import Peers
from onelog.gateways.kafka.cluster.view import (
    CONFIG_KEY,
    GROUP_KEY,
    NODE_KEY,
    TOPIC_KEY,
    Cluster,
    KafkaNode,
    Proposal,
)
from onelog.gateways.kafka.error_codes import error_code
from onelog.gateways.kafka.names import is_visible, visible_topics
from onelog.jobs import Job
from onelog.net.connection import BUSY_SECONDS
from onelog.net.register import Register
from onelog.net.tasks import Tasks, is_set
from onelog.wire.kafka.codes import ApiKey
from onelog.wire.kafka.schema import Fields

log = logging.getLogger(__name__)

Steps = Generator[None, None, Fields | None]
Proposed = tuple[Fields, list[Proposal]]

LOOK_SECONDS = 1.0
"""How late a broker may learn of a change that nobody told it of."""
ATTEMPTS = 5
AT_ONCE = 20
"""Topics that are carried out before others may go on."""
REGISTER_MARGIN_MS = 2_000
SHARE_SETTINGS = "share."
"""What settings of share groups begin with."""
DELETED_KEPT_MS = 30 * 86_400_000
"""A broker that was away for longer may bring a topic back that was deleted meanwhile."""


def _login(context: GatewayContext) -> tuple[str, str]:
    """As whom brokers call each other: users are the same on all of them."""
    name = context.loaded.config.security.broker_user
    if not name or context.broker.users.is_open:
        return "", ""
    return name, context.broker.users.logins.signing_secret(Principal(name, "kafka"))


class Agreement:
    """One broker's part in it."""

    def __init__(self, context: GatewayContext, cluster: Cluster, node: KafkaNode) -> None:
        self.broker = context.broker
        self._clock = context.clock
        self._node = node
        self.cluster = cluster
        self._register = Register("KAFKA", lambda: context.broker.admin.config, context.tls)
        self.peers = Peers(cluster.nodes.get, context.tls, lambda: _login(context))
        self._round = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._unsure: dict[str, None] = {}
        """Topics that may be other than the register says."""
        self._applying = False
        self._is_silent = False
        self._silent_until = 0.0
        """Who asks before that does not wait for a name server that did not answer."""
        self._life = ""
        self._trusting_until_ms = 0
        self._tasks = Tasks()
        self.spawn = self._tasks.spawn
        """Do something beside everything else."""
        self.broker.topics.on_change.append(self._topic_changed)

    async def start(self) -> None:
        """Take up what was known, and join; then go on by itself."""
        for topic, text in self.broker.topics.placements.all().items():
            self.cluster.texts[TOPIC_KEY + topic] = text
            self.cluster.put(topic, Placement.decode(text))
        self.cluster.nodes[self._node.node_id] = self._node
        for config in visible_topics(self.broker, SELF):
            self._unsure[config.name] = None
        await self.look()
        self.spawn(self._run())

    async def close(self) -> None:
        self._tasks.cancel()
        self.peers.close()
        await self._register.close()

    async def _run(self) -> None:
        job = Job("looking after the Kafka cluster")
        while True:
            with job:
                await self.look()
                await self._record_unsure()
            await is_set(self._changed, LOOK_SECONDS)
            self._changed.clear()

    def _topic_changed(self, name: str, config: TopicConfig | None) -> None:
        if not self._applying and is_visible(self.broker, name):
            self._unsure[name] = None
            self._changed.set()

    # -- looking -------------------------------------------------------------------------------

    async def look(self) -> None:
        """Know what was agreed on before this was called, if the name server can be asked."""
        if time.monotonic() < self._silent_until:
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._look())
        await asyncio.shield(self._next)

    async def _look(self) -> None:
        async with self._round:
            self._next = None
            try:
                texts, names = await self._register.load()
                if texts is not None:
                    await self._take(texts, names)
            except ConfigError:
                raise
            except OnelogError as error:
                self._register.forget()
                if not self._is_silent:
                    log.warning("the Kafka cluster's name server cannot be asked: %s", error)
                self._is_silent = True
                self._silent_until = time.monotonic() + LOOK_SECONDS / 2
                return
            self._is_silent = False
            self.cluster.live = self._live(names)

    def _live(self, names: frozenset[str]) -> frozenset[int]:
        """Who is there: who is registered, or was, and had no time to tell a new name server."""
        now_ms, life = self._clock.now_ms(), self._register.life
        if self._life and life != self._life:
            period_ms = self.broker.admin.config.register_interval_ms
            self._trusting_until_ms = now_ms + period_ms + REGISTER_MARGIN_MS
        self._life = life
        found = {each.node_id for each in self.cluster.nodes.values() if each.name in names}
        if now_ms < self._trusting_until_ms:
            found |= self.cluster.live
        return frozenset(found | {self._node.node_id})

    async def _take(self, texts: dict[str, str], names: frozenset[str]) -> None:
        """Carry out what the register says."""
        cluster, here = self.cluster, NODE_KEY + str(self._node.node_id)
        text = " ".join(map(str, self._node[1:]))
        if (before := texts.get(here, "")) != text:
            name = before.partition(" ")[0]
            if name != self._node.name and name in names:
                raise ConfigError(f"kafka.node_id {self._node.node_id} is that of broker {name}")
            await self._register.put(here, text, before)
        for key, known in texts.items():
            if key.startswith(NODE_KEY) and key != here:
                name, host, port = known.split(" ")
                node_id = int(key.removeprefix(NODE_KEY))
                cluster.nodes[node_id] = KafkaNode(node_id, name, host, int(port))
        kept, cluster.texts = cluster.texts, texts
        changed = [
            key
            for key, known in texts.items()
            if key.startswith(TOPIC_KEY) and kept.get(key) != known
        ]
        for key, known in texts.items():
            if key.startswith(GROUP_KEY) and kept.get(key) != known:
                self._apply_group(key.removeprefix(GROUP_KEY), known)
            elif key.startswith(CONFIG_KEY):
                self.broker.admin.kafka_settings.put(key.removeprefix(CONFIG_KEY), known or None)
        for number, key in enumerate(changed):
            self._apply(key.removeprefix(TOPIC_KEY), texts[key])
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        for key in kept.keys() - texts.keys():
            if key.startswith(TOPIC_KEY):  # The name server has lost it.
                self._unsure[key.removeprefix(TOPIC_KEY)] = None
        for key in [key for key, text in texts.items() if self._is_long_gone(key, text)]:
            del texts[key]
            await self._register.delete(key)

    def _is_long_gone(self, key: str, text: str) -> bool:
        if not key.startswith(TOPIC_KEY) or '"runs":[]' not in text:
            return False
        deleted_ms = Placement.decode(text).deleted_ms
        return 0 < deleted_ms < self._clock.now_ms() - DELETED_KEPT_MS

    def _apply(self, name: str, text: str) -> None:
        """Have a topic as it was agreed on."""
        self._applying = True
        try:
            placement = Placement.decode(text)
            self._apply_placement(name, placement)
            if not placement.deleted_ms:
                self.broker.topics.placements.put(name, text)
        except (OnelogError, msgspec.DecodeError) as error:
            log.error("topic %s is not as the Kafka cluster agreed on: %s", name, error)
        finally:
            self._applying = False

    def _apply_placement(self, name: str, placement: Placement) -> None:
        broker, cluster = self.broker, self.cluster
        known = broker.topics.placements.get(name)
        local = broker.topics.find(SELF, name)
        before = None if known is None else Placement.decode(known)
        if local is not None and (
            local.created_ms == placement.created_ms
            if placement.deleted_ms
            else before is not None and before.created_ms != placement.created_ms
        ):
            broker.topics.delete(SELF, name)
            local = None
        if placement.deleted_ms:
            cluster.placed.pop(name, None)
        else:
            cluster.put(name, placement)
            own = len(cluster.placed[name].partitions)
            if local is None:
                config = TopicConfig(name, own, own, attributes=placement.attributes)
            else:
                config = replace(
                    local,
                    read_queues=max(own, local.read_queues),
                    write_queues=max(own, local.write_queues),
                    attributes=placement.attributes if before is not None else local.attributes,
                )
                if own < local.queues:
                    self._unsure[name] = None
            broker.topics.create(SELF, replace(config, created_ms=placement.created_ms))
        broker.groups.coordinator.recount()

    # -- changing ------------------------------------------------------------------------------

    async def agree(self, handle: Callable[[], Fields | Steps], again: bool) -> Fields:
        """Handle a request with what is known now, and carry out what it proposes.

        Then it is handled `again`, if it only asked for something that was not there before.
        """
        await self.look()
        answer, proposals = await self.handled(handle)
        if proposals:
            await asyncio.gather(*map(self._try, proposals))
            await self._tell()
            if again:
                answer, _ = await self.handled(handle)
        return answer

    async def _try(self, proposal: Proposal) -> None:
        try:
            await self._put(proposal)
        except OnelogError as error:
            proposal.result.update(error_code=error_code(error), error_message=str(error))

    async def handled(self, handle: Callable[[], Fields | Steps]) -> Proposed:
        """The answer to a request, some steps at a time; and what it proposes."""
        proposals: list[Proposal] = []
        cluster = self.cluster
        cluster.proposals = proposals
        try:
            answer = handle()
            began = time.monotonic()
            while not isinstance(answer, dict):
                next(answer)
                if time.monotonic() - began > BUSY_SECONDS:
                    cluster.proposals = []
                    await asyncio.sleep(0)
                    cluster.proposals, began = proposals, time.monotonic()
        except StopIteration as end:
            answer = cast(Fields, end.value)
        finally:
            cluster.proposals = []
        return answer, proposals

    async def _put(self, proposal: Proposal) -> None:
        """Agree on a change, and do one's own part."""
        key, text, _ = proposal
        texts = self.cluster.texts
        try:
            await self._register.put(key, text, texts.get(key, ""))
        except OnelogError as error:
            self._register.forget()
            await self.look()
            raise BrokerBusyError(f"the brokers could not agree, try again: {error}") from None
        self.cluster.texts[key] = text
        if key.startswith(TOPIC_KEY):
            self._apply(key.removeprefix(TOPIC_KEY), text)
        elif key.startswith(GROUP_KEY):
            self._apply_group(key.removeprefix(GROUP_KEY), text)
        elif key.startswith(CONFIG_KEY):
            self.broker.admin.kafka_settings.put(key.removeprefix(CONFIG_KEY), text or None)

    async def _tell(self) -> None:
        """Have all other brokers look; who does not answer does so by itself, later."""
        await self.ask_others(ApiKey.METADATA, 9, {"topics": []})

    async def ask_others(self, key: ApiKey, version: int, fields: Fields) -> list[Fields]:
        """What the other brokers answer, those that do."""
        others = self.cluster.live - {self._node.node_id}
        requests = (self.peers.ask(each, key, version, fields) for each in others)
        found = []
        for answer in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(answer, BaseException):
                log.info("a broker of the Kafka cluster was not told: %s", answer)
            else:
                found.append(answer)
        return found

    # -- share groups --------------------------------------------------------------------------

    def _apply_group(self, name: str, text: str) -> None:
        """Have a group's settings as they were agreed on."""
        try:
            given = msgspec.json.decode(text, type=dict[str, str])
            if not given and self.broker.groups.find(SELF, name) is None:
                return
            group = self.broker.groups.require(SELF, name)
            kept = {
                key: value
                for key, value in group.attributes.items()
                if not key.startswith(SHARE_SETTINGS)
            }
            self.broker.groups.put(SELF, replace(group, attributes=kept | given))
        except (OnelogError, msgspec.DecodeError) as error:
            log.error("group %s is not as the Kafka cluster agreed on: %s", name, error)

    def forget_group(self, name: str) -> None:
        """A share group was deleted here: the others forget its positions and settings."""
        topics = [{"topic_name": each.name} for each in visible_topics(self.broker, SELF)]

        async def tell() -> None:
            if GROUP_KEY + name in self.cluster.texts:
                await self._try(Proposal(GROUP_KEY + name, "{}", {}))
            fields = {"group_id": name, "topics": topics}
            await self.ask_others(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, fields)

        self.spawn(tell())

    # -- topics that others made ---------------------------------------------------------------

    async def _record_unsure(self) -> None:
        """Put topics into the register that are other than it says."""
        if self._is_silent:
            return
        is_changed = False
        while self._unsure:
            name = next(iter(self._unsure))
            for _ in range(ATTEMPTS):
                placement = await self._as_it_is(name)
                if placement is None:
                    break
                proposal = Proposal(TOPIC_KEY + name, placement.encode(), {})
                is_changed = True
                try:
                    await self._put(proposal)
                except BrokerBusyError as error:
                    log.info("topic %s: %s", name, error)
            del self._unsure[name]
            if len(self._unsure) % AT_ONCE == 0:
                await asyncio.sleep(0)
        if is_changed:
            await self._tell()

    async def _as_it_is(self, name: str) -> Placement | None:
        """The placement of a topic as the brokers have it; None if that is agreed on."""
        cluster, now_ms = self.cluster, self._clock.now_ms()
        text = cluster.texts.get(TOPIC_KEY + name)
        agreed = None if text is None else Placement.decode(text)
        kept = self.broker.topics.placements.get(name)
        local = self.broker.topics.find(SELF, name)
        if local is None:
            if agreed is None or agreed.deleted_ms:
                return None
            return Placement(agreed.created_ms, [], {}, now_ms)
        if agreed is None and kept is not None:
            return Placement.decode(kept)
        if agreed is None or agreed.deleted_ms:
            found = {self._node.name: 0, **await self._register.queues(name)}
            found[self._node.name] = local.queues
            ids = {each.name: each.node_id for each in cluster.nodes.values()}
            new = Placement(local.created_ms or now_ms, [], local.attributes)
            for broker_name, count in sorted(found.items()):
                if broker_name in ids and count:
                    new = new.grown(count, [ids[broker_name]])
            return new
        if text is not None and local.created_ms != agreed.created_ms:
            self._apply(name, text)  # It was deleted and made again, before anybody looked.
        own = len(cluster.placed[name].partitions)
        return (
            agreed.grown(local.queues - own, [self._node.node_id]) if local.queues > own else None
        )
