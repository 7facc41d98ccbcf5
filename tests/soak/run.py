"""One soak: a Ramjet, a replica that stays well, one that is made ill in every way in turn, and their clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.check import Verdict, slope, verdict
from tests.soak.clients import Clients
from tests.soak.engine import Engine, Mode
from tests.soak.process import Served, served

UNTOUCHED, ILL = "steady", "ill"
SETTINGS: dict[str, Any] = {
    # Small, so that it is full within the warm-up and memory must be flat from then on.
    "beliefs": {"memory_mb": 8, "horizon_s": 120},
    # Load is no reason to leave: where a conversation goes is then decided by where its prompt is.
    "routing": {"leave_s": 120, "living_s": 30},
    "health": {
        "interval_s": 0.2, "timeout_s": 0.5, "failures": 2, "successes": 2, "delivering_s": 1.0, "wedged_s": 1.5,
    },
    "limits": {"first_byte_s": 3.0, "gap_s": 2.0, "connect_s": 1.0, "in_flight": 97, "drain_s": 5.0},
}  # fmt: skip
_PLAN = (
    Mode.GOOD,
    Mode.DEAD,
    Mode.GOOD,
    Mode.WEDGED,
    Mode.GOOD,
    Mode.SLOW,
    Mode.GOOD,
    Mode.BUSY,
    Mode.GOOD,
    Mode.RESETTING,
)
_PHASE_S = (1.7, 5.0)
_SAMPLE_S = 2.0
_END_S = 30.0

BASE_MIB = 110
"""What the process takes beside `beliefs.memory_mb`, as in tests/test_memory.py."""
MOST_MIB_PER_MINUTE = 1.0
"""Growth after the warm-up that still counts as flat: what allocators do, over minutes. A leak of one 20 KB body in a
hundred requests would be 2 MiB a minute at 200 requests a second."""
WARM_UP_RATIO = 0.4
LEAST_SLOPE_S = 240.0
"""A shorter run is all warm-up: its slope says nothing, and only the bound is checked."""


@dataclass(slots=True)
class Result:
    """What a soak saw."""

    seconds: float = 0.0
    interrupted: bool = False
    phases: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, MiB)."""
    conversations: int = 0
    requests: int = 0
    in_flight: float = -1.0
    exit_code: int | None = None
    clients_ended: bool = False
    seen: Verdict = field(default_factory=Verdict)

    @property
    def warm(self) -> list[tuple[float, float]]:
        """The samples after the warm-up."""
        return [sample for sample in self.memory if sample[0] >= WARM_UP_RATIO * self.seconds]

    @property
    def mib_per_minute(self) -> float:
        """Growth of the process after the warm-up."""
        return 60 * slope(self.warm)

    @property
    def most_mib(self) -> float:
        """The most memory it ever took."""
        return max((mib for _, mib in self.memory), default=0.0)

    def faults(self) -> dict[str, int]:
        """Everything that is wrong; empty if all is well."""
        wrong = dict(self.seen.wrong)
        if self.in_flight:
            wrong[f"in flight at the end: {self.in_flight:g}"] = 1
        if self.exit_code:
            wrong[f"exit code {self.exit_code}"] = 1
        if not self.clients_ended:
            wrong["clients still waited at the end"] = 1
        if self.most_mib > BASE_MIB + SETTINGS["beliefs"]["memory_mb"]:
            wrong[f"memory beyond its bound: {self.most_mib:.0f} MiB"] = 1
        if self.seconds >= LEAST_SLOPE_S and self.mib_per_minute > MOST_MIB_PER_MINUTE:
            wrong[f"memory grew by {self.mib_per_minute:.2f} MiB a minute"] = 1
        return wrong


async def soak(
    seconds: float,
    directory: Path,
    *,
    conversations: int = 100,
    token_s: float = 0.05,
    seed: int = 1,
    on_tick: Callable[[Result, Clients, Mode], None] = lambda *_: None,
) -> Result:
    """Run for so long, or until Ctrl-C; then look at everything.

    Args:
        seconds: how long; every illness has its turn at least once from 17 s on.
        directory: where Ramjet's configuration and log go.
        conversations: in flight at any time.
        token_s: mean seconds between an engine's tokens.
        seed: of what clients say and do.
        on_tick: called twice a second.
    """
    result = Result()
    engines = {name: Engine(name, token_s=token_s) for name in (UNTOUCHED, ILL)}
    for engine in engines.values():
        await engine.start()
    settings = SETTINGS | {"replicas": [{"name": name, "url": engine.url} for name, engine in engines.items()]}
    stop = asyncio.Event()
    async with served(settings, directory) as ramjet:
        clients = Clients(ramjet.url, seed=seed, longest_wait_s=20 * token_s)
        with _on_interrupt(stop):
            talking = asyncio.ensure_future(clients.run(conversations))  # noqa: TID251
            watching = asyncio.ensure_future(_watch(ramjet, result, clients, engines[ILL], on_tick))  # noqa: TID251
            try:
                await _fall_ill(engines[ILL], result, seconds, stop, talking)
            finally:
                await engines[ILL].become(Mode.GOOD)
                clients.stop.set()
                done, _ = await asyncio.wait([talking], timeout=_END_S)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        result.clients_ended = bool(done)
        if done:
            talking.result()
        talking.cancel()
        result.interrupted = stop.is_set()
        result.in_flight = await ramjet.in_flight()
        result.exit_code = await ramjet.stop()
        lines = ramjet.lines()
        answers = {name: engine.answers for name, engine in engines.items()}
        result.seen = verdict(clients.sights, lines, answers, UNTOUCHED)
    result.requests, result.conversations = len(clients.sights), clients.conversations
    for engine in engines.values():
        await engine.kill()
    return result


async def _fall_ill(
    engine: Engine, result: Result, seconds: float, stop: asyncio.Event, talking: asyncio.Future[None]
) -> None:
    """One illness after another, with good health between them."""
    phase_s = min(_PHASE_S[1], max(_PHASE_S[0], seconds / len(_PLAN)))
    began = time.monotonic()
    for mode in itertools.cycle(_PLAN):
        result.seconds = time.monotonic() - began
        left_s = seconds - result.seconds
        if left_s <= 0 or stop.is_set() or talking.done():
            return
        await engine.become(mode)
        result.phases.append(mode.value)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(phase_s, left_s)):
                await stop.wait()


async def _watch(
    ramjet: Served,
    result: Result,
    clients: Clients,
    engine: Engine,
    on_tick: Callable[[Result, Clients, Mode], None],
) -> None:
    """Sample the memory, and show that something happens."""
    began = time.monotonic()
    while True:
        now = time.monotonic() - began
        if not result.memory or now - result.memory[-1][0] >= _SAMPLE_S:
            result.memory.append((now, ramjet.rss_mib()))
        result.seconds = max(result.seconds, now)
        on_tick(result, clients, engine.mode)
        await asyncio.sleep(0.5)


@contextlib.contextmanager
def _on_interrupt(stop: asyncio.Event) -> Any:
    """Ctrl-C ends the run and not the report; a second one ends the program."""
    loop = asyncio.get_running_loop()

    def once() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, once)
    except (ValueError, RuntimeError):  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
