"""Where can this engine resume? The same prompt again, a longer one, and two that leave it partway. Pure.

Three things are read from the counts. The *grid* is what reuse ends on multiples of. Where reuse is *limited to
snapshots*, the first prompt that leaves at a place resumes far before it and the second does not. The *chunk* is then the
distance of those snapshots that the engine saves while it reads.

The greatest common divisor of what was reused is a multiple of the true value, and no more than that: a page of 64 may
show 128. It is the value itself once some prompt could have reused most of it more than it did, for any smaller value
that divides it would have shown there. The probe goes on with short prompts of chosen lengths until that is so.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from ramjet.engines import advice
from ramjet.engines.facts import Facts
from ramjet.probes import forks
from ramjet.probes.prompts import Writer
from ramjet.probes.steps import Ask, Finding, Limit, Plan, Step, kept, of, user

TOKENS, BRANCH_AT_TOKENS, APPEND_TOKENS = 19_845, 14_900, 300
"""The seed's."""

COLD, AGAIN, APPEND, TURN = "cold", "again", "append", "turn"
GRID_COLD, GRID_AGAIN = "grid", "grid again"
CHUNK_COLD, CHUNK_AGAIN, CHUNK_BRANCH = "chunk", "chunk again", "chunk branch"

_LEAST_TOKENS = 2_048
"""Shorter prompts may hold no whole block of some engines: vLLM's hybrids have blocks of 384 to 1,000 tokens and more."""
_MOST_PROMPTS = 4
"""Of short prompts for the grid, and for the chunk."""
_HIGH, _LOW = 0.8, 0.3
"""Where short prompts end between two multiples of the grid that is suspected. What is left of the first, two thirds and
more, would show any smaller grid, also of an engine that gives up a whole block of what it holds, as those do that guess
tokens ahead; but for half the grid in such an engine, which the second shows."""
_SURE = 0.55
"""Half a chunk, and something for the template's tokens, of which nobody knows whether they come before the text."""
_TEMPLATE_TOKENS = 256
"""A chat template's own tokens, at most."""
_MORE_PLACES = (0.55, 0.37)


@dataclass(frozen=True, slots=True)
class Divisor:
    """What the counts have in common."""

    tokens: int | None
    """A multiple of the true value; None without a count."""
    sure: bool
    """Whether it is the value itself."""

    @property
    def known(self) -> int | None:
        """The value, if it is sure."""
        return self.tokens if self.sure else None


def plan(
    writer: Writer,
    *,
    tokens: int = TOKENS,
    branch_at_tokens: int = BRANCH_AT_TOKENS,
    append_tokens: int = APPEND_TOKENS,
) -> Plan:
    """The seed's five requests, and then what it takes to be sure.

    Args:
        writer: of the prompts.
        tokens: length of the prompt.
        branch_at_tokens: where two others leave it.
        append_tokens: by how much the longer one is longer.
    """
    done: list[Step] = []
    yield from kept(done, _seed(writer, tokens, branch_at_tokens, append_tokens))
    if not any(step.cached_tokens for step in done):
        return
    yield from kept(done, _narrow_grid(writer, done, tokens))
    grid = grid_of(done)
    if not limited(done):
        yield from kept(done, _more_forks(writer, tokens, grid))
    if limited(done):
        yield from kept(done, _narrow_chunk(writer, done, tokens))


def judge(steps: Sequence[Step], facts: Facts) -> Finding:
    """What the counts say; `limit` is `snapshots` where reuse is limited to them, and `none` where it is not."""
    told = [step for step in steps if step.cached_tokens is not None]
    reports = True if told else facts.reports_cached
    grid, snapshots = grid_of(steps), limited(steps)
    chunk = chunk_of(steps) if snapshots else Divisor(None, sure=False)
    measured = {
        "reports_cached_tokens": reports,
        "snapshot_limited": snapshots,
        "grid_tokens": grid.known,
        "chunk_tokens": chunk.known,
    }
    if not told:
        flags = advice.to_report(facts)
        remedy = f"; start it with {' or '.join(flags)}" if flags else ""
        verdict = f"The engine does not say how much of a prompt it reused, so nothing can be told{remedy}."
        return Finding(verdict=verdict, limit="unknown", flags=flags, measured=measured)
    if not any(step.cached_tokens for step in told):
        verdict = "Nothing was reused, not even of a prompt that came twice in a row."
        return Finding(verdict=verdict, limit="unknown", flags=advice.to_reuse(facts), measured=measured)
    where = _where(grid)
    limit: Limit = "unknown"
    if snapshots:
        limit = "snapshots"
        verdict = f"{_first_and_second(steps)} So the engine resumes at snapshots only, {_spacing(chunk)}. {where}"
    elif snapshots is False:
        limit = "none"
        verdict = (
            f"Prompts that leave another one resume where they leave it: reuse is not limited to snapshots. {where}"
        )
    else:
        verdict = f"Whether reuse is limited to snapshots cannot be told from these counts. {where}"
    return Finding(verdict=verdict, limit=limit, measured=measured)


def limited(steps: Sequence[Step]) -> bool | None:
    """Whether reuse is limited to snapshots; None if it cannot be told."""
    told = forks.snapshot_limited(forks.seen(steps))
    # Not all engines save a state where a prompt leaves another. Those that do not resume far before it each time.
    return True if any(_far(fork, grid_of(steps)) for fork in forks.seen(steps)) else told


def grid_of(steps: Sequence[Step]) -> Divisor:
    """What reuse ends on multiples of."""
    reused = [step.cached_tokens for step in steps if step.cached_tokens]
    if not reused:
        return Divisor(None, sure=False)
    common = gcd(*reused)
    left = list(_left_over(steps, common))
    high, low = any(_is_high(each, common) for each in left), any(2 * each < common for each in left)
    return Divisor(common, sure=common == 1 or (high and low))


def chunk_of(steps: Sequence[Step]) -> Divisor:
    """The distance of the snapshots that are saved while a prompt is read."""
    stops = list(_stops(steps))
    reused = [tokens for tokens, _ in stops if tokens]
    if not reused:
        return Divisor(None, sure=False)
    common = gcd(*reused)
    return Divisor(common, sure=any(left >= _SURE * common for _, left in stops))


# -- what to send -----------------------------------------------------------------------------------------------------


def _seed(writer: Writer, tokens: int, branch_at_tokens: int, append_tokens: int) -> Generator[Ask, Step, None]:
    text = writer.text("prompt", tokens)
    yield Ask(name="cold", role=COLD, messages=user(text), tokens=tokens)
    again = yield Ask(name="the same again", role=AGAIN, messages=user(text), tokens=tokens)
    if again.cached_tokens is None:
        return
    longer = writer.text("prompt", tokens + append_tokens)
    name = f"{append_tokens:,} tokens more"
    yield Ask(name=name, role=APPEND, messages=user(longer), tokens=tokens + append_tokens)
    yield from forks.leave(writer, text, "prompt", branch_at_tokens, tokens)
    # As agents go on. Some engines save states at the end of an answer, and nowhere near the end of a prompt.
    reply = {"role": "assistant", "content": again.answer or "ok"}
    messages = [*user(text), reply, *user(writer.text("next turn", append_tokens))]
    yield Ask(name="the next turn", role=TURN, messages=messages, tokens=tokens + append_tokens)


def _narrow_grid(writer: Writer, done: list[Step], tokens: int) -> Generator[Ask, Step, None]:
    for number in range(_MOST_PROMPTS):
        grid = grid_of(done)
        if grid.sure or grid.tokens is None:
            return
        left = list(_left_over(done, grid.tokens))
        part = _LOW if any(_is_high(each, grid.tokens) for each in left) else _HIGH
        whole = max(1, -(-_LEAST_TOKENS // grid.tokens))
        # One more, for its last token is always read.
        length = whole * grid.tokens + int(part * grid.tokens) + 1
        while gcd(length, grid.tokens) > 1:
            length += 1
        if length > tokens:
            return
        text = writer.text(f"grid {number}", length)
        yield Ask(name=f"a prompt of {length:,}", role=GRID_COLD, messages=user(text), tokens=length)
        yield Ask(name=f"the {length:,} again", role=GRID_AGAIN, messages=user(text), tokens=length)


def _more_forks(writer: Writer, tokens: int, grid: Divisor) -> Generator[Ask, Step, None]:
    """A snapshot's sign may be missing where a chunk ends right before the fork; at these it does not."""
    trunk = writer.text("prompt", tokens)
    unit = grid.tokens or 1
    for place in _MORE_PLACES:
        # A prime number of grids: no chunk that is a multiple of the grid ends there, but one of exactly that length.
        whole = _prime_below(int(place * tokens / unit))
        at = whole * unit + unit // 2 + round(writer.overhead_tokens / 2)
        if whole < 2 or at + forks.TAIL_TOKENS > tokens:
            return
        pair = yield from forks.leave(writer, trunk, "prompt", at)
        if pair is None or pair.saved:
            return


def _narrow_chunk(writer: Writer, done: list[Step], tokens: int) -> Generator[Ask, Step, None]:
    """Fresh prompts that are left right before their tail's snapshot.

    Only the last snapshots of a path are sure to be kept where their number is capped, so a prompt is left as late as
    it can be: then the one before its tail is the end of its last whole chunk.
    """
    for number in range(_MOST_PROMPTS):
        grid, chunk = grid_of(done).known, chunk_of(done)
        if grid is None or chunk.sure or (number and chunk.tokens is None):
            return
        length = tokens
        if chunk.tokens is not None:
            length = int(1.8 * chunk.tokens)
            if length > tokens:
                length = int(0.85 * chunk.tokens)
        # A snapshot at the very end could not be used, for the last token is always read.
        length = length // grid * grid - grid // 2
        if length > tokens or length < 2 * grid:
            return
        text = writer.text(f"chunk {number}", length)
        yield Ask(name=f"a prompt of {length:,}", role=CHUNK_COLD, messages=user(text), tokens=length)
        again = yield Ask(name=f"the {length:,} again", role=CHUNK_AGAIN, messages=user(text), tokens=length)
        if not again.cached_tokens:
            return
        at = again.cached_tokens - 1
        yield Ask(
            name=f"a branch at {at:,}",
            role=CHUNK_BRANCH,
            messages=user(writer.branch(text, at, f"chunk {number}, branch", at + forks.TAIL_TOKENS)),
            tokens=at + forks.TAIL_TOKENS,
            shared_tokens=at,
        )


# -- what it meant ----------------------------------------------------------------------------------------------------


def _is_high(left_tokens: int, common: int) -> bool:
    return 3 * left_tokens >= 2 * common


def _left_over(steps: Sequence[Step], common: int) -> Iterator[int]:
    """Of prompts that came twice: what could have been reused and was not, though something was.

    A prompt that ends on the grid shows nothing: its last snapshot could not be used, and the one before it may be far.
    """
    for step in of(steps, AGAIN, GRID_AGAIN, CHUNK_AGAIN):
        if step.cached_tokens and step.prompt_tokens and gcd(step.prompt_tokens, common) == 1:
            # The last token is always read.
            yield step.prompt_tokens - 1 - step.cached_tokens


def _stops(steps: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """Where first branches resumed, and how much of what they shared they read again."""
    for fork in forks.seen(steps):
        if fork.first_tokens and (fork.saved or _far(fork, grid_of(steps))):
            yield fork.first_tokens, fork.at_tokens - fork.first_tokens
    grid = grid_of(steps).known
    for again, left in pairwise(of(steps, CHUNK_AGAIN, CHUNK_BRANCH)):
        if left.role != CHUNK_BRANCH or grid is None or not again.prompt_tokens or again.prompt_tokens % grid == 0:
            continue
        # A prompt without a whole chunk leaves nothing behind it but its tail.
        if left.cached_tokens is not None and left.shared_tokens is not None:
            yield left.cached_tokens, left.shared_tokens - left.cached_tokens


def _far(fork: forks.Fork, grid: Divisor) -> bool:
    """Whether a prompt resumed farther before its fork than the grid alone would have it."""
    # Twice, for engines that give up a whole block of what they hold.
    return grid.known is not None and fork.at_tokens - fork.first_tokens >= 2 * grid.known + _TEMPLATE_TOKENS


def _where(grid: Divisor) -> str:
    if grid.tokens is None:
        return ""
    if grid.sure:
        return (
            "Reuse may end at any token." if grid.tokens == 1 else f"Reuse ends on multiples of {grid.tokens:,} tokens."
        )
    return f"Reuse ends on multiples of {grid.tokens:,} tokens, or of a part of that."


def _spacing(chunk: Divisor) -> str:
    if chunk.tokens is None:
        return "and how far apart it saves them while it reads cannot be told"
    if chunk.sure:
        return f"which it saves every {chunk.tokens:,} tokens while it reads, at the end, and where prompts part"
    return f"which it saves at multiples of {chunk.tokens:,} tokens, or of a part of that"


def _first_and_second(steps: Sequence[Step]) -> str:
    fork = next(fork for fork in forks.seen(steps) if fork.saved or _far(fork, grid_of(steps)))
    again = fork.at_tokens - fork.first_tokens
    return (
        f"The first prompt that left another at token {fork.at_tokens:,} resumed at {fork.first_tokens:,} and read "
        f"{again:,} tokens again; the second resumed at {fork.second_tokens:,}."
    )


def _prime_below(number: int) -> int:
    while number > 2 and any(number % each == 0 for each in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
