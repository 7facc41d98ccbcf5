"""Envoy in front, Ramjet asked: what of the prompts is cached then, and what it costs the answers' pieces."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.epp.support import duplex
from tests.evidence import report
from tests.evidence.envoy import PROFILE, SCALE, SPEED, Cached, Flow, asking, converse, cpu_s, observed, ticking, watch
from tests.evidence.real_time import replicas
from tests.peers.support import SECRET, Store
from tests.soak.process import served

_REPLICAS = 4
_STREAMS, _PIECES, _EVERY_S = 8, 300, 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the replicas."""

    name: str
    pickers: int
    """0: Ramjet itself is the proxy."""
    sessions: bool = False
    """Whether clients name their sessions, by which Envoy chooses the picker."""
    sharing: bool = False
    """Whether the pickers share what they know, through a store."""
    is_as_good: bool = True
    """Whether it reaches what proxy mode reaches."""


PROXY = Way("ramjet serve", 0)
WAYS = (
    Way("Envoy and one picker", 1),
    Way("Envoy and two pickers, one for each session", 2, sessions=True),
    Way("Envoy and two pickers that share what they know", 2, sharing=True),
    Way("Envoy and two pickers that do not know of one another", 2, is_as_good=False),
)


def cached(way: Way, scene: str, directory: Path) -> Cached:
    """One scene, with replicas and Ramjets that have seen nothing."""

    async def drive(urls: list[str]) -> Cached:
        if not way.pickers:
            listed = [{"name": f"replica-{number}", "url": url} for number, url in enumerate(urls, 1)]
            async with served({"replicas": listed}, directory) as ramjet:
                return await converse(ramjet.url, scene, sessions=way.sessions)
        shared = {"secret": SECRET, "peers": {"url": store.url}} if way.sharing else {}
        async with asking(directory, urls, pickers=way.pickers, settings=shared) as (url, _):
            return await converse(url, scene, sessions=way.sessions)

    directory.mkdir()
    store = Store(directory)
    with replicas(PROFILE, _REPLICAS, SPEED) as urls:
        if way.sharing:
            store.start()
        try:
            return asyncio.run(drive(urls))
        finally:
            store.stop()


@pytest.mark.evidence
@pytest.mark.timeout(900)
def test_as_much_is_cached_behind_envoy_as_behind_ramjet(tmp_path: Path) -> None:
    """
    Within two points of proxy mode: with one picker, and with two where a session has one of them or they share a store.
    """
    rows: list[dict[str, Any]] = []
    for scene in ("own", "shared", "grow"):
        base = cached(PROXY, scene, tmp_path / scene)
        for number, way in enumerate((PROXY, *WAYS)):
            found = base if way is PROXY else cached(way, scene, tmp_path / f"{scene}-{number}")
            rows.append({"scene": scene, "way": way.name, "cached, %": 100 * found.share, "moves": found.moves})
            assert not way.is_as_good or found.share >= base.share - 0.02, rows[-1]

    report.write(
        "envoy",
        "What is cached behind Envoy",
        f"Two conversations of 290,000 tokens and six of 20,000 at once, on four simulated replicas; prompts and pools a "
        f"{SCALE}th of the seed's, {SPEED:g} times as fast. `own`: each has a system prompt of its own; `shared`: all have "
        "one of 17,000 tokens; `grow`: as shared, and the long ones begin at 20,000 and grow in ten turns, which do not "
        "count. Of eight turns, what was reused after the first, as the replicas say; a move is a turn that went to "
        "another replica than the one before. Envoy's configuration is deploy/envoy/envoy.yaml. Two pickers that share "
        "nothing agree on first turns only, and each knows half of the turns that follow. "
        "`make evidence ARGS='-k behind_envoy'` runs it again.",
        rows,
    )


@pytest.mark.evidence
@pytest.mark.timeout(300)
def test_streams_flow_through_envoy(tmp_path: Path) -> None:
    """
    A piece is a few milliseconds later where Ramjet looks at it, and the gaps between them are what they were.
    """
    rows: list[dict[str, Any]] = []

    async def measure(way: str, url: str, process: int | None = None) -> None:
        await watch(url, 2)
        was = 0.0 if process is None else cpu_s(process)
        flow: Flow = await watch(url, _STREAMS)
        used_s = None if process is None else cpu_s(process) - was
        rows.append(flow.row(way) | {"processor of who looks, us a piece": used_s and 1e6 * used_s / len(flow.late_s)})

    async def drive() -> None:
        async with ticking(_PIECES, _EVERY_S) as engine:
            await measure("straight", engine)
            (tmp_path / "proxy").mkdir()
            async with served({"replicas": [{"name": "a", "url": engine}]}, tmp_path / "proxy") as ramjet:
                await measure("ramjet serve", ramjet.url, ramjet.process.pid)
            async with asking(tmp_path, [engine], pickers=0) as (url, _):
                await measure("Envoy alone", url)
            for name, change in (("STREAMED", None), ("FULL_DUPLEX_STREAMED", duplex)):
                async with asking(tmp_path / name, [engine], pickers=1, change=change) as (url, (picker,)):
                    await measure(f"Envoy and a picker, {name}", url, picker.process.pid)
            async with observed(tmp_path, engine) as (url, process):
                await measure("Envoy and somebody who only reads, observability mode", url, process)

    asyncio.run(drive())
    alone = next(row for row in rows if row["way"] == "Envoy alone")
    for row in rows:
        assert abs(row["gap, median ms"] - alone["gap, median ms"]) < 0.05 * 1e3 * _EVERY_S, row
        assert row["late, median ms"] < alone["late, median ms"] + 10, row

    report.write(
        "envoy_streams",
        "How streams flow through Envoy",
        f"{_STREAMS} streams at once, each of {_PIECES} pieces, one every {1e3 * _EVERY_S:g} ms, that say when they were "
        "sent; engine and clients are one process, everything else has one of its own, on a machine that had other "
        "things to do. The name of a way with a picker is Envoy's mode for the bodies of answers; in both of them pieces "
        "follow one another without waiting. In observability mode Envoy waits for nobody; who is told of the pieces there does "
        "nothing with them, and could not keep from a client what only Ramjet asked for. `make evidence ARGS='-k flow_through_envoy'` runs it again.",
        rows,
    )
