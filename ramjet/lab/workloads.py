"""What the laboratory plays, by name, and on what replicas.

W0 to W9 are the workloads of the study behind the routing rule (docs/design.md), draw for draw: a seed gives the
conversations that it gave there, but for the few sub-agents of recorded sessions, which the study took to share their
parent's system prompt. The others are whole published traces. A workload is a value, made from a `random.Random` that
the caller seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from ramjet.core.cache import SlotSpec
from ramjet.lab.agents import Agents, Swarm, pair
from ramjet.lab.published import ClaudeCode, Mooncake, lmcache
from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Ids, Workload, hashes_of
from ramjet.sim.profile import ATTENTION, GLM, PROFILES, Profile


def paged(profile: Profile) -> Profile:
    """A replica whose cache works in blocks of 256 tokens, as the workloads are written."""
    cache = profile.cache
    if isinstance(cache, SlotSpec):
        return replace(profile, cache=replace(cache, page_tokens=BLOCK_TOKENS))
    states = cache.snapshots
    if states is not None:
        states = replace(states, grid_tokens=max(1, states.grid_tokens // BLOCK_TOKENS) * BLOCK_TOKENS)
    return replace(profile, cache=replace(cache, page_tokens=BLOCK_TOKENS, snapshots=states))


TOKENS = paged(ATTENTION)
"""The study's replica without snapshots: 499,968 tokens, 32 running."""
SLOTS = replace(paged(GLM.with_flags(states_per_path=2)), name="glm-5.3-flash-tp2, cap 2", max_running=28 // 4)
"""The study's replica with snapshots: 28 slots, two a path, and as many running as have four of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a workload is made, and what it is meant to be played on."""

    name: str
    about: str
    replicas: int
    profile: Profile
    make: Callable[[Random, Ids], list[Conversation]]


_ALL = (
    Recipe(
        name="W0",
        about="32 agents of 4 apps, 12 % long: fits easily",
        replicas=4,
        profile=TOKENS,
        make=Agents(agents=32, apps=4, think_s=20, span_s=1800, long_share=0.12),
    ),
    Recipe(
        name="W1",
        about="24 agents of 4 apps on half the replicas: mild pressure on the token pools",
        replicas=2,
        profile=TOKENS,
        make=Agents(agents=24, apps=4, think_s=20, span_s=1500, long_share=0.12),
    ),
    Recipe(
        name="W2",
        about="88 agents of 6 apps: twice the tokens that the pools hold",
        replicas=4,
        profile=TOKENS,
        make=Agents(agents=88, apps=6, think_s=30, span_s=2000, long_share=0.12),
    ),
    Recipe(
        name="W3",
        about="40 agents of 4 apps, short turns: snapshot pools pressed, 2 replicas",
        replicas=2,
        profile=SLOTS,
        make=Agents(agents=40, apps=4, think_s=20, span_s=1500, long_share=0.03, growth_log=5.7),
    ),
    Recipe(
        name="W4",
        about="200 agents of 12 apps, short turns: snapshot pools pressed, 8 replicas",
        replicas=8,
        profile=SLOTS,
        make=Agents(agents=200, apps=12, think_s=30, span_s=1800, long_share=0.04, growth_log=5.7),
    ),
    Recipe(
        name="W5",
        about="the seed's pair: two conversations of 290,000 tokens, six of 20,000",
        replicas=2,
        profile=SLOTS,
        make=pair,
    ),
    Recipe(
        name="W6",
        about="a swarm: 64 developers with coding agents, sub-agents and compaction",
        replicas=6,
        profile=TOKENS,
        make=lambda rng, ids: Swarm(rng, ids).play(),
    ),
    Recipe(
        name="W7",
        about="recorded Claude Code sessions, 20 at a time",
        replicas=4,
        profile=TOKENS,
        make=ClaudeCode(places=20),
    ),
    Recipe(
        name="W8",
        about="recorded Claude Code sessions, 44 at a time: twice the tokens that the pools hold",
        replicas=4,
        profile=TOKENS,
        make=ClaudeCode(places=44),
    ),
    Recipe(
        name="W9",
        about="20 minutes of Mooncake's chat trace at 1/1.4 of its pace",
        replicas=8,
        profile=TOKENS,
        make=Mooncake(trace="mooncake-conversation", stretch=1.4, window_s=1200),
    ),
    Recipe(
        name="mooncake_conversation",
        about="the whole hour of Mooncake's chat trace at 1/1.4 of its pace",
        replicas=8,
        profile=TOKENS,
        make=Mooncake(trace="mooncake-conversation", stretch=1.4),
    ),
    Recipe(
        name="mooncake_synthetic",
        about="Mooncake's synthetic trace at half its pace: Poisson arrivals over public data sets",
        replicas=8,
        profile=TOKENS,
        make=Mooncake(trace="mooncake-synthetic", stretch=2.0),
    ),
    Recipe(
        name="lmcache_agents",
        about="LMCache's agent traces: 69 sessions of magagent, mini-swe-agent and tau-bench",
        replicas=2,
        profile=TOKENS,
        make=lmcache,
    ),
)

WORKLOADS = {each.name: each for each in _ALL}
"""By name, for the command line."""

REPLICAS = {name: paged(profile) for name, profile in PROFILES.items()}
"""What `--profile` may put in the place of a workload's own replicas."""


@lru_cache(maxsize=2)
def build(name: str, seed: int) -> Workload:
    """A workload by name. Equal seeds give equal conversations, and those of the study."""
    ids = Ids()
    conversations = WORKLOADS[name].make(Random(seed * 1000 + sum(map(ord, name))), ids)
    return Workload(name, conversations, hashes_of(ids.used))
