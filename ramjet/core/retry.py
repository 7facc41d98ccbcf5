"""What to do when a replica fails a request: once elsewhere, or give up."""

from __future__ import annotations

from enum import Enum

MOST_ATTEMPTS = 2
"""The first choice and one other: more would multiply the load of a fleet that is failing."""


class Failure(Enum):
    """How a replica failed before any byte of its answer had come."""

    REFUSED = "refused"
    """Nobody listens there. Nothing was sent, and its cache is gone."""
    UNREACHABLE = "unreachable"
    """No connection in time. Nothing was sent."""
    RESET = "reset"
    """The connection broke without an answer. The engine may have started."""
    BUSY = "busy"
    """It answered 429 or 503: it has too much to do, which is no fault."""
    FIRST_BYTE = "first_byte"
    """It said nothing for too long. The engine has started, and another would only do the same work again."""


def may_retry(failure: Failure, attempts: int) -> bool:
    """Whether the request may go to another replica, no byte having reached the client."""
    return failure is not Failure.FIRST_BYTE and attempts < MOST_ATTEMPTS
