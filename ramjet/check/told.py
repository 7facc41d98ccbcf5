"""What is known of a replica, each with where it was read and how long ago. A function of what was seen, and of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from ramjet.check.findings.values import GIVEN, NAMES, Found

ALWAYS = ("engine", "version", "model", "pool_tokens", "snapshot_slots", "max_prompt_tokens", "reports_cached")
"""Those that are shown though nobody knows them: that is worth knowing."""

CONFIGURED = "configured"
TRIED = "tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One fact. None is unknown."""

    fact: str
    value: int | str | bool | None
    source: str | None
    """The page and the name that it has there, `configured`, or `tried`."""
    age_s: float | None
    """Since it was asked for; None of what is configured."""


def told(seen: Found, now: float) -> list[Told]:
    """All facts of a replica that was reached, in the order of `NAMES`.

    Args:
        seen: the replica.
        now: by the clock of its `read_at`.
    """
    return list(_told(seen, now))


def _told(seen: Found, now: float) -> Iterator[Told]:
    if seen.facts is None:
        return
    age_s = round(max(0.0, now - seen.read_at), 1)
    for fact in NAMES:
        given = getattr(seen.configured, GIVEN[fact]) if fact in GIVEN else None
        if given is not None:
            yield Told(fact=fact, value=given, source=CONFIGURED, age_s=None)
            continue
        value, source = getattr(seen.facts, fact), seen.facts.sources.get(fact)
        if fact == "reports_cached" and value is None:
            value, source = seen.reports_cached, TRIED
        yield Told(
            fact=fact, value=value, source=None if value is None else source, age_s=age_s if value is not None else None
        )


def as_json(seen: Found, now: float) -> Mapping[str, object]:
    """Everything of one replica, under names that are a contract."""
    facts = seen.facts
    return {
        "name": seen.name,
        "url": seen.url,
        "reached": seen.reached,
        "health": {name: getattr(seen.health, name) for name in ("path", "status", "error", "took_s")},
        "models": None if seen.models is None else list(seen.models),
        "started_at": None if facts is None else facts.started_at,
        "facts": {
            each.fact: {"value": each.value, "source": each.source, "age_s": each.age_s} for each in told(seen, now)
        },
        "running": _sum(seen, "running"),
        "waiting": _sum(seen, "waiting"),
        "health_tokens": seen.health_tokens,
        "reuse": None if seen.reuse is None else asdict(seen.reuse),
        "idle": None if seen.idle is None else asdict(seen.idle),
    }


def _sum(seen: Found, name: str) -> int | None:
    known = [value for each in seen.loads if (value := getattr(each, name)) is not None]
    return sum(known) if known else None
