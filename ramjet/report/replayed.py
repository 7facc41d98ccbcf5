"""What remedies would have done: those that can be replayed are, and their findings then say how much they help.

The planner plays; here it is told what to try, and what came of that is put into words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramjet.plan.figures import TRUSTED
from ramjet.plan.report import Plan, Tried
from ramjet.plan.span import Span
from ramjet.report.figures import Figure, Finding, Replayed

_COLD = "cold_"
_FACTS = {"host": "host_tier"}
"""What a remedy calls otherwise than the planner does."""
_NUMBERS = ("no", "one", "two", "three", "four")


def changes_of(findings: Sequence[Finding], replicas: int) -> dict[str, dict[str, Any]]:
    """What is to be tried, by the words for it.

    Args:
        findings: whose remedies.
        replicas: how many there are: a remedy says how many more.
    """
    tried = {}
    for each in findings:
        if each.remedy is not None and each.remedy.changes:
            changes = each.remedy.changes
            tried[_words(changes)] = {
                _FACTS.get(name, name): replicas + value if name == "replicas" else value
                for name, value in changes.items()
            }
    return tried


def with_replays(findings: Sequence[Finding], span: Span, plan: Plan, *, configured: bool) -> list[Finding]:
    """The findings, those with a remedy that was tried saying what came of it.

    Args:
        findings: all of them.
        span: what was played.
        plan: what came of it.
        configured: whether somebody said how Ramjet was configured.
    """
    tried = {each.name: each for each in plan.tried}
    found = []
    for each in findings:
        that = None if each.remedy is None or not each.remedy.changes else tried.get(_words(each.remedy.changes))
        found.append(each if that is None else _with(each, span, plan, that, configured=configured))
    return found


def not_replayed(findings: Sequence[Finding], reasons: Mapping[str, str]) -> list[Finding]:
    """The findings, those whose remedy could not be played saying why: by the words for what it changes."""
    found = []
    for each in findings:
        name = None if each.remedy is None or not each.remedy.changes else _words(each.remedy.changes)
        found.append(_without(each, name, reasons[name]) if name is not None and name in reasons else each)
    return found


def _without(finding: Finding, name: str, reason: str) -> Finding:
    text = f"{_capital(name)} could not be replayed: {reason}."
    return replace(finding, replayed=Replayed(settings=name, text=text, trusted=None, figures={}))


def _with(finding: Finding, span: Span, plan: Plan, tried: Tried, *, configured: bool) -> Finding:
    error = plan.error or tried.error
    if error is not None or tried.figures is None or tried.kept is None or plan.observed is None:
        return _without(finding, tried.name, error or "there is nothing to compare it with")
    before, after, apart = plan.observed, tried.figures, plan.calibration
    figures: dict[str, Figure] = {
        "cold_before": before.cold_turns,
        "cold_after": after.cold_turns,
        "mean_wait_before_s": before.mean_wait_s,
        "mean_wait_after_s": after.mean_wait_s,
        "cached_before_ratio": before.cached_share,
        "cached_after_ratio": after.cached_share,
        "wait_error_ratio": None if apart is None else apart.mean_wait,
        "cold_error_ratio": None if apart is None else apart.cold_turns,
        "cached_error_ratio": None if apart is None else apart.cached_share,
    }
    whole = (
        f"mean wait {_seconds(before.mean_wait_s)} to {_seconds(after.mean_wait_s)}, "
        f"{before.cold_turns:,} to {after.cold_turns:,} cold turns"
    )
    if finding.id.startswith(_COLD):
        meant = _meant(finding, span)
        explained, kept = (sum(name in meant for name in names) for names in (tried.kept.explained, tried.kept.kept))
        figures |= {"turns": len(meant), "explained": explained, "kept": kept}
        text = f"{_capital(tried.name)} {_kept(len(meant), explained, kept)} (replayed; of all turns: {whole})."
    else:
        text = f"{_capital(tried.name)}: {whole} (replayed)."
    trusted = apart is not None and apart.trusted
    if not trusted:
        then = (
            "`ramjet plan` says what is not known" if configured else "say with --config how Ramjet was configured then"
        )
        text += f" Not to be trusted much: {_doubt(plan)}; {then}."
    return replace(finding, replayed=Replayed(settings=tried.name, text=text, trusted=trusted, figures=figures))


def _kept(turns: int, explained: int, kept: int) -> str:
    """What became of the turns that a finding speaks of: of those nothing is known that a replay of what was finds warm."""
    if not explained:
        return "may have kept any of them: a replay of what was finds none of them cold"
    of = "of them" if explained == turns else f"of the {explained:,} that a replay of what was finds cold too"
    return f"would have kept {kept:,} {of}"


def _meant(finding: Finding, span: Span) -> set[str]:
    """The cold turns that a finding speaks of, as far as they are in the span, by name."""
    cause, size = finding.id.removeprefix(_COLD), finding.figures.get("size_class")
    records = [each.seen for each in span.requests if each.seen is not None]
    return {
        each.request_id
        for each in records
        if each.temperature == "cold" and each.cold_cause == cause and size in {each.size_class, "all", None}
    }


def _doubt(plan: Plan) -> str:
    """Why: how far off the replay of what happened is."""
    apart = plan.calibration
    if apart is None or plan.observed is None or plan.replayed is None:
        return "what happened is not known"
    offs = {
        "the mean wait": apart.mean_wait, "cold turns": apart.cold_turns, "the cached share": apart.cached_share
    }  # fmt: skip
    told = [f"{name} by {abs(off):.0%}" for name, off in offs.items() if off is not None and abs(off) > TRUSTED]
    return f"the replay of what was is off by more than {TRUSTED:.0%}" + (f" ({', '.join(told)})" if told else "")


def _words(changes: Mapping[str, int | bool]) -> str:
    """What would be different, as the subject of a sentence."""
    said = []
    for name, value in changes.items():
        if name == "per_path":
            said.append(f"a cap of {_number(int(value))} per path")
        elif name == "host":
            said.append("a host tier")
        elif name == "replicas":
            said.append(f"{_number(int(value))} replica{'' if value == 1 else 's'} more")
        else:
            said.append(f"{name} {value:,}")
    return " and ".join(said)


def _number(value: int) -> str:
    return _NUMBERS[value] if value < len(_NUMBERS) else f"{value:,}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f} s" if value < 10 else f"{value:,.1f} s"
