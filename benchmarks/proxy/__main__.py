"""What a request through Ramjet costs, as a multiple of what it costs through haproxy in the same minute.

    python -m benchmarks.proxy [--scenarios small,long1200] [--rounds 3] [--json]

Fake engines and clients share one core, the proxy has the other for itself: its time of the processor is what is
measured, for throughput and latency move with whatever else the machine does. Each scenario meets all systems before
the next one begins. Without haproxy (`apt install haproxy`) there are no ratios.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom
from time import perf_counter, sleep

import click
import uvloop
from rich.console import Console
from rich.progress import track

from benchmarks.proxy.load import drive, percentile
from benchmarks.proxy.scenarios import Corpus, scenario
from benchmarks.proxy.systems import System, engines, haproxy, pin_load, ramjet

SCENARIOS = ("lone", "small", "stream0", "stream10", "long600", "long1200", "agent", "stall")
GOALS = {
    "small": 2.5, "stream0": 1.5, "stream10": 1.3, "long600": 2.0, "long1200": 2.0, "agent": 1.8,
}  # fmt: skip
"""Of the time of the processor: at most so many times haproxy's."""
_SETTLE_S = 2.0
"""Until Ramjet has met its replicas."""
LONGEST_MS = 2.0
"""No step of the event loop takes longer while prompts of 1.2 MB come."""
EXAMPLES = """
\b
Examples:
  python -m benchmarks.proxy
  python -m benchmarks.proxy --scenarios small --seconds 5 --rounds 3
  python -m benchmarks.proxy --json > figures.json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one scenario cost at one system; None where there is nothing to tell it from."""

    scenario: str
    system: str
    requests: int
    errors: int
    cpu_ms: float | None
    """Of the proxy, for each request; kernel included..."""
    user_ms: float | None
    """...and without."""
    chunk_us: float | None
    """Of the proxy, for each event of a stream."""
    mb_ms: float | None
    """Of the proxy, for each megabyte of bodies."""
    p50_ms: float | None
    p99_ms: float | None
    gap_p99_ms: float | None
    """Between two pieces of a stream."""
    cached_percent: float | None
    """Of prompt tokens, by what the engines say."""
    resident_mb: float | None


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--scenarios", default=",".join(SCENARIOS), show_default=True, help="Any `longN` has bodies of N KB.")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Of each at each system."
)
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=1, show_default=True, help="The median of so many counts."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(scenarios: str, seconds: float, rounds: int, *, as_json: bool) -> None:
    """Measure what requests cost through Ramjet, through haproxy, and without either."""
    names = scenarios.split(",")
    try:
        for name in names:
            scenario(name, Corpus(0))
    except KeyError as error:
        raise click.BadParameter(f"no scenario {error}; there are {', '.join(SCENARIOS)} and longN") from None
    pin_load()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        directory = Path(made)
        urls = stack.enter_context(engines(2, directory))
        reference = stack.enter_context(haproxy(urls, directory))
        ours = stack.enter_context(ramjet(urls, directory))
        systems = [System("direct", urls), *([] if reference is None else [reference]), ours]
        idle_mb = ours.resident_mb()
        rows = []
        plan = [(name, system) for _ in range(rounds) for name in names for system in systems]
        console = Console(stderr=True)
        for name, system in track(plan, "measuring", console=console, transient=True, disable=not console.is_terminal):
            rows.append(measured(name, system, seconds))
        after_mb = ours.resident_mb()
    longest = longest_steps(seconds)
    if as_json:
        found = {"rows": list(map(asdict, rows)), "idle_mb": idle_mb, "after_mb": after_mb, "longest_steps": longest}
        click.echo(json.dumps(found, indent=1))
        return
    for line in table(rows):
        click.echo(line)
    click.echo(f"\nmemory of ramjet: {idle_mb:.0f} MB idle, {after_mb:.0f} MB after all of it")
    click.echo(f"longest steps of the event loop while prompts of 1.2 MB come (at most {LONGEST_MS:g} ms):")
    click.echo("\n".join(f"  {step}" for step in longest[:3]))


def measured(name: str, system: System, seconds: float) -> Figures:
    """Drive one scenario at one system."""
    shape = scenario(name, Corpus(SystemRandom().getrandbits(32)))
    user, kernel = system.used_s()
    seen = uvloop.run(drive(system.urls, shape.bodies, shape.workers, perf_counter() + seconds, pause_s=shape.pause_s))
    user_s, kernel_s = (now - before for now, before in zip(system.used_s(), (user, kernel), strict=True))
    used_ms = None if system.process is None else 1e3 * (user_s + kernel_s)

    def each(number: float, scale: float = 1.0) -> float | None:
        return None if used_ms is None or not number else scale * used_ms / number

    gap = percentile(seen.gaps_s, 0.99)
    return Figures(
        scenario=name,
        system=system.name,
        requests=seen.requests,
        errors=seen.errors,
        cpu_ms=each(seen.requests),
        user_ms=None if used_ms is None else 1e3 * user_s / max(1, seen.requests),
        chunk_us=each(seen.chunks, 1e3),
        mb_ms=each(seen.sent_bytes / 1e6),
        p50_ms=1e3 * (percentile(seen.took_s, 0.5) or 0.0),
        p99_ms=1e3 * (percentile(seen.took_s, 0.99) or 0.0),
        gap_p99_ms=None if gap is None else 1e3 * gap,
        cached_percent=100 * seen.cached_tokens / seen.prompt_tokens if seen.prompt_tokens else None,
        resident_mb=system.resident_mb(),
    )


def longest_steps(seconds: float) -> list[str]:
    """The longest steps of Ramjet's event loop while long prompts come: milliseconds, and what it was."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        directory = Path(made)
        said = directory / "longest"
        settings = {
            "RAMJET_LONGEST": str(said),
            "RAMJET_FROM_S": str(_SETTLE_S),
            "RAMJET_UNTIL_S": str(_SETTLE_S + seconds),
        }
        urls = stack.enter_context(engines(2, directory))
        with ramjet(urls, directory, module="benchmarks.proxy.callbacks", settings=settings) as system:
            sleep(_SETTLE_S)
            measured("long1200", system, seconds)
        return said.read_text(encoding="utf-8").splitlines()


def table(rows: Sequence[Figures]) -> list[str]:
    """Lines for people: medians over the rounds, and multiples of haproxy's figure in the same round."""
    by_place: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    for row in rows:
        by_place[row.scenario, row.system].append(row)
    lines = [
        f"{'scenario':10} {'system':8} {'requests':>8} {'errors':>6} {'ms/req':>8} {'us/chunk':>8} {'ms/MB':>7} "
        f"{'p50 ms':>7} {'gap p99':>7} {'cached':>6} {'MB':>4}  of haproxy"
    ]
    for (name, system), those in by_place.items():
        reference = by_place.get((name, "haproxy"), [])
        ratios = [
            row.cpu_ms / other.cpu_ms
            for row, other in zip(those, reference, strict=False)
            if row.cpu_ms and other.cpu_ms
        ]
        ratio = ""
        if ratios and system != "haproxy":
            goal = f" (at most {GOALS[name]:g})" if name in GOALS else ""
            ratio = f"{statistics.median(ratios):.2f}{goal}"
        lines.append(
            f"{name:10} {system:8} {_median(those, 'requests', 0):>8} {_median(those, 'errors', 0):>6} "
            f"{_median(those, 'cpu_ms', 3):>8} {_median(those, 'chunk_us', 1):>8} {_median(those, 'mb_ms', 2):>7} "
            f"{_median(those, 'p50_ms', 2):>7} {_median(those, 'gap_p99_ms', 1):>7} "
            f"{_median(those, 'cached_percent', 0):>6} {_median(those, 'resident_mb', 0):>4}  {ratio}"
        )
    return lines


def _median(rows: Sequence[Figures], name: str, digits: int) -> str:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return f"{statistics.median(values):.{digits}f}" if values else "-"


if __name__ == "__main__":
    main()
