"""The last decisions with their working, and what became of each request. Bounded, and no word of any prompt."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ramjet.core.record import Record, short
from ramjet.core.route import Decision
from ramjet.core.visit import Visit
from ramjet.core.working import MOST_REPLICAS, working

MOST = 100


class Entry(Struct):
    """One request that was placed at a replica, or was given up before."""

    number: int
    at: float
    request_id: str
    endpoint: str
    model: str | None
    conversation: str | None
    turn: int | None
    replica: str | None
    reason: str | None
    prompt_tokens: int
    matched_tokens: int | None
    held_s: float
    decision: Decision | None
    looked_at: int
    """Replicas that were ranked; of these the cheapest are kept."""
    record: Record | None = None
    tried_elsewhere: bool = False
    """Whether it failed there and was placed again."""
    changes: int = 0

    def row(self) -> dict[str, Any]:
        """What a list shows of it."""
        record = self.record
        usage = None if record is None else record.usage
        reported = None if usage is None else usage.prompt_tokens
        return {
            "number": self.number,
            "at": round(self.at, 1),
            "conversation": self.conversation,
            "turn": self.turn,
            "replica": self.replica,
            "reason": self.reason,
            "prompt_tokens": self.prompt_tokens if reported is None else reported,
            "matched_tokens": self.matched_tokens,
            "held_s": round(self.held_s, 2),
            "cached_tokens": None if usage is None else usage.cached_tokens,
            "ttft_s": None if record is None or record.ttft_s is None else round(record.ttft_s, 3),
            "cold_cause": None if record is None else record.cold_cause,
            "outcome": "tried_elsewhere" if self.tried_elsewhere else None if record is None else record.outcome,
        }

    def detail(self) -> dict[str, Any]:
        """All that is known of it."""
        record = self.record
        return {
            **self.row(),
            "request_id": self.request_id,
            "endpoint": self.endpoint,
            "model": self.model,
            "estimated_tokens": self.prompt_tokens,
            "working": None if self.decision is None else self._working(self.decision),
            "record": None if record is None else {**record.log_fields(), "temperature": record.temperature},
        }

    def _working(self, decision: Decision) -> dict[str, Any]:
        return {**working(decision), "not_shown": self.looked_at - len(decision.ranked)}


class Decisions:
    """The last of them, by number."""

    def __init__(self, most: int = MOST) -> None:
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._last: dict[str, Entry] = {}
        """The last entry of each request."""
        self._most = most
        self._number = 0

    def __getitem__(self, number: int) -> Entry:
        return self._entries[number]

    @property
    def newest_first(self) -> list[Entry]:
        """All of them."""
        return list(reversed(self._entries.values()))

    def placed(self, visit: Visit, now: float) -> None:
        """A request has been booked at a replica."""
        arrival, lease, decision = visit.arrival, visit.lease, visit.decision
        if lease is None or decision is None:
            return
        before = self._last.get(arrival.request_id)
        if before is not None and before.record is None and len(visit.tried) > 1:
            before.tried_elsewhere, before.changes = True, before.changes + 1
        self._add(
            Entry(
                number=self._next(),
                at=now,
                request_id=arrival.request_id,
                endpoint=arrival.endpoint,
                model=arrival.model,
                conversation=None if visit.turn is None else short(visit.turn.conversation.id),
                turn=visit.number,
                replica=lease.replica.name,
                reason=lease.reason,
                prompt_tokens=visit.prompt_tokens,
                matched_tokens=None if visit.usable is None else lease.scored.candidate.matched_tokens,
                held_s=visit.held_s,
                decision=decision
                if len(decision.ranked) <= MOST_REPLICAS
                else replace(decision, ranked=decision.ranked[:MOST_REPLICAS]),
                looked_at=len(decision.ranked),
            )
        )

    def finished(self, record: Record, now: float) -> None:
        """A request has ended; one that was never placed is remembered only if it waited, or nobody could serve it."""
        entry = self._last.get(record.request_id)
        if entry is not None and entry.record is None and record.replica is not None:
            entry.record, entry.changes = record, entry.changes + 1
            entry.held_s = record.held_s
        elif record.replica is None and (record.held_s or record.outcome == "no_replica"):
            self._add(
                Entry(
                    number=self._next(),
                    at=now,
                    request_id=record.request_id,
                    endpoint=record.endpoint,
                    model=record.model,
                    conversation=record.conversation,
                    turn=record.turn,
                    replica=None,
                    reason=None,
                    prompt_tokens=record.estimated_tokens,
                    matched_tokens=None,
                    held_s=record.held_s,
                    decision=None,
                    looked_at=0,
                    record=record,
                )
            )

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _add(self, entry: Entry) -> None:
        self._entries[entry.number] = self._last[entry.request_id] = entry
        if len(self._entries) > self._most:
            _, oldest = self._entries.popitem(last=False)
            if self._last.get(oldest.request_id) is oldest:
                del self._last[oldest.request_id]
