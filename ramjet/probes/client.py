"""Talk to a replica as its clients do, and see what they see: the first token's time and the usage it reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from ramjet.core.stream import JsonObserver, SseObserver
from ramjet.core.usage import Usage
from ramjet.engines.facts import Engine, Facts
from ramjet.engines.openai import OPENAI
from ramjet.engines.reading import models
from ramjet.pages import REFUSED, UNREACHABLE, ask, look, read
from ramjet.probes.reading import host_tokens, most_tokens, simulated_speed
from ramjet.probes.steps import Message, TooLong

PROBE_HEADER, REPLICA_HEADER = "x-ramjet-probe", "x-ramjet-replica"
_CHAT, _MODELS, _METRICS = "/v1/chat/completions", "/v1/models", "/metrics"

_CONNECT_S = 10.0
_PAGE_S = 10.0
_ERROR_CHARACTERS = 300
_UNAUTHORISED = (401, 403)
_LATER = (429, 503)
_BAD = (400, 413, 422)
_TOO_LONG = ("context", "too long", "longer", "exceed", "maximum", "too large")
"""What refusals for length say, in the words of all engines; they have no status of their own."""


class ProbeError(Exception):
    """The replica cannot be probed, or not any further; the message says what to do."""


class Refused(ProbeError):
    """It answered with another status than 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request. None is unknown."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    """From sending to the first generated token; of an answer that was not streamed, to its end."""
    replica: str | None = None
    text: str = ""


class Client:
    """One replica, or what stands in front of some. Use it as an asynchronous context manager."""

    def __init__(self, url: str, *, probe: str, api_key: str | None = None, model: str | None = None) -> None:
        """
        Args:
            url: with or without `/v1` at its end.
            probe: the probe's name, which every request carries.
            api_key: sent as a bearer token; never shown.
            model: the model's name in requests; None for the first that is listed.
        """
        base = url.rstrip("/").removesuffix("/v1")
        headers = {PROBE_HEADER: probe}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        # A first token may take minutes, so only the whole run has a limit. The environment's proxies are not asked:
        # what is measured is the way from here to there.
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        self._base = base
        self._http = httpx.AsyncClient(base_url=base, headers=headers, timeout=timeout, trust_env=False)
        self._model = model
        self._engine: Engine = OPENAI
        self.simulated_speed: float | None = None
        """How many of its seconds pass in one, where it is a simulated one."""
        parts = urlsplit(base)
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
        self.shown_url = f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
        """Without a user's name and password."""
        self.streams = True
        """Whether answers are streamed; an endpoint that cannot, or without usage, is asked for them whole."""
        self._all_report = False
        self._reporting: set[str | None] = set()
        """Replicas that have said how much they reused; None where there is no load balancer to name them."""

    @property
    def model(self) -> str:
        """The model's name in requests."""
        return self._model or ""

    @property
    def reports(self) -> bool | None:
        """Whether usage says how much was reused; None until it is known."""
        return True if self._all_report or self._reporting else None

    @staticmethod
    def now() -> float:
        """Monotonic seconds."""
        return asyncio.get_running_loop().time()

    async def __aenter__(self) -> Client:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, at)

    # -- about the engine -----------------------------------------------------------------------------------------

    async def meet(self) -> Facts:
        """Read what the engine says of itself, and settle on a model.

        Raises:
            ProbeError: nobody listens there, the key is wrong, or the model is not served.
        """
        listing = await look(self._http, self._base, _MODELS, timeout_s=_PAGE_S)
        if listing.status is None:
            raise self._unreachable(listing.error or "no answer", connecting=listing.error in (REFUSED, UNREACHABLE))
        if listing.status in _UNAUTHORISED:
            raise self._unauthorised(listing.status)
        self._engine, pages = await read(self._http, self._base, timeout_s=_PAGE_S)
        known = self._engine.facts(pages)
        names = [
            name for each in models(listing.text if listing.good else None) if isinstance(name := each.get("id"), str)
        ]
        if self._model is None and not names:
            raise ProbeError(f"{self.shown_url} lists no models; name the one to use with --model")
        if self._model is not None and names and self._model not in names:
            listed = ", ".join(names[:8])
            raise ProbeError(f"{self.shown_url} does not serve the model {self._model}; it lists {listed}")
        self._model = self._model or names[0]
        self.simulated_speed = simulated_speed(pages.get(_METRICS))
        # SGLang can say itself that it reports, and then leaves out the count of a prompt that missed.
        self._all_report = known.reports_cached is True
        return known

    async def in_flight(self) -> int | None:
        """Requests that run or wait in there; None if it does not say."""
        for path in self._engine.load_paths:
            loads = self._engine.loads(await ask(self._http, self._base, (path,), timeout_s=_PAGE_S))
            counts = [each for load in loads for each in (load.running, load.waiting) if each is not None]
            if counts:
                return sum(counts)
        return None

    async def host_tokens(self) -> int | None:
        """Tokens reused from the host's memory since the engine started; None if it does not count them."""
        pages = await ask(self._http, self._base, (_METRICS,), timeout_s=_PAGE_S)
        return host_tokens(pages.get(_METRICS))

    # -- requests ---------------------------------------------------------------------------------------------------

    async def chat(self, messages: Sequence[Message], *, max_tokens: int, tokens: int) -> Answer:
        """Send one request and watch its answer.

        Args:
            messages: the prompt.
            max_tokens: the longest answer.
            tokens: about how long the prompt is, to understand the refusal of one that is too long.

        Raises:
            TooLong: the engine refuses the prompt for its length.
            ProbeError: it refuses for another reason, or is gone.
        """
        try:
            # The whole answer's time stands for the first token's, so it has no other.
            return await self._ask(messages, max_tokens if self.streams else 1, tokens)
        except httpx.HTTPError as error:
            connecting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise self._unreachable(str(error) or type(error).__name__, connecting=connecting) from None

    async def _ask(self, messages: Sequence[Message], max_tokens: int, tokens: int) -> Answer:
        body: dict[str, object] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": self.streams,
        }
        if self.streams:
            body["stream_options"] = {"include_usage": True}
        # Encoded before the clock starts: half a million tokens take a while.
        content = json.dumps(body).encode()
        observer: SseObserver | JsonObserver = SseObserver() if self.streams else JsonObserver()
        received = bytearray()
        sent_at = self.now()
        first_byte_at: float | None = None
        headers = {"content-type": "application/json"}
        async with self._http.stream("POST", _CHAT, content=content, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise self._refusal(response.status_code, await response.aread(), tokens)
            async for chunk in response.aiter_bytes():
                now = self.now()
                first_byte_at = now if first_byte_at is None else first_byte_at
                observer.feed(chunk, now)
                received += chunk
        observer.close()
        if observer.error:
            raise ProbeError(f"{self.shown_url} broke off an answer: {_message(bytes(received))}")
        # Engines send the first chunk with the first token, also where that has no text: a model that thinks, or stops.
        first_at = observer.first_token_at or (first_byte_at if self.streams else self.now())
        usage, replica = observer.usage or Usage(), response.headers.get(REPLICA_HEADER)
        return Answer(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=self._cached(usage, replica),
            ttft_s=None if first_at is None else first_at - sent_at,
            replica=replica,
            text=_text(bytes(received)),
        )

    def _cached(self, usage: Usage, replica: str | None) -> int | None:
        """SGLang leaves the count out where it is 0: once a replica has given one, its absence means that."""
        if usage.cached_tokens is not None:
            self._reporting.add(replica)
            return usage.cached_tokens
        told = self._all_report or replica in self._reporting
        return 0 if told and usage.prompt_tokens is not None else None

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def _refusal(self, status: int, body: bytes, tokens: int) -> Exception:
        message = _message(body)
        if status in _UNAUTHORISED:
            return self._unauthorised(status)
        text = body.decode(errors="replace").lower()
        if status in _BAD and any(word in text for word in _TOO_LONG):
            # A count is an estimate, and what the engine calls the longest may be what was sent.
            most = most_tokens(body.decode(errors="replace"), tokens)
            return TooLong(f"{self.shown_url} refuses a prompt of about {tokens:,} tokens: {message}", most)
        hint = ""
        if status == httpx.codes.NOT_FOUND:
            hint = f"; is {self.shown_url} the right address, and {self.model} a model that it serves (--model)?"
        elif status in _LATER:
            hint = "; it is full or still loading, so try again later"
        return Refused(f"{self.shown_url} answers {status}: {message}{hint}", status)

    def _unauthorised(self, status: int) -> ProbeError:
        return ProbeError(
            f"{self.shown_url} answers {status}: give its key with --api-key, or in the variable OPENAI_API_KEY"
        )

    def _unreachable(self, why: str, *, connecting: bool) -> ProbeError:
        if connecting:
            return ProbeError(f"cannot reach {self.shown_url}: {why}; does the engine run, and is this its address?")
        return ProbeError(f"lost {self.shown_url} within an answer: {why}; see the engine's log")


def _message(body: bytes) -> str:
    """What an error says, in the shapes that engines give it."""
    text = body.decode(errors="replace").strip()
    for line in (text, *(line.removeprefix("data:").strip() for line in text.splitlines() if "error" in line)):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            found = document.get("error", document)
            said = found.get("message") or found.get("detail") if isinstance(found, dict) else found
            if said:
                return str(said)[:_ERROR_CHARACTERS]
    return text[:_ERROR_CHARACTERS] or "no message"


def _text(body: bytes) -> str:
    """The answer's text, of a stream or a whole one."""
    pieces = []
    for line in body.splitlines():
        try:
            document = json.loads(line.removeprefix(b"data:"))
            choice = document["choices"][0]
            said = (choice.get("delta") or choice.get("message") or {}).get("content")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            continue
        if isinstance(said, str):
            pieces.append(said)
    return "".join(pieces)
