"""What a simulated replica says about itself: the parts in use of SGLang's `/server_info` and the like."""

from __future__ import annotations

from typing import Any

from ramjet.demo.engine import Engine, Profile
from ramjet.demo.tokens import BLOCK_TOKENS

VERSION = "0.0.0+ramjet.demo"


def server_info(profile: Profile) -> dict[str, Any]:
    """The facts that do not change while it runs."""
    return {
        "version": VERSION,
        "status": "ready",
        "served_model_name": profile.model,
        "max_total_num_tokens": profile.pool_tokens,
        "max_req_input_len": profile.pool_tokens,
        "page_size": BLOCK_TOKENS,
        "enable_cache_report": profile.report_cache,
    }


def models(profile: Profile, created_at: int) -> dict[str, Any]:
    """The one model it serves; `created_at` is Unix time in seconds."""
    model = {
        "id": profile.model,
        "object": "model",
        "created": created_at,
        "owned_by": "ramjet",
        "root": profile.model,
        "max_model_len": profile.pool_tokens,
    }
    return {"object": "list", "data": [model]}


def metrics(engine: Engine) -> str:
    """Prometheus text. As SGLang's, `token_usage` leaves out what could be evicted: a full pool may read 0."""
    profile = engine.profile
    samples = (
        ("num_running_reqs", "gauge", "", engine.running),
        ("num_queue_reqs", "gauge", "", engine.waiting),
        ("token_usage", "gauge", "", engine.held_tokens / profile.pool_tokens),
        ("max_total_num_tokens", "gauge", "", profile.pool_tokens),
        ("prompt_tokens_total", "counter", "", engine.prompt_tokens_total),
        ("cached_tokens_total", "counter", ',cache_source="device"', engine.cached_tokens_total),
    )
    model = profile.model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(
        f'# TYPE sglang:{name} {kind}\nsglang:{name}{{model_name="{model}"{labels}}} {value}\n'
        for name, kind, labels, value in samples
    )
