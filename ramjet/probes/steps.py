"""What a probe asks for, what came back, and what it found. Values only."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, TypeVar

Limit = Literal["snapshots", "tokens", "none", "unknown"]
"""Which of the engine's pools a probe ran into; `none` where it ran into neither."""

Message = dict[str, str]

RETURNED = 0.9
"""A session has come back if so much of what it reuses when it is sent twice in a row was reused: the design's `warm`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request that a plan wants sent."""

    name: str
    """For people."""
    role: str
    """For the judge: what this request is in the experiment."""
    messages: Sequence[Message]
    tokens: int
    """How long the prompt is meant to be."""
    wanted_tokens: int | None = None
    """How long it was to be before the engine refused that; None where it did not."""
    shared_tokens: int | None = None
    """The most that it can share with what was sent before it; None where that is all of it, or of no interest."""
    session: int | None = None
    """Which conversation this is, counted from 1."""
    trial: int | None = None
    """Which attempt at a number of sessions it belongs to."""
    sessions: int | None = None
    """How many sessions that attempt has."""
    see_tiers: bool = False
    """Ask the engine's metrics what of it came from the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request and what the engine said of it. None is unknown, 0 is none."""

    name: str
    role: str
    tokens: int
    """Asked for; `prompt_tokens` is what the engine counted."""
    prompt_tokens: int | None
    cached_tokens: int | None
    ttft_s: float | None
    wanted_tokens: int | None = None
    shared_tokens: int | None = None
    session: int | None = None
    trial: int | None = None
    sessions: int | None = None
    host_tokens: int | None = None
    """The part of `cached_tokens` that came from the host."""
    most_tokens: int | None = None
    """For a prompt that was refused for its length: the longest that the engine says it takes."""
    replica: str | None = None
    """Where a load balancer sent it."""
    answer: str = ""

    @property
    def cached_ratio(self) -> float | None:
        """The share of the prompt that was reused, 0 to 1."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    def facts(self) -> dict[str, Any]:
        """As JSON; what is of no interest for this probe is left out, what is unknown is null."""
        always = ("name", "role", "prompt_tokens", "cached_tokens", "ttft_s")
        optional = ("wanted_tokens", "shared_tokens", "session", "trial", "sessions", "host_tokens",
                    "most_tokens", "replica")  # fmt: skip
        told = {name: getattr(self, name) for name in always}
        told |= {name: value for name in optional if (value := getattr(self, name)) is not None}
        if self.ttft_s is not None:
            told["ttft_s"] = round(self.ttft_s, 4)
        return told


T = TypeVar("T")

Plan = Generator[Ask, Step, None]
"""Yields what to send, is sent what came of it. `TooLong` is thrown into it, and means that the prompt was not read."""

REFUSED = "refused"
"""The role of a step whose prompt was too long for the engine, whatever part it was to play."""


class TooLong(Exception):
    """The engine refuses a prompt for its length."""

    def __init__(self, message: str, most_tokens: int | None) -> None:
        super().__init__(message)
        self.most_tokens = most_tokens
        """The longest it takes, if it said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a probe found."""

    verdict: str
    """In words."""
    limit: Limit
    flags: tuple[str, ...] = ()
    """The engine's flags to try, the most promising first."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """The probe's own figures, as they stand in its JSON."""


def kept(done: list[Step], part: Generator[Ask, Step, T]) -> Generator[Ask, Step, T]:
    """Run a part of a plan, and remember what came of its requests."""
    try:
        ask = next(part)
        while True:
            try:
                step = yield ask
            except TooLong as refused:
                ask = part.throw(refused)
            else:
                done.append(step)
                ask = part.send(step)
    except StopIteration as ended:
        result: T = ended.value
        return result


def of(steps: Iterable[Step], *roles: str) -> list[Step]:
    """The steps that play one of these parts, in their order."""
    return [step for step in steps if step.role in roles]


def returned(step: Step, reference: Step) -> bool | None:
    """Whether a session came back, as far as it ever does: see `RETURNED`. None where counts are unknown."""
    if step.cached_tokens is None or not reference.cached_tokens:
        return None
    return step.cached_tokens >= RETURNED * reference.cached_tokens


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def seconds(value: float | None) -> str:
    """A time for people, with as many digits as it deserves."""
    if value is None:
        return "an unknown time"
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.0f} ms"


def share(value: float | None) -> str:
    """A ratio for people."""
    return "an unknown share" if value is None else f"{value:.1%}"


def user(text: str) -> list[Message]:
    """A prompt of one message."""
    return [{"role": "user", "content": text}]


def count(number: int, thing: str) -> str:
    """`1 session`, `6 sessions`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
