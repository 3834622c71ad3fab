"""A real browser: Debian's Chromium, by Playwright."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
CHROMIUM = os.environ.get("ONELOG_TEST_CHROMIUM") or shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="there is no Chromium on this machine: apt-get install chromium",
)
MS = 30_000
"""The longest that a page may take, on a machine that is busy."""


@contextlib.asynccontextmanager
async def browser() -> "AsyncIterator[Browser]":
    """Chromium, without a window."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield made
        finally:
            await made.close()


class Watched:
    """A page, and everything that it complained about."""

    def __init__(self, page: "Page", base: str) -> None:
        self.page = page
        self._base = base
        self.complaints: list[str] = []
        page.set_default_timeout(MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    async def open(self, place: str) -> None:
        """Go to a page of the console, and wait until it is there."""
        await self.page.goto(f"{self._base}/#/{place}")
        await self.page.wait_for_selector("html[data-ready]")
        await self.page.wait_for_selector("main h1")
        await self.page.wait_for_load_state("networkidle")

    async def text(self) -> str:
        """What is to be read on the page."""
        return await self.page.inner_text("main")
