"""What the page and `ramjet top` show: the router's state as a handful of parts, each bounded, encoded when somebody looks.

Nothing is worked out while nobody watches. The parts come one after another, so that whoever asks for them can let the
loop go on in between: to look through what 64 replicas hold takes tens of milliseconds in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ramjet import __version__
from ramjet.core.cache import EngineCache
from ramjet.core.decisions import Decisions
from ramjet.core.fleet import Replica
from ramjet.core.record import Record, short
from ramjet.core.residents import residents
from ramjet.core.router import Router
from ramjet.core.series import Series
from ramjet.core.visit import Visit
from ramjet.core.working import waiting
from ramjet.engines.facts import Seen

MOST_RESIDENTS = 1_500
"""Conversations that are named, of all replicas together..."""
MOST_OF_A_REPLICA = 60
"""...and of one."""
MOST_HELD = 16
MOST_RUNS = 16_000
"""Runs that are looked through for one picture, some 2 us each; where there are more, replicas take turns."""
_FRESH_S = 5.0
"""What a replica holds is looked through again when that has changed, and after so long, for conversations move."""

Parts = Iterator[tuple[str, bytes]]


class Picture:
    """The parts, and what they are made from beside the router."""

    def __init__(self, router: Router, seen: Mapping[str, Seen] | None = None) -> None:
        """
        Args:
            router: whose state is shown.
            seen: what has been heard from the replicas' engines, by replica.
        """
        self._seen = {} if seen is None else seen
        self.decisions = Decisions()
        self.series = Series()
        self._router = router
        self._residents: dict[str, _Kept] = {}
        self._looked = 0
        self._rows: dict[int, tuple[int, bytes]] = {}

    def placed(self, visit: Visit, now: float) -> None:
        """A request has been booked at a replica."""
        self.decisions.placed(visit, now)

    def finished(self, record: Record, now: float) -> None:
        """A request has ended."""
        self.series.add(record, now)
        self.decisions.finished(record, now)

    def parts(self, now: float, started_at: float, status: str) -> Parts:
        """Every part by name, as JSON.

        Args:
            now: the time, of the same clock as all others in the parts.
            started_at: when the process began.
            status: its health in a word.
        """
        router = self._router
        yield "clock", _json(self._clock(now, started_at, status))
        yield "replicas", _json([self._replica(each, now) for each in router.fleet])
        yield "held", _json(self._held(now))
        yield "series", _json(self.series.rows(now))
        yield from self._engines()
        yield from self._decided()
        yield from self._resident(now)

    def decision(self, number: int) -> dict[str, Any]:
        """One of the last decisions with its working.

        Raises:
            ValueError: it is no longer kept.
        """
        try:
            return self.decisions[number].detail()
        except KeyError:
            raise ValueError(f"decision {number} is not among the last {len(self.decisions.newest_first)}") from None

    # -- inside -----------------------------------------------------------------------------------------------------

    def _clock(self, now: float, started_at: float, status: str) -> dict[str, Any]:
        router = self._router
        return {
            "now": round(now, 1),
            "uptime_s": round(now - started_at),
            "version": __version__,
            "status": status,
            "admission": router.policy.terms.mode,
            "living": router.conversations.living,
            "memory_bytes": router.memory_bytes,
            "most_memory_bytes": router.policy.memory_bytes,
        }

    def _replica(self, each: Replica, now: float) -> dict[str, Any]:
        router, belief = self._router, self._router.beliefs[each.name]
        cache, pools, others, seen = belief.cache, each.pools, each.others.at(now), self._seen.get(each.name)
        return {
            "name": each.name,
            "url": each.url,
            "rank": each.rank,
            "state": each.state.value,
            "draining": each.draining,
            "error": each.last_error,
            "in_flight": each.in_flight,
            "reading": len(each.queue),
            "queue_s": round(each.queue_at(now), 2),
            "conversations": router.conversations.living_at[each.name],
            "resident_tokens": cache.tokens,
            "used_tokens": cache.used_tokens,
            "believed_pool_tokens": cache.pool_tokens,
            "pool_tokens": pools.tokens,
            "configured_tokens": each.configured.tokens,
            "reported_tokens": each.reported.tokens,
            "used_slots": cache.used_slots if pools.slots is not None else None,
            "slots": pools.slots,
            "pace": round(belief.pace.factor, 2) if belief.pace.is_known else None,
            "models": sorted(each.models)[:8],
            "engine": None
            if seen is None or seen.facts is None
            else {
                "name": seen.facts.engine,
                "version": seen.facts.version,
                "running": seen.of("running"),
                "waiting": seen.of("waiting"),
                "heard_at": round(seen.loads_at, 1) if seen.loads else None,
            },
            "others": {"in_flight": others.requests, "queue_s": round(others.queue_s, 2)},
        }

    def _engines(self) -> Parts:
        """What each engine says of itself: parts of their own, for they hardly ever change."""
        for name, seen in self._seen.items():
            if seen.facts is not None:
                rows = [[fact, getattr(seen.facts, fact), source] for fact, source in seen.facts.sources.items()]
                told = {"rows": rows, "missing": seen.facts.missing, "heard_at": round(seen.facts_at, 1)}
                yield f"engine/{name}", _json(told)

    def _held(self, now: float) -> dict[str, Any]:
        router = self._router
        rows: list[dict[str, Any]] = []
        for visit, decision in router.held(now, MOST_HELD):
            rows.append(
                {
                    "request_id": visit.arrival.request_id,
                    "conversation": None if visit.turn is None else short(visit.turn.conversation.id),
                    "turn": visit.number,
                    "since": None if visit.held_since is None else round(visit.held_since, 1),
                    "prompt_tokens": visit.prompt_tokens,
                    "home": None if visit.turn is None else visit.turn.conversation.home,
                    "waiting": waiting(router, visit, decision, 4),
                }
            )
        return {"count": len(router.admission), "rows": rows, "max_hold_s": router.policy.terms.max_hold_s}

    def _decided(self) -> Parts:
        before, self._rows = self._rows, {}
        for entry in self.decisions.newest_first:
            kept = before.get(entry.number)
            if kept is None or kept[0] != entry.changes:
                kept = entry.changes, _json(entry.row())
            self._rows[entry.number] = kept
            yield f"decision/{entry.number}", kept[1]

    def _resident(self, now: float) -> Parts:
        """Who lives where; a replica whose turn has not come is shown as it was, or not yet."""
        fleet, room = self._router.fleet.replicas, MOST_RUNS
        for name in self._residents.keys() - fleet.keys():
            del self._residents[name]
        # Whoever was looked through longest ago is the first.
        for name in sorted(fleet, key=lambda name: self._residents[name].looked if name in self._residents else 0):
            belief = self._router.beliefs.get(name)
            if belief is None:
                continue  # it has been removed since
            kept = self._residents.get(name)
            stamp = belief.cache, belief.version, int(now / _FRESH_S)
            if room > 0 and (kept is None or kept.stamp != stamp):
                room -= belief.cache.nodes
                self._looked += 1
                kept = self._residents[name] = _Kept(stamp, self._looked, self._residing(name, belief.cache))
            if kept is not None:
                yield f"residents/{name}", kept.part

    def _residing(self, name: str, cache: EngineCache) -> bytes:
        most = max(4, min(MOST_OF_A_REPLICA, MOST_RESIDENTS // max(1, len(self._router.fleet))))
        found = residents(cache, most)
        # Short rows: id, tokens, turn, turns that run, when it was last seen, whether this replica is its home.
        largest = [
            [short(each.id), tokens, each.turn, each.running, round(each.seen_at, 1), each.home == name]
            for each, tokens in found.largest
        ]
        others = {"others": found.others, "others_tokens": found.others_tokens, "shared_tokens": found.shared_tokens}
        return _json({"largest": largest, **others})


class _Kept(NamedTuple):
    """A part, as it was when its replica was looked through."""

    stamp: tuple[object, int, int]
    looked: int
    part: bytes


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
