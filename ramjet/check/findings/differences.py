"""Replicas of one model that are not alike: which fact, which values, who has which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ramjet.check.findings.facts import NEARLY
from ramjet.check.findings.values import NAMES, NO_CAP, SIZES, Figure, Finding, Found, Ours, shown
from ramjet.engines import advice
from ramjet.engines.facts import Facts

_TOLD_ELSEWHERE = ("reports_cached",)
"""Whoever has its report off is told so by itself."""

_WHY = {
    "engine": "Prompts are rendered and cached in other ways, so that what one would reuse the other may not.",
    "version": "They may answer, cache and report differently.",
    "model": "A conversation that moves would go on with another model.",
    "pool_tokens": "Ramjet reckons with each size by itself; the smaller one loses conversations first.",
    "snapshot_slots": "Ramjet reckons with each number by itself; the smaller one loses conversations first.",
    "snapshots_per_path": "A long prompt costs the others on one replica what it does not cost on another.",
    "host_tier": "What is pushed out of one comes back from memory, what is pushed out of the other is read anew.",
    "max_prompt_tokens": "A conversation that grows is refused by one replica while another would take it.",
}


def differences(fleet: Sequence[Found], ours: Ours) -> Iterator[Finding]:
    """What replicas have in common, and where that ends."""
    del ours
    known = [seen for seen in fleet if seen.facts is not None]
    groups = alike(known)
    if len(groups) > 1:
        values = {", ".join(_models(group)) or "no names": [seen.name for seen in group] for group in groups}
        yield Finding(
            id="models_differ",
            severity="warning",
            replicas=tuple(seen.name for seen in known),
            text=f"The replicas do not serve the same models: {_told(values)}. A request goes to those that list its model, "
            "and to those that list none.",
            figures={"values": _figure(values)},
            remedy="if they are meant to be copies of one model, give them one name (SGLang and vLLM: --served-model-name)",
        )
    for group in groups:
        yield from _names(group)
        for fact in NAMES:
            # Where the pool is the limit, its size is what they differ in.
            follows = fact == "max_prompt_tokens" and all(map(_is_pool, group))
            if fact not in _TOLD_ELSEWHERE and not follows:
                yield from _differ(group, fact)


def alike(fleet: Sequence[Found]) -> list[list[Found]]:
    """Replicas of one model: those that share a name of one, be it through a third.

    Those that list none are of the only model that there is, or, where there are several, of one that nobody knows.
    """
    groups: list[list[Found]] = []
    silent = [seen for seen in fleet if not seen.models]
    for seen in fleet:
        if seen.models:
            mine = [group for group in groups if any(share(seen, each) for each in group)]
            groups = [group for group in groups if group not in mine]
            groups.append([*(each for group in mine for each in group), seen])
    if silent:
        groups = [groups[0] + silent] if len(groups) == 1 else [*groups, silent]
    order = [seen.name for seen in fleet]
    return [sorted(group, key=lambda seen: order.index(seen.name)) for group in groups]


def share(one: Found, other: Found) -> bool:
    """Whether one may get the other's requests."""
    return not one.models or not other.models or not set(one.models).isdisjoint(other.models)


def _models(group: Sequence[Found]) -> list[str]:
    return list(dict.fromkeys(name for seen in group for name in seen.models or ()))


def _names(group: Sequence[Found]) -> Iterator[Finding]:
    """Replicas that share one model and not all of them: adapters, mostly."""
    values: dict[str, list[str]] = {}
    for seen in group:
        if seen.models:
            values.setdefault(", ".join(sorted(seen.models)), []).append(seen.name)
    if len(values) > 1:
        yield Finding(
            id="models_differ",
            severity="warning",
            replicas=tuple(name for names in values.values() for name in names),
            text=f"The replicas list different models: {_told(values)}. A request for one that not all of them list goes to "
            "fewer replicas.",
            figures={"values": _figure(values)},
            remedy="load the same models and adapters everywhere, or leave it if that is meant",
        )


def _differ(group: Sequence[Found], fact: str) -> Iterator[Finding]:
    said = [(seen.name, seen.facts, _value(seen.facts, fact)) for seen in group if seen.facts is not None]
    values: dict[str, list[str]] = {}
    for name, _, value in said:
        if value is not None:
            values.setdefault(shown(value), []).append(name)
    if len(values) < 2:
        return
    numbers = [value for _, _, value in said if type(value) is int]
    nearly = fact in SIZES and max(numbers) - min(numbers) <= NEARLY * min(numbers)
    flags = list(dict.fromkeys(flag for _, facts, _ in said if (flag := advice.flag(facts.engine, fact))))
    yield Finding(
        id="replicas_differ",
        severity="note" if nearly else "warning",
        replicas=tuple(name for names in values.values() for name in names),
        text=f"The replicas are not alike: {NAMES[fact]} {_told(values)}."
        + (f" {_WHY[fact]}" if fact in _WHY and not nearly else ""),
        figures={"fact": fact, "values": {name: value for name, _, value in said if value is not None}},
        remedy=None if nearly else f"start them alike: {' or '.join(flags)}" if flags else "start them alike",
    )


def _is_pool(seen: Found) -> bool:
    """Whether the longest prompt is what the pool has room for."""
    told = None if seen.facts is None else seen.facts.max_prompt_tokens
    pool = seen.pools.tokens
    return told is not None and pool is not None and told >= (1 - NEARLY) * pool


def _value(facts: Facts, fact: str) -> int | str | bool | None:
    value: int | str | bool | None = getattr(facts, fact)
    if value is None and fact == "snapshots_per_path" and facts.snapshot_slots is not None:
        return NO_CAP
    return value


def _told(values: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} on {', '.join(names)}" for value, names in values.items())


def _figure(values: dict[str, list[str]]) -> Figure:
    return {value: list(names) for value, names in values.items()}
