"""Run a plan against a live replica, within bounds.

Whatever ends it, what has been measured stays measured: steps are handed over one by one as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from ramjet.engines.facts import Facts
from ramjet.probes.client import Answer, Client, ProbeError, Refused
from ramjet.probes.prompts import WORD_CHARACTERS, Writer
from ramjet.probes.steps import REFUSED, Ask, Plan, Step, TooLong, user

ANSWER_TOKENS = 8
"""Enough to see the first one, and few enough not to matter."""

# The second is long enough for one block of every engine we know, so that sending it twice shows whether reuse is
# reported at all.
_CALIBRATION_TOKENS = (256, 2_048)
_BUSY_LOOKS, _BUSY_LOOK_S = 3, 0.5
_NOT_UNDERSTOOD = (400, 422, 500, 501)
_SHORTER = "give a shorter length (see the probe's --help), or start the engine with a longer context"


class LimitReached(Exception):
    """The probe would go beyond a bound; the message names it and the option that raises it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run, calibration included."""

    requests: int
    prompt_tokens: int
    seconds: float


@dataclass(slots=True)
class Spent:
    """What a run has cost so far."""

    limits: Limits
    started_at: float
    """Monotonic."""
    requests: int = 0
    prompt_tokens: int = 0

    def take(self, tokens: int, now: float) -> float:
        """Book one more request; returns the seconds that it may take. Raises LimitReached instead of going too far."""
        limits = self.limits
        if self.requests + 1 > limits.requests:
            raise LimitReached(f"{limits.requests:,} requests are sent, which is the limit; --max-requests raises it")
        if self.prompt_tokens + tokens > limits.prompt_tokens:
            raise LimitReached(
                f"the next prompt of {tokens:,} tokens would make more than the {limits.prompt_tokens:,} that may be "
                "sent; --max-prompt-tokens raises that"
            )
        left = self.started_at + limits.seconds - now
        if left <= 0:
            raise self.out_of_time()
        self.requests += 1
        return left

    def out_of_time(self) -> LimitReached:
        """The run has taken too long."""
        return LimitReached(f"{self.limits.seconds:,.0f} s are over, which is the limit; --max-seconds raises it")


@dataclass(slots=True)
class Measured:
    """What a probe has measured, also if it was broken off."""

    probe: str
    writer: Writer
    spent: Spent
    url: str = ""
    model: str = ""
    facts: Facts = field(default_factory=lambda: Facts(engine="openai"))
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader should know that is no finding."""


MakePlan = Callable[[Writer, Facts], Plan]


async def measure(
    client: Client,
    make_plan: MakePlan,
    measured: Measured,
    *,
    busy_ok: bool,
    on_note: Callable[[str], None],
    on_ask: Callable[[Ask], None],
    on_step: Callable[[Step], None],
) -> None:
    """Run a probe from its first look at the engine to its last request; what it measures is in `measured` at once.

    Args:
        client: of the replica, not yet entered.
        make_plan: the probe.
        measured: filled in.
        busy_ok: go on though others use the replica.
        on_note: called with what a reader should know.
        on_ask: called before a request is sent.
        on_step: called with each step when it has ended.

    Raises:
        LimitReached: a bound was reached.
        ProbeError: the replica cannot be probed, or not any further.
    """

    def note(text: str) -> None:
        measured.notes.append(text)
        on_note(text)

    async with client:
        measured.url = client.shown_url
        measured.facts = await client.meet()
        measured.model = client.model
        if client.simulated_speed is not None:
            note(f"a simulated replica: {client.simulated_speed:g} of its seconds pass in one")
        await _see_that_it_is_idle(client, note, busy_ok=busy_ok)
        await calibrate(client, measured.writer, measured.spent)
        if not client.streams:
            note("it does not stream usage, so that answers come whole, and times are those of whole answers")
        try:
            plan = make_plan(measured.writer, measured.facts)
            async for step in run(plan, client, measured.writer, measured.spent, on_ask):
                measured.steps.append(step)
                on_step(step)
        finally:
            if client.reports is not None:
                measured.facts = replace(measured.facts, reports_cached=client.reports)


async def _see_that_it_is_idle(client: Client, note: Callable[[str], None], *, busy_ok: bool) -> None:
    others = await client.in_flight()
    # A gauge may be seconds old, and what it counts gone.
    for _ in range(_BUSY_LOOKS):
        if not others:
            break
        await asyncio.sleep(_BUSY_LOOK_S)
        others = await client.in_flight()
    if others is None:
        note("it does not say whether others use it; what they send would blur what is measured")
    elif others and not busy_ok:
        raise ProbeError(
            f"{client.shown_url} has {others} running or waiting; a probe would slow others down, and they would blur "
            "it. Wait until it is idle, or say --busy-ok"
        )
    elif others:
        note(f"{others} requests of others were running or waiting; they blur what is measured")


async def run(
    plan: Plan, client: Client, writer: Writer, spent: Spent, on_ask: Callable[[Ask], None]
) -> AsyncIterator[Step]:
    """Send what a plan asks for, and hand over each step when it has ended.

    Raises:
        LimitReached: before the request that would go too far.
        ProbeError: the engine is gone or refuses.
    """
    try:
        ask = next(plan)
        while True:
            on_ask(ask)
            try:
                step = await _send(ask, client, writer, spent)
            except TooLong as refused:
                yield _step(ask, Answer(), role=REFUSED, most_tokens=refused.most_tokens)
                ask = plan.throw(refused)
            else:
                yield step
                ask = plan.send(step)
    except StopIteration:
        return
    except TooLong as refused:
        raise ProbeError(f"{refused}; {_SHORTER}") from None


async def calibrate(client: Client, writer: Writer, spent: Spent) -> None:
    """Learn how long texts have to be, whether the engine streams usage, and whether it reports reuse."""
    few, many = _CALIBRATION_TOKENS
    text = _whole_words(writer.text("calibration", few))
    answer = await _first(client, text, few, spent)
    if answer is None or answer.prompt_tokens is None:
        client.streams = False
        answer = await _chat(client, text, few, spent)
    if answer.prompt_tokens is None:
        raise ProbeError(f"{client.shown_url} does not report usage, without which no length can be measured")
    writer.learn(len(text), answer.prompt_tokens)
    text = _whole_words(writer.text("calibration", many))
    for _ in range(2):
        answer = await _chat(client, text, many, spent)
        if answer.prompt_tokens is not None:
            writer.learn(len(text), answer.prompt_tokens)


def _whole_words(text: str) -> str:
    """A token that is not full would be counted as one, and be missing ten times in a prompt ten times as long."""
    return text[: len(text) // WORD_CHARACTERS * WORD_CHARACTERS]


async def _first(client: Client, text: str, tokens: int, spent: Spent) -> Answer | None:
    """The first request; None if it was refused, which an endpoint may do that does not know `stream_options`."""
    try:
        return await _chat(client, text, tokens, spent)
    except Refused as refused:
        if refused.status in _NOT_UNDERSTOOD:
            return None
        raise


async def _chat(client: Client, text: str, tokens: int, spent: Spent) -> Answer:
    try:
        async with asyncio.timeout(spent.take(tokens, client.now())):
            answer = await client.chat(user(text), max_tokens=ANSWER_TOKENS, tokens=tokens)
    except TimeoutError:
        raise spent.out_of_time() from None
    except TooLong as refused:
        raise ProbeError(f"{refused}; a probe needs prompts of {_CALIBRATION_TOKENS[-1]:,} tokens at least") from None
    spent.prompt_tokens += answer.prompt_tokens or tokens
    return answer


async def _send(ask: Ask, client: Client, writer: Writer, spent: Spent) -> Step:
    try:
        async with asyncio.timeout(spent.take(ask.tokens, client.now())):
            before = await client.host_tokens() if ask.see_tiers else None
            answer = await client.chat(ask.messages, max_tokens=ANSWER_TOKENS, tokens=ask.tokens)
            after = await client.host_tokens() if ask.see_tiers else None
    except TimeoutError:
        raise spent.out_of_time() from None
    spent.prompt_tokens += answer.prompt_tokens or ask.tokens
    if answer.prompt_tokens is not None and len(ask.messages) == 1:
        writer.learn(len(ask.messages[0]["content"]), answer.prompt_tokens)
    host_tokens = None if before is None or after is None else max(0, after - before)
    return replace(_step(ask, answer), host_tokens=host_tokens)


def _step(ask: Ask, answer: Answer, *, role: str | None = None, most_tokens: int | None = None) -> Step:
    return Step(
        name=ask.name if role is None else f"{ask.name} ({role})",
        role=role or ask.role,
        tokens=ask.tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        ttft_s=answer.ttft_s,
        wanted_tokens=ask.wanted_tokens,
        shared_tokens=ask.shared_tokens,
        session=ask.session,
        trial=ask.trial,
        sessions=ask.sessions,
        most_tokens=most_tokens,
        replica=answer.replica,
        answer=answer.text,
    )
