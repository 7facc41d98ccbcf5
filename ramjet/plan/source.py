"""Where a span comes from: a journal, or a trace in one of the forms that there are."""

from __future__ import annotations

import gzip
import math
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import IO, Any, cast

import msgspec

from ramjet.core.cache import Blocks
from ramjet.core.sample import Sample
from ramjet.journal.read import Reader
from ramjet.plan.span import Asked, Entry, Span, span_of
from ramjet.sim import traces

WARM_UP_S = 1_800.0
"""What arrived in so long before `since` is played too, so that the caches are not empty when it is counted."""
SAMPLES_S = 3_600.0
"""What was said of replicas so long before the first request still holds: they are looked at once a minute."""
LEAST_REQUESTS = 20
"""Fewer say nothing."""
MOONCAKE_BLOCK_TOKENS = 512


class NoSpan(ValueError):
    """There is nothing that could be played; the message says why, and what to do."""


def from_journal(
    path: Path, *, since: float | None = None, until: float | None = None, limit: int | None = None
) -> Span:
    """The requests of a journal.

    Args:
        path: the file.
        since: those that arrived from then on, seconds since 1970; some before them are played and not counted.
        until: those that arrived before.
        limit: at most so many, the latest.

    Raises:
        JournalError: it cannot be read.
        NoSpan: what is in it cannot be played.
    """
    with Reader(path) as reader:
        total, dropped = reader.count(since, until), reader.info().dropped
        first, counted = since, since
        if limit is not None and total > limit:
            # No blocks: those of a large journal are most of it.
            skipped = total - limit
            rows = reader.rows(since, until, blocks=False)
            first = counted = next(row.arrived_at for number, row in enumerate(rows) if number == skipped)
        elif since is not None:
            first = since - WARM_UP_S
        entries = [Entry(row.arrived_at, row.record, row.arrival) for row in reader.rows(first, until)]
        known = _known(reader.samples(None if first is None else first - SAMPLES_S, until))
    span = span_of(entries, name=path.name, since=counted, dropped=dropped, known=known)
    _must_be_playable(span, path, len(entries), any(each.record.usage.completion_tokens for each in entries))
    return span


def _known(samples: Iterable[tuple[float, Sample]]) -> dict[str, dict[str, Any]]:
    """What Ramjet knew of each replica: the last that it said of each fact, for an engine is asked after the start."""
    known: dict[str, dict[str, Any]] = {}
    for _, each in samples:
        said = {
            "tokens": each.pool_tokens,
            "slots": each.pool_slots,
            "per_path": each.per_path,
            "chunk_tokens": each.chunk_tokens,
            "host_tier": each.host,
        }
        known.setdefault(each.replica, {}).update({name: value for name, value in said.items() if value is not None})
    return known


def _must_be_playable(span: Span, path: Path, rows: int, answers_known: bool) -> None:  # noqa: FBT001 - one caller
    if not rows:
        raise NoSpan(f"{path}: no requests in this span of time; `ramjet journal info` says what there is")
    if not span.requests and span.left_out.get("no blocks", 0):
        raise NoSpan(
            f"{path}: none of {rows:,} requests has the blocks of its prompt: their bodies could not be read, or the "
            "prompts that they build on have gone with their age; choose a later --since"
        )
    counted = sum(each.counts for each in span.requests)
    if counted < LEAST_REQUESTS:
        told = ", ".join(f"{count:,} {reason}" for reason, count in span.left_out.items())
        raise NoSpan(
            f"{path}: {counted:,} of {rows:,} requests can be played and counted, and fewer than {LEAST_REQUESTS} say "
            f"nothing{f' (left out: {told})' if told else ''}; choose a longer span of time"
        )
    if not answers_known:
        raise NoSpan(
            f"{path}: no request has completion_tokens, so how long answers were is not known: engines report usage on "
            "streams when asked to, see replicas.ask_usage"
        )


# -- traces ---------------------------------------------------------------------------------------------------------


def from_trace(path: Path, *, limit: int | None = None, within_s: float = 600.0, seed: int = 1) -> Span:
    """The requests of a trace: Mooncake's JSON lines, or one that is packed as the laboratory's are; .gz is opened.

    Args:
        path: the file.
        limit: at most so many requests, the first.
        within_s: recorded sessions begin within so many seconds, for when they did is not in such a trace.
        seed: of when they do.

    Raises:
        OSError: it cannot be read.
        NoSpan: it is in no form that is known, or too little is in it.
    """
    with _opened(path) as lines:
        try:
            first = next((line for line in lines if line.strip()), b"{}")
            head = msgspec.json.decode(first)
            if not isinstance(head, dict):
                raise NoSpan(f"{path}: its lines are no JSON objects")
            if "hash_ids" in head or ("t" in head and "add" in head):
                requests = _mooncake(_all(first, lines), limit)
            elif "conv" in head:
                requests = _sessions(_all(first, lines), limit, within_s, Random(seed))
            else:
                raise NoSpan(
                    f"{path}: is no trace that is known: lines have hash_ids (Mooncake's), or t and add (the same, packed), "
                    "or begin with conv (recorded sessions, as in ramjet/lab/data)"
                )
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, NoSpan):
                raise
            raise NoSpan(f"{path}: is no trace that is known: {error}") from None
    if len(requests) < LEAST_REQUESTS:
        raise NoSpan(f"{path}: {len(requests)} requests, and fewer than {LEAST_REQUESTS} say nothing")
    return Span(name=path.name, requests=requests)


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path)) if is_packed else path.open("rb")


def _all(first: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield first
    yield from (line for line in rest if line.strip())


def _mooncake(lines: Iterator[bytes], limit: int | None) -> list[Asked]:
    """Requests at their times, each by itself: who belongs together is not said, so nobody waits for an answer."""
    requests = []
    for number, text in enumerate(lines):
        if number == limit:
            break
        line: dict[str, Any] = msgspec.json.decode(text)
        if "hash_ids" not in line:
            ids = [number for first, count in line["add"] for number in range(first, first + count)]
            line = {"timestamp": line["t"], "input_length": line["in"], "output_length": line["out"], "hash_ids": ids}
        tokens = max(1, int(line["input_length"]))
        ids = line["hash_ids"][: math.ceil(tokens / MOONCAKE_BLOCK_TOKENS)]
        ends = range(MOONCAKE_BLOCK_TOKENS, MOONCAKE_BLOCK_TOKENS * len(ids) + 1, MOONCAKE_BLOCK_TOKENS)
        requests.append(
            Asked(
                name=str(number),
                at_s=line["timestamp"] / 1e3,
                prompt_tokens=tokens,
                answer_tokens=max(1, int(line["output_length"])),
                blocks=Blocks(array("Q", ids), array("I", ends)),
            )
        )
    requests.sort(key=lambda each: each.at_s)
    return requests


def _sessions(lines: Iterator[bytes], limit: int | None, within_s: float, chance: Random) -> list[Asked]:
    """Recorded sessions: each turn a think time after the answer before it, a sub-agent after what was sent before it."""
    recorded: list[tuple[float, int, traces.TraceRequest, int | None]] = []
    numbers = 0
    for session in traces.read(lines):
        began_s = chance.uniform(0.0, within_s)
        last: dict[str, int] = {}
        for request in session.requests():
            if numbers == limit:
                break
            before = last.get(request.agent, last.get(traces.MAIN))
            recorded.append((began_s + request.at_s, numbers, request, before))
            last[request.agent] = numbers
            numbers += 1
    recorded.sort(key=lambda each: each[:2])
    places = {number: place for place, (_, number, _, _) in enumerate(recorded)}
    requests: list[Asked] = []
    for at_s, number, request, before in recorded:
        think_s = _THINK_S if request.think_s is None else max(0.0, request.think_s)
        after = None if before is None else places[before]
        requests.append(
            Asked(
                name=f"{request.conversation}-{number}",
                at_s=at_s,
                # What was recorded out of order cannot have waited.
                after=after if after is not None and after < len(requests) else None,
                gap_s=think_s,
                prompt_tokens=request.prompt_tokens,
                answer_tokens=max(1, request.answer_tokens),
                blocks=request.blocks,
            )
        )
    return requests


_THINK_S = 2.0
"""The median of those that are known in the laboratory's trace, for a turn of which it was not recorded."""
