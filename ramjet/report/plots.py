"""The report's pictures as values: data and layout as plotly's script takes them, for it draws in the browser.

Colours of text, grid and background are the page's own, which knows whether it is day or night.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ramjet.core.record import SIZE_CLASSES
from ramjet.report.figures import Report

COLOURS = {"warm": "#2f9e6e", "partial": "#d9a21b", "cold": "#d9485f", "first": "#4c7fd0", "unknown": "#8a8f98"}
_SIZES = dict(zip(SIZE_CLASSES, ("#9db7e0", "#4c7fd0", "#27437a"), strict=True))
_REPLICAS = ("#4c7fd0", "#d9485f", "#2f9e6e", "#d9a21b", "#8b5fbf", "#1aa3a3", "#c0672e", "#6b7280")


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture."""

    name: str
    title: str
    about: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    height_px: int = 340


def plots(report: Report, points: Mapping[str, Sequence[tuple[int, float]]]) -> list[Plot]:
    """All pictures that have something in them.

    Args:
        report: the figures.
        points: prompt tokens and TTFT by temperature.
    """
    found = (_compared(report), _over_time(report), _waits(points), _timeline(report), _causes(report), _reuse(report))
    return [*(plot for plot in found if plot is not None), *_pools(report)]


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _compared(report: Report) -> Plot | None:
    if len(report.periods) < 3:
        return None
    places = [at for at in range(len(SIZE_CLASSES)) if any(period.sizes[at].turns for period in report.periods[1:])]
    data = []
    for period, colour in zip(report.periods[1:], ("#8a8f98", "#4c7fd0"), strict=True):
        sizes = [period.sizes[at] for at in places]
        data.append(
            {
                "type": "bar",
                "name": period.name,
                "x": [f"{each.size_class} tokens" for each in sizes],
                "y": [None if each.cold_ratio is None else 100 * each.cold_ratio for each in sizes],
                "customdata": [[each.cold, each.warm + each.partial + each.cold] for each in sizes],
                "hovertemplate": "%{y:.1f} %: %{customdata[0]:,} of %{customdata[1]:,} turns<extra>%{fullData.name}</extra>",
                "marker": {"color": colour},
            }
        )
    layout = {"barmode": "group", "yaxis": {"title": {"text": "cold turns, %"}, "rangemode": "tozero"}}
    return Plot("compared", "Before and after", "Share of cold turns by prompt tokens.", data, layout)


def _over_time(report: Report) -> Plot | None:
    if len(report.over_time) < 2:
        return None
    times = [_time(each.at) for each in report.over_time]
    bars = [("cold turns", "cold", COLOURS["cold"]), ("waits over 10 s", "over_10_s", COLOURS["partial"])]
    data: list[dict[str, Any]] = [
        {"type": "bar", "name": name, "x": times, "y": [getattr(each, field) for each in report.over_time],
         "marker": {"color": colour}}
        for name, field, colour in bars
    ]  # fmt: skip
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "cached, %",
            "x": times,
            "y": [None if each.cached_ratio is None else 100 * each.cached_ratio for each in report.over_time],
            "yaxis": "y2",
            "line": {"color": COLOURS["warm"], "width": 2},
        }
    )
    layout: dict[str, Any] = {
        "barmode": "group",
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": "turns"}, "rangemode": "tozero"},
        "yaxis2": {
            "overlaying": "y",
            "side": "right",
            "range": [0, 102],
            "showgrid": False,
            "tickvals": [0, 25, 50, 75, 100],
            "ticksuffix": " %",
        },
    }
    if report.split_at is not None:
        at = _time(report.split_at)
        layout["shapes"] = [
            {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dot", "width": 2}}
        ]
    about = "Cold turns, long waits, and the share of prompt tokens that came from the cache."
    return Plot("over_time", "Over time (UTC)", about, data, layout)


def _waits(points: Mapping[str, Sequence[tuple[int, float]]]) -> Plot | None:
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": warmth,
            "x": [tokens for tokens, _ in points[warmth]],
            "y": [round(seconds, 3) for _, seconds in points[warmth]],
            "marker": {"color": colour, "size": 5, "opacity": 0.55},
            "hovertemplate": "%{x:,} tokens, %{y:.2f} s<extra>%{fullData.name}</extra>",
        }
        for warmth, colour in COLOURS.items()
        if points.get(warmth)
    ]
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": "prompt tokens"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "seconds to the first token"}, "type": "log"},
    }
    about = "Each point is a turn; where there are many, every so many of a colour are shown."
    return Plot("waits", "Prompt tokens and waits", about, data, layout, 420)


def _timeline(report: Report) -> Plot | None:
    line = report.timeline
    if line is None:
        return None
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "prompt tokens",
            "x": [_time(each.at) for each in line.points],
            "y": [each.prompt_tokens for each in line.points],
            "yaxis": "y2",
            "line": {"color": "#8a8f98", "width": 1, "shape": "hv"},
            "fill": "tozeroy",
            "fillcolor": "rgba(138,143,152,0.15)",
            "hovertemplate": "%{y:,} tokens<extra></extra>",
        }
    ]
    for warmth, colour in COLOURS.items():
        those = [each for each in line.points if each.temperature == warmth and each.ttft_s is not None]
        if those:
            said = [f"turn {e.turn}, {e.replica}{f', {e.cold_cause}' if e.cold_cause else ''}" for e in those]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": warmth,
                    "x": [_time(each.at) for each in those],
                    "y": [round(each.ttft_s or 0.0, 3) for each in those],
                    "text": said,
                    "marker": {"color": colour, "size": 9 if warmth == "cold" else 6},
                    "hovertemplate": "%{text}: %{y:.2f} s<extra>%{fullData.name}</extra>",
                }
            )
    layout = {
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": "seconds to the first token"}, "rangemode": "tozero"},
        "yaxis2": {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "tickmode": "auto"},
    }
    about = "How its prompt grew (grey, right), and how long each turn's first token took."
    return Plot("timeline", f"Conversation {line.conversation}", about, data, layout, 420)


def _causes(report: Report) -> Plot | None:
    causes = list(reversed(report.whole.causes))
    if not causes:
        return None
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": f"{size} tokens",
            "y": [each.cause for each in causes],
            "x": [each.by_size[size] for each in causes],
            "marker": {"color": colour},
        }
        for size, colour in _SIZES.items()
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "cold turns"}}, "yaxis": {"automargin": True}}
    return Plot("causes", "Cold turns by cause", "And by prompt tokens.", data, layout, 140 + 36 * len(causes))


def _reuse(report: Report) -> Plot | None:
    reuse = report.whole.reuse
    if not reuse.compared_reachable_tokens:
        return None
    parts = (
        ("achieved", reuse.compared_cached_tokens, COLOURS["warm"]),
        ("gone where it went", reuse.lost_tokens, COLOURS["cold"]),
        ("at another replica", reuse.elsewhere_tokens, COLOURS["partial"]),
        ("held by none any more", reuse.forgotten_tokens, COLOURS["unknown"]),
    )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": ["reachable"],
            "x": [100 * tokens / reuse.compared_reachable_tokens],
            "customdata": [tokens],
            "hovertemplate": "%{x:.1f} %: %{customdata:,} tokens<extra>%{fullData.name}</extra>",
            "marker": {"color": colour},
        }
        for name, tokens, colour in parts
    ]
    layout = {"barmode": "stack", "xaxis": {"range": [0, 100], "ticksuffix": " %"}, "yaxis": {"visible": False}}
    about = "Of the tokens that a cache that forgets nothing would have had: what became of them."
    return Plot("reuse", "Reachable and achieved reuse", about, data, layout, 190)


def _pools(report: Report) -> Iterator[Plot]:
    kinds = (
        ("tokens", 1, "Token pools", "The part of each replica's token pool that was believed to be taken."),
        ("slots", 2, "Snapshot pools", "The part of each replica's snapshot pool that was believed to be taken."),
    )
    for name, place, title, about in kinds:
        data = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": each.replica,
                "x": [_time(row[0]) for row in each.over_time],
                "y": [None if (taken := row[place]) is None else 100 * taken for row in each.over_time],
                "line": {"color": _REPLICAS[number % len(_REPLICAS)], "width": 2},
            }
            for number, each in enumerate(report.replicas)
            if any(row[place] is not None for row in each.over_time)
        ]
        if data:
            layout = {"xaxis": {"type": "date"}, "yaxis": {"ticksuffix": " %", "rangemode": "tozero"}}
            yield Plot(f"pool_{name}", f"{title} (UTC)", about, data, layout, 300)
