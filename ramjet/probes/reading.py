"""What only probes read: the longest prompt by a refusal, tokens that came from the host, and whether it is simulated. Pure."""

from __future__ import annotations

import re

from ramjet.engines.reading import samples


def most_tokens(message: str, asked_tokens: int) -> int | None:
    """The longest prompt that an engine takes, from its refusal of one that was too long; None where it did not say.

    SGLang: `longer than the model's context length (65536 tokens)`, `exceeds the maximum allowed length (65530 tokens)`;
    vLLM: `maximum context length is 16384 tokens`; llama.cpp: `exceeds the available context size (8192 tokens)`.
    """
    found = re.findall(
        r"(?:context (?:length|size|window)|maximum|longest|limit|at most|pool|fits|n_ctx)\b[^0-9]{0,40}?([0-9][0-9,]*)",
        message,
        flags=re.IGNORECASE,
    )
    fitting = [number for text in found if 0 < (number := int(text.replace(",", ""))) < asked_tokens]
    return max(fitting, default=None)


def host_tokens(metrics: str | None) -> int | None:
    """Tokens reused from the host's memory since SGLang started; None where it counts none by where they came from."""
    found = [each for each in samples(metrics, "sglang:cached_tokens_total") if each.labels.get("tp_rank", "0") == "0"]
    by_source = [each for each in found if "cache_source" in each.labels]
    # A counter appears with its first use.
    return int(sum(each.value for each in by_source if each.labels["cache_source"] == "host")) if by_source else None


def simulated_speed(metrics: str | None) -> float | None:
    """Of a simulated replica: how many of its seconds pass in one of ours."""
    return next((each.value for each in samples(metrics, "ramjet_sim_speed")), None)
