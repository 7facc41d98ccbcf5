"""Ask all replicas what they are, and try what they do not say; all of them at once, each in its own time."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx

from ramjet.check import idle
from ramjet.check.findings.values import Found, Idle, Ours, Reuse, busy
from ramjet.core.pools import Pools
from ramjet.core.stream import JsonObserver
from ramjet.engines.facts import Answer, Engine, Facts, Loads
from ramjet.engines.reading import counted, models
from ramjet.pages import ask, look, read

MODELS, METRICS = "/v1/models", "/metrics"
PROBE_HEADER = "x-ramjet-probe"

IDLE_MARGIN_S = 2.0
"""Beyond our own limit: an engine that keeps a connection this much longer than we do is safe."""
_PROBES = 2
_SETTLE_S = 0.3
"""In which what an engine has done is in its counters."""
_WORDS = 700
"""Of six hexadecimal digits each, which are some three tokens: more than one block of any engine."""
_TRY_S = 60.0
_SPARE_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One replica to be asked."""

    name: str
    url: str
    key: str | None = None
    engine: str = "auto"
    """Which it is, where that is known."""
    configured: Pools = Pools()


async def look_at(targets: Sequence[Target], ours: Ours, *, quick: bool) -> list[Found]:
    """What all of them are, in their order.

    Args:
        targets: the replicas.
        ours: Ramjet's own settings.
        quick: only ask, and try nothing that takes time or work.
    """
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        return await asyncio.gather(*(_Look(each, client, ours).all(quick=quick) for each in targets))


class _Look:
    """One replica, from the first question to the last."""

    def __init__(self, target: Target, client: httpx.AsyncClient, ours: Ours) -> None:
        self._target = target
        self._client = client
        self._ours = ours

    async def all(self, *, quick: bool) -> Found:
        target, ours = self._target, self._ours
        health, listing = await asyncio.gather(self._page(ours.health_path), self._page(MODELS))
        if health.status is None and listing.status is None:
            return Found(name=target.name, url=target.url, configured=target.configured, health=health, listing=listing)
        seen, kept = await asyncio.gather(
            self._ask(health, listing, quick=quick), self._idle(health, listing, quick=quick)
        )
        return replace(seen, idle=kept)

    async def _ask(self, health: Answer, listing: Answer, *, quick: bool) -> Found:
        target, limit = self._target, self._ours.health_timeout_s
        engine, pages = await read(self._client, target.url, target.engine, key=target.key, timeout_s=limit)
        facts, read_at = engine.facts(pages), time.monotonic()
        loads = engine.loads(pages)
        names = tuple(name for each in models(listing.text) if isinstance(name := each.get("id"), str))
        cost = None
        if not quick and health.good:
            cost = await self._health_costs(engine, loads)
        reuse = None
        if not quick and facts.reports_cached is None and listing.good:
            reuse = await self._reuse(names, facts)
        return Found(
            name=self._target.name,
            url=self._target.url,
            configured=self._target.configured,
            health=health,
            listing=listing,
            models=names or None,
            metrics=METRICS in pages,
            facts=facts,
            loads=loads,
            health_tokens=cost,
            health_asked=_PROBES if cost is not None else 0,
            reuse=reuse,
            read_at=read_at,
        )

    async def _page(self, path: str) -> Answer:
        return await look(
            self._client, self._target.url, path, key=self._target.key, timeout_s=self._ours.health_timeout_s
        )

    async def _pages(self, paths: Sequence[str]) -> dict[str, str]:
        key, limit = self._target.key, self._ours.health_timeout_s
        return dict(await ask(self._client, self._target.url, paths, key=key, timeout_s=limit))

    async def _idle(self, health: Answer, listing: Answer, *, quick: bool) -> Idle | None:
        path = next((each.path for each in (listing, health) if each.good), None)
        if quick or path is None:
            return None
        target, ours = self._target, self._ours
        wait_s = ours.idle_s + IDLE_MARGIN_S
        return await idle.measure(target.url, path, key=target.key, ask_s=ours.health_timeout_s, wait_s=wait_s)

    async def _health_costs(self, engine: Engine, loads: Sequence[Loads]) -> int | None:
        """Tokens that the model worked through for some probes; None where that cannot be told."""
        if not loads or busy(loads):
            return None
        before = await self._worked(engine)
        await asyncio.sleep(_SETTLE_S)
        control = await self._worked(engine)
        if before is None or control != before:
            return None  # nothing is counted, or others are at work
        for _ in range(_PROBES):
            await self._page(self._ours.health_path)
        await asyncio.sleep(_SETTLE_S)
        after = await self._worked(engine)
        return None if after is None else max(0, round(after - before))

    async def _worked(self, engine: Engine) -> float | None:
        if engine.work is None:
            return None
        pages = await self._pages((METRICS, *engine.load_paths))
        return None if busy(engine.loads(pages)) else counted(pages.get(METRICS), engine.work)

    async def _reuse(self, names: Sequence[str], facts: Facts) -> Reuse:
        """Send a prompt twice, and see what is said of the second."""
        words = _WORDS
        if facts.max_prompt_tokens is not None:
            # A token has one character at least.
            words = max(1, min(words, (facts.max_prompt_tokens - _SPARE_TOKENS) // 7))
        text = " ".join(secrets.token_hex(3) for _ in range(words))
        body = json.dumps(
            {
                "model": next(iter(names), "default"),
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 1,
                "temperature": 0,
            }
        )
        head = {"content-type": "application/json", PROBE_HEADER: "check"}
        if self._target.key is not None:
            head["authorization"] = f"Bearer {self._target.key}"
        observer = JsonObserver()
        for _ in range(2):
            try:
                async with asyncio.timeout(_TRY_S):
                    answer = await self._client.post(
                        f"{self._target.url}/v1/chat/completions", content=body, headers=head, timeout=_TRY_S
                    )
            except (httpx.HTTPError, OSError, ValueError, TimeoutError) as error:
                return Reuse(prompt_tokens=0, error=type(error).__name__)
            if not answer.is_success:
                return Reuse(prompt_tokens=0, error=f"status {answer.status_code}")
            observer = JsonObserver()
            observer.feed(answer.content, 0.0)
            observer.close()
        usage = observer.usage
        if usage is None or usage.prompt_tokens is None:
            return Reuse(prompt_tokens=0, error="its answer has no usage")
        return Reuse(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
