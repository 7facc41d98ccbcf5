"""A day of traffic from the laboratory's traces in compressed time, and what somebody who watches sees of it.

Recorded sessions of coding agents (Claude Code), agents of three kinds (LMCache) and single requests (Mooncake) begin
at random times of the day, fewer at night, and go on as they did: closed loops, with their thinking times, lengths, and
common beginnings. What a Ramjet, its page and its journal are like meanwhile is asked in real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import random
import sqlite3
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import aiohttp
import msgspec

from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Turn, Workload
from ramjet.lab.workloads import build
from ramjet.sim.tokens import TOKEN_CHARACTERS
from tests.evidence.clients import Body, Clients, noise
from tests.soak.process import Served

DAY_S = 86_400.0
PEAK_S = 15 * 3_600.0
SAMPLE_S = 2.0
"""Real seconds between two looks."""
_SEED = 11


# -- what the day consists of ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A workload of the laboratory as a part of the day."""

    workload: str
    share: float
    """The part of its conversations that is taken; beyond 1, all of them several times."""


ALL = (Source("W7", 1.0), Source("lmcache_agents", 2.0), Source("mooncake_conversation", 0.2))


def day(sources: Sequence[Source] = ALL, long_s: float = DAY_S) -> Workload:
    """Conversations that begin anywhere in a day, or in so many seconds; blocks of different sources are different."""
    rng = random.Random(_SEED)
    conversations: list[Conversation] = []
    hashes: array[int] = array("Q")
    for source in sources:
        made = build(source.workload, _SEED)
        whole = [True] * math.floor(source.share) + [False] * (source.share % 1 > 0)
        for is_whole in whole:
            taken = _taken(made.conversations, 1.0 if is_whole else source.share % 1, rng)
            conversations += _moved(taken, len(conversations), len(hashes), long_s, rng)
            hashes.extend(rng.getrandbits(64) for _ in made.hashes)
    return Workload("day", conversations, hashes)


def _taken(those: Sequence[Conversation], share: float, rng: random.Random) -> Sequence[Conversation]:
    """All of them, or a part of those that nobody waits for and that wait for nobody."""
    if share == 1:
        return those
    alone = [each for each in those if each.after is None and each.awaited_by is None]
    return rng.sample(alone, round(share * len(alone)))


def _moved(
    those: Sequence[Conversation], by: int, blocks: int, long_s: float, rng: random.Random
) -> Iterable[Conversation]:
    """The same behind others: sessions begin by themselves, sub-agents when the session is as far as it was."""
    for each in those:
        follows = each.after is not None and each.after[1] == len(those[each.after[0]].turns) - 1
        yield replace(
            each,
            start_s=rng.triangular(0, long_s, long_s * PEAK_S / DAY_S),
            after=None if each.after is None or follows else (each.after[0] + by, each.after[1]),
            awaited_by=None if each.awaited_by is None else (each.awaited_by[0] + by, each.awaited_by[1]),
            turns=[_with_blocks(turn, blocks) for turn in each.turns],
        )


def _with_blocks(turn: Turn, by: int) -> Turn:
    added, answer = (tuple((first + by, count) for first, count in runs) for runs in (turn.added, turn.answer))
    return replace(turn, added=added, answer=answer)


# -- its clients ----------------------------------------------------------------------------------------------------


class Words:
    """A conversation as messages: what a turn added is one, and may be cut. A block's text follows from its number."""

    def __init__(self) -> None:
        self._blocks: list[int] = []
        self._ends: list[int] = []

    def messages(self, turn: Turn, blocks: Sequence[int]) -> list[dict[str, str]]:
        """What the client sends: as many tokens as in the trace, and the same in common with other prompts."""
        self._ends = [each for each in self._ends if each < turn.keep]
        self._ends += sorted({min(turn.keep, len(blocks)), len(blocks)} - {0})
        said = ["".join(map(_text, blocks[start:end])) for start, end in pairwise([0, *self._ends])]
        rest = max(4, TOKEN_CHARACTERS * (turn.prompt_tokens - BLOCK_TOKENS * len(blocks)))
        said.append(noise(f"{blocks[-1] if len(blocks) else 0} {turn.prompt_tokens}", rest))
        roles = ("system", *(("user", "assistant")[number % 2] for number in range(len(said))))
        return [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]


def _text(block: int) -> str:
    return noise(str(block), BLOCK_TOKENS * TOKEN_CHARACTERS)


@dataclass(slots=True)
class Sent:
    """What clients saw of a day."""

    answers: Counter[int] = field(default_factory=Counter)
    """By status."""
    prompt_tokens: int = 0
    sent_bytes: int = 0
    late_s: float = 0.0
    """By how much the last turn came too late, in seconds of the day: a sign that the machine did not keep up."""


def play(url: str, speed: float, sources: Sequence[Source] = ALL, long_s: float = DAY_S) -> Sent:
    """Be its clients, in this process; no turn is sent after its end."""
    return asyncio.run(_Play(day(sources, long_s), url, speed, long_s).run())


class _Play(Clients):
    timeout_s = 120.0

    def __init__(self, workload: Workload, url: str, speed: float, until_s: float) -> None:
        super().__init__(workload, url, speed, until_s)
        self._words = [Words() for _ in workload.conversations]
        self._sent = Sent()

    async def run(self) -> Sent:
        await self.play()
        return self._sent

    async def turn(self, session: aiohttp.ClientSession, conversation: int, late_s: float) -> None:
        """Send it, and count what came back."""
        self._sent.late_s = late_s
        turn, number, blocks = self.clients.send(conversation)
        body = {
            "model": "any",
            "messages": self._words[conversation].messages(turn, blocks.hashes),
            "max_tokens": turn.answer_tokens,
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }
        raw = msgspec.json.encode(body)
        head = {"content-type": "application/json"}
        async with session.post(self.url, data=Body(raw), headers=head) as answer:
            while await answer.content.readany():
                pass
        self._sent.answers[answer.status] += 1
        self._sent.prompt_tokens += turn.prompt_tokens
        self._sent.sent_bytes += len(raw)


# -- who watches ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Look:
    """One look at a Ramjet that serves."""

    at_s: float
    """Real seconds since the first."""
    page_s: float
    """From asking for the page to its end..."""
    first_s: float
    """...and for what it shows to its first event's end."""
    rss_mib: float
    journal_bytes: int
    wal_bytes: int
    rows: int
    written: int
    """Requests that ever were in the journal."""
    kept_s: float
    """From the oldest in the journal to the newest, in seconds of the day."""


@dataclass(slots=True)
class Watched:
    """What was seen while a day passed."""

    looks: list[Look] = field(default_factory=list)
    events: int = 0
    """Messages to the one who watched all day..."""
    event_bytes: int = 0
    gap_s: float = 0.0
    """...and the longest time between two of them."""
    sent: Sent = field(default_factory=Sent)


async def watched(
    ramjet: Served,
    journal: Path,
    speed: float,
    *,
    sources: Sequence[Source] = ALL,
    long_s: float = DAY_S,
    every_s: float = SAMPLE_S,
) -> Watched:
    """Let a day pass in front of a Ramjet, and look at it all the while."""
    seen = Watched()
    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            playing = loop.run_in_executor(pool, partial(play, ramjet.url, speed, sources, long_s))
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(_read(session, ramjet.admin, seen))
                began = loop.time()
                while not playing.done():
                    seen.looks.append(await _look(session, ramjet, journal, loop.time() - began))
                    await asyncio.wait([playing], timeout=every_s)
                reading.cancel()
            seen.sent = await playing
            # What waits is written within a quarter of a second, and tidied after; on a busy machine it takes longer.
            await ramjet.in_flight()
            for _ in range(20):
                await asyncio.sleep(0.5)
                last = await _look(session, ramjet, journal, loop.time() - began)
                if last.written == seen.sent.answers.total():
                    break
            seen.looks.append(last)
    return seen


async def _read(session: aiohttp.ClientSession, admin: str, seen: Watched) -> None:
    """Watch all day."""
    before = time.monotonic()
    async with session.get(f"{admin}/api/events") as answer:
        async for line in answer.content:
            seen.event_bytes += len(line)
            if line == b"\n":
                now = time.monotonic()
                seen.events, seen.gap_s, before = seen.events + 1, max(seen.gap_s, now - before), now


async def _look(session: aiohttp.ClientSession, ramjet: Served, journal: Path, at_s: float) -> Look:
    began = time.perf_counter()
    async with session.get(f"{ramjet.admin}/") as answer:
        assert answer.status == 200
        await answer.read()
    page_s = time.perf_counter() - began
    began = time.perf_counter()
    async with session.get(f"{ramjet.admin}/api/events") as answer:
        assert answer.status == 200
        await answer.content.readuntil(b"\n\n")
        first_s = time.perf_counter() - began
    sizes, (rows, written, kept_s) = await asyncio.to_thread(lambda: (_sizes(journal), _rows(journal)))
    return Look(
        at_s=at_s,
        page_s=page_s,
        first_s=first_s,
        rss_mib=ramjet.rss_mib(),
        journal_bytes=sizes[0],
        wal_bytes=sizes[1],
        rows=rows,
        written=written,
        kept_s=kept_s,
    )


def _sizes(journal: Path) -> tuple[int, int]:
    """Bytes of the file, and of SQLite's own log beside it."""
    log = journal.with_name(f"{journal.name}-wal")
    return journal.stat().st_size, log.stat().st_size if log.exists() else 0


def _rows(journal: Path) -> tuple[int, int, float]:
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        rows, last, kept = db.execute(
            "SELECT count(*), max(id), max(arrived_at) - min(arrived_at) FROM requests"
        ).fetchone()
    return rows, last or 0, kept or 0.0
