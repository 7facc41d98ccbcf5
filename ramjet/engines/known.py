"""The engines that are known, and which of them it is that answers."""

from __future__ import annotations

from ramjet.engines.facts import Engine, Pages
from ramjet.engines.llamacpp import LLAMACPP
from ramjet.engines.openai import OPENAI
from ramjet.engines.sglang import SGLANG
from ramjet.engines.vllm import VLLM

ENGINES = {each.name: each for each in (SGLANG, VLLM, LLAMACPP, OPENAI)}
"""By name; the last is any other."""

PATHS = tuple(dict.fromkeys(path for each in ENGINES.values() for path in each.fact_paths))
"""Every page that any of them has, for one of which nothing is known."""


def detect(pages: Pages) -> Engine:
    """The engine that these pages are of; `openai` where nothing speaks for another."""
    return next(each for each in ENGINES.values() if each.speaks(pages))
