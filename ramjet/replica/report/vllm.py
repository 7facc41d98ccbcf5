"""vLLM 0.32's own words: `/version`, `vllm:` metrics, log lines. Its states lie in blocks of the one pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ramjet.core.cache import CacheSpec, EngineCache
from ramjet.replica.report.base import SPEED, Report, Sample
from ramjet.sim.engine import Batch, Engine

VERSION = "0.32.0"

_LOG_S = 10.0
"""Between two lines of the log (`VLLM_LOG_STATS_INTERVAL`), in the engine's own time."""


class Vllm(Report):
    """vLLM's."""

    stamp = "INFO %m-%d %H:%M:%S "
    # With VLLM_SERVER_DEV_MODE=1.
    flush_paths = ("/reset_prefix_cache",)
    owner = "vllm"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._logged_at = 0.0
        self._logged = (0, 0)
        """Tokens read and written by then."""

    @property
    def _spec(self) -> CacheSpec:
        assert isinstance(self.profile.cache, CacheSpec)
        return self.profile.cache

    @property
    def _pool_tokens(self) -> int:
        assert self._spec.pool_tokens is not None
        return self._spec.pool_tokens

    @property
    def pages(self) -> Mapping[str, Callable[[Engine], Any]]:
        """It has no `/server_info`."""
        return {
            "/version": lambda _: {"version": VERSION, SPEED: self.speed},
            "/load": lambda engine: {"server_load": engine.running + engine.waiting},
        }

    def joined(self, pages: Sequence[Any]) -> Any:
        """Its load is that of all."""
        return {name: sum(page[name] for page in pages) if name == "server_load" else value
                for name, value in pages[0].items()}  # fmt: skip

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Of one engine core."""
        return (("engine", str(self.rank)), ("model_name", self.profile.model))

    def samples(self, engine: Engine) -> Iterable[Sample]:
        """`kv_cache_usage_perc` is a ratio, and of running requests only: 0 when idle, however full the cache is."""
        spec = self._spec
        config = {
            "block_size": spec.page_tokens,
            "num_gpu_blocks": self._pool_tokens // spec.page_tokens,
            "kv_cache_size_tokens": self._pool_tokens,
            "mamba_block_size": spec.page_tokens,
            "mamba_cache_mode": "none" if spec.snapshots is None else "align",
            "enable_prefix_caching": True,
        }
        labels = tuple((name, str(value)) for name, value in config.items())
        for name, kind, value in (
            ("num_requests_running", "gauge", engine.running),
            ("num_requests_waiting", "gauge", engine.waiting),
            ("kv_cache_usage_perc", "gauge", round(self._usage(engine), 6)),
            ("prefix_cache_queries_total", "counter", engine.prompt_tokens_total),
            ("prefix_cache_hits_total", "counter", engine.cached_tokens_total),
            ("prompt_tokens_total", "counter", engine.prompt_tokens_total),
            ("prompt_tokens_cached_total", "counter", engine.cached_tokens_total),
            ("generation_tokens_total", "counter", engine.written_tokens_total),
            ("num_preemptions_total", "counter", 0),
        ):
            yield Sample(f"vllm:{name}", kind, value)
        yield Sample("vllm:cache_config_info", "gauge", 1, labels)

    def _usage(self, engine: Engine) -> float:
        cache, states = engine.cache, self._spec.snapshots
        assert isinstance(cache, EngineCache)
        state_tokens = 0 if states is None else states.tokens_each * cache.busy_slots
        return (cache.held_tokens + cache.private_tokens + state_tokens) / self._pool_tokens

    def boot(self) -> Iterable[str]:
        """The pool."""
        most = self.profile.most_tokens
        yield f"GPU KV cache size: {self._pool_tokens:,} tokens"
        yield f"Maximum concurrency for {most:,} tokens per request: {self._pool_tokens / most:.2f}x"
        yield f"Chunked prefill is enabled with max_num_batched_tokens={self._spec.chunk_tokens}."

    def line(self, batch: Batch, engine: Engine) -> str | None:
        """Every ten seconds in which there is something to do."""
        seconds = batch.at - self._logged_at
        if seconds < _LOG_S:
            return None
        read, written = engine.prompt_tokens_total - engine.cached_tokens_total, engine.written_tokens_total
        before, self._logged, self._logged_at = self._logged, (read, written), batch.at
        asked = engine.prompt_tokens_total
        hits = engine.cached_tokens_total / asked if asked else 0.0
        return (
            f"Engine {self.rank:03}: Avg prompt throughput: {(read - before[0]) / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {(written - before[1]) / seconds:.1f} tokens/s, "
            f"Running: {engine.running} reqs, Waiting: {engine.waiting} reqs, "
            f"GPU KV cache usage: {self._usage(engine):.1%}, Prefix cache hit rate: {hits:.1%}"
        )

    def too_long(self, prompt_tokens: int, answer_tokens: int) -> tuple[str, dict[str, Any]]:
        """As its input processor does."""
        total = prompt_tokens + answer_tokens
        return (
            f"This model's maximum context length is {self.profile.most_tokens} tokens. However, you requested "
            f"{answer_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, for a total of {total} "
            "tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
            {},
        )
