"""Does one long prompt push everybody else out? Some sessions, a long prompt, the sessions again. Pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from ramjet.engines import advice
from ramjet.engines.facts import Facts
from ramjet.probes import forks, pools
from ramjet.probes.prompts import Writer
from ramjet.probes.steps import (
    Ask,
    Finding,
    Plan,
    Step,
    TooLong,
    count,
    middle,
    of,
    returned,
    seconds,
    share,
    user,
)

SESSIONS, TOKENS, LONG_TOKENS = 6, 20_050, 308_000
"""The seed's; with 20,050 it saw 99.6 % reused."""

FIRST, CONTROL, LONG, AGAIN = "first", "control", "long", "again"

SPARE_TOKENS = 64
"""What an engine's longest request has to have beside the prompt: the answer, and what it keeps for itself."""
_MOST_ATTEMPTS = 8


def plan(
    writer: Writer,
    facts: Facts,
    *,
    sessions: int = SESSIONS,
    tokens: int = TOKENS,
    long_tokens: int = LONG_TOKENS,
) -> Plan:
    """The seed's experiment, and where a session is lost, a look at what the engine resumes at.

    Args:
        writer: of the prompts.
        facts: of the engine; a long prompt that it says it cannot take is not sent.
        sessions: how many.
        tokens: length of each.
        long_tokens: length of the prompt between.
    """
    texts = [writer.text("session 1", tokens)]
    yield _session(FIRST, "session 1", 1, texts[0], tokens)
    # What a session that was not pushed out looks like. It stays the oldest, and as much at risk as without this.
    control = yield _session(CONTROL, "session 1 at once again", 1, texts[0], tokens)
    if not control.cached_tokens:
        return
    for number in range(2, sessions + 1):
        texts.append(writer.text(f"session {number}", tokens))
        yield _session(FIRST, f"session {number}", number, texts[-1], tokens)
    yield from _long(writer, facts, long_tokens, least_tokens=2 * tokens)
    lost = False
    for number, text in enumerate(texts, 1):
        step = yield _session(AGAIN, f"session {number} again", number, text, tokens)
        lost = lost or returned(step, control) is False
    if lost:
        yield from forks.check(writer, "eviction", tokens)


def judge(steps: Sequence[Step], facts: Facts) -> Finding:
    """How many survived; and if not all did, which pool it was."""
    first, again, long = of(steps, FIRST), of(steps, AGAIN), of(steps, LONG)
    control = next(iter(of(steps, CONTROL)), None)
    sessions = len({step.session for step in first})
    measured = {"sessions": sessions, "survived": None, "long_tokens": long[0].prompt_tokens if long else None}
    if control is not None and not control.cached_tokens:
        return without_reuse(control, facts, measured)
    if control is None or not long or len(again) < sessions:
        return Finding(verdict="The experiment is not finished.", limit="unknown", measured=measured)
    kept = [returned(step, control) for step in again]
    if None in kept:
        verdict = "The engine did not always say how much it reused, so the survivors cannot be counted."
        return Finding(verdict=verdict, limit="unknown", flags=advice.to_report(facts), measured=measured)
    survived = sum(bool(each) for each in kept)
    measured["survived"] = survived
    told = _told(first, again, control, kept)
    shorter = ""
    if long[0].wanted_tokens is not None:
        shorter = f" The long prompt was to have {long[0].wanted_tokens:,} tokens; {long[0].tokens:,} is what the engine takes."
    sent = long[0].prompt_tokens or long[0].tokens
    if survived == sessions:
        verdict = f"All {sessions} sessions survived a prompt of {sent:,} tokens: {told}.{shorter}"
        return Finding(verdict=verdict, limit="none", measured=measured)
    needed = sum(step.prompt_tokens or step.tokens for step in (*first, long[0]))
    limited = forks.snapshot_limited(forks.seen(steps))
    why = pools.cause(needed, facts, snapshot_limited=limited)
    if why.limit == "unknown" and facts.pool_tokens is None and (limited or _stops_at_chunks(again, facts)):
        why = pools.Cause(
            "snapshots", "the engine resumes at snapshots only; how many tokens its pool holds it does not say"
        )
    what = f"{survived} of {sessions}" if survived else f"None of {sessions}"
    verdict = f"{what} sessions survived a prompt of {sent:,} tokens: {told}. {_blame(why)}{shorter}"
    return Finding(verdict=verdict, limit=why.limit, flags=_flags(why, steps, facts), measured=measured)


def without_reuse(control: Step, facts: Facts, measured: Mapping[str, object]) -> Finding:
    """The finding where a prompt that came twice in a row showed nothing reused."""
    if control.cached_tokens is None:
        flags = advice.to_report(facts)
        remedy = f": start it with {' or '.join(flags)}" if flags else ""
        verdict = f"The engine does not say how much of a prompt it reused, so nothing can be measured{remedy}."
        return Finding(verdict=verdict, limit="unknown", flags=flags, measured=measured)
    verdict = "Nothing was reused of a prompt that came twice in a row, so there is nothing to lose."
    return Finding(verdict=verdict, limit="unknown", flags=advice.to_reuse(facts), measured=measured)


def _session(role: str, name: str, number: int, text: str, tokens: int) -> Ask:
    return Ask(name=name, role=role, messages=user(text), tokens=tokens, session=number)


def _long(writer: Writer, facts: Facts, wanted: int, *, least_tokens: int) -> Generator[Ask, Step, None]:
    """Send the long prompt, shorter where the engine does not take it. Raises TooLong where it takes no long one."""
    length = wanted
    if facts.max_prompt_tokens is not None:
        length = min(length, facts.max_prompt_tokens - SPARE_TOKENS)
    for attempt in range(_MOST_ATTEMPTS):
        try:
            yield Ask(
                name="the long prompt",
                role=LONG,
                messages=user(writer.text(f"long {attempt}", length)),
                tokens=length,
                wanted_tokens=None if length == wanted else wanted,
            )
        except TooLong as refused:
            said = refused.most_tokens
            length = said - SPARE_TOKENS if said is not None and said - SPARE_TOKENS < length else int(0.8 * length)
            if length < least_tokens:
                raise
        else:
            return
    raise TooLong(f"the engine refuses prompts of {length:,} tokens too", None)


def _told(first: list[Step], again: list[Step], control: Step, kept: list[bool | None]) -> str:
    back = [step for step, here in zip(again, kept, strict=True) if here]
    gone = [step for step, here in zip(again, kept, strict=True) if not here]
    cold = middle(step.ttft_s for step in first)
    parts = []
    for group, how in ((back, "came back"), (gone, "came back cold,")):
        if group:
            ratio, waited = middle(step.cached_ratio for step in group), middle(step.ttft_s for step in group)
            parts.append(f"{count(len(group), 'session')} {how} in {seconds(waited)} with {share(ratio)} reused")
    parts.append(f"a first read took {seconds(cold)}, a repeat {seconds(control.ttft_s)}")
    return "; ".join(parts)


def _stops_at_chunks(again: list[Step], facts: Facts) -> bool:
    """Whether what is left of sessions ends where chunks do."""
    left = [step.cached_tokens for step in again if step.cached_tokens]
    return facts.chunk_tokens is not None and bool(left) and all(each % facts.chunk_tokens == 0 for each in left)


def _blame(why: pools.Cause) -> str:
    match why.limit:
        case "snapshots":
            return f"The snapshot pool ran out, not the token pool: {why.because}."
        case "tokens":
            return f"The token pool ran out: {why.because}."
    return f"Which pool ran out cannot be told: {why.because}."


def _flags(why: pools.Cause, steps: Sequence[Step], facts: Facts) -> tuple[str, ...]:
    match why.limit:
        case "snapshots":
            return advice.for_snapshots(facts, slots=_snapshots(steps, facts))
        case "tokens":
            return advice.for_tokens(facts)
    return advice.for_slots(facts)


def _snapshots(steps: Sequence[Step], facts: Facts) -> int | None:
    """How many snapshots all prompts make if their number is not capped: one for each chunk, and the tail's."""
    if facts.chunk_tokens is None:
        return None
    pools = facts.pools
    prompts = [step.prompt_tokens or step.tokens for step in of(steps, FIRST, LONG)]
    return sum(map(pools.snapshots_of, prompts)) + pools.held
