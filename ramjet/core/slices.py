"""Slices: a long cold read as a row of requests for longer and longer starts of the same prompt.

While an engine reads a prompt for a minute, every short turn behind it waits. Sent as starts of a few seconds each, the
engine's own queue lets whoever came meanwhile go in between, and each start finds the one before in its cache. Only
where a strict start of the prompt can be sent: between the turns of a conversation, which is where its own earlier
requests ended, or anywhere in a plain text or a list of tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ramjet.core.prompt import MESSAGE_ENDPOINTS, Envelope, Prompt, turn_ends

TEXT_STEP_BYTES = 4_096
"""Where a plain text may be cut, or as many bytes of token ids: about 1,000 tokens, and where blocks of a long one end."""

LEAST_SHARE = 0.25
"""Of a slice, what a start adds at least, and what it leaves at least: a request costs something too."""

MOST_SLICES = 1.5
"""What is read in so many slices is sent whole, and may slip in between those of another."""

_NOT_FOR_A_START = frozenset(
    ("stream", "stream_options", "n", "best_of", "logprobs", "top_logprobs", "return_logprob", "response_format",
     "min_tokens", "n_predict", "store")
)  # fmt: skip
"""What a client wants of its answer: a start's answer of one token is thrown away."""

_OF_THE_WHOLE = frozenset(
    ("echo", "prompt_logprobs", "logprob_start_len", "return_hidden_states", "truncate_prompt_tokens", "session_params",
     "image_data", "video_data", "audio_data")
)  # fmt: skip
"""What makes an engine read the prompt in one whatever it holds, keeps what it was sent, or stands beside the text."""

_WHOLE = {"completions": ("prompt",), "generate": ("text", "input_ids")}
"""By endpoint: the fields that may hold the whole prompt, the first that is there."""


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
    """Where a strict start of the prompt may end, in bytes of text, in order; nowhere if it must be sent whole."""
    if is_of_the_whole(prompt):
        return ()
    if endpoint in MESSAGE_ENDPOINTS:
        at, found = 0, []
        for piece in prompt.pieces:
            if piece.opens_answer:
                found.append(at)
            at += piece.size
        return found
    if endpoint in _WHOLE:
        return range(TEXT_STEP_BYTES, prompt.size_bytes, TEXT_STEP_BYTES)
    return ()


def is_of_the_whole(envelope: Envelope) -> bool:
    """Whether the client asks for something that only the whole prompt can give."""
    return bool(envelope.asks & _OF_THE_WHOLE)


def starts(
    cuts: Sequence[int], matched: int, length: int, read_s: Callable[[int, int], float], slice_s: float
) -> list[Start]:
    """The starts to send before the prompt itself; none where it is read in one and a half slices.

    Args:
        cuts: where the prompt may be cut, in tokens, in order.
        matched: tokens that the replica holds.
        length: tokens of the whole prompt.
        read_s: seconds to read from one length to another; 0 if the other is no longer.
        slice_s: seconds of reading that one start is to add.
    """
    found: list[Start] = []
    at, least_s = matched, LEAST_SHARE * slice_s
    while read_s(at, length) > MOST_SLICES * slice_s:
        adds = partial(read_s, at)
        # The last cut within the slice; where a single turn is longer than that, the one after it.
        first = bisect_left(cuts, least_s, key=adds)
        number = max(first, bisect_right(cuts, slice_s, lo=first, key=adds) - 1)
        if number == len(cuts) or read_s(cuts[number], length) < least_s:
            break
        found.append(Start(number, cuts[number], adds(cuts[number])))
        at = cuts[number]
    return found


def body_of(body: bytes | bytearray, endpoint: str, cut: int) -> bytes:
    """The request for a start: it asks for a single token, and for nothing that the client asked of its own answer.

    What stays of the body stays as it was spelled, for an engine may put it in the prompt.

    Args:
        body: the client's, of which `cuts` found the cut.
        endpoint: the one it came for.
        cut: the cut's number.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    start: dict[str, Any] = {name: value for name, value in fields.items() if name not in _NOT_FOR_A_START}
    if endpoint in MESSAGE_ENDPOINTS:
        messages = fields["messages"]
        size = turn_ends(msgspec.json.decode(messages))[cut]
        start["messages"] = msgspec.json.decode(messages, type=list[msgspec.Raw])[:size]
    else:
        name, prompt = _whole(fields, endpoint)
        start[name] = _first_bytes(prompt, TEXT_STEP_BYTES * (cut + 1))
    if endpoint == "generate":
        start["sampling_params"] = {"max_new_tokens": 1}
    elif "max_completion_tokens" in start:
        start["max_completion_tokens"] = 1
        start.pop("max_tokens", None)
    else:
        start["max_tokens"] = 1
    return msgspec.json.encode(start)


def _whole(fields: Mapping[str, msgspec.Raw], endpoint: str) -> tuple[str, str | list[int]]:
    """The field that holds the prompt, and the prompt."""
    given = {name: msgspec.json.decode(fields[name]) for name in _WHOLE[endpoint] if name in fields}
    name, prompt = next((name, prompt) for name, prompt in given.items() if prompt is not None)
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return name, prompt


def _first_bytes(prompt: str | list[int], size: int) -> str | list[int]:
    # Token ids count four bytes each, as in the prompt's rendering.
    return prompt.encode()[:size].decode(errors="ignore") if isinstance(prompt, str) else prompt[: size // 4]
