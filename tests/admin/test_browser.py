"""The page in a real browser: it needs no network, it is alive, and all of it can be done from the keyboard."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.async_api import Page, expect

from ramjet.replica.server import running_replica
from ramjet.sim.profile import GLM
from tests.admin.browser import chromium, needs_chromium, tab
from tests.admin.support import CHAT, body
from tests.operations.support import longer
from tests.rig import Front, ramjet

pytestmark = needs_chromium

TOKEN = "an-operators-token"  # a test's

expect.set_options(timeout=20_000)  # for a busy machine


@contextlib.asynccontextmanager
async def fleet(**more: Any) -> AsyncIterator[Front]:
    """A Ramjet in front of two simulated replicas with snapshots."""
    async with running_replica(GLM, speed=200) as one, running_replica(GLM, speed=200) as two:
        async with ramjet(
            {"glm-1": one.url, "glm-2": {"url": two.url, "snapshot_slots": 28}}, watch=True, **more
        ) as front:
            yield front


async def talk(front: Front, name: str, turns: int = 1) -> None:
    """A conversation of so many turns."""
    async with httpx.AsyncClient(timeout=30) as client:
        request = body(f"{name} " + "lorem ipsum " * 4_000, max_tokens=8)
        for _ in range(turns):
            answer = await client.post(front.url + CHAT, json=request)
            assert answer.status_code == 200
            request = longer(request)


async def focused(page: Page) -> str:
    """What the element with the focus is called."""
    name: str = await page.evaluate(
        "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    )
    return name


async def test_it_is_alive_without_a_network(tmp_path: Path) -> None:
    """
    What happens is seen without a reload, a decision opens with its working, and nobody but this port was asked.
    """
    async with fleet() as front, chromium(tmp_path) as browser, tab(browser, front.admin_url) as shown:
        page = shown.page
        await expect(page.get_by_text("No request has come yet.")).to_be_visible()
        await expect(page.locator("#status")).to_have_text("ok")
        await expect(page.get_by_role("meter", name="glm-1: Token pool")).to_be_visible()
        await expect(page.get_by_role("meter", name="glm-2: Snapshots")).to_be_visible()

        await talk(front, "first", turns=2)
        rows = page.locator("#decisions tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("affinity")
        await expect(rows.first.locator("td").nth(5)).to_have_text("98 %")
        resident = page.get_by_role("img", name="Conversation", exact=False)
        await expect(resident).to_have_count(1)
        home = front.records[-1].replica
        await expect(page.locator(f'[data-replica="{home}"] .block')).to_have_count(1)

        await page.get_by_role("button", name="turn 2").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("What each replica would have cost")
        for word in ("prefill", "queue", "crowding", str(home), "Matched", "Cached", "warm"):
            await expect(dialog).to_contain_text(word)
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()

        await resident.hover()
        await expect(page.get_by_role("tooltip")).to_contain_text("turn 2")
        await page.get_by_role("button", name="Pause").click()
        await talk(front, "second")
        await page.wait_for_timeout(1_300)
        await expect(rows).to_have_count(2)
        await page.get_by_role("button", name="Pause").click()
        await expect(rows).to_have_count(3)

        assert shown.complaints == []
        assert {urlsplit(url).netloc for url in shown.asked} == {urlsplit(front.admin_url).netloc}
        assert "lorem" not in await page.content()


async def test_all_of_it_works_from_the_keyboard(tmp_path: Path) -> None:
    """
    A replica is drained and enabled, residents are walked through, a decision is opened and left, with no pointer.
    """
    async with fleet() as front:
        front.running.control.drain("glm-2")
        for number in range(4):
            await talk(front, f"talk {number}")
        front.running.control.enable("glm-2")
        async with chromium(tmp_path) as browser, tab(browser, front.admin_url) as shown:
            page = shown.page
            await expect(page.locator("#decisions tbody tr")).to_have_count(4)

            await page.keyboard.press("Tab")
            assert await focused(page) == "Skip to the replicas"
            await page.keyboard.press("Enter")
            await page.keyboard.press("Tab")
            assert await focused(page) == "Drain glm-1"
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("button", name="Enable glm-1")).to_be_focused()
            await expect(page.get_by_role("status")).to_contain_text("glm-1 gets nothing new")
            assert [each.name for each in front.router.fleet.serving] == ["glm-2"]
            await page.keyboard.press("Space")
            await expect(page.get_by_role("button", name="Drain glm-1")).to_be_focused()
            assert len(front.router.fleet.serving) == 2

            await page.keyboard.press("Tab")
            first = await focused(page)
            await expect(page.get_by_role("tooltip")).to_contain_text(first[:24])
            await page.keyboard.press("ArrowRight")
            assert first.startswith("Conversation")
            assert (await focused(page)).startswith("Conversation")
            assert await focused(page) != first
            await page.keyboard.press("Tab")
            assert await focused(page) == "Drain glm-2"

            await page.locator("#decisions .open[tabindex='0']").focus()
            before = await focused(page)
            await page.keyboard.press("ArrowDown")
            assert await focused(page) != before
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("dialog")).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_be_hidden()
            await page.locator("#ttft svg").focus()
            await page.keyboard.press("ArrowLeft")
            await expect(page.locator("#ttft .readout")).to_contain_text("now:")
            assert shown.complaints == []

            # Everything that can be pressed has a name, and nothing is wider than a telephone.
            nameless = (
                "[...document.querySelectorAll('button')].filter((each) => !each.textContent.trim() && !each.ariaLabel)"
            )
            assert await page.evaluate(f"{nameless}.length") == 0
            await page.set_viewport_size({"width": 360, "height": 740})
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            await page.locator("#decisions .open").first.click()
            await expect(page.get_by_role("dialog")).to_contain_text("What happened")
            assert await page.evaluate("byId('detail').scrollWidth - byId('detail').clientWidth") <= 0


async def test_the_token_is_asked_for_once_and_stays_in_the_tab(tmp_path: Path) -> None:
    """
    A wrong one is told, the right one survives a reload, and it is in no cookie and in no other tab.
    """
    async with fleet(admin_token=TOKEN) as front, chromium(tmp_path) as browser:
        async with tab(browser, front.admin_url) as shown:
            page = shown.page
            await expect(page.get_by_label("admin_token")).to_be_focused()
            await expect(page.locator("main")).to_be_hidden()
            await page.keyboard.type("wrong")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert").filter(has_text="That is not the token.")).to_be_visible()
            await page.keyboard.type(TOKEN)
            await page.keyboard.press("Enter")
            await page.get_by_role("button", name="Drain glm-2").click()
            await expect(page.get_by_role("button", name="Enable glm-2")).to_be_visible()
            await page.reload()
            await expect(page.get_by_role("button", name="Enable glm-2")).to_be_visible()

            assert front.router.fleet["glm-2"].draining
            assert await page.context.cookies() == []
            assert await page.evaluate("localStorage.length") == 0
            assert TOKEN not in json.dumps(shown.asked)
            other = await page.context.new_page()
            await other.goto(front.admin_url)
            await expect(other.get_by_label("admin_token")).to_be_visible()
