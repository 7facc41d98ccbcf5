"""What was measured on the wire: connections that the engine closes first, a health page that makes it work."""

from __future__ import annotations

from collections.abc import Iterator

from ramjet.check.findings.values import Finding, Found, Ours, busy

RACE_S = 0.5
"""An engine that closes less than this after we would have is as bad as one that closes before: a request is on its way
meanwhile, and clocks are coarse."""

_STEP_S = 1.0

_KEEP_ALIVE = {
    "sglang": "SGLANG_TIMEOUT_KEEP_ALIVE in the engine's environment",
    "vllm": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE in the engine's environment",
    "llamacpp": None,
}


def connections(seen: Found, ours: Ours) -> Iterator[Finding]:
    """What is wrong with how long it keeps a connection, and what a probe costs it."""
    idle, engine = seen.idle, "" if seen.facts is None else seen.facts.engine
    if idle is not None and idle.closed_after_s == 0:
        yield Finding(
            id="idle_short",
            severity="warning",
            text="It closes every connection with its answer: each request has to make a new one.",
            figures={"closed_after_s": 0.0, "idle_s": ours.idle_s},
            remedy="let the engine, or what stands before it, keep connections open",
        )
    elif idle is not None and idle.closed_after_s is not None and idle.closed_after_s < ours.idle_s + RACE_S:
        less = idle.closed_after_s - RACE_S
        lower = f"set limits.idle_s to {less:.1f}" if less >= RACE_S else "set limits.idle_s to less than that"
        raised = _KEEP_ALIVE.get(engine)
        yield Finding(
            id="idle_short",
            severity="warning",
            text=f"It closes an unused connection after {idle.closed_after_s:.1f} s, and Ramjet keeps one for "
            f"{ours.idle_s:g} s: a request that meets the closing has to be sent again.",
            figures={"closed_after_s": round(idle.closed_after_s, 2), "idle_s": ours.idle_s},
            remedy=lower if raised is None else f"{lower}, or raise {raised}",
        )
    if seen.health_tokens or _looks_like_work(seen, engine):
        yield _generates(seen, ours, engine)


def _looks_like_work(seen: Found, engine: str) -> bool:
    """Whether SGLang's page has taken its second, where no counter says it: it waits for the token in steps of so long."""
    took_s, listed_s = seen.health.took_s, seen.listing.took_s
    if engine != "sglang" or seen.health_tokens is not None or busy(seen.loads) or took_s is None or listed_s is None:
        return False
    return seen.health.good and took_s >= _STEP_S and listed_s < _STEP_S / 2


def _generates(seen: Found, ours: Ours, engine: str) -> Finding:
    remedy = "set health.path to a page that makes it read nothing"
    if engine == "sglang":
        remedy = (
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 in the engine's environment, with health.path /health; or leave it: "
            "such a page also finds an engine that listens and has stopped working"
        )
    if seen.health_tokens:
        each = "" if seen.health.took_s is None else f", and took {seen.health.took_s:.1f} s"
        why = f"{seen.health_tokens:,} tokens in {seen.health_asked} probes of an idle engine{each}"
    else:
        why = f"it took {seen.health.took_s:.1f} s when idle, as SGLang's does that waits for a token"
    return Finding(
        id="health_generates",
        severity="note",
        text=f"Its health page {ours.health_path} makes the model work: {why}. Ramjet asks every {ours.health_interval_s:g} s.",
        figures={
            "path": ours.health_path,
            "tokens": seen.health_tokens,
            "probes": seen.health_asked,
            "took_s": None if seen.health.took_s is None else round(seen.health.took_s, 3),
        },
        remedy=remedy,
    )
