"""What the figures mean, in words: each finding is a value with its figures and its remedy, the worst first.

Nothing here has been replayed: a remedy says what would help, and `replayed` how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ramjet.core.record import SIZE_CLASSES
from ramjet.report.figures import Cause, Eviction, Figure, Finding, Period, Remedy, Report, SizeClass

SEVERITIES = ("bad", "warn", "info", "good")

FEW_TURNS = 100
"""Fewer later turns than this say little."""
FEW_COLD = 5
_NOTICED_RATIO = 0.01
"""A cause is worth saying when one turn in a hundred is cold for it, or it costs..."""
_NOTICED_S = 60.0
_BAD_RATIO = 0.05
"""A share of cold turns that is bad; the seed's were 5.4 % and 7.6 %."""
_BAD_S = 600.0
_UNREPORTED_RATIO = 0.1
_ELSEWHERE_RATIO = 0.05
_FAILURES_RATIO = 0.01
_LONG = SIZE_CLASSES[-1]

_SNAPSHOT_CAP = Remedy(
    text="keep fewer snapshots of each conversation: SGLang's --mamba-max-states-per-path 2",
    changes={"per_path": 2},
)
_MORE_SLOTS = Remedy(
    text="each path is capped already: more slots (SGLang's --max-mamba-cache-size), a host tier "
    "(--enable-hierarchical-cache), or another replica",
    changes={"host": True},
)
_MORE_TOKENS = Remedy(
    text="the conversations do not fit together: another replica, or a host tier (SGLang's --enable-hierarchical-cache)",
    changes={"replicas": 1},
)


def findings(report: Report) -> list[Finding]:
    """All there is to say, by severity; never nothing."""
    found = [finding for finder in _FINDERS for finding in finder(report)]
    whole = report.whole
    judged = _judged(whole)
    if not any(each.severity in {"bad", "warn"} for each in found) and judged >= FEW_TURNS:
        text = (
            f"All is well: {_share(whole.sizes[-1].cold, judged)} of {judged:,} later turns were cold, "
            f"and {_percent(whole.cached.cached_ratio)} of the prompts' tokens came from the cache."
        )
        found.append(_finding("all_well", "good", text, {"later_turns": judged, "cold": whole.sizes[-1].cold}))
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def _finding(
    name: str, severity: str, text: str, figures: Mapping[str, Figure], remedy: Remedy | None = None
) -> Finding:
    return Finding(id=name, severity=severity, text=text, figures=figures, remedy=remedy)


def _remedy(text: str, **changes: int | bool) -> Remedy:
    return Remedy(text=text, changes=changes)


def _judged(period: Period) -> int:
    """Turns that were warm, partial or cold."""
    everybody = period.sizes[-1]
    return everybody.warm + everybody.partial + everybody.cold


def _share(part: float, whole: float) -> str:
    return _percent(part / whole if whole else None)


def _percent(ratio: float | None) -> str:
    return "an unknown share" if ratio is None else f"{ratio:.1%}".replace("%", " %")


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def _turns(number: int) -> str:
    return f"{number:,} turn{'' if number == 1 else 's'}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


# -- cold turns by cause ------------------------------------------------------------------------------------------------


def _too_little(report: Report) -> Iterator[Finding]:
    judged, everybody = _judged(report.whole), report.whole.sizes[-1]
    if judged < FEW_TURNS:
        text = (
            f"Too little to judge by: {judged:,} later turns of which it is known what they reused, of "
            f"{everybody.turns:,} turns in all. What is said here is of those few."
        )
        yield _finding("too_little_data", "info", text, {"later_turns": judged, "turns": everybody.turns})


def _by_cause(report: Report) -> Iterator[Finding]:
    judged, all_cold = _judged(report.whole), report.whole.sizes[-1].cold
    for cause in report.whole.causes:
        few = cause.turns < judged * _NOTICED_RATIO and cause.wait_s < _NOTICED_S
        if few:
            continue
        long_cold = next(each.cold for each in report.whole.sizes if each.size_class == _LONG)
        of_long = cause.by_size[_LONG]
        # The seed's trouble was with long prompts: where most of a cause's are long, those are what is spoken of.
        speaks_of_long = of_long * 2 >= cause.turns > 0
        if speaks_of_long:
            which = f"{of_long:,} of {long_cold:,} cold turns of 150,000 tokens and more"
        else:
            which = f"{cause.turns:,} of {all_cold:,} cold turns"
        many = judged >= FEW_TURNS and cause.turns >= judged * _BAD_RATIO
        bad = many or cause.wait_s >= _BAD_S
        said, remedy = _TOLD[cause.cause](report, cause)
        number = of_long if speaks_of_long else cause.turns
        text = f"{which} {_were(number)} {said} They waited {_seconds(cause.wait_s)} for their first tokens."
        figures: dict[str, Figure] = {
            "turns": cause.turns,
            "long_turns": of_long,
            "cold": all_cold,
            "wait_s": round(cause.wait_s, 3),
            "size_class": _LONG if speaks_of_long else "all",
        }
        yield _finding(f"cold_{cause.cause}", "bad" if bad else "warn", text, figures, remedy)


def _by_whom(report: Report, cause: Cause) -> str:
    """Whether one conversation did most of it."""
    those: list[Eviction] = [each for each in report.evictions if each.cause == cause.cause]
    first = max(those, key=lambda each: each.turns, default=None)
    if first is None:
        return ""
    alone = first.turns * 2 >= cause.turns and first.conversations > 0
    others = f"{first.conversations:,} other{'' if first.conversations == 1 else 's'}"
    return f", {first.turns:,} of them by one conversation, {first.by}, at the cost of {others}" if alone else ""


def _most(report: Report, name: str) -> float | None:
    return max((ratio for each in report.replicas if (ratio := getattr(each, name)) is not None), default=None)


def _snapshot_pool(report: Report, cause: Cause) -> tuple[str, Remedy | None]:
    caps = [each.per_path for each in report.replicas if each.samples]
    capped = bool(caps) and all(cap is not None and cap <= 2 for cap in caps)
    tokens = _most(report, "tokens_ratio_most")
    room = f" The token pool was not the limit: {_percent(tokens)} of it at most." if tokens and tokens < 0.9 else ""
    text = f"pushed out of the snapshot pool{_by_whom(report, cause)}.{room}"
    return text, _MORE_SLOTS if capped else _SNAPSHOT_CAP


def _token_pool(report: Report, cause: Cause) -> tuple[str, Remedy | None]:
    return f"pushed out of the token pool{_by_whom(report, cause)}.", _sure(report, _MORE_TOKENS)


def _sure(report: Report, remedy: Remedy) -> Remedy:
    """A remedy, with what has to be known before it is believed.

    Where nobody says that there are snapshots, what was lost with one looks as if tokens had been short: the seed's error.
    """
    blind = [each.replica for each in report.replicas if each.samples and each.pool_slots is None]
    if not blind:
        return remedy
    first = (
        f"if the model is a hybrid one, first say how many snapshots {', '.join(blind)} can hold "
        "(replicas.snapshot_slots), for without that a lost snapshot looks like lost tokens; otherwise, "
    )
    return Remedy(text=first + remedy.text, changes=remedy.changes)


def _moved(report: Report, _: Cause) -> tuple[str, Remedy | None]:
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in report.moved_reasons.items())
    text = f"cold because Ramjet sent them to another replica than their last turn ({reasons})."
    hints = {
        "load": "the home was busy: another replica, or routing.slices, so that short turns need not wait for long reads",
        "room": "the home had no room: another replica, or a host tier",
        "retry": "the home failed: see replica_failed in the log",
        "fail_open": "no replica was up: see replica_down in the log",
        "long_prompt": "routing.long_prompt sent them away: switch it off, or raise its threshold",
        "spread_long": "routing.spread_long parted long conversations, which costs each one turn",
        "only": "their home was down, drained or forbidden by a rule: see replica_down and replica_draining in the log",
    }
    first = next(iter(report.moved_reasons), "load")
    changes: dict[str, int | bool] = {"replicas": 1} if first in {"load", "room"} else {}
    return text, Remedy(text=hints.get(first, "see the reasons in docs/metrics.md"), changes=changes)


def _branch(report: Report, _: Cause) -> tuple[str, Remedy | None]:
    caps = {each.per_path for each in report.replicas if each.per_path is not None}
    said = "branches that left their conversation where no snapshot was."
    if caps:
        return said, _remedy(f"keep more snapshots of each conversation than {min(caps)}", per_path=2 * min(caps))
    return said, _remedy("a smaller prefill chunk saves snapshots at more places (SGLang's --chunked-prefill-size)")


def _prefix_changed(_: Report, __: Cause) -> tuple[str, Remedy | None]:
    said = (
        "cold because the client altered the head of its prompt: a clock or a nonce, which no engine can reuse beyond."
    )
    return said, _remedy("move what changes out of the system prompt and the tools, to the end of the prompt")


def _restart(_: Report, __: Cause) -> tuple[str, Remedy | None]:
    return "cold because their replica had restarted.", _remedy(
        "see replica_down in the log, and drain before a restart"
    )


def _host_tier(_: Report, __: Cause) -> tuple[str, Remedy | None]:
    said = "pushed out of the device, and the host tier had kept only a part."
    return said, _remedy("a larger host tier (SGLang's --hicache-size), or another replica", replicas=1)


def _unknown(report: Report, _: Cause) -> tuple[str, Remedy | None]:
    said = "cold for a reason that cannot be told."
    blind = [each.replica for each in report.replicas if each.samples and each.pool_tokens is None]
    if blind:
        return said, _remedy(
            f"say how large the pools of {', '.join(blind)} are: replicas.pool_tokens and replicas.snapshot_slots"
        )
    return said, _sure(report, _remedy("`ramjet probe eviction` shows what limits a replica"))


_TOLD: Mapping[str, Callable[[Report, Cause], tuple[str, Remedy | None]]] = {
    "snapshot_pool": _snapshot_pool,
    "token_pool": _token_pool,
    "moved": _moved,
    "branch": _branch,
    "prefix_changed": _prefix_changed,
    "restart": _restart,
    "host_tier": _host_tier,
    "unknown": _unknown,
}


# -- everything else ----------------------------------------------------------------------------------------------------


def _long_together(report: Report) -> Iterator[Finding]:
    those = report.long_together
    if not those.same_replica_minutes:
        return
    pools = {each.replica: each.pool_tokens for each in report.replicas}
    pool = pools.get(those.most_replica or "")
    fits = pool is not None and those.most_tokens <= pool
    limit = "its pool is not known" if pool is None else f"its pool holds {pool:,}"
    text = (
        f"Two or more conversations of 150,000 tokens and more were alive in {those.shared_minutes:,} of "
        f"{those.minutes:,} minutes, and in {those.same_replica_minutes:,} of them on one replica. "
        f"Together they had up to {those.most_tokens:,} tokens on {those.most_replica}; {limit}."
    )
    figures = {
        "minutes": those.minutes,
        "shared_minutes": those.shared_minutes,
        "same_replica_minutes": those.same_replica_minutes,
        "most_tokens": those.most_tokens,
        "pool_tokens": pool,
    }
    remedy = None if fits else _remedy("spread them (routing.spread_long), or another replica", replicas=1)
    yield _finding("long_together", "info" if fits else "warn", text, figures, remedy)


def _confined(report: Report) -> Iterator[Finding]:
    if turns := report.whole.confined_turns:
        text = f"routing.long_prompt put {_turns(turns)} beside long conversations with which they do not fit."
        remedy = _remedy("switch routing.long_prompt off, or give it more replicas")
        yield _finding("long_prompt_confines", "bad", text, {"turns": turns}, remedy)


def _unreported(report: Report) -> Iterator[Finding]:
    cached = report.whole.cached
    turns = cached.reported_turns + cached.unreported_turns
    if not turns or cached.unreported_turns < turns * _UNREPORTED_RATIO:
        return
    where = [each.replica for each in report.replicas if each.unreported_turns > each.turns * _UNREPORTED_RATIO]
    text = (
        f"{cached.unreported_turns:,} of {_turns(turns)} came back without cached tokens, from {', '.join(where)}: "
        "whether they were cold is not known."
    )
    remedy = _remedy(
        "have the engine say it: SGLang's --enable-cache-report, vLLM's --enable-prompt-tokens-details; "
        "and replicas.ask_usage on"
    )
    yield _finding(
        "usage_not_reported", "warn", text, {"unreported_turns": cached.unreported_turns, "turns": turns}, remedy
    )


def _dropped(report: Report) -> Iterator[Finding]:
    if report.dropped:
        text = f"The journal could not take {report.dropped:,} requests, ever; no figure here has them."
        remedy = _remedy("see journal_failed in the log: a slow or full disk")
        yield _finding("rows_dropped", "warn", text, {"dropped": report.dropped}, remedy)


def _held_long(report: Report) -> Iterator[Finding]:
    held, requests = report.whole.held, report.whole.requests
    if not held.over_30_s and not held.shed:
        return
    text = (
        f"{held.requests:,} of {requests:,} requests waited in Ramjet for room, {held.over_30_s:,} of them longer than "
        f"30 s and one for {_seconds(held.most_s or 0)}; {held.shed:,} were turned away."
    )
    figures = {"requests": held.requests, "over_30_s": held.over_30_s, "shed": held.shed, "most_s": held.most_s}
    bad = held.shed >= requests * _FAILURES_RATIO or held.over_30_s >= requests * _BAD_RATIO
    remedy = _remedy("the working set does not fit: another replica, or a host tier", replicas=1)
    yield _finding("held_long", "bad" if bad else "warn", text, figures, remedy)


def _left_waiting(report: Report) -> Iterator[Finding]:
    left = report.whole.left
    if left.over_10_s:
        text = (
            f"{left.over_10_s:,} clients went away after more than 10 s without a first token, {left.over_30_s:,} of "
            "them after more than 30 s: waits that no other figure here has."
        )
        bad = left.over_10_s >= report.whole.requests * _FAILURES_RATIO
        figures = {"over_10_s": left.over_10_s, "over_30_s": left.over_30_s}
        yield _finding("left_waiting", "warn" if bad else "info", text, figures)


def _elsewhere(report: Report) -> Iterator[Finding]:
    reuse = report.whole.reuse
    if not reuse.elsewhere_tokens or reuse.elsewhere_tokens < reuse.compared_reachable_tokens * _ELSEWHERE_RATIO:
        return
    text = (
        f"{_share(reuse.elsewhere_tokens, reuse.compared_reachable_tokens)} of the tokens that could have been reused "
        "were at another replica than the turn went to."
    )
    figures = {"elsewhere_tokens": reuse.elsewhere_tokens, "reachable_tokens": reuse.compared_reachable_tokens}
    remedy = _remedy("replicas are too busy to keep their conversations: another one", replicas=1)
    yield _finding("held_elsewhere", "warn", text, figures, remedy)


def _failures(report: Report) -> Iterator[Finding]:
    for each in report.replicas:
        if each.failures and each.failures >= (each.turns + each.failures) * _FAILURES_RATIO:
            text = f"{each.replica} failed at {each.failures:,} requests, and answered {each.turns:,} turns."
            remedy = _remedy("see replica_failed and replica_down in the log")
            figures: dict[str, Figure] = {"replica": each.replica, "failures": each.failures, "turns": each.turns}
            yield _finding("replica_fails", "warn", text, figures, remedy)


def _pools_unknown(report: Report) -> Iterator[Finding]:
    blind = [each.replica for each in report.replicas if each.samples and each.pool_tokens is None]
    if blind:
        text = f"How large the pools of {', '.join(blind)} are is not known, so nothing can be said of their room."
        remedy = _remedy("set replicas.pool_tokens and, for a hybrid model, replicas.snapshot_slots")
        yield _finding("pools_unknown", "info", text, {"replicas": len(blind)}, remedy)


def _compared(report: Report) -> Iterator[Finding]:
    """Before and after a moment, for each size class that has enough of both."""
    if len(report.periods) < 3:
        return
    for before, after in zip(report.periods[1].sizes[:-1], report.periods[2].sizes[:-1], strict=True):
        if before.cold_ratio is None or after.cold_ratio is None:
            continue
        fell = after.cold_ratio < before.cold_ratio
        if after.cold_ratio == before.cold_ratio:
            continue
        few = min(_of(before), _of(after)) < FEW_TURNS or before.cold + after.cold < FEW_COLD
        note = " Few turns: a direction, and no result." if few else ""
        text = (
            f"Cold turns of {_NAMES[before.size_class]} {'fell' if fell else 'rose'} from {_percent(before.cold_ratio)} "
            f"({before.cold:,} of {_of(before):,}) to {_percent(after.cold_ratio)} ({after.cold:,} of {_of(after):,}), "
            f"waits over 10 s from {before.over_10_s:,} in {before.timed_turns:,} to {after.over_10_s:,} in "
            f"{after.timed_turns:,}, over 30 s from {before.over_30_s:,} to {after.over_30_s:,}.{note}"
        )
        figures: dict[str, Figure] = {
            "size_class": before.size_class,
            "before_ratio": round(before.cold_ratio, 6),
            "after_ratio": round(after.cold_ratio, 6),
        }
        yield _finding("before_after", "info" if few else "good" if fell else "warn", text, figures)


def _of(size: SizeClass) -> int:
    return size.warm + size.partial + size.cold


_NAMES = dict(
    zip(SIZE_CLASSES, ("under 8,000 tokens", "8,000 to 150,000 tokens", "150,000 tokens and more"), strict=True)
)

_FINDERS: tuple[Callable[[Report], Iterator[Finding]], ...] = (
    _compared,
    _by_cause,
    _confined,
    _long_together,
    _held_long,
    _left_waiting,
    _elsewhere,
    _failures,
    _unreported,
    _dropped,
    _pools_unknown,
    _too_little,
)
