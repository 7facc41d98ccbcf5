"""What a replica leaves unsaid, and what the configuration says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from ramjet.check.findings.values import GIVEN, NAMES, NO_CAP, SIZES, Finding, Found, Ours, shown
from ramjet.engines import advice

NEARLY = 0.05
"""Sizes that differ by less are the same: two engines on like machines do not find the same room to the byte."""

FEW_PAGES = 8
"""A prompt of fewer tells nothing: what a hybrid model keeps of it lies in blocks of hundreds of tokens, and not in each."""

_SLOTTED = ("sglang", "openai")
"""Engines whose snapshots, if there are any, have a pool of their own."""

_WHAT = {
    "pool_tokens": "how many tokens its pool holds",
    "snapshot_slots": "how many snapshots it holds",
    "chunk_tokens": "how much one forward reads, which is where snapshots lie",
    "max_prompt_tokens": "how long a prompt it takes",
    "reports_cached": "whether it reports what it reused",
    "has_snapshots": "whether its model is a hybrid one, which needs snapshots",
}
_KEYS = {"grid_tokens": "snapshot_grid_tokens"}
"""Keys of the configuration, where they are not the facts' own names."""

_IN_ITS_LOG = {
    "pool_tokens": "its log has max_total_num_tokens",
    "snapshot_slots": "its log has max_mamba_cache_size, and with --enable-metrics it says so itself",
}


def facts(seen: Found, ours: Ours) -> Iterator[Finding]:
    """What is said, and what is not."""
    del ours
    if seen.facts is None:
        return
    yield from _cache(seen)
    yield from _cache_report(seen)
    yield from _metrics(seen)
    yield from _unknown(seen)
    yield from _contradictions(seen)


def _cache(seen: Found) -> Iterator[Finding]:
    assert seen.facts is not None
    if seen.facts.caches is False:
        yield Finding(
            id="cache_off",
            severity="warning",
            text=f"It keeps no prompts ({seen.facts.sources.get('caches', 'by its own word')}): every turn is read from its "
            "beginning, wherever it goes.",
            remedy="start it without --disable-radix-cache"
            if seen.facts.engine == "sglang"
            else f"start it with {' or '.join(advice.to_reuse(seen.facts))}",
        )


def _cache_report(seen: Found) -> Iterator[Finding]:
    assert seen.facts is not None
    flags = advice.to_report(seen.facts)
    reuse = seen.reuse
    if seen.reports_cached is False:
        yield Finding(
            id="cache_report_off",
            severity="warning",
            text="It does not report how much of a prompt it reused: what Ramjet believes that it holds is never "
            "corrected, and cold turns cannot be counted.",
            remedy=f"start it with {' or '.join(flags)}"
            if flags
            else "find the engine's option for cached_tokens in usage",
        )
    elif seen.reports_cached is None:
        why = f", and trying it failed: {reuse.error}" if reuse is not None and reuse.error is not None else ""
        yield Finding(
            id="cache_report_unknown",
            severity="note",
            text=f"It does not say whether it reports how much of a prompt it reused{why}.",
            figures={"error": None if reuse is None else reuse.error},
            remedy=f"see that it was started with {' or '.join(flags)}, or tell Ramjet with replicas.reports_cached"
            if flags
            else "tell Ramjet with replicas.reports_cached",
        )
    elif (
        reuse is not None
        and reuse.cached_tokens == 0
        and reuse.prompt_tokens >= FEW_PAGES * (seen.facts.page_tokens or 1)
    ):
        yield Finding(
            id="nothing_reused",
            severity="warning",
            text=f"A prompt of {reuse.prompt_tokens:,} tokens that was sent twice in a row was read twice: it reuses nothing, "
            "and no routing can change that.",
            figures={"prompt_tokens": reuse.prompt_tokens, "cached_tokens": 0},
            remedy=f"start it with {' or '.join(flags)}"
            if (flags := advice.to_reuse(seen.facts))
            else "see that its prefix cache is on",
        )


def _metrics(seen: Found) -> Iterator[Finding]:
    assert seen.facts is not None
    if seen.metrics:
        return
    flag = advice.for_metrics(seen.facts)
    if flag is None and not seen.loads:
        # Nobody knows whether it has any.
        return
    blind = not seen.loads
    yield Finding(
        id="metrics_off",
        severity="warning" if blind else "note",
        text="It does not answer /metrics: "
        + (
            "what it runs and what waits there cannot be seen."
            if blind
            else "what it runs is known from elsewhere, but not how full its pools are, and nothing for Prometheus."
        ),
        remedy=f"start it with {flag}" if flag else None,
    )


def unknown(seen: Found) -> tuple[str, ...]:
    """The facts that nobody has said and that matter for this replica."""
    facts = seen.facts
    if facts is None:
        return ()
    pools = seen.pools
    slotted = facts.engine in _SLOTTED and facts.has_snapshots is not False
    missing = {
        # llama.cpp's slots are no pool of tokens: it is not asked for what it does not have.
        "pool_tokens": pools.tokens is None and facts.engine != "llamacpp",
        "has_snapshots": facts.has_snapshots is None and pools.slots is None and facts.engine in _SLOTTED,
        "snapshot_slots": pools.slots is None and slotted and facts.has_snapshots is True,
        "chunk_tokens": pools.chunk_tokens is None and (pools.slots is not None or facts.has_snapshots is True),
        "max_prompt_tokens": facts.max_prompt_tokens is None,
    }
    return tuple(name for name, is_missing in missing.items() if is_missing)


def _unknown(seen: Found) -> Iterator[Finding]:
    names = unknown(seen)
    if not names or seen.facts is None:
        return
    keys = [f"replicas.{name}" for name in names if name in GIVEN]
    ways = [f"tell Ramjet with {_and(keys)}"] if keys else []
    if "has_snapshots" in names:
        ways.append("if it is, tell Ramjet with replicas.snapshot_slots")
    if seen.facts.engine == "sglang":
        ways += [_IN_ITS_LOG[name] for name in names if name in _IN_ITS_LOG]
    yield Finding(
        id="facts_unknown",
        severity="warning" if {"pool_tokens", "snapshot_slots"} & set(names) else "note",
        text=f"It does not say {_and([_WHAT[name] for name in names])}."
        + (" Until something is lost, Ramjet takes its pool to be endless." if "pool_tokens" in names else "")
        + (" A lost snapshot will look like lost tokens." if "snapshot_slots" in names else ""),
        figures={"facts": list(names), "keys": keys},
        remedy="; ".join(ways) or None,
    )


def _contradictions(seen: Found) -> Iterator[Finding]:
    assert seen.facts is not None
    for fact, name in GIVEN.items():
        configured, said = getattr(seen.configured, name), getattr(seen.facts, fact)
        denied = _denied(seen, fact) if said is None else None
        if configured is None or (said is None and denied is None):
            continue
        if configured == said or (fact in SIZES and said and abs(configured - said) <= NEARLY * said):
            continue
        own = denied or f"{shown(said)} ({seen.facts.sources.get(fact, 'asked')})"
        yield Finding(
            id="configured_otherwise",
            severity="warning",
            text=f"{NAMES[fact].capitalize()}: {shown(configured)} by the configuration, and by the replica's own word {own}. "
            "Ramjet believes the configuration.",
            figures={"fact": fact, "configured": configured, "reported": said},
            remedy=f"take replicas.{_KEYS.get(fact, fact)} out of the configuration, or correct it",
        )


def _denied(seen: Found, name: str) -> str | None:
    """What a replica says by not naming a number: that it has no such thing."""
    assert seen.facts is not None
    if name == "snapshot_slots" and seen.facts.has_snapshots is False:
        return "none: its model has no pool of snapshots"
    if name == "snapshots_per_path" and seen.facts.snapshot_slots is not None:
        return NO_CAP
    return None


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
