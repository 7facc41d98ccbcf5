"""The replicas: facts, health with hysteresis, drain, and the ledger of what is in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How many probes in a row it takes to believe a change; one bad probe is noise, and so is one good one."""

    failures: int = 3
    successes: int = 2


@dataclass(slots=True, eq=False)
class Replica:
    """One model copy behind one URL."""

    name: str
    url: str
    """Where it is, without a trailing slash; a base path is kept."""
    pool_tokens: int | None = None
    """Its token pool; None when unknown."""
    models: frozenset[str] = frozenset()
    """Names of the models it lists; empty when it has not said."""

    up: bool = True
    """Believed until shown otherwise, so that a proxy just started serves at once."""
    draining: bool = False
    failures: int = 0
    successes: int = 0
    last_error: str | None = None

    in_flight: int = 0
    queue_s: float = 0.0
    """Seconds of reading sent there and not finished."""

    def probed(self, *, error: str | None, refused: bool = False, thresholds: Thresholds = Thresholds()) -> bool:
        """Take in one probe, or one request that failed to connect; True when `up` changed.

        Args:
            error: what went wrong; None for a good probe.
            refused: nobody listens there. That is no noise: it counts at once.
            thresholds: how many in a row it takes.
        """
        was = self.up
        self.last_error = error
        if error is None:
            self.failures, self.successes = 0, self.successes + 1
            self.up = self.up or self.successes >= thresholds.successes
        else:
            self.failures, self.successes = self.failures + 1, 0
            self.up = self.up and not refused and self.failures < thresholds.failures
        return self.up != was


@dataclass(slots=True)
class Fleet:
    """The replicas by name, in the order of the config."""

    replicas: dict[str, Replica] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def __len__(self) -> int:
        return len(self.replicas)

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    def add(self, replica: Replica) -> None:
        """Take a replica in."""
        if replica.name in self.replicas:
            raise ValueError(f"replica {replica.name} is named twice")
        self.replicas[replica.name] = replica

    @property
    def up(self) -> list[Replica]:
        """Those that may take requests."""
        return [replica for replica in self if replica.up and not replica.draining]

    @property
    def status(self) -> str:
        """`ok` when all can serve, `degraded` when some can, `down` when none can."""
        serving = len(self.up)
        return "down" if not serving else "ok" if serving == len(self) else "degraded"
