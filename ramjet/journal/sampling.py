"""Samples of the replicas for the journal: at the start, once a minute, and at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ramjet.core.router import Router
from ramjet.core.sample import samples
from ramjet.journal.writer import Journal

EVERY_S = 60.0


def keep_sampling(journal: Journal, router: Router, every_s: float = EVERY_S) -> Callable[[], None]:
    """Take samples in the running event loop, for the router is its; returns what takes the last and ends it."""
    loop = asyncio.get_running_loop()
    due: asyncio.TimerHandle

    def take() -> None:
        nonlocal due
        due = loop.call_later(every_s, take)
        journal.put_samples(samples(router, time.monotonic()))

    def end() -> None:
        due.cancel()
        journal.put_samples(samples(router, time.monotonic()))

    take()
    return end
