"""What a probe has found, as JSON, as a table, and as a page with a plot."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ramjet.probes.prompts import Writer
from ramjet.probes.run import Measured
from ramjet.probes.steps import Finding, Step, middle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNKNOWN = "-"
_WARM_RATIO, _PARTIAL_RATIO = 0.9, 0.5
"""The design's words for a turn by what it reused, here as colours only."""
_MOST_ROWS = 40
"""More steps than this are shown by the pass they belong to."""

_REUSED, _READ, _NOT_TOLD = "#3a9d5d", "#d1603d", "#a0a0a0"


class NoPlots(Exception):
    """The library for plots is not installed."""


def need_plots() -> None:
    """Raises NoPlots if pictures cannot be made; asked before anything is sent."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra; only pictures need it
    except ImportError:
        raise NoPlots("pictures need matplotlib: pip install 'ramjet-lb[plots]'") from None


def broken_off(finding: Finding, why: str, steps: int) -> Finding:
    """A finding of a probe that was not finished: what it says so far, and nothing as if it were certain."""
    verdict = f"Stopped before the end: {why}. {steps:,} requests were measured; so far: {finding.verdict}"
    nothing: dict[str, Any] = dict.fromkeys(finding.measured)
    return replace(
        finding, verdict=verdict, limit="unknown", flags=(), measured={**nothing, "so_far": dict(finding.measured)}
    )


def document(measured: Measured, finding: Finding, *, stopped: str | None, took_s: float) -> dict[str, Any]:
    """Everything, as it is written as JSON; None is unknown, 0 is none."""
    writer: Writer = measured.writer
    return {
        "probe": measured.probe,
        "url": measured.url,
        "model": measured.model,
        "engine": measured.facts.engine,
        "verdict": finding.verdict,
        "limit": finding.limit,
        "flags": list(finding.flags),
        **finding.measured,
        "stopped": stopped,
        "steps": [step.facts() for step in measured.steps],
        "facts": {name: value for name, value in asdict(measured.facts).items() if name not in ("sources", "missing")},
        "notes": measured.notes,
        "requests": measured.spent.requests,
        "prompt_tokens": measured.spent.prompt_tokens,
        "characters_per_token": round(writer.characters_per_token, 3),
        "template_tokens": round(writer.overhead_tokens),
        "took_s": round(took_s, 1),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step, or the steps of one pass together."""

    name: str
    prompt_tokens: int | None
    cached_tokens: int | None
    ttft_s: float | None
    replica: str | None = None

    @property
    def cached_ratio(self) -> float | None:
        """The share that was reused, 0 to 1."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


def rows(steps: Sequence[Step]) -> list[Row]:
    """The steps for people; many of them as medians of the passes they belong to."""
    if len(steps) <= _MOST_ROWS:
        return [_row([step], step.name) for step in steps]
    passes: dict[tuple[object, ...], list[Step]] = {}
    for number, step in enumerate(steps):
        # What belongs to no attempt at a number of sessions stands for itself.
        key = (number,) if step.sessions is None else (step.trial, step.role)
        passes.setdefault(key, []).append(step)
    found = []
    for together in passes.values():
        first = together[0]
        name = first.name
        if first.sessions is not None:
            again = " again" if first.role.endswith("again") else ""
            name = f"{first.sessions} x {first.tokens:,}{again} ({len(together)} sent)"
        found.append(_row(together, name))
    return found


def table(measured: Measured) -> Table:
    """The steps, for a terminal."""
    shown = Table(title=f"probe {measured.probe}: {measured.url}", title_justify="left", header_style="", expand=False)
    listed = rows(measured.steps)
    shown.add_column("request")
    for name in ("prompt tokens", "cached", "share", "TTFT s"):
        shown.add_column(name, justify="right")
    replicas = any(row.replica for row in listed)
    if replicas:
        shown.add_column("replica")
    for row in listed:
        numbers = (_count(row.prompt_tokens), _count(row.cached_tokens), _share(row), _seconds(row.ttft_s))
        shown.add_row(row.name, *numbers, *([row.replica or _UNKNOWN] if replicas else []))
    return shown


def words(finding: Finding) -> str:
    """What was found, for a terminal."""
    lines = [finding.verdict, f"limit: {finding.limit}"]
    if finding.flags:
        lines.append(f"flags to try: {'  '.join(finding.flags)}")
    return "\n".join(lines)


def page(told: dict[str, Any], steps: Sequence[Step]) -> str:
    """One HTML file that needs nothing else."""
    svg = io.StringIO()
    figure(told, steps).savefig(svg, format="svg", metadata={"Date": None})
    picture = svg.getvalue()
    picture = picture[picture.index("<svg") :]
    body = "".join(
        f"<tr><td>{html.escape(row.name)}</td><td>{_count(row.prompt_tokens)}</td><td>{_count(row.cached_tokens)}</td>"
        f"<td>{_share(row)}</td><td>{_seconds(row.ttft_s)}</td><td>{html.escape(row.replica or '')}</td></tr>\n"
        for row in rows(steps)
    )
    flags = " ".join(f"<code>{html.escape(flag)}</code>" for flag in told["flags"]) or "none"
    known = "".join(
        f"<dt>{html.escape(str(name))}</dt><dd>{html.escape(str(value))}</dd>"
        for name, value in {**told["facts"], "model": told["model"], "requests": told["requests"]}.items()
        if value is not None
    )
    title = html.escape(f"probe {told['probe']}: {told['url']}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
td:first-child, th:first-child {{ text-align: left; }}
dl {{ display: grid; grid-template-columns: max-content auto; gap: 0 1rem; }} dd {{ margin: 0; }}
</style></head><body>
<h1>{title}</h1>
<p><strong>{html.escape(told["verdict"])}</strong></p>
<p>limit: <code>{told["limit"]}</code>; flags to try: {flags}</p>
{picture}
<table><tr><th>request</th><th>prompt tokens</th><th>cached</th><th>share</th><th>TTFT s</th><th>replica</th></tr>
{body}</table>
<dl>{known}</dl>
</body></html>
"""


def figure(told: dict[str, Any], steps: Sequence[Step]) -> Figure:
    """Two panels: how much of each prompt was reused and read, and how long its first token took."""
    from matplotlib import figure as figures  # noqa: PLC0415 - an extra; only pictures need it

    listed = rows(steps)
    # By itself, and not by pyplot: that would keep it, and ask for a screen.
    drawn = figures.Figure(figsize=(11, 1.6 + 0.28 * max(1, len(listed))), layout="constrained")
    left, right = drawn.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    places = range(len(listed))
    cached = [row.cached_tokens or 0 for row in listed]
    unread = [max(0, (row.prompt_tokens or 0) - (row.cached_tokens or 0)) for row in listed]
    told_all = [_READ if row.cached_tokens is not None else _NOT_TOLD for row in listed]
    left.barh(places, cached, color=_REUSED, label="reused")
    left.barh(places, unread, left=cached, color=told_all, label="read")
    left.set_yticks(list(places), [row.name for row in listed])
    left.set_ylim(len(listed) - 0.4, -0.6)
    left.set_xlabel("tokens: reused in green, read in red, not told in grey")
    left.xaxis.set_major_formatter("{x:,.0f}")
    waits = right.barh(places, [row.ttft_s or 0 for row in listed], color="#4878a8")
    right.bar_label(waits, [_seconds(row.ttft_s) for row in listed], padding=3, fontsize=8)
    right.margins(x=0.25)
    right.set_xlabel("seconds to the first token")
    drawn.suptitle(f"probe {told['probe']}: limit {told['limit']}", x=0.01, ha="left")
    return drawn


def _row(steps: Sequence[Step], name: str) -> Row:
    return Row(
        name=name,
        prompt_tokens=_whole(middle(step.prompt_tokens for step in steps)),
        cached_tokens=_whole(middle(step.cached_tokens for step in steps)),
        ttft_s=middle(step.ttft_s for step in steps),
        replica=steps[0].replica,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3f}"


def _share(row: Row) -> Text:
    ratio = row.cached_ratio
    if ratio is None:
        return Text(_UNKNOWN)
    colour = "green" if ratio >= _WARM_RATIO else "yellow" if ratio >= _PARTIAL_RATIO else "red"
    return Text(f"{ratio:.1%}", colour)
