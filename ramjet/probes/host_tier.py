"""Beyond what fits on the device: what comes back from the host's memory, and how fast? Pure.

Copies in the host's memory are seen in two ways. SGLang's metrics count what was reused by where it came from. Without
them, only time tells: a session from the host starts later than one from the device and far earlier than one that is
read anew. Where the three are not clearly apart, as in engines that are very fast, it says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count as counter
from typing import Any, Literal

from ramjet.engines.facts import Facts
from ramjet.probes import pools
from ramjet.probes.capacity import AGAIN, MOST_SESSIONS, attempt, climb
from ramjet.probes.eviction import without_reuse
from ramjet.probes.prompts import Writer
from ramjet.probes.steps import Ask, Finding, Plan, Step, count, middle, of, returned, seconds, user

TOKENS, BEYOND = 20_000, (1, 2, 4, 8)
"""The seed's sessions, and how many more of them than fit on the device are tried; it tried two and four."""

ALONE, REFERENCE = "alone", "reference"
"""Roles: one session on an idle engine, read once, and then sent again."""

MORE, MORE_AGAIN = "more", "more again"
"""Roles: more sessions than fit on the device, twice around."""

_ON_DEVICE = ("device", "warm")
_REPEATS = 4
_SLOWER = 1.6
"""A session from the host is slower than the slowest from the device by this factor at least (seed: 0.40 to 0.15 s)."""
_NOISE_RATIO = 0.03
"""And by this part of a cold read at least, which the seed's are by more than twice that."""
_NOISE_S = 0.02
"""And by this at least: a client's own few milliseconds must not be taken for a tier."""

Tier = Literal["device", "host", "warm", "cold"]
"""Where a session came back from: `warm` where it did and the tier cannot be told, `cold` where it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What one session alone has shown."""

    reference: Step
    cold_s: float | None
    device_s: float | None
    """The slowest of its repeats."""

    def tier(self, step: Step) -> Tier | None:
        """Where a session came back from; None where counts are unknown."""
        back = returned(step, self.reference)
        if back is None:
            return None
        if not back:
            return "cold"
        if step.host_tokens is not None:
            return "host" if step.host_tokens > (step.cached_tokens or 0) / 2 else "device"
        if step.ttft_s is None or self.device_s is None or self.cold_s is None:
            return "warm"
        slower = step.ttft_s - self.device_s
        apart = max(_NOISE_RATIO * self.cold_s, _NOISE_S)
        if step.ttft_s >= _SLOWER * self.device_s and slower >= apart:
            return "host"
        # In a fast engine a copy from the host would take no longer than the noise.
        return "device" if (_SLOWER - 1) * self.device_s >= _NOISE_S else "warm"


def plan(
    writer: Writer,
    facts: Facts,
    *,
    tokens: int = TOKENS,
    fits: int | None = None,
    most_sessions: int = MOST_SESSIONS,
) -> Plan:
    """Find how many sessions fit on the device, then try a few more.

    Args:
        writer: of the prompts.
        facts: of the engine; its token pool's size saves attempts.
        tokens: length of a session.
        fits: how many fit on the device, if it is known; that saves most of the requests.
        most_sessions: where to stop looking for it.
    """
    text = writer.text("alone", tokens)
    done = [(yield Ask(name="one session", role=ALONE, messages=user(text), tokens=tokens))]
    for _ in range(_REPEATS):
        again = Ask(name="that session again", role=REFERENCE, messages=user(text), tokens=tokens, see_tiers=True)
        done.append((yield again))
        if not done[-1].cached_tokens:
            return
    known = speeds(done)
    assert known is not None
    label, trials = f"{tokens} tokens", counter(1)
    back = 0

    def on_device(step: Step) -> bool | None:
        nonlocal back
        tier = known.tier(step)
        back += tier != "cold"
        return None if tier is None else tier in _ON_DEVICE

    def attempted(sessions: int) -> Generator[Ask, Step, bool | None]:
        return attempt(
            writer, label, sessions=sessions, tokens=tokens, trial=next(trials), good=on_device, see_tiers=True
        )

    if fits is None:
        guess = facts.pool_tokens // tokens if facts.pool_tokens else None
        found = yield from climb(attempted, most=most_sessions, guess=guess)
        if found is None or found[1] is None:
            return
        fits = found[0]
    for more in BEYOND:
        back = 0
        told = yield from attempt(
            writer,
            label,
            sessions=fits + more,
            tokens=tokens,
            trial=next(trials),
            good=on_device,
            roles=(MORE, MORE_AGAIN),
            to_the_end=True,
            see_tiers=True,
        )
        # Of more sessions no more will come back.
        if told is None or not back:
            return


def judge(steps: Sequence[Step], facts: Facts) -> Finding:
    """What came back beyond the device, from where and how fast."""
    known = speeds(steps)
    measured: dict[str, Any] = {"sessions_on_device": None, "beyond": []}
    if known is None:
        alone = of(steps, REFERENCE)
        if alone:
            return without_reuse(alone[-1], facts, measured)
        return Finding(verdict="The experiment is not finished.", limit="unknown", measured=measured)
    tried = _passes(steps, AGAIN)
    more = _passes(steps, MORE_AGAIN)
    fits = max(
        (len(again) for sessions, again in tried if all(known.tier(step) in _ON_DEVICE for step in again)
         and len(again) == sessions),
        default=1 if tried or not more else more[0][0] - 1,
    )  # fmt: skip
    measured["sessions_on_device"] = fits
    measured["cold_s"], measured["device_s"] = known.cold_s, middle(step.ttft_s for step in of(steps, REFERENCE))
    for sessions, again in more:
        tiers = [known.tier(step) for step in again]
        found = Counter(tiers)
        measured["beyond"].append(
            {
                "sessions": sessions,
                "came_back": len(again) - found["cold"],
                "from_host": found["host"] if not found["warm"] else None,
                "cold": found["cold"],
                "host_s": middle(step.ttft_s for step, tier in zip(again, tiers, strict=True) if tier == "host"),
            }
        )
    if not more:
        verdict = f"All of {fits} sessions came back at the device's speed; more were not tried."
        return Finding(verdict=verdict, limit="none", measured=measured)
    tokens = of(steps, ALONE)[0].tokens
    limit = pools.cause((fits + 1) * tokens, facts, snapshot_limited=None).limit
    verdict, flags = _verdict(measured, facts)
    return Finding(verdict=verdict, limit=limit, flags=flags, measured=measured)


def speeds(steps: Sequence[Step]) -> Speeds | None:
    """What one session alone has shown; None where it showed no reuse."""
    alone, again = of(steps, ALONE), of(steps, REFERENCE)
    if not alone or len(again) < _REPEATS or not all(step.cached_tokens for step in again):
        return None
    waits = [step.ttft_s for step in again if step.ttft_s is not None]
    return Speeds(reference=again[0], cold_s=alone[0].ttft_s, device_s=max(waits, default=None))


def _passes(steps: Sequence[Step], role: str) -> list[tuple[int, list[Step]]]:
    """How many sessions, and the second pass, of each attempt that has one."""
    found: dict[int | None, list[Step]] = {}
    for step in of(steps, role):
        found.setdefault(step.trial, []).append(step)
    return [(again[0].sessions or 0, again) for again in found.values()]


def _verdict(measured: dict[str, Any], facts: Facts) -> tuple[str, tuple[str, ...]]:
    fits, beyond = measured["sessions_on_device"], measured["beyond"]
    device, cold = seconds(measured["device_s"]), seconds(measured["cold_s"])
    speed = f"from the device a session starts in {device}, and read anew in {cold}"
    from_host = [each for each in beyond if each["from_host"]]
    each_time = "; ".join(
        f"of {each['sessions']} sessions {each['came_back'] or 'none'} came back"
        + (f", {each['from_host']} from the host" if each["from_host"] else "")
        + (f" in {seconds(each['host_s'])}" if each["host_s"] is not None else "")
        for each in beyond
    )
    if from_host:
        verdict = f"{count(fits, 'session')} fit on the device. With more, {each_time}. For comparison, {speed}."
        return verdict, ("--hicache-size",) if any(each["cold"] for each in beyond) else ()
    if any(each["came_back"] for each in beyond):
        return f"{count(fits, 'session')} came back. With more, {each_time}; from where cannot be told: {speed}.", ()
    verdict = f"Beyond the {fits} that stay, no session came back: of {beyond[0]['sessions']} all were read anew"
    if facts.host_tier:
        return (
            f"{verdict}, though the engine says it has a host tier. If that counts among the {fits}, say how many fit "
            f"on the device with --fits. For comparison, {speed}.",
            ("--hicache-size", "--hicache-write-policy"),
        )
    return f"{verdict}. There is no host tier, or it brings nothing back. For comparison, {speed}.", _host(facts)


def _host(facts: Facts) -> tuple[str, ...]:
    if facts.engine == "llamacpp":
        return ("--cache-ram",)
    return () if facts.engine == "vllm" else ("--enable-hierarchical-cache", "--hicache-size")
