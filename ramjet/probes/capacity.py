"""How many sessions stay, and which pool is it that ends there? Pure.

Sessions that are sent again in a loop are all or nothing under least recent use: one too many, and each pushes out the
one that comes next. So a number of sessions is tried with fresh prompts each time, twice around, and the largest number
of which all came back is found by doubling and then by halving what is between.

Which pool it was is told by the token pool's size, where the engine says it. Where it does not, another size of session
shows what else stays: sessions that did not, though they were fewer tokens than some that did, lacked snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count as counter
from typing import Any

from ramjet.engines import advice
from ramjet.engines.facts import Facts
from ramjet.probes import forks, pools
from ramjet.probes.eviction import SPARE_TOKENS, without_reuse
from ramjet.probes.prompts import Writer
from ramjet.probes.steps import REFUSED, RETURNED, Ask, Finding, Plan, Step, TooLong, count, kept, of, returned, user

TOKENS, TIMES_AS_LONG, MOST_SESSIONS = 20_000, 4, 64

FIRST, AGAIN = "first", "again"
HOLD, HOLD_AGAIN = "hold", "hold again"
"""One prompt as long as all the sessions that did not stay: it takes the tokens and few snapshots."""

_HOLD = 1.1
"""How much longer it is, to be beyond doubt."""
_SHARES = 5
"""So many sessions of the other size fill the token pool at least, that one more or less is not half of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """What was seen of one size of session."""

    tokens: int
    fits: int
    """The most sessions of which all came back."""
    fails: int | None
    """The fewest of which not all did; None if there were none."""

    @property
    def too_many_tokens(self) -> int:
        """What the sessions have together that did not stay; 0 if all did."""
        return 0 if self.fails is None else self.fails * self.tokens


def plan(
    writer: Writer,
    facts: Facts,
    *,
    tokens: int = TOKENS,
    other_tokens: int | None = None,
    most_sessions: int = MOST_SESSIONS,
) -> Plan:
    """Find the cliff for two sizes of session.

    Args:
        writer: of the prompts.
        facts: of the engine; its token pool's size saves attempts.
        tokens: length of a session.
        other_tokens: length of the second kind; None for four times the first, or what the engine takes.
        most_sessions: where to stop.
    """
    done: list[Step] = []
    yield from kept(done, _both(writer, facts, tokens, other_tokens, most_sessions))
    yield from _hold(writer, facts, done)


def judge(steps: Sequence[Step], facts: Facts) -> Finding:
    """The number of sessions that fit of the size asked for, and the same of the other; and which pool it is."""
    found = cliffs(steps)
    alone = [step for step in of(steps, AGAIN) if step.sessions == 1]
    if alone and not alone[0].cached_tokens:
        return without_reuse(alone[0], facts, {"sessions_that_fit": None, "findings": []})
    if not found:
        measured: dict[str, Any] = {"sessions_that_fit": None, "findings": []}
        return Finding(verdict="The experiment is not finished.", limit="unknown", measured=measured)
    causes = [_cause(each, found, steps, facts) for each in found]
    measured = {
        "tokens": found[0].tokens,
        "sessions_that_fit": found[0].fits,
        "at_least": found[0].fails is None,
        "findings": [
            {
                "tokens": each.tokens,
                "sessions_that_fit": each.fits,
                "at_least": each.fails is None,
                "limit": why.limit,
                "together_tokens": each.fits * each.tokens,
            }
            for each, why in zip(found, causes, strict=True)
        ],
        "snapshot_limited": forks.snapshot_limited(forks.seen(steps)),
    }
    verdict = " ".join(_sentence(each, why) for each, why in zip(found, causes, strict=True))
    if facts.host_tier:
        verdict += " What the engine brings back from its host tier counts as staying; host-tier tells the two apart."
    flags: list[str] = []
    for why in causes:
        flags += [flag for flag in _flags(why, facts) if flag not in flags]
    return Finding(verdict=verdict, limit=causes[0].limit, flags=tuple(flags), measured=measured)


def cliffs(steps: Sequence[Step]) -> list[Cliff]:
    """What was seen of each size, in the order of the attempts; without those of which one alone did not come back."""
    found = []
    for tokens in dict.fromkeys(step.tokens for step in of(steps, FIRST)):
        mine = [step for step in of(steps, FIRST, AGAIN) if step.tokens == tokens]
        reference = next((step for step in mine if step.role == AGAIN and step.sessions == 1), None)
        if reference is None or not reference.cached_tokens:
            continue
        fits, fails = [1], []
        for trial in dict.fromkeys(step.trial for step in mine):
            again = [step for step in mine if step.trial == trial and step.role == AGAIN]
            back = [returned(step, reference) for step in again]
            sessions = next(step.sessions or 0 for step in mine if step.trial == trial)
            if False in back:
                fails.append(sessions)
            elif len(back) == sessions and None not in back:
                fits.append(sessions)
        found.append(Cliff(tokens=tokens, fits=max(fits), fails=min(fails, default=None)))
    return found


def held(steps: Sequence[Step]) -> int:
    """The most tokens that were seen to stay at once."""
    single = [step.prompt_tokens or 0 for step in of(steps, HOLD_AGAIN) if (step.cached_ratio or 0) >= RETURNED]
    return max([each.fits * each.tokens for each in cliffs(steps)] + single, default=0)


def attempt(
    writer: Writer,
    label: str,
    *,
    sessions: int,
    tokens: int,
    trial: int,
    good: Callable[[Step], bool | None],
    roles: tuple[str, str] = (FIRST, AGAIN),
    to_the_end: bool = False,
    see_tiers: bool = False,
) -> Generator[Ask, Step, bool | None]:
    """Send fresh sessions once around and again; whether all of them came back, None if that was not said.

    Args:
        writer: of the prompts.
        label: names the texts.
        sessions: how many.
        tokens: length of each.
        trial: number of the attempt.
        good: whether a session came back.
        roles: of the first pass and the second.
        to_the_end: send all of them again, also when one is lost. It is not needed to know that they do not fit.
        see_tiers: also ask where they came back from.
    """
    texts = [writer.text(f"{label}, trial {trial}, session {number}", tokens) for number in range(sessions)]
    every = True
    for role, around in zip(roles, ("", " again"), strict=True):
        for number, text in enumerate(texts, 1):
            step = yield Ask(
                name=f"{number} of {sessions} sessions{around}",
                role=role,
                messages=user(text),
                tokens=tokens,
                session=number,
                trial=trial,
                sessions=sessions,
                see_tiers=see_tiers and role == roles[1],
            )
            if role == roles[0]:
                continue
            here = good(step)
            if here is None:
                return None
            every = every and here
            if not every and not to_the_end:
                return False
    return every


def climb(
    attempted: Callable[[int], Generator[Ask, Step, bool | None]],
    *,
    most: int,
    guess: int | None = None,
    start: int = 2,
) -> Generator[Ask, Step, tuple[int, int | None] | None]:
    """The largest number that fits and the smallest that does not, where 1 does; None if an attempt told nothing.

    Args:
        attempted: tries one number.
        most: the largest to try.
        guess: where the cliff may be; tried before the middle is.
        start: the first to try.
    """
    low, high, number = 1, None, max(2, start)
    while high is None and low < most:
        number = min(number, most)
        fits = yield from attempted(number)
        if fits is None:
            return None
        if not fits:
            high = number
            break
        low, number = number, 2 * number
        if guess is not None and low < guess + 1 < number:
            number = guess + 1
    while high is not None and high - low > 1:
        number = guess if guess is not None and low < guess < high else (low + high) // 2
        fits = yield from attempted(number)
        if fits is None:
            return None
        low, high = (number, high) if fits else (low, number)
    return low, high


def _both(writer: Writer, facts: Facts, tokens: int, other_tokens: int | None, most: int) -> Generator[Ask, Step, None]:
    trials = counter()
    guess = facts.pool_tokens // tokens if facts.pool_tokens else None
    cliff = yield from _cliff(writer, tokens, trials, most=most, guess=guess)
    if cliff is None:
        return
    yield from forks.check(writer, "capacity", tokens)
    other = other_tokens or _other_tokens(tokens, facts)
    guess = max(1, (facts.pool_tokens or cliff.fits * tokens) // other)
    try:
        yield from _cliff(writer, other, trials, most=most, guess=guess, start=guess)
    except TooLong:
        if other_tokens is not None:
            raise
        # What the engine takes was not known, or not told right: shorter ones say something too.
        yield from _cliff(writer, tokens // TIMES_AS_LONG, trials, most=most)


def _hold(writer: Writer, facts: Facts, done: Sequence[Step]) -> Generator[Ask, Step, None]:
    """Where the pool's size is not known, see whether one prompt stays that has as many tokens as sessions that did not."""
    if facts.pool_tokens is not None or not forks.snapshot_limited(forks.seen(done)):
        return
    staying = held(done)
    for needed in sorted({each.too_many_tokens for each in cliffs(done)}, reverse=True):
        if needed <= pools.FULL * staying:
            return
        length = int(_HOLD * needed)
        text = writer.text(f"hold {length}", length)
        try:
            yield Ask(name="one prompt of as many tokens", role=HOLD, messages=user(text), tokens=length)
            again = yield Ask(name="that prompt again", role=HOLD_AGAIN, messages=user(text), tokens=length)
        except TooLong:
            continue
        if again.cached_tokens:
            return


def _cliff(
    writer: Writer, tokens: int, trials: counter[int], *, most: int, guess: int | None = None, start: int = 2
) -> Generator[Ask, Step, Cliff | None]:
    label = f"{tokens} tokens"
    alone: list[Step] = []

    def back(step: Step) -> bool | None:
        return returned(step, alone[0])

    def see(step: Step) -> bool | None:
        alone.append(step)
        return None if step.cached_tokens is None else bool(step.cached_tokens)

    if not (yield from attempt(writer, label, sessions=1, tokens=tokens, trial=next(trials), good=see)):
        return None

    def attempted(sessions: int) -> Generator[Ask, Step, bool | None]:
        return attempt(writer, label, sessions=sessions, tokens=tokens, trial=next(trials), good=back)

    found = yield from climb(attempted, most=most, guess=guess, start=start)
    return None if found is None else Cliff(tokens=tokens, fits=found[0], fails=found[1])


def _other_tokens(tokens: int, facts: Facts) -> int:
    """Four times as long, if that leaves room for some in the pool and the engine takes it; else a quarter."""
    longer = TIMES_AS_LONG * tokens
    if facts.pool_tokens is not None:
        longer = min(longer, facts.pool_tokens // _SHARES)
    if facts.max_prompt_tokens is not None:
        longer = min(longer, facts.max_prompt_tokens - SPARE_TOKENS)
    return longer if longer >= 2 * tokens else tokens // TIMES_AS_LONG


def _cause(cliff: Cliff, found: list[Cliff], steps: Sequence[Step], facts: Facts) -> pools.Cause:
    if cliff.fails is None:
        return pools.Cause("none", "none was lost")
    needed = cliff.too_many_tokens
    limited = forks.snapshot_limited(forks.seen(steps))
    why = pools.cause(needed, facts, snapshot_limited=limited, held_tokens=held(steps))
    if why.limit != "unknown" or not limited or facts.pool_tokens is not None:
        return why
    for refused in of(steps, REFUSED):
        most = refused.most_tokens
        if most is not None and pools.FULL * cliff.fits * cliff.tokens <= most <= needed:
            return pools.Cause("tokens", f"the engine takes no prompt of more than {most:,} tokens either")
    for other in found:
        if other is not cliff and other.fails is not None and abs(other.fits - cliff.fits) <= 1:
            return pools.Cause("snapshots", f"of sessions of {other.tokens:,} tokens about as many stay")
    return why


def _sentence(cliff: Cliff, why: pools.Cause) -> str:
    size = f"{cliff.tokens:,} tokens"
    if cliff.fails is None:
        return f"At least {count(cliff.fits, 'session')} of {size} stay; more were not tried."
    if cliff.fails != cliff.fits + 1:
        return f"At least {cliff.fits} and fewer than {count(cliff.fails, 'session')} of {size} stay."
    pool = {"snapshots": "the snapshot pool", "tokens": "the token pool"}.get(why.limit, "unknown")
    return (
        f"{count(cliff.fits, 'session')} of {size} stay and {cliff.fails} do not. The limit is {pool}: {why.because}."
    )


def _flags(why: pools.Cause, facts: Facts) -> tuple[str, ...]:
    match why.limit:
        case "snapshots":
            return advice.for_snapshots(facts)
        case "tokens":
            return advice.for_tokens(facts)
        case "unknown":
            return advice.for_slots(facts)
    return ()
