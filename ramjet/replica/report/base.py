"""What all engines' reports have in common. Only facts of the simulated engine go in, and only text and JSON come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramjet.sim.engine import Batch, Engine
from ramjet.sim.profile import Profile

SPEED = "simulated_speed"
"""The one key that no real engine has: how many of its seconds pass in one of ours."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    """Beside those that all lines of the page have."""


class Report(ABC):
    """The pages, metrics and log lines of an engine's rank; made anew when the engine starts anew."""

    stamp = ""
    """What its log lines begin with, as a format of `strftime`."""
    flush_paths: tuple[str, ...] = ()
    """Where it can be told to forget what it has cached."""
    health: Any = None
    """The body of `/health` when all is well; None for an empty one."""
    owner = ""
    """Who owns its models."""

    def __init__(self, profile: Profile, speed: float, rank: int = 0) -> None:
        self.profile = profile
        self.speed = speed
        self.rank = rank

    def models(self, created_at: int) -> dict[str, Any]:
        """`/v1/models`: the one that it serves; `created_at` is Unix time in seconds."""
        model = {
            "id": self.profile.model,
            "object": "model",
            "created": created_at,
            "owned_by": self.owner,
            "root": self.profile.model,
            "parent": None,
            "max_model_len": self.profile.most_tokens,
        }
        return {"object": "list", "data": [model]}

    @property
    @abstractmethod
    def pages(self) -> Mapping[str, Callable[[Engine], Any]]:
        """Its pages of JSON by path, beside those that all have."""

    def joined(self, pages: Sequence[Any]) -> Any:
        """One of those pages, from what each rank would say alone."""
        return pages[0]

    @abstractmethod
    def samples(self, engine: Engine) -> Iterable[Sample]:
        """Its metrics."""

    @property
    @abstractmethod
    def labels(self) -> tuple[tuple[str, str], ...]:
        """What all of its metrics are labelled with."""

    @abstractmethod
    def boot(self) -> Iterable[str]:
        """What it logs when it starts."""

    @abstractmethod
    def line(self, batch: Batch, engine: Engine) -> str | None:
        """What it logs of a batch; None for nothing."""

    @abstractmethod
    def too_long(self, prompt_tokens: int, answer_tokens: int) -> tuple[str, dict[str, Any]]:
        """How it refuses a request that can never fit: the message, and what else its error has."""


def metrics(ranks: Iterable[tuple[Report, Engine]]) -> str:
    """`/metrics`, as Prometheus reads it: all samples of a name together, those of each rank."""
    families: dict[str, list[str]] = {}
    for report, engine in ranks:
        for sample in (*report.samples(engine), Sample("ramjet_sim_speed", "gauge", report.speed)):
            lines = families.setdefault(sample.name, [f"# TYPE {sample.name} {sample.kind}"])
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in (*report.labels, *sample.labels))
            lines.append(f"{sample.name}{f'{{{labels}}}' if labels else ''} {sample.value}")
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
