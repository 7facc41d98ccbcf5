"""From a request's bytes to what the router sees of it, off the loop where that takes milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from ramjet.core import hints
from ramjet.core.bodies import Bodies, Body, Reading, Steps, whole
from ramjet.core.prompt import Envelope, Unreadable
from ramjet.core.router import Router
from ramjet.core.visit import Arrival
from ramjet.front import marks
from ramjet.front.door import Door

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

_MOST_NAME = 256
"""Of a model's name, which is the client's to choose, no more is logged and remembered."""
ASIDE_BYTES = 512 << 10
"""To read a longer body, to decide where it goes, and to send it takes a millisecond each: between them, others come."""
_THREAD_BYTES = 128 << 10
"""A longer body that cannot be read in steps is read in a thread, so that running streams go on meanwhile."""


class Reader:
    """Reads prompts, one long one at a time."""

    def __init__(self, router: Router, door: Door) -> None:
        """
        Args:
            router: whose policy says whether prompts are to be cut.
            door: whose options say what counts.
        """
        self._router = router
        self._door = door
        self._bodies = Bodies(door.options.seed)
        self._one = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt")

    async def off_the_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what takes milliseconds, while running streams go on."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *args, **kwargs))

    async def read(
        self, given: Mapping[str, str], body: Body, endpoint: str, request_id: str, *, sliced: bool = True
    ) -> tuple[Envelope | None, Arrival]:
        """What a request says around its prompt, None where no prompt can be read; and what the router sees of it.

        Args:
            given: the request's headers, by names in lower case.
            body: as the client sent it.
            endpoint: the one that it came for.
            request_id: what it is called.
            sliced: whether starts of its prompt could be sent before it, where slices are on.
        """
        reading: Reading | None = None
        # What is compressed, or says that it is no JSON, is the engine's to read.
        is_plain = given.get("content-encoding", "identity").strip().lower() in {"", "identity"}
        if body and is_plain and "json" in given.get("content-type", "json"):
            try:
                reading = await self._look(body, endpoint)
            except Unreadable as reason:
                log.debug("prompt_unreadable", request_id=request_id, reason=str(reason))
        envelope = None if reading is None else reading.envelope
        return envelope, Arrival(
            request_id=request_id,
            endpoint=endpoint,
            body_bytes=len(body),
            stream=envelope.stream if envelope is not None else False,
            model=envelope.model[:_MOST_NAME] if envelope is not None and envelope.model is not None else None,
            fingerprint=None if reading is None else reading.fingerprint,
            hint=self._hint(given, envelope),
            probe=marks.PROBE in given,
            cuts=reading.cuts if reading is not None and sliced and self._router.policy.slice_s is not None else (),
        )

    async def _look(self, body: Body, endpoint: str) -> Reading:
        """Read a body: at once where little of it is new, else in steps, between which others go on.

        Raises:
            Unreadable: no prompt can be told from it.
        """
        steps = self._bodies.steps(body, endpoint)
        try:
            work = next(steps)
        except StopIteration as end:
            reading: Reading | None = end.value
            if len(body) > ASIDE_BYTES:
                await asyncio.sleep(0)
        else:
            async with self._one:
                reading = await self._in_steps(steps, work)
        if reading is not None:
            return reading
        if len(body) <= _THREAD_BYTES:
            return whole(body, endpoint, self._door.options.seed)
        return await self.off_the_loop(whole, body, endpoint, self._door.options.seed)

    async def _in_steps(self, steps: Steps[T], work: Callable[[], object] | None) -> T:
        """Go on with steps of which the first has said what is to be done next. Others come between all of them."""
        while True:
            done = None
            if work is None:
                await asyncio.sleep(0)
            else:
                done = await self.off_the_loop(work)
            try:
                work = steps.send(done)
            except StopIteration as end:
                await asyncio.sleep(0)
                result: T = end.value
                return result

    def _hint(self, given: Mapping[str, str], envelope: Envelope | None) -> hints.Hint | None:
        """What the client says of whose the prompt is: without a prompt it would stand alone."""
        if envelope is None or not self._door.options.hints:
            return None
        said = hints.in_headers(given, self._door.options.hint_header) or envelope.said
        return None if said is None else hints.hashed(said, self._door.options.seed)
