"""A decision in plain values, for whoever asks "why there?": seconds by term and replica, refusals, and what admission says.

Also the dry run: what would become of a request now, in the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ramjet.core.admission import Entry
from ramjet.core.conversations import Conversation
from ramjet.core.record import short
from ramjet.core.route import Candidate, Decision, Scored
from ramjet.core.router import Router
from ramjet.core.visit import Arrival, Visit

MOST_REPLICAS = 16
"""Of a large fleet, the cheapest so many are kept and shown."""


def working(decision: Decision, entry: Callable[[Candidate], Entry] | None = None) -> dict[str, Any]:
    """How a decision came about.

    Args:
        decision: which.
        entry: what it takes to enter a replica; None where nobody asks.
    """
    shown = decision.ranked[:MOST_REPLICAS]
    return {
        "replica": decision.chosen.candidate.replica,
        "reason": decision.reason,
        "rules": list(decision.rules),
        "refused": dict(decision.refused),
        "replicas": [_row(each, entry) for each in shown],
        "not_shown": len(decision.ranked) - len(shown),
        "not_looked_at": decision.not_looked_at,
        "elsewhere_s": decision.elsewhere_s,
    }


def explain(router: Router, arrival: Arrival, now: float) -> dict[str, Any]:
    """Where a request would go now, why, and whether it would be let in. Changes nothing.

    Args:
        router: whom to ask.
        arrival: the request, read as any other.
        now: the time.
    """
    visit = router.preview(arrival, now)
    decision = visit.decision
    return {
        "endpoint": arrival.endpoint,
        "model": arrival.model,
        "prompt_bytes": arrival.body_bytes,
        "prompt_tokens": visit.prompt_tokens,
        "conversation": _conversation(router, visit, now),
        "decision": None if decision is None else working(decision, router.admission.entry),
        "admission": None if decision is None else _admission(router, visit, decision),
    }


def waiting(router: Router, visit: Visit, decision: Decision | None, most: int) -> list[dict[str, Any]]:
    """What keeps a held request out of the cheapest replicas, by how they rank."""
    rows = []
    for scored in decision.ranked[:most] if decision is not None else ():
        entry = router.admission.entry(scored.candidate, visit)
        told = {"replica": scored.candidate.replica, "obstacle": entry.obstacle, "way": entry.way}
        seconds = {
            "harm_s": scored.candidate.harm_s,
            "free_upto_s": entry.free_upto_s,
            "allowance_s": entry.allowance_s,
        }
        rows.append({**told, **{name: round(value, 3) for name, value in seconds.items()}})
    return rows


def _row(scored: Scored, entry: Callable[[Candidate], Entry] | None) -> dict[str, Any]:
    candidate = scored.candidate
    row: dict[str, Any] = {
        "replica": candidate.replica,
        "total_s": round(scored.total_s, 4),
        "costs": {name: round(seconds, 4) for name, seconds in scored.costs.items()},
        "matched_tokens": candidate.matched_tokens,
        "own_tokens": candidate.own_tokens,
        "in_flight": candidate.in_flight,
        "living": candidate.living,
        "read_s": round(candidate.read_s, 4),
        "queue_s": round(candidate.queue_s, 4),
        "harm_s": round(candidate.harm_s, 4),
        "pool_tokens": candidate.pool_tokens,
    }
    if entry is not None:
        told = entry(candidate)
        row["entry"] = {
            "way": told.way,
            "obstacle": told.obstacle,
            "free_upto_s": round(told.free_upto_s, 3),
            "allowance_s": round(told.allowance_s, 3),
        }
    return row


def _conversation(router: Router, visit: Visit, now: float) -> dict[str, Any] | None:
    """Whose turn it is; None where no prompt could be read."""
    turn = visit.turn
    if turn is None:
        return None
    conversation = turn.conversation
    is_known = turn.before.depth > 0
    return {
        "id": short(conversation.id),
        "known": is_known,
        "turn": visit.number,
        "home": conversation.home,
        "idle_s": round(now - conversation.seen_at, 1) if is_known else None,
        "running": conversation.running if is_known else 0,
        "branch": not is_known and turn.before.turn > 0,
        "reusable_tokens": turn.blocks.tokens(turn.known_depth),
        "shared_tokens": visit.shared_tokens,
        "parent": _parent(turn.owner_before, conversation, is_known=is_known),
        "living": router.conversations.living,
    }


def _parent(owner: object, conversation: Conversation, *, is_known: bool) -> str | None:
    """The conversation that a new one has its beginning from."""
    if is_known or not isinstance(owner, Conversation) or owner is conversation:
        return None
    return short(owner.id)


def _admission(router: Router, visit: Visit, decision: Decision) -> dict[str, Any]:
    """What admission would say: `free`, `paid` or `held`, where, and why not at once."""
    admission, mode = router.admission, router.policy.terms.mode
    cheapest = decision.chosen.candidate.replica
    if mode == "off" or visit.turn is None:
        why = "routing.admission.mode is off" if mode == "off" else "no prompt could be read"
        return {"mode": mode, "way": "free", "replica": cheapest, "why": why}
    conversation = visit.turn.conversation
    home = conversation.home if router.policy.affinity and conversation.home in router.fleet.replicas else None
    free = admission.choose(decision.ranked, home)
    if free is not None:
        # Who only watches changes no decision.
        where = free.candidate.replica if mode == "enforce" else cheapest
        return {"mode": mode, "way": "free", "replica": where, "why": None}
    entries = [(each.candidate, admission.entry(each.candidate)) for each in decision.ranked]
    # It is held for a moment at least: who pays is let in at the next look, a second later at most.
    paid = next((candidate for candidate, entry in entries if entry.way == "paid"), None)
    if paid is not None:
        why = f"pushes out {paid.harm_s:.1f} s of others' reading, which the allowance pays for"
        return {"mode": mode, "way": "paid", "replica": paid.replica, "why": why}
    obstacles = {entry.obstacle or "warm_home_is_full" for _, entry in entries}
    return {"mode": mode, "way": "held", "replica": None, "why": ", ".join(sorted(obstacles))}
