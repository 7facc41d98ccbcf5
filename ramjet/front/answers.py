"""What the head of a replica's answer says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Protocol

from ramjet.core.retry import Failure
from ramjet.core.stream import JsonObserver, Observer, PlainObserver, SseObserver
from ramjet.http1.client import ReplicaFailed
from ramjet.http1.connection import Answer

_STREAM = b"text/event-stream"
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Head(Protocol):
    """The head of an answer."""

    @property
    def status(self) -> int:
        """Its status."""

    @property
    def named(self) -> Mapping[bytes, bytes]:
        """Its fields by name, in lower case."""


def observer_of(answer: Head, *, watch: bool, hide_usage: bool) -> Observer:
    """What looks into an answer as it passes.

    Args:
        answer: its head.
        watch: whether it answers a prompt.
        hide_usage: whether the client did not ask for usage.
    """
    kind = answer.named.get(b"content-type", b"")
    is_stream = kind.startswith(_STREAM)
    if answer.status != 200 or not (watch or is_stream) or not _is_plain(answer):
        return PlainObserver()
    if is_stream:
        return SseObserver(hide_usage=hide_usage)
    return JsonObserver() if b"json" in kind else PlainObserver()


def is_plain_stream(answer: Head) -> bool:
    """Whether it is a good event stream that is not compressed."""
    return answer.status == 200 and _is_plain(answer) and answer.named.get(b"content-type", b"").startswith(_STREAM)


def _is_plain(answer: Head) -> bool:
    return answer.named.get(b"content-encoding", b"identity") == b"identity"


def check_head(answer: Answer) -> None:
    """Refuse to pass on a head that is none: a switch of protocols nobody asked for, control characters in headers.

    Raises:
        ReplicaFailed: it is none.
    """
    if answer.status < 200 or _CONTROL.search(b"".join([answer.reason, *chain.from_iterable(answer.fields)])):
        raise ReplicaFailed(Failure.RESET, f"its answer, of status {answer.status}, is no HTTP")
