"""The replicas that can be simulated: sizes, habits and speeds, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ramjet.core.cache import CacheSpec, HostTier, SlotSpec, Snapshots

EngineName = Literal["sglang", "vllm", "llama.cpp"]

SLOTS_EACH = 5
"""Snapshot slots that SGLang counts for each request it lets run; 28 of them are 5 requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things take. The defaults are fitted to the seed's hardware, two RTX PRO 6000 for one copy of the model.

    Three of its figures are met within 1 %: 20,000 tokens cold in 3.35 s, 313,000 in 57 s, a warm turn in 0.15 to
    0.30 s. "About 18 s" at 100,000 was seen in production and not in a probe; the formula gives 16.7.
    """

    overhead_s: float = 0.15
    """From arrival to the scheduler's queue: HTTP, template, tokenizer; others are not held up by it."""
    overhead_token_s: float = 0.0
    """And for each token of the prompt, cached or not: a long body has to be sent, parsed and cut into tokens. The seed's
    figures do not ask for it."""
    read_token_s: float = 0.1585e-3
    """Reading from token m to n takes this times n - m..."""
    read_squared_s: float = 7.4e-11
    """...and this times n² - m², for attention looks back at everything before."""
    step_s: float = 0.012
    """One step of decoding, with nobody in it (a stand-in; the seed does not say)..."""
    step_request_s: float = 0.001
    """...and what each running request adds: decoding slows with the batch."""
    decode_share: float = 0.3
    """The part of the time that running answers get while prompts are read; 0 where reading goes first whatever waits."""
    restore_s: float = 0.24
    """To bring a prefix back from the host: 0.40 to 0.45 s in all, where it is 0.15 to 0.30 from the device (seed)..."""
    restore_token_s: float = 1e-6
    """...and for each token of it: 7,260 bytes of KV over PCIe at a few GB/s."""

    def before_s(self, prompt_tokens: int) -> float:
        """Seconds before a prompt of so many tokens is in the queue."""
        return self.overhead_s + self.overhead_token_s * prompt_tokens

    def read_s(self, start: int, end: int) -> float:
        """Seconds to read tokens `start` to `end` of a prompt when those before are there."""
        return (end - start) * (self.read_token_s + self.read_squared_s * (end + start))

    def steps_s(self, running: int) -> float:
        """Seconds for one token of each of so many running answers."""
        return self.step_s + self.step_request_s * running


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A simulated replica."""

    name: str
    about: str
    cache: CacheSpec | SlotSpec
    engine: EngineName = "sglang"
    """Whose API, metrics and log lines it has."""
    timing: Timing = Timing()
    model: str = "glm-5.3-flash"
    """The name it lists; a request may give any other, as with SGLang, and gets it back."""
    ranks: int = 1
    """Model copies behind its one URL, data-parallel ranks, each as large as the profile says."""
    max_running: int = 32
    """Requests that are read or answered at a time; the others wait."""
    answer_tokens: int = 256
    """Where an answer ends by itself, if `max_tokens` allows that many."""
    reports_cached: bool = True
    """Whether usage says how much was reused: SGLang's `--enable-cache-report`."""
    drops_zero: bool = True
    """Whether it says nothing of a prompt that missed completely, as SGLang does."""
    default_host: HostTier | None = None
    """The host tier that `--host-tier` switches on."""
    told_slots: bool = False
    """Whether it was given its number of snapshots: what SGLang derives itself is null in its `/server_info`."""

    @property
    def most_tokens(self) -> int:
        """The longest prompt with its answer."""
        cache = self.cache
        if isinstance(cache, SlotSpec):
            return cache.slot_tokens
        states = cache.snapshots
        assert cache.pool_tokens is not None, "a simulated replica has a pool"
        return cache.pool_tokens - (0 if states is None else states.tokens_each * (states.private + 1))

    @property
    def page_tokens(self) -> int:
        """Reuse ends on a multiple of this."""
        return self.cache.page_tokens

    def with_flags(
        self,
        *,
        states_per_path: int | None = None,
        host_tier: bool = False,
        slots: int | None = None,
        pool_tokens: int | None = None,
        chunk_tokens: int | None = None,
        ranks: int | None = None,
    ) -> Profile:
        """The same replica started with other flags.

        Args:
            states_per_path: cap on the snapshots of one conversation.
            host_tier: with copies in server memory.
            slots: snapshots, or sequences where it has no tree. What may run at a time follows.
            pool_tokens: what all caches hold together, in whole pages.
            chunk_tokens: what one forward reads, at most.
            ranks: data-parallel ranks, each of that size.

        Raises:
            ValueError: it has nothing that such a flag could change, or could not work with it.
        """
        cache, running, told = self.cache, self.max_running, self.told_slots
        if isinstance(cache, SlotSpec):
            if states_per_path is not None or host_tier:
                raise ValueError(f"profile {self.name} has neither a snapshot pool nor a host tier")
            running = cache.slots if slots is None else slots
            each = cache.slot_tokens if pool_tokens is None else pool_tokens // running
            cache = replace(cache, slots=running, slot_tokens=each)
        else:
            if slots is not None or states_per_path is not None:
                cache = replace(cache, snapshots=_other_pool(self.name, cache.snapshots, slots, states_per_path))
            if slots is not None:
                running, told = slots // SLOTS_EACH, True
            if pool_tokens is not None:
                cache = replace(cache, pool_tokens=pool_tokens // cache.page_tokens * cache.page_tokens)
            if host_tier:
                cache = replace(cache, host=_host_of(self))
        if chunk_tokens is not None:
            cache = replace(cache, chunk_tokens=chunk_tokens)
        if ranks is not None and self.engine == "llama.cpp":
            raise ValueError(f"profile {self.name} has no data-parallel ranks: llama.cpp knows none")
        other = replace(self, cache=cache, max_running=running, told_slots=told, ranks=ranks or self.ranks)
        _must_work(other)
        return other


def _other_pool(name: str, states: Snapshots | None, slots: int | None, per_path: int | None) -> Snapshots:
    if states is None or states.slots is None:
        raise ValueError(f"profile {name} has no snapshot pool that --slots or --states-per-path could change")
    if slots is not None and slots < SLOTS_EACH:
        raise ValueError(f"a request needs {SLOTS_EACH} snapshot slots, and there would be {slots} (--slots)")
    slots = states.slots if slots is None else slots
    return replace(states, slots=slots, per_path=states.per_path if per_path is None else per_path)


def _host_of(profile: Profile) -> HostTier:
    if profile.default_host is None:
        raise ValueError(f"profile {profile.name} has no host tier")
    return profile.default_host


def _must_work(profile: Profile) -> None:
    """Whoever reads less than a page at a time, or has no room for two of them, would never answer."""
    states = profile.cache.snapshots if isinstance(profile.cache, CacheSpec) else None
    least = profile.page_tokens if states is None else max(profile.page_tokens, states.grid_tokens)
    if profile.cache.chunk_tokens < least:
        raise ValueError(f"profile {profile.name} reads at least {least} tokens at a time (--chunk-tokens)")
    if profile.most_tokens < 2 * profile.page_tokens:
        raise ValueError(f"profile {profile.name} would take requests of {profile.most_tokens} tokens (--pool-tokens)")


GLM = Profile(
    name="glm-5.3-flash-tp2",
    about="the seed's replica: SGLang, 499,968 tokens and 28 snapshots, no cap per path",
    cache=CacheSpec(
        # The seed: 499,968 tokens in FP8, chunks of 6,144, snapshots on multiples of 256, 28 slots. DSA forces pages
        # of 64 in SGLang.
        pool_tokens=499_968,
        page_tokens=64,
        chunk_tokens=6_144,
        snapshots=Snapshots(slots=28, grid_tokens=256),
    ),
    # SGLang's own limit for this pool.
    max_running=28 // SLOTS_EACH,
    # The seed's 4 GB for each GPU: 308,288 tokens, and 1.57 GB of snapshots of 38.2 MB.
    default_host=HostTier(tokens=308_288, slots=41),
)

ATTENTION = Profile(
    name="attention",
    about="the same pool and speed with attention layers alone: reuse may end at any page",
    cache=CacheSpec(pool_tokens=499_968, page_tokens=64, chunk_tokens=6_144),
    model="attention",
    default_host=HostTier(tokens=308_288),
)

VLLM_HYBRID = Profile(
    name="vllm-hybrid",
    about="a hybrid model on vLLM: snapshots live in the token pool, blocks of 528 tokens",
    cache=CacheSpec(
        pool_tokens=947 * 528,
        # vLLM raises the attention block until its page holds a state: 528 tokens for Qwen3-Next (vllm issue 40696).
        page_tokens=528,
        chunk_tokens=8_192,
        # `--mamba-cache-mode align`: a state at the last block boundary of every forward, in a block of each of the
        # three groups that the 36 linear-attention layers make beside the 12 with attention.
        snapshots=Snapshots(slots=None, tokens_each=3 * 528, grid_tokens=528, private=1),
    ),
    engine="vllm",
    model="qwen3-next",
    drops_zero=False,
)

LLAMA_CPP = Profile(
    name="llama-cpp",
    about="llama.cpp with four slots: a conversation keeps its cache while nobody else takes its slot",
    cache=SlotSpec(page_tokens=16),
    engine="llama.cpp",
    model="llama",
    max_running=4,
    drops_zero=False,
)

PROFILES = {each.name: each for each in (GLM, ATTENTION, VLLM_HYBRID, LLAMA_CPP)}
"""By name, for the command line."""
