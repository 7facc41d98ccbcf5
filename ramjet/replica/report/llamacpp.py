"""llama-server's own words: `/props`, `/slots`, `llamacpp:` metrics, log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ramjet.core.cache import SlotCache, SlotSpec
from ramjet.replica.report.base import SPEED, Report, Sample
from ramjet.sim.engine import Batch, Engine


class LlamaCpp(Report):
    """llama.cpp's."""

    health: Any = {"status": "ok"}  # noqa: RUF012 - never changed
    owner = "llamacpp"

    @property
    def _spec(self) -> SlotSpec:
        assert isinstance(self.profile.cache, SlotSpec)
        return self.profile.cache

    @property
    def pages(self) -> Mapping[str, Callable[[Engine], Any]]:
        """Its properties and its slots."""
        return {"/props": self._props, "/slots": self._slots}

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """None: it serves one model."""
        return ()

    def _props(self, _engine: Engine) -> dict[str, Any]:
        return {
            "default_generation_settings": {"n_ctx": self._spec.slot_tokens},
            "total_slots": self._spec.slots,
            "model_path": f"{self.profile.model}.gguf",
            "chat_template": "",
            "build_info": "b0-simulated",
            SPEED: self.speed,
        }

    def _slots(self, engine: Engine) -> list[dict[str, Any]]:
        assert isinstance(engine.cache, SlotCache)
        return [
            {
                "id": number,
                "n_ctx": self._spec.slot_tokens,
                "speculative": False,
                "is_processing": each.seat is not None,
            }
            for number, each in enumerate(engine.cache.sequences)
        ]

    def samples(self, engine: Engine) -> Iterable[Sample]:
        """It has no gauge of what its slots hold."""
        for name, kind, value in (
            ("requests_processing", "gauge", engine.running),
            ("requests_deferred", "gauge", engine.waiting),
            ("prompt_tokens_total", "counter", engine.prompt_tokens_total - engine.cached_tokens_total),
            ("prompt_tokens_cached_total", "counter", engine.cached_tokens_total),
            ("tokens_predicted_total", "counter", engine.written_tokens_total),
            ("n_busy_slots_per_decode", "gauge", engine.running),
        ):
            yield Sample(f"llamacpp:{name}", kind, value)

    def boot(self) -> Iterable[str]:
        """The slots."""
        yield f"srv    load_model: initializing slots, n_slots = {self._spec.slots}"
        for number in range(self._spec.slots):
            yield f"slot   load_model: id {number:2d} | task -1 | new slot, n_ctx = {self._spec.slot_tokens}"
        yield "main: server is listening"

    def line(self, batch: Batch, engine: Engine) -> str | None:  # noqa: ARG002 - a batch says it all
        """What is read; of answers it says nothing."""
        if batch.kind == "decode":
            return None
        return f"slot update_slots: prompt processing progress, batch.n_tokens = {batch.new_tokens}"

    def too_long(self, prompt_tokens: int, answer_tokens: int) -> tuple[str, dict[str, Any]]:  # noqa: ARG002 - it does not say
        """As its server does."""
        most = self._spec.slot_tokens
        more = {"type": "exceed_context_size_error", "n_prompt_tokens": prompt_tokens, "n_ctx": most}
        return f"the request exceeds the available context size ({most} tokens), try increasing it", more
