"""What the ways in need of the configuration; a reload puts another one in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits, switches and keys. Times in seconds, sizes in bytes."""

    body_bytes: int = 64 << 20
    header_bytes: int = 64 << 10
    in_flight: int = 2_048
    """Requests under way at once, beyond which new ones are shed."""
    held_bytes: int = 1 << 30
    """Request bodies held at once, in all."""
    body_gap_s: float = 30.0
    first_byte_s: float = 1_800.0
    gap_s: float = 300.0
    comment_every_s: float | None = None
    """Between comments in the streams of those who are held; None for no comments."""
    allow_engine_admin: bool = False
    ask_usage: frozenset[str] = frozenset()
    """Replicas that may be asked for usage on streams, by the names of the configuration."""
    client_keys: frozenset[str] = frozenset()
    """Keys of which a client must show one; empty for none, and then what clients show is passed on."""
    replica_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that replicas ask for, by the same; they take the place of the client's."""
    hints: bool = True
    """Whether what clients say of whose a prompt is counts."""
    hint_header: str | None = None
    """The header that is asked first."""
    seed: int = 0
    """Of all hashes: 64 bits of the deployment's secret."""
