"""A replica as a look would have found it: SGLang as the seed ran it, with nothing wrong, and whatever a test makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ramjet.check.findings import find
from ramjet.check.findings.values import Finding, Found, Idle, Ours
from ramjet.engines.facts import Answer, Facts, Loads

FACTS = Facts(
    ranks=1,
    engine="sglang",
    version="0.5.20",
    model="/models/glm-5.3-flash",
    pool_tokens=499_968,
    page_tokens=64,
    chunk_tokens=6_144,
    has_snapshots=True,
    snapshot_slots=28,
    snapshots_per_path=2,
    slots_per_request=3,
    grid_tokens=256,
    host_tier=False,
    max_running=4,
    max_prompt_tokens=200_000,
    reports_cached=True,
    caches=True,
    sources={"pool_tokens": "/server_info max_total_num_tokens"},
)
HEALTH = Answer(path="/health", status=200, took_s=0.01)
LISTING = Answer(path="/v1/models", status=200, took_s=0.01)
OURS = Ours()


def seen(name: str = "a", *, facts: dict[str, Any] | None = None, **told: Any) -> Found:
    """A replica with nothing wrong, but for what is told."""
    plain: dict[str, Any] = {
        "name": name,
        "url": f"http://{name}:30000",
        "health": HEALTH,
        "listing": LISTING,
        "models": ("glm",),
        "facts": replace(FACTS, **facts or {}),
        "loads": (Loads(running=0, waiting=0),),
        "health_tokens": 0,
        "health_asked": 2,
        "idle": Idle(waited_s=6.0),
    }
    return Found(**plain | told)


def unreached(name: str, error: str) -> Found:
    """A replica that gives no answer."""
    health, listing = (Answer(path=path, error=error) for path in ("/health", "/v1/models"))
    return Found(name=name, url=f"http://{name}:30000", health=health, listing=listing)


def pair(*, facts: dict[str, Any] | None = None, **told: Any) -> list[Found]:
    """Two replicas, the second of which is as told."""
    return [seen("a"), seen("b", facts=facts, **told)]


def found(fleet: list[Found], name: str, ours: Ours = OURS) -> list[Finding]:
    """The findings of this name."""
    return [finding for finding in find(fleet, ours) if finding.id == name]


def only(fleet: list[Found], name: str, ours: Ours = OURS) -> Finding:
    """The one finding of this name."""
    (finding,) = found(fleet, name, ours)
    return finding
