"""What was found, as a table and findings for people, and as one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ramjet import __version__
from ramjet.check.findings.values import NAMES, NO_CAP, SEVERITIES, Finding, Found, shown
from ramjet.check.told import ALWAYS, Told, as_json, told

_STYLES = {"fault": "bold red", "warning": "yellow", "note": "cyan"}
_ENGINES = {"sglang": "SGLang", "vllm": "vLLM", "llamacpp": "llama.cpp", "openai": "an unknown one"}
_UNKNOWN = "-"


def document(fleet: Sequence[Found], findings: Sequence[Finding], now: float) -> Mapping[str, object]:
    """Everything; None is unknown, 0 is none."""
    return {
        "version": __version__,
        "replicas": [as_json(seen, now) for seen in fleet],
        "findings": [asdict(finding) for finding in findings],
        **{f"{severity}s": _number(findings, severity) for severity in SEVERITIES},
    }


def show(fleet: Sequence[Found], findings: Sequence[Finding], now: float, console: Console) -> None:
    """Print the table, and then what it means."""
    console.print(_table(fleet, now))
    console.print(Text("Findings", "bold"))
    for finding in findings:
        console.print(_words(finding))
    counts = ", ".join(
        f"{number} {severity}{'' if number == 1 else 's'}"
        for severity in SEVERITIES
        if (number := _number(findings, severity))
    )
    console.print(Text(f"{counts or 'nothing to say'}."))


def _number(findings: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)


def _table(fleet: Sequence[Found], now: float) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("replica", "fact"):
        shown.add_column(head, no_wrap=True)
    shown.add_column("value", justify="right", overflow="fold")
    shown.add_column("source", overflow="fold")
    shown.add_column("age", justify="right", no_wrap=True)
    for seen in fleet:
        rows = [
            (
                NAMES[each.fact],
                _value(each, seen),
                each.source or "",
                "" if each.age_s is None else f"{each.age_s:.1f} s",
            )
            for each in told(seen, now)
            if _worth_showing(each, seen)
        ] or [("health", seen.health.error or _UNKNOWN, seen.health.path, "")]
        for number, row in enumerate(rows):
            cells = [Text(cell) for cell in row]
            shown.add_row(Text("" if number else seen.name), *cells, end_section=number == len(rows) - 1)
    return shown


def _worth_showing(each: Told, seen: Found) -> bool:
    if each.fact == "ranks":
        return each.value not in {None, 1}
    return each.value is not None or each.fact in ALWAYS or (each.fact == "snapshots_per_path" and _slotted(seen))


def _slotted(seen: Found) -> bool:
    return seen.pools.slots is not None


def _value(each: Told, seen: Found) -> str:
    if each.fact == "engine":
        return _ENGINES.get(str(each.value), str(each.value))
    if each.fact == "snapshots_per_path" and each.value is None and _slotted(seen):
        return NO_CAP
    if (
        each.fact == "snapshot_slots"
        and each.value is None
        and seen.facts is not None
        and seen.facts.has_snapshots is False
    ):
        return "in the token pool" if seen.pools.states_in_pool else "not needed"
    if each.value is None:
        return _UNKNOWN
    return shown(each.value)


def _words(finding: Finding) -> Padding:
    # Where the sentence itself says who differs from whom, their names before it would say it twice.
    names = "" if "values" in finding.figures or not finding.replicas else f"{', '.join(finding.replicas)}: "
    said = Text.assemble((f"{finding.severity}: ", _STYLES[finding.severity]), (names, "bold"), finding.text)
    if finding.remedy is not None:
        said.append(f"\nRemedy: {finding.remedy}.", "italic")
    return Padding(said, (0, 0, 0, 2), expand=False)
