"""What the head of a replica's answer says of it."""

from __future__ import annotations

import re

from ramjet.core.retry import Failure
from ramjet.core.stream import JsonObserver, Observer, PlainObserver, SseObserver
from ramjet.http1.client import ReplicaFailed
from ramjet.http1.connection import Answer

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def observer_of(answer: Answer, *, watch: bool, hide_usage: bool) -> Observer:
    """What looks into an answer as it passes.

    Args:
        answer: its head.
        watch: whether it answers a prompt.
        hide_usage: whether the client did not ask for usage.
    """
    kind, is_plain = _kind(answer), _is_plain(answer)
    if answer.status != 200 or not is_plain or not (watch or kind.startswith("text/event-stream")):
        return PlainObserver()
    if kind.startswith("text/event-stream"):
        return SseObserver(hide_usage=hide_usage)
    return JsonObserver() if "json" in kind else PlainObserver()


def is_plain_stream(answer: Answer) -> bool:
    """Whether it is a good event stream that is not compressed."""
    return answer.status == 200 and _is_plain(answer) and _kind(answer).startswith("text/event-stream")


def _kind(answer: Answer) -> str:
    return answer.headers.get("content-type", "")


def _is_plain(answer: Answer) -> bool:
    return answer.headers.get("content-encoding", "identity") == "identity"


def check_head(answer: Answer) -> None:
    """Refuse to pass on a head that is none: a switch of protocols nobody asked for, control characters in headers.

    Raises:
        ReplicaFailed: it is none.
    """
    texts = (answer.reason or "", *answer.headers, *answer.headers.values())
    if answer.status < 200 or any(map(_CONTROL.search, texts)):
        raise ReplicaFailed(Failure.RESET, f"its answer, of status {answer.status}, is no HTTP")
