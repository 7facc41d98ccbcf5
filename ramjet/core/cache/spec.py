"""The sizes and habits of an engine's cache, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """How an engine saves recurrent states; an attention-only model saves none.

    Sources: the seed for the sizes, SGLang 0.5.20's unified radix cache for the habits.
    """

    slots: int | None = 28
    """The snapshot pool; None where snapshots live in the token pool (vLLM) and take `tokens_each` of it."""
    tokens_each: int = 0
    """Room that one snapshot takes in the token pool."""
    grid_tokens: int = 256
    """A snapshot lies on a multiple of this, counted from where its forward began; 1 where only the state at a forward's
    very end is saved (SGLang's `no_buffer`)."""
    track_tokens: int | None = None
    """While an answer is written, its state is saved at multiples of this; None: of `grid_tokens`."""
    per_path: int | None = None
    """Most snapshots from a conversation's tail to its root (`--mamba-max-states-per-path`); None: no cap."""
    private: int = 3
    """Slots of a running request beside the snapshot it started from: the live state and two to write into. With that
    snapshot they are the seed's "about four"; the lazy strategy needs one less."""
    cap_first: bool = True
    """Whether the cap drops a snapshot before the new one's slot is taken. The other order may push out a stranger's
    snapshot that the cap would have spared: one slot decides between the seed's 6 of 6 and 5 of 6."""
    forks: bool = True
    """Whether a prompt that leaves another saves the state at the fork, instead of that forward's own snapshot; with a
    grid of 1 nobody does."""
    tail_with_kv: bool = True
    """Whether a leaf that loses its snapshot goes with its KV (SGLang). The token pool then looks emptier than where KV
    outlives its last snapshot."""
    chain_with_kv: bool = True
    """Whether what is then a leaf without a snapshot goes too (0.5.20), or keeps its KV (0.5.23)."""
    hands_over: bool = False
    """Whether a request that ends with its prompt, for it wants a single token, takes no slot for the snapshot that it
    leaves and hands over its own."""

    @property
    def answer_grid(self) -> int:
        """Where the states of answers lie."""
        return self.track_tokens or self.grid_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTier:
    """Copies in server memory. Both sizes are facts of the engine's log: how it divides the memory is its own affair."""

    tokens: int
    slots: int | None = None
    """Snapshots; None for a model without."""
    policy: Literal["write_through", "write_back"] = "write_through"
    """Copied when written, or when the device lets go."""
    usable: float = 1.0
    """The calibration knob: the share of both pools that copies get. What the seed measured beyond the device (11 of 14
    sessions, 5 of 16) follows from no eviction order that we tried; both lie between all and none, and this moves the
    step from one to the other (at 0.9, fourteen sessions are too many). Take it from what a replica reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """A replica's cache."""

    pool_tokens: int | None = 499_968
    """The token pool; None where it is not known (a belief about a real replica), and then it never fills."""
    page_tokens: int = 64
    """Reuse ends on a multiple of this, with or without snapshots."""
    chunk_tokens: int = 6_144
    """What one forward reads of prompts, at most."""
    reads_last: bool = True
    """Whether a prompt's last token is read even where all of it is there. A belief's blocks are too coarse to say so."""
    cut_is_use: bool = False
    """Whether what another prompt has behind the point where this one leaves it counts as used just now (SGLang)."""
    snapshots: Snapshots | None = None
    host: HostTier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """A replica that has no tree but a few sequences (llama.cpp)."""

    slots: int = 4
    """Sequences that it holds (`--parallel`)."""
    slot_tokens: int = 131_072
    """Longest sequence, prompt and answer together."""
    page_tokens: int = 1
    chunk_tokens: int = 2_048
    checkpoints: int | None = None
    """A recurrent model resumes only at one of so many states of its sequence (`--ctx-checkpoints`); None: anywhere."""
    checkpoint_tokens: int = 8_192
    """Least distance of two of them (`--checkpoint-min-step`)."""
    tail_tokens: int = 512
    """The last one lies so far before the prompt's end."""
    host_tokens: int = 0
    """Tokens of idle sequences that are kept in server memory (`--cache-ram`)."""
    least_alike: float = 0.1
    """A prompt takes over the sequence it is most like, if it shares at least this part of the prompt."""
