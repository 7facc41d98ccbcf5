"""Slices: a long cold read as a row of requests for longer and longer starts of the same prompt.

While an engine reads a prompt for a minute, every short turn behind it waits. Sent as starts of a few seconds each, the
engine's own queue lets whoever came meanwhile go in between, and each start finds the one before in its cache. Only
where a strict start of the prompt can be sent: between the turns of a conversation, which is where its own earlier
requests ended, or anywhere in a plain text or a list of tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ramjet.core.prompt import MESSAGE_ENDPOINTS, Prompt, turn_ends

TEXT_STEP_BYTES = 1_024
"""Where a plain text may be cut: about 256 tokens, or as many token ids."""

_NOT_FOR_A_START = frozenset(
    ("stream", "stream_options", "n", "best_of", "logprobs", "top_logprobs", "prompt_logprobs", "response_format",
     "min_tokens", "echo", "store")
)  # fmt: skip
"""What a client wants of its answer: a start's answer of one token is thrown away."""


@dataclass(frozen=True, slots=True)
class Start:
    """A start of a prompt that is read by a request of its own."""

    cut: int
    """Its number among the places where the prompt may be cut, from 0."""
    tokens: int
    """Its length."""
    read_s: float
    """Seconds of reading that it adds."""


def cuts(prompt: Prompt, endpoint: str) -> Sequence[int]:
    """Where a strict start of the prompt may end, in bytes of text, in order; nowhere on endpoints that cannot say it."""
    if endpoint in MESSAGE_ENDPOINTS:
        at, found = 0, []
        for piece in prompt.pieces:
            at += piece.size
            if piece.ends_turn:
                found.append(at)
        return found
    if endpoint in _WHOLE:
        return range(TEXT_STEP_BYTES, prompt.size_bytes, TEXT_STEP_BYTES)
    return ()


def starts(
    cuts: Sequence[int], matched: int, length: int, read_s: Callable[[int, int], float], slice_s: float
) -> list[Start]:
    """The starts to send before the prompt itself; none where it is read in one and a half slices.

    Args:
        cuts: where the prompt may be cut, in tokens, in order.
        matched: tokens that the replica holds.
        length: tokens of the whole prompt.
        read_s: seconds to read from one length to another.
        slice_s: seconds of reading that one start is to add.
    """
    found: list[Start] = []
    at = matched
    first = bisect_right(cuts, at)
    while first < len(cuts) and read_s(at, length) > 1.5 * slice_s:
        # The last cut within the slice; where a single turn is longer than that, the one after it.
        last = bisect_right(cuts, slice_s, lo=first, key=partial(read_s, at)) - 1
        number = max(first, last)
        if cuts[number] >= length:
            break
        found.append(Start(number, cuts[number], read_s(at, cuts[number])))
        at, first = cuts[number], bisect_right(cuts, cuts[number])
    return found


def body_of(body: bytes | bytearray, endpoint: str, cut: int) -> bytes:
    """The request for a start: it asks for a single token, and for nothing that the client asked of its own answer.

    Args:
        body: the client's, of which `cuts` found the cut.
        endpoint: the one it came for.
        cut: the cut's number.
    """
    fields: dict[str, Any] = msgspec.json.decode(body)
    shorter = {name: value for name, value in fields.items() if name not in _NOT_FOR_A_START}
    if endpoint in MESSAGE_ENDPOINTS:
        shorter["messages"] = fields["messages"][: turn_ends(fields["messages"])[cut]]
    else:
        _shorten(shorter, endpoint, TEXT_STEP_BYTES * (cut + 1))
    if endpoint == "generate":
        sampling = shorter.get("sampling_params")
        shorter["sampling_params"] = {**(sampling if isinstance(sampling, dict) else {}), "max_new_tokens": 1}
    elif "max_completion_tokens" in shorter:
        shorter["max_completion_tokens"] = 1
        shorter.pop("max_tokens", None)
    else:
        shorter["max_tokens"] = 1
    return msgspec.json.encode(shorter)


_WHOLE = {"completions": ("prompt",), "generate": ("text", "input_ids")}
"""By endpoint: the fields that may hold the whole prompt, the first that is there."""


def _shorten(fields: dict[str, Any], endpoint: str, size: int) -> None:
    name = next(name for name in _WHOLE[endpoint] if fields.get(name) is not None)
    prompt = fields[name]
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    # Token ids count four bytes each, as in the prompt's rendering.
    fields[name] = prompt.encode()[:size].decode(errors="ignore") if isinstance(prompt, str) else prompt[: size // 4]
