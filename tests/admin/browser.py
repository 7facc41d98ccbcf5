"""A real Chromium without a window and without a network, for tests of the page."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, async_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium, or set CHROMIUM"
)

_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    # The network is cut: no name is resolved, and no address but loopback's is left.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Tab:
    """A page in the browser, and what it asked for and complained of."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def chromium(directory: Path) -> AsyncIterator[Browser]:
    """A browser with a profile of its own, which leaves nothing behind."""
    environ = {
        **os.environ,
        "HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "XDG_CACHE_HOME": str(directory),
    }
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=list(_ARGUMENTS), env=dict(environ), timeout=60_000
        )
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def tab(browser: Browser, url: str, **context: Any) -> AsyncIterator[Tab]:
    """A tab that shows a page; its complaints are the test's."""
    made = await browser.new_context(**{"viewport": {"width": 1_360, "height": 900}, **context})
    made.set_default_timeout(20_000)
    shown = Tab(await made.new_page())

    async def look(route: Route) -> None:
        shown.asked.append(route.request.url)
        await route.continue_()

    await made.route("**/*", look)
    shown.page.on("console", lambda said: shown.complaints.append(said.text) if said.type == "error" else None)
    shown.page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    try:
        await shown.page.goto(url)
        yield shown
    finally:
        await made.close()
