"""Any other engine that speaks OpenAI's API: it lists its models, and that is all that is known of it."""

from __future__ import annotations

from ramjet.engines.facts import Engine, Facts, Pages
from ramjet.engines.reading import Told, facts_of, models

MODELS = "/v1/models"


def _facts(pages: Pages) -> Facts:
    listed = [Told(MODELS, each) for each in models(pages.get(MODELS))]
    found = {
        "model": [each.word("id") for each in listed],
        "max_prompt_tokens": [said for each in listed for said in (each.size("max_model_len"), each.size("context_length"))],
    }  # fmt: skip
    return facts_of("openai", ("model",), found)


OPENAI = Engine(
    name="openai",
    fact_paths=(MODELS,),
    load_paths=(),
    speaks=lambda _: True,
    facts=_facts,
    loads=lambda _: (),
)
