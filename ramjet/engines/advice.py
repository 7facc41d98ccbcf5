"""Which of an engine's flags would change something, by what the engine says of itself."""

from __future__ import annotations

from ramjet.engines.facts import Facts

FEW_SNAPSHOTS = 2
"""Snapshots along a conversation that are enough for those that only grow: its tail, and the turn before (seed)."""

CAP = "--mamba-max-states-per-path"

_FLAGS = {
    "sglang": {
        "pool_tokens": "--max-total-tokens",
        "page_tokens": "--page-size",
        "chunk_tokens": "--chunked-prefill-size",
        "snapshot_slots": "--max-mamba-cache-size",
        "snapshots_per_path": CAP,
        "slots_per_request": "--mamba-radix-cache-strategy",
        "grid_tokens": "--mamba-radix-cache-strategy",
        "host_tier": "--enable-hierarchical-cache",
        "max_running": "--max-running-requests",
        "max_prompt_tokens": "--context-length",
        "reports_cached": "--enable-cache-report",
        "ranks": "--dp-size",
        "model": "--model-path",
    },
    "vllm": {
        "pool_tokens": "--gpu-memory-utilization",
        "page_tokens": "--block-size",
        "chunk_tokens": "--max-num-batched-tokens",
        "max_running": "--max-num-seqs",
        "max_prompt_tokens": "--max-model-len",
        "reports_cached": "--enable-prompt-tokens-details",
        "ranks": "--data-parallel-size",
        "model": "--model",
    },
    "llamacpp": {
        "chunk_tokens": "--ubatch-size",
        "max_running": "--parallel",
        "max_prompt_tokens": "--ctx-size",
        "model": "--model",
    },
}


def flag(engine: str, fact: str) -> str | None:
    """The flag that sets a fact, by its name in `Facts`; None where there is none, or it is not known."""
    return _FLAGS.get(engine, {}).get(fact)


def to_report(facts: Facts) -> tuple[str, ...]:
    """For an engine that does not say how much of a prompt it reused."""
    if facts.engine == "llamacpp":
        return ()
    own = flag(facts.engine, "reports_cached")
    return (own,) if own else ("--enable-cache-report", "--enable-prompt-tokens-details")


def to_reuse(facts: Facts) -> tuple[str, ...]:
    """For an engine that does not reuse even a prompt that comes twice in a row."""
    match facts.engine:
        case "vllm":
            return ("--enable-prefix-caching",)
        case "llamacpp":
            return ("--cache-prompt",)
    return ()


def for_metrics(facts: Facts) -> str | None:
    """For an engine that has no page for Prometheus; vLLM always has."""
    return {"sglang": "--enable-metrics", "llamacpp": "--metrics"}.get(facts.engine)


def for_snapshots(facts: Facts, *, slots: int | None = None) -> tuple[str, ...]:
    """For a snapshot pool that is too small.

    Args:
        facts: what is on already is not advised.
        slots: how many snapshots would have been needed, if it is known.
    """
    if facts.engine == "llamacpp":
        return ("--ctx-checkpoints", "--cache-ram")
    if facts.engine == "vllm":
        # Its states lie in the blocks of the token pool.
        return ("--gpu-memory-utilization",)
    flags = []
    if facts.snapshots_per_path is None or facts.snapshots_per_path > FEW_SNAPSHOTS:
        flags.append(f"{CAP} {FEW_SNAPSHOTS}")
    flags += _host(facts)
    if slots is None or (facts.snapshot_slots or 0) < slots:
        flags.append("--max-mamba-cache-size" if slots is None else f"--max-mamba-cache-size {slots}")
    return tuple(flags)


def for_tokens(facts: Facts) -> tuple[str, ...]:
    """For a token pool that is too small."""
    match facts.engine:
        case "vllm":
            return ("--gpu-memory-utilization", "--kv-cache-dtype fp8")
        case "llamacpp":
            return ("--ctx-size", "--cache-ram")
    return (*_host(facts), "--mem-fraction-static", "--kv-cache-dtype fp8_e4m3")


def for_slots(facts: Facts) -> tuple[str, ...]:
    """For an engine whose conversations each need a slot of their own."""
    return ("--parallel", "--cache-ram") if facts.engine == "llamacpp" else ()


def _host(facts: Facts) -> list[str]:
    return ["--hicache-size"] if facts.host_tier else ["--enable-hierarchical-cache", "--hicache-size"]
