"""The seed's scenes in virtual time: where a prompt is resumed, a prompt of 313,000 tokens among six sessions, and two conversations of 290,000.

The production router decides, simulated replicas of the seed's kind serve, and each scene leaves a journal.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from ramjet.core.admission import Terms
from ramjet.core.cache import Blocks, CacheSpec, EngineCache
from ramjet.core.policies import LongPromptRule, Policy, SpreadLongRule
from ramjet.core.record import Record
from ramjet.lab.production import SHIPPED
from ramjet.lab.recorded import Says, Script, Talk, recorded
from ramjet.sim.profile import GLM, Profile

SESSIONS = 6
AGENT = "another agent"
SESSION_TOKENS = 20_000
AGENT_TOKENS = 313_000
PAIR_TOKENS, PAIR_GROWTH = 290_000, 4_000
CAP = 2
LONG_BYTES = 600_000
"""What the seed's rule confined: larger requests."""

# The seed's load balancer held nobody back, so nobody is here: what is shown is the cap's doing alone.
_THEN = replace(SHIPPED, terms=Terms(mode="off"))
CAPPED = GLM.with_flags(states_per_path=CAP)
FIXED = GLM.with_flags(states_per_path=CAP, host_tier=True)
"""What the seed's replicas were when it tried its rule."""
SPREAD = _THEN
CONFINED = replace(_THEN, rules=(LongPromptRule(LONG_BYTES, frozenset({"glm-2"})), SpreadLongRule()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A prompt sent to a replica that has just read one of 19,845 tokens, and where it was resumed."""

    name: str
    prompt_tokens: int
    known_tokens: int
    """What it shares with what is there: an attention layer could reuse all of it."""
    cached_tokens: int


def branches(profile: Profile = GLM) -> list[Resumed]:
    """The seed's first chart: the same again, 300 tokens more, and twice a branch that leaves at 14,900."""
    assert isinstance(profile.cache, CacheSpec)
    cache = EngineCache(profile.cache)
    asked = (
        ("read for the first time", 19_845, 19_845, 0),
        ("the same again", 19_845, 19_845, 0),
        ("300 tokens appended", 20_145, 19_845, 1),
        ("a branch at 14,900", 19_845, 14_900, 2),
        ("a second branch there", 19_845, 14_900, 3),
    )
    found = []
    for at, (name, tokens, shared_tokens, own) in enumerate(asked):
        hit = cache.serve(_pages(tokens, shared_tokens, own, profile.page_tokens), tokens, float(at))
        assert hit is not None
        found.append(Resumed(name=name, prompt_tokens=tokens, known_tokens=hit.known_tokens, cached_tokens=hit.tokens))
    return found[1:]


def _pages(tokens: int, shared_tokens: int, own: int, page_tokens: int) -> Blocks:
    """A prompt that shares so much with the first, and goes on by itself."""
    shared = shared_tokens // page_tokens
    hashes = array("Q", range(1, shared + 1))
    hashes.extend((own << 32) + page for page in range(shared + 1, tokens // page_tokens + 1))
    return Blocks(hashes, array("I", range(page_tokens, tokens + 1, page_tokens)))


def intrusion(part: int = 1, *, turns: int = 18, agent_turns: int = 3, seed: int = 1) -> list[Talk]:
    """The seed's probe, and then work: six sessions, another agent's prompt of 313,000 tokens, the sessions again.

    They return one after another when that has been read, and then go on, each at its own pace; the agent does too.

    Args:
        part: everything is divided by this.
        turns: of each session.
        agent_turns: of the other agent.
        seed: of how long clients think and how much they say.
    """
    chance = Random(seed)
    talks = []
    for number in range(SESSIONS):
        session = _session(chance, number, turns, part, apart_s=6.0 / part)
        # Turn 2 is the return: all are away while the long prompt is read.
        first, *others = session.turns
        talks.append(replace(session, turns=[replace(first, think_s=150.0 / part), *others]))
    goes_on = [Says(tokens=500 // part, think_s=chance.uniform(90.0, 120.0) / part) for _ in range(agent_turns - 1)]
    return [*talks, Talk(words=AGENT, tokens=AGENT_TOKENS // part, start_s=60.0 / part, turns=goes_on)]


def pair(part: int = 1, *, turns: int = 8, seed: int = 1) -> list[Talk]:
    """Two conversations of 290,000 tokens that grow by 4,000 a turn, in turns with six ordinary sessions."""
    chance = Random(seed)
    grows = [Says(tokens=PAIR_GROWTH // part, think_s=90.0 / part) for _ in range(turns - 1)]
    longs = [
        Talk(words=f"long {number}", tokens=PAIR_TOKENS // part, start_s=80.0 * number / part, turns=grows)
        for number in range(2)
    ]
    return [*longs, *(_session(chance, number, turns, part, apart_s=4.0 / part) for number in range(SESSIONS))]


def _session(chance: Random, number: int, turns: int, part: int, apart_s: float) -> Talk:
    says = [
        Says(
            tokens=max(1, chance.randint(20, 60) // part),
            think_s=chance.uniform(15.0, 45.0) / part,
            answer_tokens=max(2, chance.randint(20, 60) // part),
        )
        for _ in range(turns - 1)
    ]
    return Talk(words=f"session {number}", tokens=SESSION_TOKENS // part, start_s=apart_s * number, turns=says)


def played(
    path: Path,
    script: Script,
    *,
    profile: Profile = GLM,
    replicas: int = 1,
    policy: Policy = _THEN,
    on_turn: Callable[[], object] = lambda: None,
) -> Sequence[Record]:
    """Let a scene happen; its journal is at `path` then."""
    return recorded(path, script, profile=profile, replicas=replicas, policy=policy, on_turn=on_turn)
