"""What happened to one request: the only definition of cold, of its cause, and of the size classes.

Every reader (log, metrics, journal, page) is fed with the same Record and adds no judgement of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from ramjet.core.causes import Clues
from ramjet.core.usage import Usage

SIZE_CLASSES = ("<8k", "8k-150k", ">=150k")
TEMPERATURES = ("first", "warm", "partial", "cold", "unknown")
OUTCOMES = (
    "ok",
    "client_disconnect",
    "client_stall",
    "upstream_connect",
    "upstream_reset",
    "upstream_stall",
    "timeout_first_byte",
    "stream_error_event",
    "http_4xx",
    "http_5xx",
    "refused",
    "shed",
    "no_replica",
    "shutdown",
    "internal_error",
)
"""How a request can end. `refused` and `shed` are Ramjet's own 4xx, `no_replica` its 503, `shutdown` what outlasted the drain."""

EVIDENCE = ("expected_tokens", "reported_tokens", "diverged_at_tokens", "pushed_out_by")
"""What is logged of how a turn's cause was told."""

WARM_RATIO = 0.9
COLD_RATIO = 0.5


def size_class(prompt_tokens: int) -> str:
    """The seed's classes: ordinary prompts begin at 8,000 tokens, long ones at 150,000."""
    return SIZE_CLASSES[(prompt_tokens >= 8_000) + (prompt_tokens >= 150_000)]


def temperature(turn: int | None, cached_tokens: int | None, reusable_tokens: int | None) -> str:
    """One of `TEMPERATURES`: how much of what could have been reused was."""
    if turn is None:
        return "unknown"
    if turn == 1:
        return "first"
    if cached_tokens is None or not reusable_tokens:
        return "unknown"
    ratio = cached_tokens / reusable_tokens
    return "warm" if ratio >= WARM_RATIO else "partial" if ratio >= COLD_RATIO else "cold"


def short(conversation: int) -> str:
    """A conversation's id as it is logged."""
    return f"{conversation:016x}"[:12]


class Record(Struct, frozen=True, kw_only=True):
    """One finished request. Times are in seconds; None is unknown."""

    request_id: str
    endpoint: str
    conversation: str | None = None
    """A short hash; None where no prompt could be read."""
    turn: int | None = None
    model: str | None = None
    stream: bool = False
    replica: str | None = None
    reason: str | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    """The chosen replica's costs by name."""
    prompt_bytes: int = 0
    """Length of the request's body."""
    estimated_tokens: int = 0
    """What the prompt was taken for before the engine said it."""
    matched_tokens: int | None = None
    """What was believed to be reusable at the chosen replica."""
    best_matched_tokens: int | None = None
    """The most of it that any replica that could serve it was believed to hold then. A turn that goes home, because even
    an ideal replica would be no cheaper, has its home's: no other was looked at."""
    reusable_tokens: int | None = None
    """The longest prefix the prompt shares with any earlier turn, volatile lines not counted as a difference."""
    usage: Usage = Usage()
    """As the engine reported it; what was cached of a prompt that was sent in slices is what was there before them."""
    slices: int = 0
    """Starts of the prompt that were read before it."""
    moved: bool = False
    """Whether the conversation's last turn went to another replica."""
    clues: Clues | None = None
    """What was known when it was placed; None where nothing of it could have been reused."""
    confined_tokens: int = 0
    """Tokens of other living long conversations that the long_prompt rule keeps on the same replica, where they do not
    fit beside this one: both will be read anew on every turn."""
    held_s: float = 0.0
    """How long it waited in Ramjet for room."""
    would_hold: bool = False
    """Whether it would have, had admission been enforced."""
    ttft_s: float | None = None
    """From the request's arrival to the first generated token; None where the answer was not a stream."""
    duration_s: float = 0.0
    attempts: int = 0
    outcome: str = "ok"
    status: int | None = None
    """What the client was answered; None when it left before that."""
    probe: bool = False

    @property
    def size_class(self) -> str:
        """By the engine's count where it gave one."""
        tokens = self.usage.prompt_tokens
        return size_class(self.estimated_tokens if tokens is None else tokens)

    @property
    def temperature(self) -> str:
        """One of `TEMPERATURES`: how much of what could have been reused was."""
        return temperature(self.turn, self.usage.cached_tokens, self.reusable_tokens)

    @property
    def cold(self) -> bool | None:
        """Whether a later turn reused less than half of what it could have; None when that is not known."""
        temperature = self.temperature
        return None if temperature == "unknown" else temperature == "cold"

    @property
    def cold_cause(self) -> str | None:
        """What made a cold turn cold, one of `causes.CAUSES`; None for a turn that was not."""
        if self.temperature != "cold":
            return None
        return "unknown" if self.clues is None else self.clues.cause(self.usage.cached_tokens or 0)

    @property
    def cold_evidence(self) -> dict[str, object] | None:
        """What the cause was told from; None for a turn that was not cold."""
        cause, clues = self.cold_cause, self.clues
        if cause is None:
            return None
        by = None if clues is None else clues.pushed_out_by(cause)
        expected, diverged_at = (None, None) if clues is None else (clues.expected_tokens, clues.diverged_at_tokens)
        values = expected, self.usage.cached_tokens, diverged_at, None if by is None else short(by)
        return dict(zip(EVIDENCE, values, strict=True))

    def log_fields(self) -> dict[str, object]:
        """The request's log line; these names are a contract."""
        cold, usage = self.cold, self.usage
        return {
            "request_id": self.request_id,
            "conversation": self.conversation,
            "turn": self.turn,
            "endpoint": self.endpoint,
            "model": self.model,
            "stream": self.stream,
            "replica": self.replica,
            "reason": self.reason,
            "costs": {name: round(seconds, 3) if seconds else 0.0 for name, seconds in self.costs.items()},
            "prompt_bytes": self.prompt_bytes,
            "prompt_tokens": usage.prompt_tokens,
            "matched_tokens": self.matched_tokens,
            "best_matched_tokens": self.best_matched_tokens,
            "cached_tokens": usage.cached_tokens,
            "cold": cold,
            "cold_cause": self.cold_cause if cold else None,
            "cold_evidence": self.cold_evidence if cold else None,
            "slices": self.slices,
            "held_s": round(self.held_s, 4) if self.held_s else 0.0,
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 4),
            "duration_s": round(self.duration_s, 4),
            "completion_tokens": usage.completion_tokens,
            "attempts": self.attempts,
            "outcome": self.outcome,
            "status": self.status,
            "probe": self.probe,
        }
