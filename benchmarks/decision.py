"""What one decision costs: the time from a request's fingerprint to its place at a replica, as the fleet grows.

    python benchmarks/decision.py [--growth] [--json]

The router as it ships is filled with conversations that share the system prompts of eight agents, each as long as the
seed's, until all pools are too small for them by 3 %: tokens and snapshots, so that whoever comes pushes somebody out,
and that is priced. All conversations are alive. Two requests write at every replica meanwhile, and at every fourth a
third is being read, a cold prompt of 30,000 tokens. Then these are timed:

* next: a conversation of the length asked for goes on.
* new: one begins with a prompt of that length. Where it would push out too much, the decision is to hold it.
* sent: the same where admission only observes, so that it is placed whatever it pushes out.

Between two of them sixteen other conversations are served a turn, for so many turns come on one that begins: what was
worked out about those replicas is out of date then.

A decision is `arrive` and `place`. Its parts: recognise the conversation, look at every replica, rank them, for which
what some would lose is counted, and book the place. The body has been read and its prompt hashed before; how long the hashing took is printed beside it. Times are
of the processor: a decision waits for nothing, and what else the machine does is not its cost.
"""

# It stands alone, as a benchmark does.
# ruff: noqa: INP001

from __future__ import annotations

import json
import math
import resource
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, Literal, get_args

import click

from ramjet.core.admission import Mode
from ramjet.core.choice import Choice
from ramjet.core.fingerprint import fingerprint
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.offers import Offers
from ramjet.core.pace import Pace
from ramjet.core.pools import Pools
from ramjet.core.prompt import Piece, Prompt
from ramjet.core.route import Candidate
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Lease, Visit
from ramjet.lab.production import SHIPPED

Kind = Literal["next", "new", "sent"]

AGENTS = 8
SYSTEM_TOKENS = 17_000
MESSAGE_TOKENS = 500
OWN_TOKENS = (2_000, 60_000)
"""Shortest and longest conversation beyond the system prompt; as many in each octave between."""
WRITING = 2
"""Requests whose answers are being written at every replica meanwhile."""
READING_EVERY, READING_TOKENS = 4, 30_000
BETWEEN = 16
"""Turns of other conversations between two decisions that are timed."""
TALKS = 16
"""Conversations of the length asked for, whose next turns are timed."""
PER_PATH = 2
"""Snapshots of a conversation, the seed's fix."""
FITS = 0.97
"""The part of what the conversations need that the pools have."""
VARY = (0.9, 1.1)
"""Lengths of new prompts, as parts of the length asked for."""
FILLED_IN_S = 200.0
SEED = 0x5EED

GROWTH = {
    "replicas": (1, 4, 16, 64, 256),
    "conversations": (5_000, 20_000, 50_000, 100_000),
    "tokens": (20_000, 50_000, 100_000, 300_000, 600_000),
}
AXES = {"replicas": "replicas", "conversations": "resident conversations", "tokens": "tokens in the prompt"}
EXAMPLES = """
\b
Examples:
  python benchmarks/decision.py
  python benchmarks/decision.py --replicas 4 --conversations 1000 --tokens 30000
  python benchmarks/decision.py --growth --json --plot decision.png > decision.json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much there is."""

    replicas: int
    conversations: int
    tokens: int
    """Length of the prompts that are timed."""


BASE = Size(replicas=64, conversations=50_000, tokens=300_000)
LARGE = Size(replicas=1_000, conversations=200_000, tokens=300_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What decisions of one kind took, in milliseconds; parts are medians."""

    replicas: int
    conversations: int
    tokens: int
    kind: Kind
    decisions: int
    held: int
    """How many of those were to hold the request."""
    median_ms: float
    p99_ms: float
    recognise_ms: float
    look_ms: float
    rank_ms: float
    book_ms: float
    hash_ms: float
    """Before the decision: the prompt's fingerprint."""
    believed_mb: float
    """What history and beliefs take, by the router's estimate..."""
    process_mb: float
    """...and the most that the process has taken so far, the benchmark's own included."""


class TimedOffers(Offers):
    """With a clock."""

    took_s = 0.0

    def candidates(self, *looking: Any, **how: bool) -> Iterator[Candidate]:
        """As any; what it takes is added up."""
        began = process_time()
        found = list(super().candidates(*looking, **how))
        self.took_s += process_time() - began
        return iter(found)


class Timed(Router):
    """The router, with a clock at its parts."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, replace(SHIPPED, memory_bytes=1 << 40))
        self.offers: TimedOffers = TimedOffers(fleet, self.policy, self.beliefs, self.conversations, self.returns)
        self.choice = Choice(self.offers, self.admission)
        self.booking_s = 0.0

    def enforce(self, mode: Mode) -> None:
        """Let admission decide, watch, or do nothing."""
        # Not `change_policy`, after which everything would be worked out anew.
        self.policy = self.offers.policy = replace(self.policy, terms=replace(self.policy.terms, mode=mode))
        self.admission.terms = self.policy.terms

    def _book(self, *booking: Any) -> Lease:
        began = process_time()
        try:
            return super()._book(*booking)
        finally:
            self.booking_s += process_time() - began


class Scene:
    """A fleet whose pools are full."""

    def __init__(self, replicas: int, conversations: int) -> None:
        fleet = Fleet()
        for at in range(replicas):
            # Large until all are there: how much they need shows then.
            pools = Pools(tokens=1 << 40, slots=1 << 40, per_path=PER_PATH)
            fleet.add(Replica(f"r{at}", f"http://127.0.0.1:{20_000 + at}", configured=pools))
        self.router = Timed(fleet)
        self.size = replicas, conversations
        self._chance = Random(SEED)
        self._numbers = count(conversations)
        self._now = 0.0
        self._lengths: dict[int, int] = {}
        """Of the conversations that the fleet is filled with, in tokens."""
        self._systems = [_message(f"agent {at}", SYSTEM_TOKENS) for at in range(AGENTS)]
        self._filler = _message("", MESSAGE_TOKENS)
        self._fill(conversations)

    def _fill(self, conversations: int) -> None:
        self.router.enforce("off")
        replicas = list(self.router.fleet)
        least, most = map(math.log, OWN_TOKENS)
        for number in range(conversations):
            tokens = SYSTEM_TOKENS + int(math.exp(self._chance.uniform(least, most)))
            self._end(self._place(number, tokens, on=replicas[number % len(replicas)]))
            self._lengths[number] = tokens
            self._now += FILLED_IN_S / conversations
        for each in replicas:
            cache = self.router.beliefs[each.name].cache
            full = replace(each.pools, tokens=int(FITS * cache.used_tokens), slots=int(FITS * cache.used_slots))
            self.router.resize(each.name, configured=full)
            for _ in range(WRITING):
                writes = self._place(next(self._numbers), SYSTEM_TOKENS + OWN_TOKENS[0], on=each)
                self._read(writes)
        for each in replicas[::READING_EVERY]:
            self._place(next(self._numbers), READING_TOKENS, on=each)

    def measure(self, tokens: int, kind: Kind, decisions: int) -> Figures:
        """Time decisions of one kind about prompts of so many tokens."""
        self.router.enforce("off")
        talks = [(next(self._numbers), tokens) for _ in range(TALKS if kind == "next" else 0)]
        for number, length in talks:
            self._end(self._place(number, length))
        took: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(decisions):
            number, length = talks.pop(0) if talks else (next(self._numbers), int(tokens * self._chance.uniform(*VARY)))
            self._let_others_go_on()
            self.router.enforce("observe" if kind == "sent" else "enforce")
            self._now += 0.01
            self._decide(number, length, took)
            if kind == "next":
                talks.append((number, length + MESSAGE_TOKENS))
        median = {name: 1e3 * statistics.median(values) for name, values in took.items()}
        return Figures(
            replicas=self.size[0],
            conversations=self.size[1],
            tokens=tokens,
            kind=kind,
            decisions=decisions,
            held=sum(map(int, took["held"])),
            median_ms=median["all"],
            p99_ms=1e3 * sorted(took["all"])[int(0.99 * decisions)],
            recognise_ms=median["recognise"],
            look_ms=median["look"],
            rank_ms=median["rank"],
            book_ms=median["book"],
            hash_ms=median["hash"],
            believed_mb=self.router.memory_bytes / (1 << 20),
            process_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )

    def _decide(self, number: int, tokens: int, took: defaultdict[str, list[float]]) -> None:
        """One decision, and its times."""
        router = self.router
        began = process_time()
        arrival = self._arrival(number, tokens)
        took["hash"].append(process_time() - began)
        router.offers.took_s = router.booking_s = 0.0
        began = process_time()
        visit = router.arrive(arrival, self._now)
        recognised = process_time()
        lease = router.place(visit, self._now)
        ended = process_time()
        took["all"].append(ended - began)
        took["recognise"].append(recognised - began)
        look_s, book_s = router.offers.took_s, router.booking_s
        took["look"].append(look_s)
        took["rank"].append(ended - recognised - look_s - book_s)
        took["book"].append(book_s)
        took["held"].append(lease is None)
        if lease is None:
            router.finish(visit, self._now, outcome="client_disconnect", status=None)
        else:
            self._end(visit)

    def _let_others_go_on(self) -> None:
        """Turns that are not timed, of conversations chosen at random."""
        self.router.enforce("off")
        for number in self._chance.sample(range(self.size[1]), min(BETWEEN, self.size[1])):
            self._lengths[number] += MESSAGE_TOKENS
            self._now += 0.001
            self._end(self._place(number, self._lengths[number]))

    def _place(self, number: int, tokens: int, on: Replica | None = None) -> Visit:
        visit = self.router.arrive(self._arrival(number, tokens), self._now)
        fleet, everybody = self.router.fleet, self.router.fleet.replicas
        if on is not None:
            # As if there were no others: what is timed later need not be done for everybody before.
            fleet.replicas = {on.name: on}
        assert self.router.place(visit, self._now) is not None
        fleet.replicas = everybody
        return visit

    def _end(self, visit: Visit) -> None:
        self._read(visit)
        self.router.finish(visit, self._now, outcome="ok", status=200, usage=Usage(prompt_tokens=visit.prompt_tokens))

    def _read(self, visit: Visit) -> None:
        """The first token, when the formula says, or the router would learn that these replicas read in no time."""
        assert visit.lease is not None
        self.router.first_token(visit, self._now + visit.lease.reading_s + Pace.BESIDE_S)

    def _arrival(self, number: int, tokens: int) -> Arrival:
        """A conversation's prompt of so many tokens, its system prompt first."""
        system = self._systems[number // len(self.router.fleet) % AGENTS]
        opening = _message(f"conversation {number}", MESSAGE_TOKENS, ends_head=True)
        others = [self._filler] * ((tokens - SYSTEM_TOKENS) // MESSAGE_TOKENS - 1)
        prompt = Prompt("m", stream=True, stream_options=None, namespace=b"", pieces=(system, opening, *others))
        return Arrival(
            request_id=str(number),
            endpoint="chat",
            body_bytes=prompt.size_bytes,
            stream=True,
            model="m",
            fingerprint=fingerprint(prompt, SEED),
        )


def _message(begins: str, tokens: int, *, ends_head: bool = False) -> Piece:
    """A message of four bytes a token."""
    return Piece(begins.encode().ljust(4 * tokens), 4 * tokens, ends_message=True, ends_head=ends_head)


def sizes(base: Size, *, growth: bool) -> list[Size]:
    """What is to be measured: one size, or that, each of its three numbers grown alone, and a large fleet."""
    if not growth:
        return [base]
    grown = [replace(base, **{name: value}) for name, values in GROWTH.items() for value in values]
    # Those of one scene stand together, for filling it takes longest.
    return sorted({base, LARGE, *grown}, key=lambda size: (size.conversations, size.replicas, size.tokens))


def measure(wanted: Sequence[Size], decisions: int) -> Iterator[Figures]:
    """Time all kinds of decisions at each size; progress goes to standard error."""
    scene: Scene | None = None
    for at, size in enumerate(wanted, start=1):
        if scene is None or scene.size != (size.replicas, size.conversations):
            _say(f"{size.replicas} replicas are filled with {size.conversations:,} conversations")
            scene = Scene(size.replicas, size.conversations)
        _say(f"{at} of {len(wanted)}: prompts of {size.tokens:,} tokens")
        for kind in get_args(Kind):
            yield scene.measure(size.tokens, kind, decisions)


def draw(rows: Sequence[Figures], base: Size, file: Path) -> None:
    """Median and 99th percentile of each kind as replicas, conversations and prompts grow, each on its own.

    Raises:
        click.ClickException: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra; only pictures need it
    except ImportError:
        raise click.ClickException("pictures need matplotlib: pip install 'ramjet-lb[plots]'") from None
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(GROWTH), sharey=True)
    for axes, name in zip(panels, GROWTH, strict=True):
        others = [each for each in asdict(base) if each != name]
        for kind, colour in zip(get_args(Kind), ("#1a56db", "#9aa0a6", "#c2410c"), strict=True):
            alone = [row for row in rows if all(getattr(row, each) == getattr(base, each) for each in others)]
            line = sorted((getattr(row, name), row.median_ms, row.p99_ms) for row in alone if row.kind == kind)
            at, median, p99 = zip(*line, strict=True)
            axes.plot(at, median, "o-", color=colour, label=kind)
            axes.plot(at, p99, ".:", color=colour)
        axes.axhline(1.0, color="#1b1b1f", linewidth=0.6)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(
            GROWTH[name], [f"{value // 1_000}k" if value >= 1_000 else str(value) for value in GROWTH[name]]
        )
        axes.minorticks_off()
        axes.set_xlabel(AXES[name])
        axes.grid(visible=True, color="#e4e4e7", linewidth=0.6)
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("ms a decision: median, and p99 (dotted)")
    panels[0].legend(frameon=False)
    figure.savefig(file, dpi=120, metadata={"Software": None})


def _say(what: str) -> None:
    click.echo(what, err=True)


@click.command(epilog=EXAMPLES)
@click.option("--replicas", type=click.IntRange(min=1), default=BASE.replicas, show_default=True, help="In the fleet.")
@click.option(
    "--conversations", type=click.IntRange(min=1), default=BASE.conversations, show_default=True, help="In the caches."
)
@click.option(
    "--tokens",
    type=click.IntRange(min=SYSTEM_TOKENS + 2 * MESSAGE_TOKENS),
    default=BASE.tokens,
    show_default=True,
    help="Length of the prompts that are timed.",
)
@click.option("--decisions", type=click.IntRange(min=2), default=300, show_default=True, help="Timed, of each kind.")
@click.option("--growth", is_flag=True, help="Also grow each of the three numbers alone, and a large fleet.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the growth into this file (PNG or SVG)."
)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def main(
    replicas: int, conversations: int, tokens: int, decisions: int, *, growth: bool, plot: Path | None, as_json: bool
) -> None:
    """Time decisions of a router whose fleet is full."""
    if plot is not None and not growth:
        raise click.UsageError("--plot draws growth: give --growth too")
    base = Size(replicas=replicas, conversations=conversations, tokens=tokens)
    rows = list(measure(sizes(base, growth=growth), decisions))
    if plot is not None:
        draw(rows, base, plot)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
        return
    click.echo(
        "replicas  conversations   tokens  kind  held |  ms: median    p99 | recognise  look  rank  book |  hash"
        " |  MB: beliefs  process"
    )
    for row in rows:
        click.echo(
            f"{row.replicas:8}  {row.conversations:13,}  {row.tokens:7,}  {row.kind}  {row.held / row.decisions:4.0%} | "
            f"{row.median_ms:11.2f} {row.p99_ms:6.1f} | {row.recognise_ms:9.2f} {row.look_ms:5.2f} {row.rank_ms:5.2f} "
            f"{row.book_ms:5.2f} | {row.hash_ms:5.2f} | {row.believed_mb:12,.0f} {row.process_mb:8,.0f}"
        )


if __name__ == "__main__":
    main()
