"""The words in which the seed's experiments are told: prompts of so many tokens, and a replica that they are sent to.

    session = prompt(19_845, "a session")
    replica = Replica()
    replica.send(session)
    assert replica.send(session.plus(300, "new messages")).cached_tokens == 19_712

Time is virtual: nothing here waits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, HostTier
from ramjet.sim.engine import Engine, Job
from ramjet.sim.profile import GLM, Profile

PAGE = 64


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of synthetic words. Those that begin with the same words share them, page by page."""

    parts: tuple[tuple[str, int], ...]
    """Whose words, up to which token."""

    @property
    def tokens(self) -> int:
        return self.parts[-1][1]

    def plus(self, tokens: int, words: str) -> Prompt:
        """The same prompt and so many tokens behind it."""
        return Prompt((*self.parts, (words, self.tokens + tokens)))

    def first(self, tokens: int) -> Prompt:
        """Its beginning."""
        kept = [part for part in self.parts if part[1] < tokens]
        return Prompt((*kept, (self.parts[len(kept)][0], tokens)))

    def blocks(self) -> Blocks:
        """Its full pages."""
        hashes, parts, chain = array("Q"), iter(self.parts), 0
        words, end = next(parts)
        for page_end in range(PAGE, self.tokens + 1, PAGE):
            while end < page_end:
                # A page in which somebody else's words begin is not the same page.
                words, end = next(parts)
            chain = xxhash.xxh3_64_intdigest(words.encode(), seed=chain)
            hashes.append(chain)
        return Blocks(hashes, array("I", range(PAGE, self.tokens + 1, PAGE)))


def prompt(tokens: int, words: str) -> Prompt:
    """A fresh prompt: nothing in it is in one of other words."""
    return Prompt(((words, tokens),))


def sessions(count: int, tokens: int = 20_050) -> list[Prompt]:
    """So many of the post's "20,000-token sessions": 99.6 % of one is reused where 19,968 of its tokens are."""
    return [prompt(tokens, f"session {number}") for number in range(count)]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client sees."""

    prompt_tokens: int
    cached_tokens: int
    waited_s: float
    """Until the first token."""
    from_host: bool

    @property
    def share(self) -> float:
        """The part of the prompt that was cached."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def warm(self) -> bool:
        return self.share > 0.9

    @property
    def cold(self) -> bool:
        return self.share < 0.5


class Replica:
    """One of the seed's two replicas. Without arguments it has the stock settings."""

    def __init__(
        self, *, per_path: int | None = None, host: HostTier | None = None, pool_tokens: int = 499_968, **states: Any
    ) -> None:
        """
        Args:
            per_path: the cap on snapshots of one conversation.
            host: the host tier.
            pool_tokens: another token pool.
            states: other facts of its snapshots.
        """
        self.profile = _profile(per_path, host, pool_tokens, states)
        self.engine = Engine(self.profile)
        assert isinstance(self.engine.cache, EngineCache)
        self.cache = self.engine.cache

    def send(self, each: Prompt, answer_tokens: int = 1) -> Reply:
        """Send a prompt and wait for the end of its answer."""
        job = self.start(each, answer_tokens)
        while job.ended_at is None:
            self._go_on()
        assert job.first_at is not None
        assert job.seat is not None
        hit = job.seat.hit
        return Reply(
            each.tokens, hit.tokens, job.first_at - job.arrived_at, from_host=bool(hit.host_tokens or hit.host_state)
        )

    def send_all(self, prompts: Iterable[Prompt]) -> list[Reply]:
        """One after the other."""
        return [self.send(each) for each in prompts]

    def start(self, each: Prompt, answer_tokens: int) -> Job:
        """Send a prompt and wait for the first token of its answer; it goes on being answered."""
        job = Job(each.blocks(), each.tokens, answer_tokens)
        self.engine.submit(job, self.engine.now)
        while job.first_at is None:
            self._go_on()
        return job

    def _go_on(self) -> None:
        at = self.engine.next_at
        assert at is not None
        self.engine.advance(at)

    @property
    def snapshots(self) -> list[int]:
        """Where in its prompts it has saved a state."""
        return sorted(node.ends[-1] for node in self.cache.snapshots)

    @property
    def free_slots(self) -> int:
        """Slots that running requests leave for cached prompts."""
        assert self.cache.spec.snapshots is not None
        assert self.cache.spec.snapshots.slots is not None
        return self.cache.spec.snapshots.slots - self.cache.busy_slots

    @property
    def occupancy(self) -> float:
        """How full the token pool is."""
        assert self.cache.pool_tokens is not None
        return self.cache.used_tokens / self.cache.pool_tokens


def _profile(per_path: int | None, host: HostTier | None, pool_tokens: int, states: dict[str, Any]) -> Profile:
    cache = GLM.cache
    assert isinstance(cache, CacheSpec)
    assert cache.snapshots is not None
    snapshots = replace(cache.snapshots, per_path=per_path, **states)
    return replace(GLM, cache=replace(cache, pool_tokens=pool_tokens, snapshots=snapshots, host=host))
