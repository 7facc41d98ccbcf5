"""llama-server's pages, as its documentation has them: `/props`, `/slots`, and `/metrics` where it was started with those.

It has no tree but slots, each of which holds one sequence. Neither the length of all slots nor their number says how many
tokens are cached, for a slot holds one conversation however short, and they may share one cache: the pool stays unknown,
and is learned from what is lost.
"""

from __future__ import annotations

from ramjet.engines.facts import Engine, Facts, Loads, Pages
from ramjet.engines.reading import (
    Said,
    Told,
    document,
    exports,
    facts_of,
    loads_of,
    mapping,
    mappings,
    models,
    owners,
    samples,
)

PROPS, SLOTS, MODELS, METRICS = "/props", "/slots", "/v1/models", "/metrics"
_PUBLISHED = ("version", "model", "max_running", "max_prompt_tokens")
_GAUGES = {
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:prompt_tokens_total": "counted",
}


def _speaks(pages: Pages) -> bool:
    return (
        "llamacpp" in owners(pages.get(MODELS))
        or "total_slots" in mapping(document(pages.get(PROPS)))
        or exports(pages.get(METRICS), "llamacpp:")
    )


def _facts(pages: Pages) -> Facts:
    props = Told(PROPS, mapping(document(pages.get(PROPS))))
    settings = Told(f"{PROPS} default_generation_settings", mapping(props.fields.get("default_generation_settings")))
    slots = mappings(document(pages.get(SLOTS)))
    found = {
        "version": [props.word("build_info")],
        "model": [
            props.word("model_alias"),
            props.word("model_path"),
            *(Told(MODELS, each).word("id") for each in models(pages.get(MODELS))),
        ],
        "has_snapshots": [Said(False if props.fields or slots else None, PROPS)],
        "max_running": [props.size("total_slots"), Said(len(slots) or None, SLOTS)],
        "max_prompt_tokens": [settings.size("n_ctx"), *(Told(SLOTS, each).size("n_ctx") for each in slots)],
    }
    return facts_of("llamacpp", _PUBLISHED, found)


def _loads(pages: Pages) -> tuple[Loads, ...]:
    values = {field: each.value for name, field in _GAUGES.items() for each in samples(pages.get(METRICS), name)}
    busy = [each["is_processing"] for each in mappings(document(pages.get(SLOTS))) if "is_processing" in each]
    if busy:
        values.setdefault("running", sum(each is True for each in busy))
    return loads_of({0: values} if values else {})


LLAMACPP = Engine(
    name="llamacpp",
    fact_paths=(PROPS, MODELS, SLOTS, METRICS),
    load_paths=(METRICS, SLOTS),
    speaks=_speaks,
    facts=_facts,
    loads=_loads,
    work="llamacpp:prompt_tokens_total",
)
