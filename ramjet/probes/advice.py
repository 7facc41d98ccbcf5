"""Which of the engine's flags would change what a probe has found. Pure."""

from __future__ import annotations

from ramjet.probes.facts import Facts

FEW_STATES = 2
"""Snapshots along a conversation that are enough for those that only grow: its tail, and the turn before (seed)."""


def to_report(facts: Facts) -> tuple[str, ...]:
    """For an engine that does not say how much of a prompt it reused."""
    match facts.engine:
        case "sglang":
            return ("--enable-cache-report",)
        case "vllm":
            return ("--enable-prompt-tokens-details",)
        case "llama.cpp":
            return ()
    return ("--enable-cache-report", "--enable-prompt-tokens-details")


def to_reuse(facts: Facts) -> tuple[str, ...]:
    """For an engine that does not reuse even a prompt that comes twice in a row."""
    match facts.engine:
        case "vllm":
            return ("--enable-prefix-caching",)
        case "llama.cpp":
            return ("--cache-prompt",)
    return ()


def for_snapshots(facts: Facts, *, slots: int | None = None) -> tuple[str, ...]:
    """For a snapshot pool that is too small.

    Args:
        facts: what is on already is not advised.
        slots: how many snapshots would have been needed, if it is known.
    """
    if facts.engine == "llama.cpp":
        return ("--ctx-checkpoints", "--cache-ram")
    if facts.engine == "vllm":
        # Its states lie in the blocks of the token pool.
        return ("--gpu-memory-utilization",)
    flags = []
    if facts.states_per_path is None or not 0 < facts.states_per_path <= FEW_STATES:
        flags.append(f"--mamba-max-states-per-path {FEW_STATES}")
    flags += _host(facts)
    if slots is None or (facts.snapshot_slots or 0) < slots:
        flags.append("--max-mamba-cache-size" if slots is None else f"--max-mamba-cache-size {slots}")
    return tuple(flags)


def for_tokens(facts: Facts) -> tuple[str, ...]:
    """For a token pool that is too small."""
    match facts.engine:
        case "vllm":
            return ("--gpu-memory-utilization", "--kv-cache-dtype fp8")
        case "llama.cpp":
            return ("--ctx-size", "--cache-ram")
    return (*_host(facts), "--mem-fraction-static", "--kv-cache-dtype fp8_e4m3")


def for_slots(facts: Facts) -> tuple[str, ...]:
    """For an engine whose conversations each need a slot of their own."""
    return ("--parallel", "--cache-ram") if facts.engine == "llama.cpp" else ()


def _host(facts: Facts) -> list[str]:
    return ["--hicache-size"] if facts.host_tier else ["--enable-hierarchical-cache", "--hicache-size"]
