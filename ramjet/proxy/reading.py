"""From a request's bytes to what the router sees of it, off the loop where that takes milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from ramjet.core import hints
from ramjet.core.fingerprint import Fingerprint, fingerprint
from ramjet.core.prompt import Prompt, Unreadable, read
from ramjet.core.router import Router
from ramjet.core.slices import cuts
from ramjet.core.visit import Arrival
from ramjet.proxy import headers
from ramjet.proxy.door import Door

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

_MOST_NAME = 256
"""Of a model's name, which is the client's to choose, no more is logged and remembered."""
_THREAD_BYTES = 128 << 10
"""A longer body is read in a thread, so that running streams go on meanwhile."""


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt")

    async def off_the_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what takes milliseconds, while running streams go on."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *args, **kwargs))

    async def read(
        self, given: Mapping[str, str], body: bytes, endpoint: str, request_id: str
    ) -> tuple[Prompt | None, Arrival]:
        """A prompt, and the request as the router sees it; no prompt where none can be read.

        Args:
            given: the request's headers, by names in lower case.
            body: as the client sent it.
            endpoint: the one that it came for.
            request_id: what it is called.
        """
        prompt: Prompt | None = None
        known: Fingerprint | None = None
        places: Sequence[int] = ()
        # What is compressed, or says that it is no JSON, is the engine's to read.
        is_plain = given.get("content-encoding", "identity").strip().lower() in {"", "identity"}
        if body and is_plain and "json" in given.get("content-type", "json"):
            try:
                if len(body) > _THREAD_BYTES:
                    prompt, known, places = await self.off_the_loop(self._look, body, endpoint)
                else:
                    prompt, known, places = self._look(body, endpoint)
            except Unreadable as reason:
                log.debug("prompt_unreadable", request_id=request_id, reason=str(reason))
        return prompt, Arrival(
            request_id=request_id,
            endpoint=endpoint,
            body_bytes=len(body),
            stream=prompt.stream if prompt is not None else False,
            model=prompt.model[:_MOST_NAME] if prompt is not None and prompt.model is not None else None,
            fingerprint=known,
            hint=self._hint(given, prompt),
            probe=headers.PROBE in given,
            cuts=places,
        )

    def _look(self, body: bytes, endpoint: str) -> tuple[Prompt, Fingerprint, Sequence[int]]:
        prompt = read(body, endpoint)
        places = () if self._router.policy.slice_s is None else cuts(prompt, endpoint)
        return prompt, fingerprint(prompt, self._door.options.seed), places

    def _hint(self, given: Mapping[str, str], prompt: Prompt | None) -> hints.Hint | None:
        """What the client says of whose the prompt is: without a prompt it would stand alone."""
        if prompt is None or not self._door.options.hints:
            return None
        said = hints.in_headers(given, self._door.options.hint_header) or prompt.said
        return None if said is None else hints.hashed(said, self._door.options.seed)
