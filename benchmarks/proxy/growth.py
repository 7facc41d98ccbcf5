"""How what a request costs grows: with its body, the fleet, the requests under way, and the conversations known.

    python -m benchmarks.proxy.growth [--axis body --axis replicas] [--json] [--plot growth.png]

All but the last are measured as in `python -m benchmarks.proxy`, through a Ramjet as it ships; what it takes without
these requests, asking its replicas how they are and passing the streams on that are under way, is taken off. A body of N
KB is one of a conversation that begins so and grows by 10 KB for eight turns. A million conversations would take HTTP
a quarter of an hour, so they are known to a router in this process, which is then asked for the place of small first
turns and of next ones.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom
from time import perf_counter, process_time, sleep

import click
import uvloop
from rich.console import Console
from rich.progress import track

from benchmarks.proxy.load import Seen, drive, kept_open
from benchmarks.proxy.scenarios import Conversation, Corpus, ones, scenario
from benchmarks.proxy.systems import System, engines, haproxy, pin_load, ramjet
from ramjet.build import fleet_of, policy_of
from ramjet.config import BeliefSettings, ReplicaSettings, Settings
from ramjet.core.fingerprint import fingerprint
from ramjet.core.prompt import read
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival

AXES = {
    "body": (1, 4, 16, 64, 256, 600, 1_200, 4_000),
    "replicas": (1, 4, 16, 64, 256),
    "in_flight": (0, 100, 1_000, 5_000),
    "conversations": (1_000, 10_000, 100_000, 1_000_000),
}
LABELS = {
    "body": "KB in the body",
    "replicas": "replicas",
    "in_flight": "streams under way",
    "conversations": "conversations known",
}
_SETTLE_S = 4.0
"""Until replicas have been met."""
_IDLE_S = 1.0
_DECISIONS = 2_000
EXAMPLES = """
\b
Examples:
  python -m benchmarks.proxy.growth --axis body
  python -m benchmarks.proxy.growth --json --plot growth.png > growth.json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a request cost at one size, in milliseconds of the processor."""

    axis: str
    size: int
    requests: int
    ramjet_ms: float
    haproxy_ms: float | None
    """None where it is not installed, or not asked."""
    resident_mb: float | None


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--axis", "axes", multiple=True, type=click.Choice(list(AXES)), help="May be repeated.  [all]")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Of each size.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this file (PNG or SVG).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(axes: tuple[str, ...], seconds: float, plot: Path | None, *, as_json: bool) -> None:
    """Measure how the cost of a request grows."""
    pin_load()
    wanted = [(axis, size) for axis in axes or AXES for size in AXES[axis]]
    console = Console(stderr=True)
    rows = [
        _MEASURE[axis](size, seconds)
        for axis, size in track(wanted, "measuring", console=console, transient=True, disable=not console.is_terminal)
    ]
    if plot is not None:
        draw(rows, plot)
    if as_json:
        click.echo(json.dumps(list(map(asdict, rows)), indent=1))
        return
    for row in rows:
        beside = "" if row.haproxy_ms is None else f", haproxy {row.haproxy_ms:.3f} ms"
        memory = "" if row.resident_mb is None else f", {row.resident_mb:.0f} MB"
        click.echo(f"{LABELS[row.axis]} {row.size:,}: {row.ramjet_ms:.3f} ms{beside}{memory}")


def body(size: int, seconds: float) -> Figures:
    """Bodies of so many KB, and haproxy beside."""
    with _directory() as directory, ExitStack() as stack:
        urls = stack.enter_context(engines(2, directory))
        other = stack.enter_context(haproxy(urls, directory))
        ours = stack.enter_context(ramjet(urls, directory))
        name = "small" if size == 1 else f"long{size}"
        reference_ms = None if other is None else _cost_ms(other, name, seconds)[0]
        cost_ms, requests = _cost_ms(ours, name, seconds)
        return _figures("body", size, requests, cost_ms, ours, haproxy_ms=reference_ms)


def replicas(size: int, seconds: float) -> Figures:
    """A small request, and so many replicas."""
    with _directory() as directory, ExitStack() as stack:
        ours = stack.enter_context(ramjet(stack.enter_context(engines(size, directory)), directory))
        cost_ms, requests = _cost_ms(ours, "small", seconds)
        return _figures("replicas", size, requests, cost_ms, ours)


def in_flight(size: int, seconds: float) -> Figures:
    """A small request, and so many streams that are under way."""
    settings = {"RAMJET_LIMITS__IN_FLIGHT": str(size + 100)}
    with _directory() as directory, ExitStack() as stack:
        ours = stack.enter_context(ramjet(stack.enter_context(engines(2, directory)), directory, settings=settings))
        cost_ms, requests = _cost_ms(ours, "small", seconds, streams=size)
        return _figures("in_flight", size, requests, cost_ms, ours)


def conversations(size: int, _: float) -> Figures:
    """What routing costs a small first turn and a next one, together, beside so many conversations."""
    given = [ReplicaSettings(name=name, url=f"http://127.0.0.1:{port}") for name, port in (("a", 1), ("b", 2))]
    settings = Settings(replicas=given, beliefs=BeliefSettings(memory_mb=16_384))
    router, corpus = Router(fleet_of(settings), policy_of(settings)), Corpus(size)

    def serve(talk: Conversation, number: int) -> float:
        prompt = read(bytes(talk.body) + b"]}", "chat")
        arrival = Arrival(
            request_id=str(number), endpoint="chat", body_bytes=len(talk.body), fingerprint=fingerprint(prompt, 0)
        )
        now, started = number * 1e-5, process_time()
        visit = router.arrive(arrival, now)
        router.place(visit, now)
        router.finish(visit, now, outcome="ok", status=200, usage=Usage(prompt_tokens=200, cached_tokens=0))
        return process_time() - started

    def small() -> Conversation:
        talk = Conversation(corpus, chunks=16)
        talk.grow(600)
        return talk

    for number in range(size):
        serve(small(), number)
    used_s = 0.0
    for number in range(_DECISIONS):
        talk = small()
        used_s += serve(talk, size + 2 * number)
        talk.grow(600)
        used_s += serve(talk, size + 2 * number + 1)
    return _figures("conversations", size, 2 * _DECISIONS, 1e3 * used_s / (2 * _DECISIONS))


_MEASURE: dict[str, Callable[[int, float], Figures]] = {
    "body": body,
    "replicas": replicas,
    "in_flight": in_flight,
    "conversations": conversations,
}


def draw(rows: list[Figures], path: Path) -> None:
    """One panel for each axis, both scales logarithmic: what is linear has the slope of the dotted line.

    Raises:
        click.ClickException: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; only pictures need it
    except ImportError:
        raise click.ClickException("pictures need matplotlib: pip install 'ramjet-lb[plots]'") from None
    axes = list(dict.fromkeys(row.axis for row in rows))
    figure = Figure(figsize=(4 * len(axes), 3.6), layout="constrained")
    for panel, axis in zip(figure.subplots(1, len(axes), squeeze=False)[0], axes, strict=True):
        those = [row for row in rows if row.axis == axis]
        sizes = [max(row.size, 1) for row in those]
        panel.plot(sizes, [row.ramjet_ms for row in those], "o-", label="ramjet")
        if all(row.haproxy_ms is not None for row in those):
            panel.plot(sizes, [row.haproxy_ms for row in those], "s-", label="haproxy")
        panel.plot(sizes, [those[-1].ramjet_ms * size / sizes[-1] for size in sizes], ":", color="grey", label="linear")
        panel.set(xscale="log", yscale="log", xlabel=LABELS[axis], ylabel="ms of the processor for a request")
        panel.set_ylim(bottom=0.5 * min(row.haproxy_ms or row.ramjet_ms for row in those))
        panel.legend()
    figure.savefig(path)


def _cost_ms(system: System, name: str, seconds: float, *, streams: int = 0) -> tuple[float, int]:
    """Milliseconds of the processor for a request, without what is taken when none comes; and how many came."""
    shape = scenario(name, Corpus(SystemRandom().getrandbits(32)))
    waiting = ones(Corpus(1), chunks=1_000, gap_us=5_000_000, stream=True)

    async def measured() -> tuple[float, Seen]:
        async with kept_open(system.urls, waiting, streams):
            sleep(_SETTLE_S)  # noqa: ASYNC251 - it is the others who are to be left alone
            idle = sum(system.used_s())
            sleep(_IDLE_S)  # noqa: ASYNC251
            before, started = sum(system.used_s()), perf_counter()
            seen = await drive(system.urls, shape.bodies, shape.workers, started + seconds)
            took_s = perf_counter() - started
            return sum(system.used_s()) - before - (before - idle) / _IDLE_S * took_s, seen

    used_s, seen = uvloop.run(measured())
    if seen.errors:
        raise RuntimeError(f"{seen.errors} of {seen.requests} requests failed at {system.name}")
    return 1e3 * used_s / max(1, seen.requests), seen.requests


def _figures(
    axis: str,
    size: int,
    requests: int,
    cost_ms: float,
    system: System | None = None,
    *,
    haproxy_ms: float | None = None,
) -> Figures:
    memory = None if system is None else system.resident_mb()
    return Figures(
        axis=axis, size=size, requests=requests, ramjet_ms=cost_ms, haproxy_ms=haproxy_ms, resident_mb=memory
    )  # fmt: skip


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


if __name__ == "__main__":
    main()
