"""Two long conversations and some ordinary ones through a load balancer: are the long ones kept apart? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramjet.engines import advice
from ramjet.engines.facts import Facts
from ramjet.probes.prompts import Writer
from ramjet.probes.steps import Ask, Finding, Limit, Message, Plan, Step, count, of, share

LONG_TOKENS, GROWTH_TOKENS, LONG = 290_000, 4_000, 2
ORDINARY_TOKENS, ORDINARY_GROWTH_TOKENS, ORDINARY = 20_000, 300, 6
TURNS = 4
"""The seed's conversations, and enough turns to see whether the second and the third are as the first."""

LONG_TURN, ORDINARY_TURN = "long", "ordinary"

_WARM_RATIO = 0.9
_ANSWER_TOKENS = 8


def plan(
    writer: Writer,
    *,
    long_tokens: int = LONG_TOKENS,
    growth_tokens: int = GROWTH_TOKENS,
    ordinary: int = ORDINARY,
    ordinary_tokens: int = ORDINARY_TOKENS,
    turns: int = TURNS,
) -> Plan:
    """All conversations turn by turn, the long ones with half of the ordinary ones between them.

    Each turn is what an agent sends: the conversation so far, the answer, and something new.

    Args:
        writer: of the prompts.
        long_tokens: the two long conversations' first prompts.
        growth_tokens: what a turn adds to them.
        ordinary: how many ordinary conversations.
        ordinary_tokens: their first prompts.
        turns: of each conversation.
    """
    half = -(-ordinary // 2)
    order = [
        (1, LONG_TURN),
        *((number, ORDINARY_TURN) for number in range(LONG + 1, LONG + half + 1)),
        (2, LONG_TURN),
        *((number, ORDINARY_TURN) for number in range(LONG + half + 1, LONG + ordinary + 1)),
    ]
    said: dict[int, list[Message]] = {number: [] for number, _ in order}
    length: dict[int, int] = dict.fromkeys(said, 0)
    for turn in range(1, turns + 1):
        for number, role in order:
            first, growth = (
                (long_tokens, growth_tokens) if role == LONG_TURN else (ordinary_tokens, ORDINARY_GROWTH_TOKENS)
            )
            new = first if turn == 1 else growth - _ANSWER_TOKENS
            said[number].append({"role": "user", "content": writer.text(f"conversation {number}, turn {turn}", new)})
            length[number] = first if turn == 1 else length[number] + growth
            step = yield Ask(
                name=f"{role} {_letter(number)}, turn {turn}",
                role=role,
                messages=tuple(said[number]),
                tokens=length[number],
                session=number,
                trial=turn,
            )
            said[number].append({"role": "assistant", "content": step.answer or "ok"})


def judge(steps: Sequence[Step], facts: Facts) -> Finding:
    """Who was where, who moved, and how much was cached after the first turns."""
    told = [_conversation(steps, number) for number in dict.fromkeys(step.session for step in steps)]
    long = [each for each in told if each["role"] == LONG_TURN]
    measured: dict[str, Any] = {
        "conversations": told,
        "apart": None,
        "moved": None,
        "long_cached_ratio": _cached_ratio(of(steps, LONG_TURN)),
        "ordinary_cached_ratio": _cached_ratio(of(steps, ORDINARY_TURN)),
    }
    if len(long) < LONG or any(each["turns"] < 2 for each in told):
        return Finding(verdict="The experiment is not finished.", limit="unknown", measured=measured)
    places = [set(each["replicas"]) for each in long]
    known = all(each["replicas"] and None not in each["replicas"] for each in told)
    if known:
        measured["apart"] = places[0].isdisjoint(places[1])
        measured["moved"] = sum(len(set(each["replicas"])) > 1 for each in told)
    ratio, ordinary = measured["long_cached_ratio"], measured["ordinary_cached_ratio"]
    after = (
        f"After the first turn {share(ratio)} of the long conversations' prompts were cached, and "
        f"{share(ordinary)} of the others'."
    )
    flags: tuple[str, ...] = ()
    if ratio is None:
        flags = advice.to_report(facts)
        verdict = f"{_where(long, measured)} The engines did not always say what was cached ({', '.join(flags)})."
        return Finding(verdict=verdict, limit="unknown", flags=flags, measured=measured)
    if ratio >= _WARM_RATIO:
        return Finding(verdict=f"{_where(long, measured)} {after}", limit="none", measured=measured)
    needed = sum(each["prompt_tokens"] for each in long)
    limit: Limit = "unknown"
    if measured["apart"] is False and not measured["moved"]:
        if facts.pool_tokens is not None and needed > facts.pool_tokens:
            limit = "tokens"
        pool = "" if facts.pool_tokens is None else f", whose token pool holds {facts.pool_tokens:,}"
        after += f" Together they need {needed:,} tokens of one replica{pool}."
        if len({name for each in told for name in each["replicas"]}) > 1:
            flags = ("RAMJET_ROUTING__SPREAD_LONG__ENABLED=true", "RAMJET_ROUTING__LONG_PROMPT__ENABLED=false")
        else:
            after += " No other replica was seen, so they had nowhere else to go."
    elif measured["moved"]:
        after += " A turn that goes to another replica is read anew there."
    elif known:
        after += " Nothing moved, so the replicas themselves lost it; the other probes say why."
    return Finding(verdict=f"{_where(long, measured)} {after}", limit=limit, flags=flags, measured=measured)


def _conversation(steps: Sequence[Step], number: int | None) -> dict[str, Any]:
    mine = [step for step in steps if step.session == number]
    return {
        "name": f"{mine[0].role} {_letter(number or 0)}",
        "role": mine[0].role,
        "turns": len(mine),
        "replicas": [step.replica for step in mine],
        "prompt_tokens": mine[-1].prompt_tokens or mine[-1].tokens,
        "cached_ratio": _cached_ratio(mine),
    }


def _cached_ratio(steps: Sequence[Step]) -> float | None:
    """The share of all prompts after the first turn that was cached, 0 to 1; None if that is not known of all."""
    later = [step for step in steps if (step.trial or 0) > 1]
    cached = [step.cached_tokens for step in later]
    prompt = [step.prompt_tokens for step in later]
    if not later or None in cached or None in prompt:
        return None
    return sum(each or 0 for each in cached) / max(1, sum(each or 0 for each in prompt))


def _where(long: list[dict[str, Any]], measured: dict[str, Any]) -> str:
    one, other = (sorted({str(name) for name in each["replicas"]}) for each in long[:2])
    if measured["apart"] is None:
        return "The answers have no x-ramjet-replica header, so who was where is not known; is this a Ramjet?"
    moved = measured["moved"]
    stayed = "no conversation moved" if not moved else f"{count(moved, 'conversation')} moved"
    if measured["apart"]:
        return f"The two long conversations were apart, on {' and '.join(one)} and on {' and '.join(other)}; {stayed}."
    return f"The two long conversations were together on {' and '.join(sorted({*one} & {*other}))}; {stayed}."


def _letter(number: int) -> str:
    return chr(ord("A") + (number - 1) % 26)
