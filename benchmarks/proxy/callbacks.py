"""Ramjet on asyncio's own event loop, which can be made to say how long its longest step took.

    python -m benchmarks.proxy.callbacks serve ...

It writes the ten longest steps to the file that RAMJET_LONGEST names, when it ends: of those between RAMJET_FROM_S and
RAMJET_UNTIL_S, in seconds from its start, for starting and stopping hold up nobody.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from asyncio.events import Handle
from collections.abc import Coroutine
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import uvloop

from ramjet.cli import main

_longest: list[tuple[float, str]] = []
_run_step = Handle._run  # noqa: SLF001 - there is no other place through which every step goes
_MOST = 10


_from_s, _until_s = (
    perf_counter() + float(os.environ.get(name, "nan")) for name in ("RAMJET_FROM_S", "RAMJET_UNTIL_S")
)


def _timed(handle: Handle) -> None:
    started = thread_time()
    _run_step(handle)
    took_s = thread_time() - started
    if not _from_s < perf_counter() < _until_s:
        return
    if len(_longest) < _MOST or took_s > _longest[0][0]:
        (heapq.heappushpop if len(_longest) == _MOST else heapq.heappush)(_longest, (took_s, repr(handle)))


def _run(main: Coroutine[Any, Any, Any], **_: Any) -> Any:
    return asyncio.run(main)


if __name__ == "__main__":
    Handle._run = _timed  # type: ignore[assignment, method-assign] # noqa: SLF001
    uvloop.run = _run
    try:
        main()
    finally:
        lines = [f"{1e3 * took_s:.3f} {what}" for took_s, what in sorted(_longest, reverse=True)]
        Path(os.environ["RAMJET_LONGEST"]).write_text("\n".join(lines), encoding="utf-8")
