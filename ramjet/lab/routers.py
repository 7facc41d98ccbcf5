"""Several production routers before the same replicas: requests are dealt to them in turn, as a balancer of TCP does.

What they tell one another goes through the same pure code as in production, and arrives as late as it is said to.
Without a store they tell nothing, and know of one another only what the engines' pages say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count

from ramjet.core.cache import EngineCache
from ramjet.core.news import Fact, News, naming
from ramjet.core.others import Load
from ramjet.core.peers import Peers
from ramjet.lab.policies import Placements, Request
from ramjet.lab.production import Routed
from ramjet.sim.engine import Engine

DELAY_S = 0.5
"""How old facts are when they arrive: several times what a batch and a store on the same network take."""
_TICKS = 4
"""Parts of a second: routers look at the held once a second each, and not all at once."""
_POLL_S = 1.0


class Routers:
    """So many routers, and what is on its way between them."""

    tick_s: float | None = 1.0 / _TICKS

    def __init__(self, members: Sequence[Routed], delay_s: float | None = DELAY_S) -> None:
        """
        Args:
            members: the routers.
            delay_s: how old what the others tell is when it arrives; None: they tell nothing.
        """
        hashed = naming(0)
        self.engines: Sequence[Engine] = ()
        """Whose pages are read, once a second."""
        self._members = members
        self._delay_s = delay_s
        self._peers = [Peers(each.router, hashed) for each in members]
        self._on_way: deque[tuple[float, int, list[Fact]]] = deque()
        self._ticks = count(1)
        self._polled_at = 0.0
        if delay_s is not None:
            for each in members:
                each.router.news = News(hashed)

    def arrive(self, request: Request, now: float) -> int | None:
        """It comes to the next router."""
        self._deliver(now)
        place = self._members[self._of(request)].arrive(request, now)
        self._send(self._of(request), now)
        return place

    def start_read(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> None:
        """A start of its prompt has been read."""
        self._deliver(now)
        self._members[self._of(request)].start_read(
            request, now, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens
        )

    def first_token(self, request: Request, now: float) -> Placements:
        """Its prompt has been read."""
        self._deliver(now)
        entered = self._admit(now)
        entered += self._members[self._of(request)].first_token(request, now)
        self._send(self._of(request), now)
        return entered

    def finish(self, request: Request, now: float, *, prompt_tokens: int, cached_tokens: int | None) -> Placements:
        """It has been answered."""
        self._deliver(now)
        entered = self._admit(now)
        member = self._members[self._of(request)]
        entered += member.finish(request, now, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        self._send(self._of(request), now)
        return entered

    def tick(self, now: float) -> Placements:
        """Time has passed: what was told arrives, engines are asked, and each router looks at who is held."""
        self._deliver(now)
        entered = self._admit(now)
        if now - self._polled_at >= _POLL_S:
            self._polled_at = now
            self._poll(now)
        part = next(self._ticks) % _TICKS
        for number in range(part, len(self._members), _TICKS):
            entered += self._members[number].tick(now)
            self._send(number, now)
        return entered

    # -- inside -----------------------------------------------------------------------------------------------------

    def _of(self, request: Request) -> int:
        return request.number % len(self._members)

    def _send(self, number: int, now: float) -> None:
        """What a router has to tell is on its way."""
        news = self._members[number].router.news
        if news and self._delay_s is not None:
            self._on_way.append((now + self._delay_s, number, news.take(1 << 60)))

    def _deliver(self, now: float) -> None:
        """What was told long enough ago arrives."""
        while self._on_way and self._on_way[0][0] <= now:
            _, sender, facts = self._on_way.popleft()
            for number, peers in enumerate(self._peers):
                if number != sender:
                    peers.take(sender, facts, 0.0, now)

    def _admit(self, now: float) -> Placements:
        """Who may enter for what has come does."""
        entered: Placements = []
        for number, member in enumerate(self._members):
            entered += member.admit_soon(now)
            self._send(number, now)
        return entered

    def _poll(self, now: float) -> None:
        for place, engine in enumerate(self.engines):
            cache = engine.cache
            used_tokens = cache.held_tokens + cache.private_tokens if isinstance(cache, EngineCache) else None
            load = Load(engine.running + engine.waiting, engine.waiting_tokens, used_tokens)
            for member in self._members:
                member.loaded(place, load, now)
