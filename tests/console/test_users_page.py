"""Users, roles and permissions by REST and in the console."""

from pathlib import Path

import httpx

from tests.console.browser import Watched, browser, needs_chromium
from tests.console.live import cluster
from tests.gateways.http.live import SECONDS, http, url

SENDING = {"actions": ["publish"], "kind": "topic", "name": "orders"}


async def test_users_and_roles_are_made_changed_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, web):
        await web.post("/v1/topics", json={"name": "orders", "queues": 1})
        first = {"name": "bob", "password": "b"}
        assert (await web.post("/v1/users", json=first)).status_code == 400
        ann = {"name": "ann", "password": "a", "roles": ["admin"]}
        assert (await web.post("/v1/users", json=ann)).status_code == 201
        assert (await web.get("/v1/users")).status_code == 401

        def caller(name: str, password: str) -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=url(server), timeout=SECONDS, auth=(name, password))

        async with caller("ann", "a") as admin, caller("bob", "b") as bob:
            role = {"name": "senders", "permissions": [SENDING]}
            assert (await admin.post("/v1/roles", json=role)).status_code == 201
            assert (await admin.post("/v1/roles", json=role)).status_code == 400
            made = await admin.post("/v1/users", json={**first, "roles": ["senders"]})
            assert made.status_code == 201
            assert "password" not in made.text
            sent = await bob.post("/v1/topics/orders/messages", json={"body": "x"})
            assert sent.status_code == 201
            for path in ("/v1/users", "/v1/users/ann", "/v1/roles", "/v1/roles/senders"):
                assert (await bob.get(path)).status_code == 403, path
            refused = await bob.patch("/v1/users/bob", json={"roles": ["admin"]})
            assert refused.status_code == 403

            shown = (await admin.get("/v1/roles/senders")).json()
            assert shown["users"] == 1
            assert shown["permissions"][0]["actions"] == ["publish"]
            assert (await admin.patch("/v1/roles/senders", json={})).json()["permissions"] == []
            sent = await bob.post("/v1/topics/orders/messages", json={"body": "x"})
            assert sent.status_code == 403
            changed = await admin.patch("/v1/users/bob", json={"permissions": [SENDING]})
            assert changed.json()["permissions"][0]["name"] == "orders"
            sent = await bob.post("/v1/topics/orders/messages", json={"body": "x"})
            assert sent.status_code == 201

            changed = await admin.patch("/v1/users/bob", json={"password": "new"})
            assert changed.status_code == 200
            assert (await bob.get("/v1/topics")).status_code == 401
            for path in ("/v1/users/nobody", "/v1/roles/nothing"):
                assert (await admin.get(path)).status_code == 404, path
                assert (await admin.delete(path)).status_code == 404, path
            assert (await admin.delete("/v1/roles/senders")).status_code == 200
            assert (await admin.get("/v1/users/bob")).json()["roles"] == []
            assert (await admin.delete("/v1/users/ann")).status_code == 400
            assert (await admin.delete("/v1/users/bob")).status_code == 200
            assert (await admin.get("/v1/users")).json()["total"] == 1


async def logged_in(watched: Watched, at: str) -> None:
    """Log in by the form."""
    page = watched.page
    await page.goto(at)
    await page.locator("input[name=user]").fill("ann")
    await page.locator("input[name=password]").fill("a")
    await page.locator("button").click()
    await page.get_by_role("heading", name="Overview", level=1).wait_for()
    watched.complaints.clear()  # The form comes with a status of 401.


@needs_chromium
async def test_the_console_makes_users_and_gives_them_permissions(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, web), browser() as chromium:
        await web.post("/v1/users", json={"name": "ann", "password": "a", "roles": ["admin"]})
        watched = Watched(await chromium.new_page(), url(server))
        page, dialog = watched.page, watched.page.get_by_role("dialog")
        await logged_in(watched, url(server))
        await watched.open("users")
        await page.get_by_role("button", name="New role").click()
        await dialog.get_by_label("Name").fill("senders")
        await dialog.get_by_role("button", name="Create").click()
        row = page.get_by_role("row", name="senders")
        await row.get_by_role("button", name="Permissions").click()
        await dialog.get_by_role("textbox", name="Name").fill("orders")
        await dialog.get_by_role("button", name="Add", exact=True).click()
        await dialog.get_by_text("publish topic:orders").wait_for()
        await dialog.get_by_role("button", name="Save").click()
        await row.get_by_text("publish topic:orders").wait_for()

        await page.get_by_role("button", name="New user").click()
        await dialog.get_by_label("Name").fill("bob")
        await dialog.get_by_role("textbox", name="Password").fill("b")
        await dialog.get_by_role("textbox", name="Roles").fill("senders")
        await dialog.get_by_role("button", name="Create").click()
        bob = page.get_by_role("row", name="bob")
        await bob.get_by_role("button", name="Change").click()
        await dialog.get_by_label("may log in").uncheck()
        await dialog.get_by_role("textbox", name="New password").fill("c")
        await dialog.get_by_role("button", name="Save").click()
        await bob.get_by_text("locked").wait_for()
        await bob.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Delete").click()
        await bob.wait_for(state="detached")
        assert watched.complaints == []


@needs_chromium
async def test_who_logs_in_by_the_form_sees_the_whole_cluster_and_logs_out(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, web, _), browser() as chromium:
        await web.post("/v1/topics", json={"name": "orders", "queues": 1})
        await web.post("/v1/users", json={"name": "ann", "password": "a", "roles": ["admin"]})
        watched = Watched(await chromium.new_page(), url(server))
        page = watched.page
        await logged_in(watched, url(server))
        for place, words in (
            ("delays", "No message is waiting."),
            ("dead-letters", "There are no dead letters."),
            ("cluster", "broker-a"),
            ("audit", "ann"),
            ("users", "ann"),
        ):
            await watched.open(place)
            await page.locator("main").get_by_text(words).first.wait_for()
        assert watched.complaints == []
        await page.get_by_role("button", name="ann").click()
        await page.locator("input[name=password]").wait_for()
