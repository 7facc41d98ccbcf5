"""Prompts that leave another one partway: the way to see from outside that an engine resumes at snapshots only.

With attention alone, the first prompt that leaves at some token finds all there is before it, and a second one finds no
more. An engine that needs a saved state resumes at the last one before the fork, and saves one there: the second prompt
finds more than the first. Pure.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramjet.probes.prompts import Writer
from ramjet.probes.steps import Ask, Step, of, user

TRUNK, FORK, REFORK = "trunk", "fork", "refork"
"""Roles: the prompt that is left, and the first and the second that leave it at one place."""

TAIL_TOKENS = 1_024
"""What follows behind a fork in a check: enough for the engine to save a state at the fork."""

_NOISE_TOKENS = 4
"""Two texts that differ from one character on may share a token more or less."""
_FACTORS = (3, 5)
"""Forks of a check lie right before these times a power of two, so right before the end of most chunks that engines are
given, 6,144 and 8,192 and 5,120: the snapshot before is then far away. Right behind a chunk's end an engine with
snapshots would look like one without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """What the first and the second prompt found that left another at one place."""

    at_tokens: int
    """At most."""
    first_tokens: int
    second_tokens: int

    @property
    def saved(self) -> bool:
        """Whether the second found what the first had left there."""
        return self.second_tokens > self.first_tokens + _NOISE_TOKENS


def check(writer: Writer, label: str, tokens: int) -> Generator[Ask, Step, None]:
    """Send a prompt, and pairs that leave it, until one pair has shown a snapshot; at most five requests."""
    text = writer.text(label, tokens)
    yield Ask(name="a fresh prompt", role=TRUNK, messages=user(text), tokens=tokens)
    for at_tokens in places(tokens):
        pair = yield from leave(writer, text, label, at_tokens)
        if pair is None or pair.saved:
            return


def places(tokens: int) -> tuple[int, ...]:
    """Where a prompt of so many tokens is left in a check; the deeper one first, for a state that is saved at a fork
    serves all that leave behind it."""
    found: list[int] = []
    for factor in _FACTORS:
        most = found[-1] if found else 3 * tokens // 4
        at = factor
        while 2 * at <= most:
            at *= 2
        found.append(at - 1)
    return tuple(found)


def leave(
    writer: Writer, trunk: str, label: str, at_tokens: int, tokens: int | None = None
) -> Generator[Ask, Step, Fork | None]:
    """Two prompts that leave the trunk at one place; None if the engine did not say what they found.

    Args:
        writer: of the prompts.
        trunk: the text that is left.
        label: names the texts.
        at_tokens: where, template included.
        tokens: how long the two are.
    """
    length = tokens or at_tokens + TAIL_TOKENS
    found = []
    for role, name in ((FORK, "first"), (REFORK, "second")):
        text = writer.branch(trunk, at_tokens, f"{label}, {name} at {at_tokens}", length)
        step = yield Ask(
            name=f"{name} branch at {at_tokens:,}",
            role=role,
            messages=user(text),
            tokens=length,
            shared_tokens=at_tokens,
        )
        if step.cached_tokens is None:
            return None
        found.append(step.cached_tokens)
    return Fork(at_tokens=at_tokens, first_tokens=found[0], second_tokens=found[1])


def seen(steps: Sequence[Step]) -> list[Fork]:
    """The forks among these steps whose counts are known."""
    return list(_pairs(of(steps, FORK, REFORK)))


def snapshot_limited(forks: Sequence[Fork]) -> bool | None:
    """Whether the engine resumes at snapshots only; None where that cannot be told.

    One fork without a sign proves nothing: a chunk may end right before it.
    """
    if any(fork.saved for fork in forks):
        return True
    plain = {fork.at_tokens for fork in forks if fork.first_tokens}
    return False if len(plain) > 1 else None


def _pairs(steps: list[Step]) -> Iterator[Fork]:
    for first, second in pairwise(steps):
        if (first.role, second.role) != (FORK, REFORK) or first.shared_tokens is None:
            continue
        if first.cached_tokens is None or second.cached_tokens is None:
            continue
        yield Fork(at_tokens=first.shared_tokens, first_tokens=first.cached_tokens, second_tokens=second.cached_tokens)
