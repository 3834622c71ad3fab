"""The console in a real browser: every page, the main actions, hostile names and bodies."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from onelog.console import pages
from onelog.server import BrokerServer
from tests.client.letters import give_up
from tests.console.browser import Watched, browser, needs_chromium
from tests.console.live import cluster
from tests.gateways.http.live import http, url
from tests.gateways.remoting.live import client as remoting

HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>${alert(3)}"
PLACES = {
    "overview": "Messages per second",
    "topics": "orders",
    "topics/orders": "order-1",
    "topics/orders/queues": "Last message",
    "topics/orders/groups": "billing",
    "topics/orders/settings": "Attributes",
    "groups": "billing",
    "groups/billing": "Lag over time",
    "messages?topic=orders": "order-1",
    "send?topic=orders": "Deliver at",
    "queues": "jobs",
    "exchanges": "amq.topic",
    "exchanges/shop": "order.*",
    "delays": "reminder",
    "dead-letters": "billing",
    "dead-letters/billing": "given up",
    "transactions": "Half messages",
    "trace": "The history of one message",
    "connections": "rocketmq",
    "cluster": "broker-a",
    "lake": "Spark",
    "users": "There are no users",
    "audit": "What administrators did",
    "settings": "http.port",
}
"""Pages, and what has to be read there."""


async def seed(server: BrokerServer, web: httpx.AsyncClient) -> str:
    """Something for every page; the id of a message."""
    await web.post("/v1/topics", json={"name": "orders", "queues": 2})
    await web.post("/v1/groups", json={"name": "billing"})
    sent: dict[str, Any] = {}
    for number in range(1, 4):
        message = {"body": f'{{"n": {number}}}', "keys": [f"order-{number}"], "tags": "paid"}
        sent = (await web.post("/v1/topics/orders/messages", json=message)).json()
    async with remoting(server) as peer:
        await give_up(peer, sent["id"], "billing")
    now_ms = (await web.get("/v1/overview")).json()["now_ms"]
    late = {"body": "later", "keys": ["reminder"], "deliver_at_ms": now_ms + 3_600_000}
    await web.post("/v1/topics/orders/messages", json=late)
    await web.post("/v1/exchanges", json={"name": "shop", "kind": "topic"})
    await web.post("/v1/queues", json={"name": "jobs"})
    bound = {"source": "shop", "destination": "jobs", "key": "order.*"}
    await web.post("/v1/bindings", json=bound)
    reset = {"topic": "orders", "to": "earliest"}
    await web.post("/v1/groups/billing/reset", json=reset)
    return str(sent["id"])


@contextlib.asynccontextmanager
async def console(
    folder: Path, **options: Any
) -> AsyncIterator[tuple[Watched, httpx.AsyncClient, str]]:
    """A browser on the console of a broker that has something to show."""
    async with cluster(folder) as (server, web, _), remoting(server), browser() as chromium:
        message_id = await seed(server, web)
        context = await chromium.new_context(
            **{"viewport": {"width": 1400, "height": 900}, **options}
        )
        watched = Watched(await context.new_page(), url(server))
        yield watched, web, message_id


@needs_chromium
async def test_every_page_shows_what_it_should_and_nothing_goes_wrong(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, _, message_id):
        places = {
            **PLACES,
            f"messages/{message_id}": "As each protocol",
            f"trace/{message_id}": "stored",
        }
        for place, words in places.items():
            await seen.open(place)
            await seen.page.get_by_text(words, exact=False).first.wait_for(state="attached")
            assert words.lower() in (await seen.text()).lower(), place
        assert seen.complaints == []


async def serious(seen: Watched, places: Iterable[str]) -> list[tuple[str, str, str]]:
    """What axe-core finds on pages that keeps somebody from using them."""
    import axe_playwright_python

    script = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
    found = []
    for place in places:
        await seen.open(place)
        await seen.page.evaluate(script)
        told = await seen.page.evaluate("axe.run(document)")
        found += [
            (place, each["id"], each["nodes"][0]["html"])
            for each in told["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    return found


@needs_chromium
async def test_pages_can_be_used_by_everybody(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, _, message_id):
        assert await serious(seen, ["overview", "groups/billing", f"messages/{message_id}"]) == []


@pytest.mark.e2e
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_pages_can_be_used_by_everybody(tmp_path: Path, scheme: str) -> None:
    async with console(tmp_path, color_scheme=scheme) as (seen, _, message_id):
        places = [*PLACES, f"messages/{message_id}", f"trace/{message_id}"]
        assert await serious(seen, places) == []


@needs_chromium
async def test_a_phone_shows_all_of_it(tmp_path: Path) -> None:
    phone = {"width": 390, "height": 844}
    async with console(tmp_path, viewport=phone) as (seen, _, message_id):
        for place in (
            "overview",
            "topics",
            "topics/orders",
            "groups/billing",
            f"messages/{message_id}",
        ):
            await seen.open(place)
            wide = await seen.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= phone["width"], f"{place} is {wide} wide"
        await seen.page.get_by_role("button", name="Menu").click()
        await seen.page.get_by_role("link", name="Settings", exact=True).click()
        await seen.page.get_by_role("heading", name="Settings", level=1).wait_for()
        assert seen.complaints == []


@needs_chromium
async def test_topics_are_made_and_messages_sent_and_found(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, web, _):
        page = seen.page
        await seen.open("topics")
        await page.get_by_role("button", name="New topic").click()
        await page.get_by_label("Name").last.fill("payments")
        await page.get_by_role("button", name="Create").click()
        await page.get_by_role("heading", name="payments", level=1).wait_for()
        await page.get_by_role("link", name="Send a message").click()
        await page.get_by_label("Body").fill("hello console")
        await page.get_by_label("Keys").fill("k-1")
        await page.get_by_role("button", name="Send", exact=True).click()
        await page.get_by_role("heading", name="Sent").wait_for()
        found = (await web.get("/v1/topics/payments/messages", params={"key": "k-1"})).json()
        assert [each["body"] for each in found["items"]] == ["hello console"]
        await seen.open("topics/payments")
        await page.get_by_text("hello console").first.click()
        await page.get_by_role("heading", name="k-1", level=1).wait_for()
        await page.get_by_role("tab", name="Hex").click()
        assert "68 65 6c 6c 6f" in await page.inner_text("pre.body")
        await seen.open("topics/payments/settings")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await page.get_by_role("heading", name="Topics", level=1).wait_for()
        assert (await web.get("/v1/topics/payments")).status_code == 404
        assert seen.complaints == []


@needs_chromium
async def test_groups_are_moved_after_a_preview_and_letters_sent_again(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, web, _):
        page = seen.page
        await seen.open("groups/billing")
        await page.get_by_role("button", name="Move…").click()
        await page.get_by_label("Topic").last.fill("orders")
        await page.locator("dialog select[name=to]").select_option("latest")
        await page.get_by_text("3 messages will be skipped.").wait_for()
        await page.get_by_role("dialog").get_by_role("button", name="Move").click()
        await page.get_by_text("Moved.").wait_for()
        group = (await web.get("/v1/groups/billing")).json()
        assert [each["lag"] for each in group["queues"] if each["topic"] == "orders"] == [0, 0]
        await seen.open("dead-letters/billing")
        await page.get_by_role("button", name="Send all again").click()
        await page.get_by_text("1 messages were sent again.").wait_for()
        await page.get_by_text("No dead letters.").wait_for()
        await seen.open("delays")
        await page.get_by_role("button", name="Send now").click()
        await page.get_by_text("No message is waiting.").wait_for()
        await seen.open("settings")
        await page.get_by_label("Search").fill("broker.trace")
        await page.get_by_role("button", name="Change").click()
        await page.locator("dialog select").select_option("false")
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text("changed while running").wait_for()
        assert seen.complaints == []


@needs_chromium
async def test_the_simulator_says_where_a_key_leads_and_why(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, _, _id):
        page = seen.page
        await seen.open("exchanges/shop")
        await page.get_by_label("Routing key").first.fill("order.new")
        await page.get_by_role("button", name="Simulate").click()
        await page.get_by_text("It would go to: jobs").wait_for()
        await page.get_by_text("binding with key 'order.*'").wait_for()
        await page.get_by_label("Routing key").first.fill("other")
        await page.get_by_role("button", name="Simulate").click()
        await page.get_by_text("No queue would receive it.").wait_for()
        assert seen.complaints == []


@needs_chromium
async def test_what_is_in_names_and_messages_never_runs(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, web, _):
        name = HOSTILE[:120].replace("/", "-")
        made = await web.post("/v1/topics", json={"name": name, "queues": 1, "attributes": {}})
        assert made.status_code == 201, made.text
        message = {
            "body": HOSTILE,
            "keys": ["<svg/onload=alert(4)>"],
            "tags": "<b>tag",
            "properties": {"<i>name": HOSTILE},
        }
        path = httpx.URL(url="/").copy_with(path=f"/v1/topics/{name}/messages")
        sent = await web.post(str(path), json=message)
        assert sent.status_code == 201, sent.text
        await web.post("/v1/groups", json={"name": "<script>alert(5)</script>"})
        listed = (await web.get("/v1/topics", params={"q": "onerror"})).json()["items"]
        assert [each["name"] for each in listed] == [name]
        place = str(path).removeprefix("/v1/").removesuffix("/messages")
        for each in (
            "topics",
            place,
            f"messages/{sent.json()['id']}",
            "groups",
            f"trace/{sent.json()['id']}",
            f"send?topic=orders&message={sent.json()['id']}",
            "%3Cscript%3Ealert(6)%3C/script%3E",
            "topics?q=%3Cimg%20src%3Dx%20onerror%3Dalert(7)%3E",
        ):
            await seen.page.goto(f"{seen._base}/#/{each}")
            await seen.page.wait_for_selector("html[data-ready]")
            await seen.page.wait_for_load_state("networkidle")
            assert await seen.page.locator("main img, main script, main i[onerror]").count() == 0
        await seen.open(f"messages/{sent.json()['id']}")
        assert "<script>alert(2)</script>" in await seen.text()
        assert [each for each in seen.complaints if "dialog" in each] == []


@needs_chromium
async def test_it_speaks_chinese_and_keys_lead_to_pages(tmp_path: Path) -> None:
    async with console(tmp_path) as (seen, _, _id):
        page = seen.page
        await seen.open("overview")
        await page.get_by_role("button", name="中文").click()
        await page.get_by_role("heading", name="总览", level=1).wait_for()
        assert await page.get_attribute("html", "lang") == "zh-CN"
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.get_by_role("heading", name="主题", level=1).wait_for()
        await page.get_by_role("button", name="English").click()
        await page.keyboard.press("/")
        await page.keyboard.type("billing")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="billing", level=1).wait_for()
        assert seen.complaints == []


async def test_pages_come_with_a_policy_that_lets_nothing_else_in(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        found = await web.get("/")
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["x-frame-options"] == "DENY"
        again = await web.get("/", headers={"if-none-match": found.headers["etag"]})
        assert again.status_code == 304
        for path in ("/console/../pages.py", "/console/%2e%2e/pages.py", "/console/..%2fpages.py"):
            assert (await web.get(path)).status_code == 404


def test_everything_that_is_said_is_said_in_chinese_too() -> None:
    import re

    words = (pages.FOLDER / "labels.js").read_text("utf-8")
    known = set(re.findall(r'"([^"]+)": "', words))
    for path in pages.FOLDER.glob("*.js"):
        source = path.read_text("utf-8")
        for text in re.findall(r'\bt\("([^"]+)"', source):
            assert text in known, f"{path.name}: {text}"


@pytest.mark.parametrize("path", sorted(pages.FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_scripts_never_make_html_of_text(path: Path) -> None:
    source = path.read_text("utf-8")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in source
    assert "http://" not in source.replace("http://www.w3.org/2000/svg", "")
