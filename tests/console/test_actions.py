"""Every action of the console, in a real browser, on a broker with traffic of all protocols."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from onelog.client import AsyncProducer, Message, TransactionState
from tests.client.letters import give_up
from tests.console.browser import Watched, browser, needs_chromium
from tests.console.test_pages import PLACES, seed, serious
from tests.console.traffic import busy
from tests.gateways.http.live import url
from tests.gateways.remoting.live import client as remoting

pytestmark = [pytest.mark.e2e, needs_chromium, pytest.mark.timeout(600)]
PICTURES = os.environ.get("ONELOG_TEST_PICTURES")
"""A folder to put pictures of all pages in: docs/console, to renew those."""


class Live:
    """A console that somebody looks at."""

    def __init__(self, seen: Watched, web: httpx.AsyncClient, message_id: str, names: str) -> None:
        self.seen, self.page, self.web, self.message_id = seen, seen.page, web, message_id
        self.names = names
        self.dialog = self.page.get_by_role("dialog")

    async def press(self, name: str, *, inside: Any = None) -> None:
        place = self.page if inside is None else inside
        await place.get_by_role("button", name=name, exact=True).first.click()

    async def answer(self, name: str) -> None:
        await self.press(name, inside=self.dialog)
        await self.dialog.wait_for(state="detached")

    def row(self, text: str) -> Any:
        return self.page.get_by_role("row").filter(has_text=text).first

    async def wait(self, text: str) -> None:
        await self.page.get_by_text(text).first.wait_for()

    async def told(self, path: str, **ask: Any) -> Any:
        answer = await self.web.get(path, params=ask)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.asynccontextmanager
async def live(folder: Path, **options: Any) -> AsyncIterator[Live]:
    async with busy(folder) as (server, web, names), remoting(server), browser() as chromium:
        message_id = await seed(server, web)
        view = {"viewport": {"width": 1400, "height": 900}, "timezone_id": "UTC", **options}
        context = await chromium.new_context(**view)
        made = Live(Watched(await context.new_page(), url(server)), web, message_id, names)
        yield made
        assert made.seen.complaints == []


async def test_topics(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await at.seen.open("topics")
        await at.press("New topic")
        await at.dialog.get_by_label("Name").fill("payments")
        await at.dialog.get_by_label("Queues").fill("3")
        await at.dialog.get_by_label("ordered").check()
        await at.answer("Create")
        await at.page.get_by_role("heading", name="payments", level=1).wait_for()
        made = await at.told("/v1/topics/payments")
        assert (made["queues"], made["ordered"]) == (3, True)
        await at.page.get_by_role("link", name="Settings", exact=True).first.click()
        await at.page.get_by_role("link", name="Settings", exact=True).last.click()
        await at.seen.open("topics/payments/settings")
        await at.page.get_by_label("Queues").fill("5")
        await at.page.get_by_label("Permission").select_option("r")
        await at.press("Save")
        await at.wait("Changed.")
        made = await at.told("/v1/topics/payments")
        assert (made["queues"], made["permission"]) == (5, "r")

        await at.seen.open("topics/orders")
        await at.press("Empty")
        await at.answer("Delete")
        await at.wait("Emptied.")
        assert (await at.told("/v1/topics/orders"))["messages"] == 0

        await at.seen.open("topics")
        await at.page.get_by_label("Name").fill("pay")
        await at.wait("1 in all")
        await at.page.get_by_label("Choose payments").check()
        await at.press("Delete 1")
        await at.answer("Delete")
        await at.wait("No topic has this name.")
        assert (await at.web.get("/v1/topics/payments")).status_code == 404


async def test_groups_are_made_moved_skipped_and_deleted(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await at.seen.open("groups")
        await at.press("New group")
        await at.dialog.get_by_label("Name").fill("audit")
        await at.answer("Create")
        await at.page.get_by_role("heading", name="audit", level=1).wait_for()
        for to, words in (("latest", "will be skipped"), ("earliest", "will be read again")):
            await at.seen.open("groups/billing")
            await at.press("Move…")
            await at.dialog.get_by_label("Topic").fill("orders")
            await at.dialog.locator("select[name=to]").select_option(to)
            await at.dialog.get_by_text(words).wait_for()
            await at.answer("Move")
            await at.wait("Moved.")
        await at.press("Move…")
        await at.dialog.get_by_label("Topic").fill("orders")
        await at.dialog.locator("select[name=to]").select_option("time")
        await at.dialog.locator("input[name=at]").fill("2099-01-01T00:00:00")
        await at.dialog.locator("input[name=at]").press("Tab")
        await at.dialog.get_by_text("will be skipped").wait_for()
        await at.press("Cancel", inside=at.dialog)
        lag = (await at.told("/v1/groups/billing"))["lag"]
        assert lag > 0
        await at.wait("Lag over time")
        await at.page.locator("svg.chart polyline").first.wait_for()
        await at.seen.open("groups/audit")
        await at.press("Delete")
        await at.answer("Delete")
        await at.page.get_by_role("heading", name="Consumer groups", level=1).wait_for()
        assert (await at.web.get("/v1/groups/audit")).status_code == 404
        await at.page.get_by_label("Order").select_option("lag")
        await at.wait("readers")


async def test_messages_are_searched_and_sent(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        page = at.page
        await at.seen.open("messages?topic=orders")
        for label, value, found, hidden in (
            ("Key", "rocketmq-1", '{"order": 1}', "kafka"),
            ("SQL-92 condition", "colour = 'blue'", "kafka", '{"order": 1}'),
            ("Tags", "paid", '{"order": 1}', "kafka"),
            ("From", "2099-01-01T00:00:00", "No message matches.", "kafka"),
        ):
            field = page.get_by_label(label, exact=True).last
            await field.fill(value)
            await at.press("Search")
            await page.locator("main .card").last.get_by_text(found).first.wait_for()
            assert await page.locator("main .card").last.get_by_text(hidden).count() == 0, label
            await field.fill("")
        await page.get_by_label("Key", exact=True).last.fill("kafka-1")
        await at.press("Search")
        await page.locator("main .card").last.get_by_text("kafka").last.click()
        await page.get_by_role("heading", name="kafka-1", level=1).wait_for()
        await at.wait("stored as Kafka")
        for way, words in (
            ("Text", "kafka"),
            ("Hex", "6b 61 66 6b 61"),
            ("base64", "a2Fma2E="),
            ("Protobuf", "("),
            ("JSON", "("),
            ("By schema", "Give a schema"),
        ):
            await page.get_by_role("tab", name=way).click()
            assert words in await page.inner_text("pre.body"), way
        for protocol in ("RocketMQ", "Kafka", "AMQP", "STOMP", "MQTT", "HTTP"):
            await page.get_by_role("heading", name=protocol, level=3).wait_for()
        await page.get_by_role("link", name="Send again…").click()
        await page.get_by_label("Keys").fill("again")
        await page.get_by_label("Properties").fill("colour=pink")
        await at.press("Send")
        await page.get_by_role("heading", name="Sent").wait_for()
        (sent,) = (await at.told("/v1/topics/orders/messages", key="again"))["items"]
        assert (sent["body"], sent["properties"]["colour"]) == ("kafka", "pink")
        await page.keyboard.press("Escape")
        await page.get_by_role("searchbox").first.fill(at.message_id)
        await page.get_by_role("searchbox").first.press("Enter")
        await page.get_by_role("heading", name="order-3", level=1).wait_for()
        await page.get_by_role("link", name="Trace").last.click()
        await page.get_by_text("stored").first.wait_for()
        await page.get_by_role("cell", name="billing").first.wait_for()


async def test_delayed_messages_are_sent_now_and_cancelled(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        now_ms = (await at.told("/v1/overview"))["now_ms"]
        late = {"body": "never", "keys": ["never"], "deliver_at_ms": now_ms + 7_200_000}
        await at.web.post("/v1/topics/orders/messages", json=late)
        await at.seen.open("delays")
        await at.press("Send now", inside=at.row("reminder"))
        await at.row("reminder").wait_for(state="detached")
        (sent,) = (await at.told("/v1/topics/orders/messages", key="reminder"))["items"]
        assert sent["body"] == "later"
        await at.press("Cancel it", inside=at.row("never"))
        await at.answer("Cancel it")
        await at.wait("No message is waiting.")
        assert (await at.told("/v1/topics/orders/messages", key="never"))["items"] == []


async def test_dead_letters_are_edited_and_sent_again_in_bulk(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        at_broker = (await at.told("/v1/overview"))["ports"]["rocketmq"]
        assert at_broker
        await at.web.post("/v1/groups", json={"name": "many"})
        await _die(at, "many", 230)
        await at.seen.open("dead-letters")
        await at.page.get_by_role("link", name="many").click()
        await at.wait("230 in all")
        await at.page.get_by_role("checkbox").nth(1).check()
        await at.page.get_by_role("checkbox").nth(2).check()
        await at.press("Send 2 again")
        await at.wait("2 messages were sent again.")
        await at.wait("228 in all")
        await at.page.get_by_role("link", name="Edit and send…").first.click()
        await at.page.get_by_label("Body").fill("mended")
        await at.page.get_by_label("Keys").fill("mended")
        await at.press("Send")
        await at.page.get_by_role("heading", name="Sent").wait_for()
        assert len((await at.told("/v1/topics/orders/messages", key="mended"))["items"]) == 1
        await at.seen.open("dead-letters/many")
        await at.press("Send all again")
        await at.page.get_by_role("progressbar").wait_for()
        await at.wait("228 messages were sent again.")
        await at.wait("No dead letters.")
        await at.page.get_by_label("include handled ones").check()
        await at.wait("sent again")
        await _die(at, "many", 1)
        await at.page.get_by_label("include handled ones").uncheck()
        await at.wait("bad 0")
        await at.press("Mark all as handled")
        await at.answer("Mark all as handled")
        await at.wait("No dead letters.")


async def _die(at: Live, group: str, count: int) -> None:
    from onelog.net.peer import Peer
    from tests.gateways.remoting.live import Client

    port = (await at.told("/v1/overview"))["ports"]["rocketmq"]
    peer = await Peer.connect("127.0.0.1", port, timeout_ms=60_000)
    try:
        for number in range(count):
            body = {"body": f"bad {number}", "keys": [f"bad-{number}"]}
            sent = (await at.web.post("/v1/topics/orders/messages", json=body)).json()
            await give_up(Client(peer, []), sent["id"], group)
    finally:
        await peer.close()


async def test_transactions_that_hang_are_shown_and_aborted(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    async with live(tmp_path) as at:
        port = (await at.told("/v1/overview"))["ports"]["kafka"]

        def begin() -> Any:
            made = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": "hangs"})
            made.init_transactions(30)
            made.begin_transaction()
            made.produce("orders", b"x")
            made.flush(30)
            return made

        kept = await asyncio.to_thread(begin)
        async with AsyncProducer(
            "payers", nameserver=at.names, checker=lambda _: TransactionState.UNKNOWN
        ) as producer:
            half = Message("orders", b"half", keys=("half-1",))
            await producer.send_transaction(half, lambda *_: TransactionState.UNKNOWN)
            await at.seen.open("transactions")
            await at.row("payers").wait_for()
            await at.press("Abort", inside=at.row("hangs"))
            await at.answer("Abort")
            await at.row("CompleteAbort").wait_for()
        del kept


async def test_queues_exchanges_bindings_and_the_simulator(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await at.seen.open("queues")
        await at.press("New queue")
        await at.dialog.get_by_label("Name").fill("mails")
        await at.dialog.get_by_label("Arguments").fill('{"x-max-length": 10}')
        await at.answer("Create")
        await at.row("mails").get_by_text("x-max-length").wait_for()
        await at.seen.open("exchanges")
        await at.press("New exchange")
        await at.dialog.get_by_label("Name").fill("events")
        await at.dialog.get_by_label("Kind").select_option("headers")
        await at.answer("Create")
        await at.row("events").wait_for()
        await at.press("Bind…")
        await at.dialog.get_by_label("From").fill("events")
        await at.dialog.get_by_label("To", exact=True).fill("mails")
        await at.dialog.get_by_label("Arguments").fill('{"x-match": "all", "format": "pdf"}')
        await at.answer("Bind")
        await at.seen.open("exchanges/events")
        await at.page.get_by_label("Headers").fill("format=pdf")
        await at.press("Simulate")
        await at.wait("It would go to: mails")
        await at.press("Unbind")
        await at.wait("No entries.")
        await at.press("Simulate")
        await at.wait("No queue would receive it.")
        await at.seen.open("exchanges")
        await at.press("Delete", inside=at.row("events"))
        await at.answer("Delete")
        await at.row("events").wait_for(state="detached")
        await at.seen.open("queues")
        await at.press("Empty", inside=at.row("jobs"))
        await at.answer("Empty")
        await at.press("Delete", inside=at.row("mails"))
        await at.answer("Delete")
        await at.row("mails").wait_for(state="detached")
        (jobs,) = (await at.told("/v1/queues", q="jobs"))["items"]
        assert jobs["ready"] == 0


async def test_connections_of_all_protocols_are_closed(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await at.seen.open("connections")
        for protocol in ("rocketmq", "kafka", "amqp", "stomp", "mqtt", "http"):
            await at.row(protocol).wait_for()
        (sensor,) = (await at.told("/v1/connections", protocol="mqtt"))["items"]
        await at.press("Close", inside=at.row(sensor["address"]))
        await at.answer("Close")
        await at.row(sensor["address"]).wait_for(state="detached")
        await at.page.get_by_label("Search").last.fill("no such client")
        await at.wait("0 in all")


async def test_settings_say_where_they_come_from_and_are_changed(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await at.seen.open("settings")
        await at.page.get_by_label("Search").last.fill("broker.trace")
        await at.press("Change")
        await at.dialog.locator("select").select_option("false")
        await at.answer("Save")
        await at.row("broker.trace").get_by_text("changed while running").wait_for()
        await at.page.get_by_label("Search").last.fill("")
        await at.page.get_by_label("Show").select_option("set")
        await at.row("kafka.port").wait_for()
        await at.seen.open("cluster")
        await at.row("broker-a").get_by_text("this one").wait_for()
        await at.seen.open("lake")
        await at.wait("onelog lake sync")


async def test_pages_of_a_busy_broker_can_be_used_by_everybody(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        (letter,) = (await at.told("/v1/topics/jobs/messages", limit=1))["items"]
        places = [*PLACES, "users", f"messages/{letter['id']}", f"trace/{letter['id']}"]
        assert await serious(at.seen, places) == []


async def test_everything_can_be_reached_without_a_mouse(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        page = at.page
        await at.seen.open("overview")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        await page.keyboard.press("?")
        await at.dialog.wait_for()
        await page.keyboard.press("Escape")
        await at.dialog.wait_for(state="detached")
        for key, name in (("t", "Topics"), ("q", "Work queues"), ("p", "Users"), ("e", "Settings")):
            await page.keyboard.press("g")
            await page.keyboard.press(key)
            await page.get_by_role("heading", name=name, level=1).wait_for()
        await page.go_back()
        await page.get_by_role("heading", name="Users", level=1).wait_for()


async def test_the_first_paint_is_quick(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await at.seen.open("overview")
        times = []
        for _ in range(5):
            await at.page.reload()
            await at.page.wait_for_selector("html[data-ready]")
            paint = await at.page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
            )
            if paint is not None:
                times.append(paint)
        print(f"first paint: {sorted(times)} ms")
        assert min(times) < 300


@pytest.mark.timeout(900)
async def test_ten_thousand_topics_and_five_thousand_groups_stay_usable(tmp_path: Path) -> None:
    async with live(tmp_path) as at:
        await _fill(at)
        for place, words in (
            ("topics", "10,00"),
            ("groups", "5,0"),
            ("overview", "Messages per second"),
        ):
            began = asyncio.get_running_loop().time()
            await at.seen.open(place)
            await at.wait(words)
            print(f"{place}: {asyncio.get_running_loop().time() - began:.2f} s")
        await at.seen.open("topics")
        await at.press("Next")
        await at.row("many-00050").wait_for()
        await at.page.get_by_label("Name").fill("many-09999")
        await at.wait("1 in all")
        await at.seen.open("groups?sort=lag")
        await at.row("billing").wait_for()


async def _fill(at: Live) -> None:
    async def some(kind: str, numbers: range) -> None:
        for number in numbers:
            body = {"name": f"many-{number:05}"} | ({"queues": 1} if kind == "topics" else {})
            made = await at.web.post(f"/v1/{kind}", json=body)
            assert made.status_code == 201, made.text

    for kind, count in (("topics", 10_000), ("groups", 5_000)):
        await asyncio.gather(*(some(kind, range(at_, count, 8)) for at_ in range(8)))


PAGES = {
    "overview": "overview",
    "topics": "topics",
    "topic": "topics/orders",
    "groups": "groups",
    "group": "groups/billing",
    "messages": "messages?topic=orders",
    "queues": "queues",
    "exchanges": "exchanges/shop",
    "send": "send?topic=orders",
    "delays": "delays",
    "dead-letters": "dead-letters/billing",
    "transactions": "transactions",
    "connections": "connections",
    "cluster": "cluster",
    "lake": "lake",
    "users": "users",
    "audit": "audit",
    "settings": "settings",
}


@pytest.mark.skipif(PICTURES is None, reason="ONELOG_TEST_PICTURES names no folder")
async def test_pictures(tmp_path: Path) -> None:
    folder = Path(PICTURES or "")
    async with live(tmp_path) as at:
        shots = dict(PAGES)
        (letter,) = (await at.told("/v1/topics/jobs/messages", limit=1))["items"]
        shots["message"] = f"messages/{letter['id']}"
        shots["trace"] = f"trace/{at.message_id}?topic=orders"
        (kafka,) = (await at.told("/v1/topics/orders/messages", key="kafka-1"))["items"]
        shots["message-dark"] = f"messages/{kafka['id']}?offset={kafka['offset']}"
        shop = asyncio.create_task(_sell(at.web))
        await at.seen.open("overview")
        await asyncio.sleep(20)
        for name, place in shots.items():
            if name == "message-dark":
                await at.page.evaluate("localStorage.setItem('onelog-theme', 'dark')")
                await at.page.reload()
            await at.seen.open(place)
            if name == "exchanges":
                await at.page.get_by_label("Routing key").first.fill("order.new")
                await at.press("Simulate")
            if name == "users":
                role = {"name": "senders", "permissions": SENDING}
                await at.web.post("/v1/roles", json=role)
                await at.page.reload()
            await asyncio.sleep(9 if name == "group" else 0.7)
            path = folder / f"{name}.png"
            await at.page.screenshot(path=path, full_page=name == "message")
        await at.page.evaluate(
            "localStorage.setItem('onelog-theme', 'light'); "
            "localStorage.setItem('onelog-language', 'zh-CN')"
        )
        await at.seen.open("overview")
        await at.page.reload()
        await asyncio.sleep(20)
        await at.page.screenshot(path=folder / "overview-zh.png")
        await at.page.evaluate("localStorage.setItem('onelog-language', 'en')")
        await at.page.set_viewport_size({"width": 390, "height": 844})
        await at.seen.open("groups/billing")
        await at.page.reload()
        await asyncio.sleep(9)
        await at.page.screenshot(path=folder / "phone.png")
        shop.cancel()


SENDING = [{"actions": ["publish"], "kind": "topic", "name": "orders"}]


async def _sell(web: httpx.AsyncClient) -> None:
    """Orders, more at some times than at others."""
    for number in range(10_000):
        order = {"order": number, "lamp": "desk", "price": 10 + number % 7}
        body = {"body": json.dumps(order), "keys": [f"order-{number}"], "tags": "paid"}
        for _ in range(3 + number % 40 // 4):
            await web.post("/v1/topics/orders/messages", json=body)
        await asyncio.sleep(0.15)
