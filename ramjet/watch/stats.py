"""Asks every replica's engine what it is and what it is doing, and tells the router. Nobody's request waits for that.

What it is, its facts, is asked when a replica is met: at the start, and when it comes back. What it is doing, its loads, is
asked every second or so on one kept connection, one page at a time. Facts change only with a restart, but some of them are
there only after the first request, so now and then a page of facts takes the turn of one of loads.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from ramjet.core.fleet import Replica, State
from ramjet.core.router import Router
from ramjet.engines.facts import Engine, Facts, Loads, Seen
from ramjet.engines.known import ENGINES, PATHS, detect
from ramjet.watch.connection import Connection
from ramjet.watch.loops import Loops

log = structlog.get_logger()

_TURNS = 16
"""Of an interval, at which some of the replicas are asked: few enough to be woken seldom, and a few answers at a time."""

_AGAIN_S = 10.0
"""After which one is asked again that has answered, and with nothing of use or not to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How engines are asked; times in seconds."""

    enabled: bool = True
    interval_s: float = 1.0
    timeout_s: float = 2.0
    facts_s: float = 60.0
    """Between two looks at the facts."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """What replicas ask for, by name."""
    engines: Mapping[str, str] = field(default_factory=dict)
    """What they are, by name, where that was given and is not to be found out."""


class StatsWatch(Loops):
    """Asks the engines; `sync` after the fleet has changed."""

    name = "stats"

    def __init__(self, router: Router, polling: Polling) -> None:
        super().__init__(router)
        self.polling = polling
        self.seen: dict[str, Seen] = {}
        """What has been heard, by replica."""
        self.on_ranks: Callable[[str, int], None] | None = None
        """Told how many data-parallel ranks the engine at a URL says it has, whenever it says so."""
        self._met = 0

    async def _watch(self, there: Sequence[Replica]) -> None:
        self._met += 1
        talk = _Talk(self._router, there, self.on_ranks)
        self.seen |= talk.seen
        loop = asyncio.get_running_loop()
        place, at = self._met % _TURNS / _TURNS, loop.time()
        try:
            while True:
                if self.polling.enabled:
                    await talk.ask(self.polling)
                interval_s, before = self.polling.interval_s, at
                # By the loop's clock, so that those who have their turn together keep it, however long each takes.
                at = (math.floor(loop.time() / interval_s - place) + 1 + place) * interval_s
                # A timer may be a millisecond early, and no turn comes twice.
                at += interval_s if at - before < interval_s / 2 else 0.0
                await asyncio.sleep(at - loop.time())
        finally:
            talk.close()
            for name, seen in talk.seen.items():
                if self.seen.get(name) is seen:
                    del self.seen[name]


class _Talk:
    """With one engine."""

    def __init__(self, router: Router, there: Sequence[Replica], on_ranks: Callable[[str, int], None] | None) -> None:
        self.seen = {each.name: Seen() for each in there}
        """What was heard of each replica that it is: one, or its ranks, of which each has the engine's facts."""
        self._router = router
        self._there = list(there)
        self._whole, self._url = there[0].whole, there[0].url
        self._on_ranks = on_ranks
        self._key: str | None = None
        self._connection = Connection(self._url)
        self._facts: Facts | None = None
        self._engine: Engine | None = None
        """None: it is to be met."""
        self._given = ""
        """What its engine was said to be when it was met."""
        self._meets_at = -math.inf
        """When it may be asked for everything again: one that has answered, and with nothing of use, will not soon."""
        self._looks_at = -math.inf
        """When its facts are looked at again."""
        self._was_down = False
        self._load_path = 0
        """Which of its pages of loads is asked for; those before are not there."""
        self._counted: dict[tuple[str, int], float] = {}
        """How far the counter of each data-parallel rank was, by the page that it is on."""
        self._to_ask: deque[str] = deque()
        """Pages of facts that are still to be asked for in this round..."""
        self._pages: dict[str, str] = {}
        """...and those that were answered."""
        self._asked_facts = False

    def close(self) -> None:
        """Say nothing more."""
        self._connection.close()

    async def ask(self, polling: Polling) -> None:
        """Ask for the page whose turn it is."""
        name, now = self._whole, time.monotonic()
        key, given = polling.keys.get(name), polling.engines.get(name, "auto")
        if key != self._key:
            self._connection.close()
            self._key, self._connection = key, Connection(self._url, key)
        was_down, self._was_down = self._was_down, all(each.state is State.DOWN for each in self._there)
        if given != self._given or (was_down and not self._was_down):
            # It may have come back as another.
            self._engine, self._given, self._meets_at = None, given, now
        try:
            if self._engine is None:
                if now >= self._meets_at:
                    self._meets_at = now + min(_AGAIN_S, polling.facts_s)
                    await self._meet(polling)
                return
            if not self._to_ask and now >= self._looks_at:
                self._to_ask.extend(self._engine.fact_paths)
                self._pages, self._looks_at = {}, now + polling.facts_s
            # By turns, or loads would be old whenever facts are asked for.
            self._asked_facts = bool(self._to_ask) and not (self._asked_facts and self._engine.load_paths)
            if self._asked_facts:
                await self._ask_facts(self._engine, polling)
            elif self._engine.load_paths:
                await self._ask_loads(self._engine, polling)
        except ConnectionRefusedError:
            self._meets_at = now
            if self._engine is not None:
                self._restarted("nobody listens")

    async def _meet(self, polling: Polling) -> None:
        """Ask for everything, one page after the other."""
        self._forget()
        engine, pages = ENGINES.get(self._given), dict[str, str]()
        answers = [await self._take(path, pages, polling) for path in (PATHS if engine is None else engine.fact_paths)]
        engine = engine or detect(pages)
        for new, old in engine.old_paths.items():
            if new not in pages:
                await self._take(old, pages, polling)
        if pages:
            self._engine, self._load_path, self._counted = engine, 0, {}
            self._to_ask.clear()
            # What was late is asked for again soon.
            after_s = min(_AGAIN_S, polling.facts_s) if None in answers else polling.facts_s
            self._looks_at = time.monotonic() + after_s
            self._learn(engine.facts(pages))
            self._hear(engine.loads(pages))

    async def _ask_facts(self, engine: Engine, polling: Polling) -> None:
        path = self._to_ask.popleft()
        await self._take(path, self._pages, polling)
        if path not in self._pages and path in engine.old_paths:
            self._to_ask.append(engine.old_paths[path])
        if not self._to_ask:
            self._learn(engine.facts(self._pages))
            self._pages = {}

    async def _ask_loads(self, engine: Engine, polling: Polling) -> None:
        path, pages = engine.load_paths[self._load_path % len(engine.load_paths)], dict[str, str]()
        status = await self._take(path, pages, polling)
        if path not in pages:
            # One that is not there will not come; one that is late may.
            self._load_path += status is not None and 400 <= status < 500
            return
        loads = engine.loads(pages)
        counted = {(path, each.rank): each.counted for each in loads if each.counted is not None}
        before, self._counted = self._counted, counted
        if any(count < before.get(key, 0.0) for key, count in counted.items()):
            self._restarted("a counter fell")
        else:
            self._hear(loads)

    async def _take(self, path: str, pages: dict[str, str], polling: Polling) -> int | None:
        """Ask for a page, and keep it if it is one; returns the status, None where nothing came.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        page = await self._connection.get(path, polling.timeout_s)
        if page is None:
            return None
        status, text = page
        if 200 <= status < 300 and text:
            pages[path] = text
        return status

    def _hear(self, loads: tuple[Loads, ...]) -> None:
        """This is what it is doing now."""
        # It may have been removed, or have restarted, while it was asked.
        if not loads or not self._is_here or self._engine is None:
            return
        now = time.monotonic()
        for place, each in enumerate(self._there):
            mine = loads
            if each.rank is not None:
                # By their order, for vLLM's numbers are those of all nodes; who says more or less means other ranks.
                mine = loads[place : place + 1] if len(loads) == len(self._there) else ()
            if mine:
                seen = self.seen[each.name]
                seen.loads, seen.loads_at = mine, now
                self._router.loaded(each.name, seen.load(), now)

    def _learn(self, facts: Facts) -> None:
        """These are its facts now."""
        if not self._is_here:
            return
        before, heard_at = self._facts, time.monotonic()
        if before is not None:
            if None not in {before.started_at, facts.started_at} and before.started_at != facts.started_at:
                self._restarted("it was started anew")
                return
            # What a page that did not come would have said is still so.
            facts = facts.over(before)
        self._facts = facts
        if facts.ranks is not None and self._on_ranks is not None:
            self._on_ranks(self._url, facts.ranks)
            if self._router.fleet.at(self._url) != self._there:
                return  # Its ranks are others now, and others ask for them.
        for each in self._there:
            seen = self.seen[each.name]
            seen.facts, seen.facts_at = facts, heard_at
        is_news = [self._router.resize(each.name, reported=facts.pools) for each in self._there]
        if any(is_news) or before is None:
            now = self._there[0].pools
            log.info(
                "replica_pools", replica=self._whole, engine=facts.engine, version=facts.version,
                model=facts.model, pool_tokens=now.tokens, page_tokens=now.page_tokens, chunk_tokens=now.chunk_tokens,
                snapshot_slots=now.slots, snapshots_per_path=now.per_path, slots_per_request=now.private,
                host_tier=now.host, missing=facts.missing,
            )  # fmt: skip
        if facts.reports_cached is False and before is None:
            remedy = "start SGLang with --enable-cache-report"
            log.warning("replica_reports_nothing", replica=self._whole, remedy=remedy)

    def _restarted(self, why: str) -> None:
        """It has lost its cache, and what it is has to be asked anew."""
        self._engine, self._meets_at = None, -math.inf
        self._to_ask.clear()
        self._forget()
        if self._is_here:
            log.warning("replica_restarted", replica=self._whole, why=why)
            self._router.restarted(self._there[0].name)

    def _forget(self) -> None:
        """Nothing that was heard is so any more."""
        self._facts = None
        for seen in self.seen.values():
            seen.facts, seen.loads = None, ()

    @property
    def _is_here(self) -> bool:
        """Whether these are still the replicas at its URL."""
        return self._router.fleet.at(self._url) == self._there
