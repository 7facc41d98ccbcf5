"""SGLang 0.5.20's own words: `/server_info`, `/v1/loads`, `sglang:` metrics, log lines.

What can be evicted counts as free in its usage gauges, so a pool that thrashes reads almost empty: only
`mamba_available_tokens` shows it, which counts slots whatever it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramjet.core.cache import CacheSpec, EngineCache, Snapshots
from ramjet.replica.report.base import SPEED, Report, Sample
from ramjet.sim.engine import Batch, Engine

VERSION = "0.5.20"

DECODE_LOG_INTERVAL = 40
"""Steps of decoding for each line of the log."""

_GIB = 2**30
# The seed's replica, on each of its two GPUs: 34 linear-attention layers, each with 32 heads of 128 by 128 states and
# a convolution's window of 73,728 bytes; and a row of KV for each token, 11 layers of 528 + 132 bytes.
_SSM_BYTES = 34 * 32 * 128 * 128 * 2
_CONV_BYTES = 34 * 73_728
_KV_BYTES = 11 * (528 + 132)


@dataclass(frozen=True, slots=True)
class _Pools:
    """Both pools as its gauges divide them."""

    tokens: int
    available: int
    evictable: int
    slots: int = 0
    free_slots: int = 0
    cached_slots: int = 0

    @property
    def used(self) -> int:
        """Tokens that running requests keep."""
        return self.tokens - self.available - self.evictable

    @property
    def usage(self) -> float:
        return self.used / self.tokens

    @property
    def busy_slots(self) -> int:
        """Slots that running requests keep: what is cached does not count."""
        return self.slots - self.free_slots - self.cached_slots

    @property
    def slot_usage(self) -> float:
        return self.busy_slots / self.slots if self.slots else 0.0

    @property
    def most_usage(self) -> float:
        """The fuller one's: what it calls the token usage."""
        return round(max(self.usage, self.slot_usage), 2)


class SGLang(Report):
    """SGLang's."""

    stamp = "[%Y-%m-%d %H:%M:%S] "
    flush_paths = ("/flush_cache",)
    owner = "sglang"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.profile.ranks > 1:
            self.stamp = f"[%Y-%m-%d %H:%M:%S DP{self.rank}] "
        self._steps = 0
        self._hit_rate = 0.0
        self._tokens_per_s = 0.0

    @property
    def _spec(self) -> CacheSpec:
        assert isinstance(self.profile.cache, CacheSpec)
        return self.profile.cache

    @property
    def _states(self) -> Snapshots | None:
        return self._spec.snapshots

    @property
    def _pool_tokens(self) -> int:
        assert self._spec.pool_tokens is not None
        return self._spec.pool_tokens

    @property
    def pages(self) -> Mapping[str, Callable[[Engine], Any]]:
        """The old names of pages are still served."""
        info, model = self._server_info, self._model_info
        return {
            "/server_info": info,
            "/get_server_info": info,
            "/model_info": model,
            "/get_model_info": model,
            "/v1/loads": self._loads,
        }

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Of the first tensor-parallel rank; the others would say the same."""
        ranks = (("tp_rank", "0"), ("pp_rank", "0"), ("moe_ep_rank", "0"))
        data = (("dp_rank", str(self.rank)),) if self.profile.ranks > 1 else ()
        return (("model_name", self.profile.model), ("engine_type", "unified"), *ranks, *data)

    def joined(self, pages: Sequence[Any]) -> Any:
        """What a page has a list of, it has of every rank; of a size it names one rank's."""
        return {
            name: [each for page in pages for each in page[name]] if isinstance(value, list) else value
            for name, value in pages[0].items()
        }

    # -- pages ------------------------------------------------------------------------------------------------------

    def _server_info(self, _engine: Engine) -> dict[str, Any]:
        states, host, profile = self._states, self._spec.host, self.profile
        facts: dict[str, Any] = {
            "model_path": profile.model,
            "served_model_name": profile.model,
            "context_length": profile.most_tokens,
            "max_total_num_tokens": self._pool_tokens,
            "max_req_input_len": profile.most_tokens,
            "max_running_requests": profile.max_running,
            "chunked_prefill_size": self._spec.chunk_tokens,
            "page_size": self._spec.page_tokens,
            "uses_mamba_radix_cache": states is not None,
            # What it has derived itself, from memory and ratio, is in its log and not in here.
            "max_mamba_cache_size": states.slots if states is not None and profile.told_slots else None,
            "mamba_max_states_per_path": -1 if states is None or states.per_path is None else states.per_path,
            "mamba_radix_cache_strategy": "auto" if states is None else "extra_buffer",
            "mamba_track_interval": 256 if states is None else states.grid_tokens,
            "enable_hierarchical_cache": host is not None,
            "hicache_size": 0 if host is None else 4,
            "hicache_ratio": 2.0,
            "hicache_write_policy": "write_through" if host is None else host.policy,
            "enable_cache_report": profile.reports_cached,
            "enable_metrics": True,
            "decode_log_interval": DECODE_LOG_INTERVAL,
            "dp_size": profile.ranks,
            "tp_size": 2,
            "version": VERSION,
            "status": "ready",
            SPEED: self.speed,
        }
        state = {"last_gen_throughput": round(self._tokens_per_s, 2), "effective_max_running_requests_per_dp": None}
        return facts | {"internal_states": [state | {"memory_usage": {"token_capacity": self._pool_tokens}}]}

    def _model_info(self, _engine: Engine) -> dict[str, Any]:
        return {"model_path": self.profile.model, "tokenizer_path": self.profile.model, "is_generation": True}

    def _loads(self, engine: Engine) -> dict[str, Any]:
        pools = self._pools(engine)
        load = {
            "dp_rank": self.rank,
            "num_running_reqs": engine.running,
            "num_waiting_reqs": engine.waiting,
            "num_waiting_uncached_tokens": engine.waiting_tokens,
            "num_used_tokens": pools.used,
            "num_total_tokens": pools.used + engine.waiting_tokens,
            "max_total_num_tokens": pools.tokens,
            "token_usage": pools.most_usage,
            "gen_throughput": round(self._tokens_per_s, 2),
            "cache_hit_rate": round(self._hit_rate, 4),
            "utilization": round(engine.running / self.profile.max_running, 4),
            "max_running_requests": self.profile.max_running,
            "total_prefill_uncached_tokens": engine.prompt_tokens_total - engine.cached_tokens_total,
            "queues": {"waiting": engine.waiting, "grammar": 0, "paused": 0, "retracted": 0},
        }
        return {"version": VERSION, "dp_rank_count": self.profile.ranks, "loads": [load]}

    # -- metrics ----------------------------------------------------------------------------------------------------

    def samples(self, engine: Engine) -> Iterable[Sample]:
        """Counters appear when there is something to count."""
        pools = self._pools(engine)
        gauges: dict[str, float] = {
            "num_running_reqs": engine.running,
            "num_queue_reqs": engine.waiting,
            "num_used_tokens": pools.used,
            "token_usage": pools.most_usage,
            "full_token_usage": round(pools.usage, 4),
            "max_total_num_tokens": pools.tokens,
            "kv_available_tokens": pools.available,
            "kv_evictable_tokens": pools.evictable,
            "kv_used_tokens": pools.used,
            "gen_throughput": round(self._tokens_per_s, 2),
            "cache_hit_rate": round(self._hit_rate, 4),
        }
        if self._states is not None:
            gauges |= {
                "mamba_usage": round(pools.slot_usage, 4),
                "mamba_available_tokens": pools.free_slots,
                "mamba_evictable_tokens": pools.cached_slots,
                "mamba_used_tokens": pools.busy_slots,
            }
        if self._spec.host is not None and isinstance(engine.cache, EngineCache):
            gauges |= {
                "hicache_host_used_tokens": engine.cache.host_tokens,
                "hicache_host_total_tokens": self._spec.host.tokens,
            }
        yield from (Sample(f"sglang:{name}", "gauge", value) for name, value in gauges.items())
        device_tokens = engine.cached_tokens_total - engine.host_tokens_total
        for name, value, labels in (
            ("prompt_tokens_total", engine.prompt_tokens_total, ()),
            ("generation_tokens_total", engine.written_tokens_total, ()),
            ("cached_tokens_total", device_tokens, (("cache_source", "device"),)),
            ("cached_tokens_total", engine.host_tokens_total, (("cache_source", "host"),)),
            ("load_back_tokens_total", engine.host_tokens_total, ()),
            ("num_aborted_requests_total", engine.aborted_total, ()),
        ):
            if value:
                yield Sample(f"sglang:{name}", "counter", value, labels)

    def _pools(self, engine: Engine) -> _Pools:
        cache, states = engine.cache, self._states
        assert isinstance(cache, EngineCache)
        free, evictable = self._pool_tokens - cache.used_tokens, cache.tokens - cache.held_tokens
        if states is None or states.slots is None:
            return _Pools(self._pool_tokens, free, evictable)
        cached = len(cache.snapshots) - cache.locked_snapshots
        return _Pools(self._pool_tokens, free, evictable, states.slots, states.slots - cache.used_slots, cached)

    # -- the log ----------------------------------------------------------------------------------------------------

    def boot(self) -> Iterable[str]:
        """The pools and the limits."""
        states, profile = self._states, self.profile
        if states is not None and states.slots is not None:
            yield (
                f"Mamba Cache is allocated. max_mamba_cache_size: {states.slots}, "
                f"conv_state size: {states.slots * _CONV_BYTES / _GIB:.2f}GB, "
                f"ssm_state size: {states.slots * _SSM_BYTES / _GIB:.2f}GB"
            )
        size = self._pool_tokens * _KV_BYTES / _GIB
        yield f"KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: {self._pool_tokens}, KV size: {size:.2f} GB"
        yield (
            f"max_total_num_tokens={self._pool_tokens}, chunked_prefill_size={self._spec.chunk_tokens}, "
            f"max_prefill_tokens=16384, max_running_requests={profile.max_running}, context_len={profile.most_tokens}"
        )
        yield "The server is fired up and ready to roll!"

    def line(self, batch: Batch, engine: Engine) -> str | None:
        """Every batch of prefill, and every fortieth step of decoding."""
        pools, mamba = self._pools(engine), self._states is not None
        if batch.kind == "prefill":
            read = batch.new_tokens + batch.cached_tokens
            self._hit_rate = batch.cached_tokens / read if read else 0.0
            usage = f"full token usage: {pools.usage:.2f}, mamba usage: {pools.slot_usage:.2f}"
            return (
                f"Prefill batch. #new-seq: {batch.new_requests}, #new-token: {batch.new_tokens}, "
                f"#cached-token: {batch.cached_tokens}, {usage if mamba else f'token usage: {pools.usage:.2f}'}, "
                f"#running-req: {batch.running}, #queue-req: {batch.waiting}"
            )
        self._steps += 1
        self._tokens_per_s = batch.tokens_per_s
        if self._steps % DECODE_LOG_INTERVAL:
            return None
        usage = (
            f"#full token: {pools.used}, full token usage: {pools.usage:.2f}, "
            f"mamba num: {pools.busy_slots}, mamba usage: {pools.slot_usage:.2f}"
            if mamba
            else f"#token: {pools.used}, token usage: {pools.usage:.2f}"
        )
        return (
            f"Decode batch, #running-req: {batch.running}, {usage}, cuda graph: True, "
            f"gen throughput (token/s): {batch.tokens_per_s:.2f}, #queue-req: {batch.waiting}"
        )

    def too_long(self, prompt_tokens: int, answer_tokens: int) -> tuple[str, dict[str, Any]]:
        """As its tokenizer manager does."""
        most, total = self.profile.most_tokens, prompt_tokens + answer_tokens
        if prompt_tokens > most:
            return f"The input ({prompt_tokens} tokens) is longer than the model's context length ({most} tokens).", {}
        return (
            f"Requested token count exceeds the model's maximum context length of {most} tokens. You requested a total "
            f"of {total} tokens: {prompt_tokens} tokens from the input messages and {answer_tokens} tokens for the "
            "completion.",
            {},
        )
