"""The report as one HTML file: it loads nothing, and says so to the browser, which would otherwise be free to."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import msgspec

from ramjet.report.figures import Finding
from ramjet.report.gather import Gathered
from ramjet.report.plots import Plot, plots
from ramjet.report.tables import Grid, grids, notes, title


class NoPlots(Exception):
    """The library that draws is not installed."""


def need_plots() -> None:
    """Raises NoPlots if a page cannot be made; asked before anything is counted."""
    _script()


def _script() -> str:
    """plotly's script, all of it."""
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra; only pages need it
    except ImportError:
        raise NoPlots("the page has pictures, which need plotly: pip install 'ramjet-lb[plots]'") from None
    script: str = get_plotlyjs()
    return script


_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5d6470; --line: #e0e3e8; --page: #fff; --box: #f6f7f9;
  --bad: #c62f47; --warn: #a87300; --info: #2d66c4; --good: #1f7a52; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #9aa2ae; --line: #333840; --page: #14161a;
  --box: #1d2026; --bad: #ff7088; --warn: #e8b33d; --info: #7fb0ff; --good: #56c795; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto; padding: 1rem;
  max-width: 68rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); font-size: .9rem; }
.finding { border-left: 4px solid var(--c); background: var(--box); padding: .6rem .9rem; margin: .6rem 0; border-radius: 4px; }
.finding b { color: var(--c); text-transform: uppercase; font-size: .75rem; letter-spacing: .05em; }
.bad { --c: var(--bad); } .warn { --c: var(--warn); } .info { --c: var(--info); } .good { --c: var(--good); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
.plot { width: 100%; }
@media (max-width: 40rem) { table { font-size: .8rem; } th, td { padding-right: .55rem; } th { white-space: normal;
  vertical-align: bottom; } }
"""

_DRAW = """
const night = matchMedia("(prefers-color-scheme: dark)"), touch = matchMedia("(pointer: coarse)");
function themed(layout) {
  const css = getComputedStyle(document.documentElement), get = name => css.getPropertyValue(name).trim();
  const out = { ...layout, font: { family: "system-ui, sans-serif", size: 12, color: get("--text") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 48, t: 8, b: 40 },
    hoverlabel: { bgcolor: get("--box"), bordercolor: get("--line"), font: { color: get("--text") } },
    legend: { orientation: "h", y: -0.2 }, dragmode: touch.matches ? false : "zoom" };
  for (const axis of ["xaxis", "yaxis", "yaxis2"]) if (axis.length < 6 || layout[axis])
    out[axis] = { automargin: true, ...layout[axis], gridcolor: get("--line"), zerolinecolor: get("--line"), linecolor: get("--line") };
  out.shapes = (layout.shapes || []).map(each => ({ ...each, line: { ...each.line, color: get("--text") } }));
  return out;
}
const config = { responsive: true, displaylogo: false, displayModeBar: false };
for (const plot of PLOTS) Plotly.newPlot(plot.name, plot.data, themed(plot.layout), config);
night.addEventListener("change", () => { for (const plot of PLOTS) Plotly.relayout(plot.name, themed(plot.layout)); });
"""


def page(found: Gathered) -> str:
    """The whole page.

    Raises:
        NoPlots: plotly is not installed.
    """
    drawn = plots(found.report, found.points)
    return "".join(_parts(found, drawn, _script()))


def _parts(found: Gathered, drawn: list[Plot], script: str) -> Iterator[str]:
    report = found.report
    yield f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>Ramjet report</title><style>{_STYLE}</style></head><body>
<h1>Ramjet report</h1><p>{html.escape(title(report))}</p>
<p class="soft">{html.escape(" ".join(notes(report)))}</p>
<h2>Findings</h2>
"""
    yield from map(_finding, report.findings)
    for plot in drawn:
        yield f"<h2>{html.escape(plot.title)}</h2><p class='soft'>{html.escape(plot.about)}</p>\n"
        yield f"<div class='plot' id='{plot.name}' style='height:{plot.height_px}px'></div>\n"
    yield from map(_grid, grids(report))
    told: list[dict[str, Any]] = [{"name": each.name, "data": each.data, "layout": each.layout} for each in drawn]
    yield f"<script>{script}</script>\n<script>const PLOTS = {_inside(told)};{_DRAW}</script>\n</body></html>\n"


def _inside(value: Any) -> str:
    """JSON that may stand in a script: nothing in it ends the script."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _finding(finding: Finding) -> str:
    remedy = "" if finding.remedy is None else f"<p class='soft'>{html.escape(finding.remedy.text)}</p>"
    if finding.replayed is not None:
        remedy += f"<p class='soft'>{html.escape(finding.replayed.text)}</p>"
    return f"<div class='finding {finding.severity}'><b>{finding.severity}</b><p>{html.escape(finding.text)}</p>{remedy}</div>\n"


def _grid(grid: Grid) -> str:
    rows = "".join(_row("td", row) for row in grid.rows)
    return (
        f"<h2>{html.escape(grid.title)}</h2><p class='soft'>{html.escape(grid.about)}</p>\n"
        f"<div class='wide'><table>{_row('th', grid.head)}{rows}</table></div>\n"
    )


def _row(cell: str, values: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in values) + "</tr>\n"
