"""Sessions of browsers: how they begin, who can use them, and what ends them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from onelog.core.access import SELF
from onelog.core.users.passwords import prove
from onelog.gateways.http import logins
from onelog.server import BrokerServer
from tests.gateways.http.live import SECONDS, http, url

ANN = {"user": "ann", "password": "secret"}
PERSON = {"accept": "text/html,application/xhtml+xml"}


@contextlib.asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[BrokerServer, httpx.AsyncClient]]:
    async with http(folder) as (server, web):
        users = server.broker.users
        users.create_user(SELF, "ann", prove("secret"), ("admin",))
        users.create_user(SELF, "root", prove("r"), ("admin",))
        yield server, web


async def log_in(web: httpx.AsyncClient, form: dict[str, str] = ANN) -> httpx.Response:
    return await web.post("/login", data=form, headers={"origin": str(web.base_url)})


async def test_people_get_a_form_programs_a_challenge_and_scripts_neither(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, web):
        shown = await web.get("/", headers=PERSON)
        assert (shown.status_code, shown.headers["content-type"][:9]) == (401, "text/html")
        assert "www-authenticate" not in shown.headers
        assert '<form method="post" action="/login">' in shown.text
        assert "default-src 'none'" in shown.headers["content-security-policy"]
        assert shown.headers["x-frame-options"] == "DENY"
        assert "www-authenticate" in (await web.get("/v1/topics")).headers
        script = await web.get("/v1/topics", headers={"sec-fetch-mode": "cors"})
        assert script.status_code == 401
        assert "www-authenticate" not in script.headers
        assert (await web.get("/login")).status_code == 200


async def test_a_session_begins_with_the_form_and_ends_with_log_out(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, web):
        wrong = await log_in(web, {"user": "ann", "password": "<script>"})
        assert (wrong.status_code, wrong.cookies) == (401, httpx.Cookies())
        assert "<script>" not in wrong.text
        made = await log_in(web)
        assert (made.status_code, made.headers["location"]) == (303, "/")
        cookie = made.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert "Secure" not in cookie
        assert (await web.get("/v1/session")).json() == {"user": "ann"}
        assert (await web.post("/v1/topics", json={"name": "mine"})).status_code == 201
        ended = await web.post("/logout")
        assert (ended.status_code, ended.headers["location"]) == (303, "/login")
        for name, value in made.cookies.items():
            web.cookies.set(name, value)
        assert (await web.get("/v1/session")).status_code == 401


async def test_a_session_is_new_with_each_login(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, web):
        name = f"onelog_{server.config.http.port}"
        web.cookies.set(name, "known-to-the-attacker")
        first = (await log_in(web)).cookies[name]
        assert first != "known-to-the-attacker"
        web.cookies.clear()
        web.cookies.set(name, first)
        second = (await log_in(web)).cookies[name]
        assert second != first
        async with httpx.AsyncClient(base_url=url(server), timeout=SECONDS) as other:
            for stale in ("known-to-the-attacker", first, "", "x" * 5_000):
                other.cookies.clear()
                other.cookies.set(name, stale)
                assert (await other.get("/v1/session")).status_code == 401


async def test_a_session_ends_with_its_password_and_with_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path) as (server, web):
        users = server.broker.users
        for change in ({"proofs": prove("other")}, {"disabled": True}):
            users.change_user(SELF, "ann", proofs=prove("secret"), disabled=False)
            await log_in(web)
            assert (await web.get("/v1/session")).status_code == 200
            users.change_user(SELF, "ann", **change)
            assert (await web.get("/v1/session")).status_code == 401
        users.change_user(SELF, "ann", proofs=prove("secret"), disabled=False)
        await log_in(web)
        users.set_rules(SELF, "ann", ())
        assert (await web.get("/v1/session")).status_code == 200
        monkeypatch.setattr(logins, "IDLE_MS", -1)
        assert (await web.get("/v1/session")).status_code == 401
        monkeypatch.setattr(logins, "IDLE_MS", 60_000)
        await log_in(web)
        monkeypatch.setattr(logins, "LIFE_MS", -1)
        assert (await web.get("/v1/session")).status_code == 401


async def test_one_user_has_so_many_sessions_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "SESSIONS_OF_ONE_MAX", 2)
    async with guarded(tmp_path) as (server, web):
        name = f"onelog_{server.config.http.port}"
        made = []
        for _ in range(3):
            web.cookies.clear()
            made.append((await log_in(web)).cookies[name])
        codes = []
        for each in made:
            web.cookies.clear()
            web.cookies.set(name, each)
            codes.append((await web.get("/v1/session")).status_code)
        assert codes == [401, 200, 200]


async def test_a_page_of_another_server_can_do_nothing_with_a_session(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, web):
        await log_in(web)
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            for path in ("/v1/topics", "/logout", "/login"):
                told = await web.post(path, json={"name": "evil"}, headers=headers)
                assert told.status_code == 403, (path, headers)
        # A form can be sent without asking first, but is not taken for JSON.
        form = await web.post("/v1/topics", content=b'{"name":"evil"}')
        assert form.status_code == 400
        assert server.broker.topics.find(SELF, "evil") is None


async def test_without_users_there_is_nothing_to_log_in_to(tmp_path: Path) -> None:
    async with http(tmp_path) as (_, web):
        made = await log_in(web)
        assert (made.status_code, made.headers["location"]) == (303, "/")
        assert "set-cookie" not in made.headers
        assert (await web.get("/v1/session")).json() == {"user": ""}
