"""What it costs to be watched, and what the page looks like."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ramjet.demo.traffic import drive
from ramjet.replica.server import running_replica
from ramjet.sim.profile import GLM
from tests.admin.browser import chromium, needs_chromium, tab
from tests.evidence import report
from tests.rig import Front, ramjet

ROOT = Path(__file__).parents[2]
DESKTOP, PHONE = ROOT / "docs" / "page-desktop.png", ROOT / "docs" / "page-phone.png"
MOST_BYTES = 200_000
TRAFFIC_S = 100.0


@pytest.mark.evidence
def test_what_it_costs_to_be_watched() -> None:
    """
    64 replicas that hold 50,000 conversations; written down, and asserted only that no part holds up the loop for long.
    """
    command = [sys.executable, str(ROOT / "benchmarks" / "picture.py"), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = json.loads(done.stdout)
    report.write(
        "page",
        "What it costs to be watched",
        "Milliseconds of processor time to make the page's picture of 64 replicas that hold 50,000 conversations: all "
        "that is made for one look, and its longest part, for between two parts running answers go on. Replicas take "
        "turns in being looked through, so `first look` shows some of them and the next ones the others; `a second "
        "later` is after a tenth of them have changed. `explain` is the answer to one question, in one piece. "
        "`make picture` runs it again.",
        [
            {
                "what": row["what"],
                "ms": round(row["all_ms"], 1),
                "longest part, ms": round(row["longest_ms"], 1),
                "bytes": "-" if row["bytes"] is None else row["bytes"],
            }
            for row in rows
        ],
    )
    assert max(row["longest_ms"] for row in rows if row["bytes"]) < 50


@pytest.mark.evidence
@needs_chromium
async def test_what_the_page_looks_like(tmp_path: Path) -> None:
    """
    Three simulated replicas under mixed traffic, as a desktop and as a telephone in the dark show them.
    """
    async with contextlib.AsyncExitStack() as stack:
        replicas = {}
        for number in range(1, 4):
            profile = GLM.with_flags(states_per_path=2)
            replica = await stack.enter_async_context(running_replica(profile, speed=10))
            replicas[f"glm-{number}"] = {"url": replica.url, "snapshot_slots": 28, "snapshots_per_path": 2}
        front = await stack.enter_async_context(ramjet(replicas, watch=True))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        traffic = [tasks.create_task(each) for each in _traffic(front)]
        browser = await stack.enter_async_context(chromium(tmp_path))
        await asyncio.sleep(TRAFFIC_S)
        wide = {"viewport": {"width": 1_360, "height": 1_240}, "color_scheme": "light", "reduced_motion": "reduce"}
        async with tab(browser, front.admin_url, **wide) as shown:
            await shown.page.wait_for_timeout(2_500)
            await shown.page.screenshot(path=DESKTOP)
        narrow = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "device_scale_factor": 2}
        narrow["reduced_motion"] = "reduce"
        async with tab(browser, front.admin_url, **narrow) as shown:
            await shown.page.wait_for_timeout(2_500)
            await shown.page.screenshot(path=PHONE)
        for each in traffic:
            each.cancel()

    assert max(DESKTOP.stat().st_size, PHONE.stat().st_size) < MOST_BYTES


def _traffic(front: Front) -> list[Coroutine[Any, Any, None]]:
    """Agents, two with very long conversations, and people who chat."""

    async def go_on(conversations: int, system: int, growth: int, think_s: float, turns: int) -> None:
        for seed in range(1_000):
            await drive(
                front.url,
                conversations=conversations,
                turns=turns,
                concurrency=conversations,
                shared_system_tokens=system,
                growth_tokens=growth,
                think_s=think_s,
                seed=seed,
                on_turn=lambda _: None,
                answer_tokens=120,
            )

    kinds = ((8, 17_000, 3_000, 2.5, 14), (2, 90_000, 24_000, 5.0, 7), (4, 6_500, 250, 2.0, 8))
    return [go_on(*kind) for kind in kinds]
