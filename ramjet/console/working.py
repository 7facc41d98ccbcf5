"""The answer to "where would this go?", as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ramjet.console.words import count, seconds, swatch

OBSTACLES = {
    "reserved": "kept clear for one who waits longer",
    "no_room": "no room beside what runs",
    "full": "runs as many as it can bear",
    "reading": "another long read is on its way",
    "dear": "would push out more than is free",
    None: "its home is warm and only full",
}


def explained(told: dict[str, Any]) -> RenderableType:
    """All of it."""
    shown: list[RenderableType] = [_whose(told)]
    decision = told["decision"]
    if decision is None:
        return Group(*shown, Text("No replica can serve it: all are drained, or none serves its model.", "red"))
    shown += ["", _verdict(told), "", _replicas(decision)]
    for replica, why in decision["refused"].items():
        shown.append(Text(f"{replica} is refused by {', '.join(decision['rules'])}: {why}", "yellow"))
    if decision["not_shown"]:
        shown.append(Text(f"{decision['not_shown']} dearer replicas are not shown", "dim"))
    if decision["not_looked_at"]:
        shown.append(Text(f"{decision['not_looked_at']} replicas with more before it were not looked at", "dim"))
    return Group(*shown)


def _whose(told: dict[str, Any]) -> Text:
    size = f"{count(told['prompt_bytes'])} bytes, about {count(told['prompt_tokens'])} tokens"
    line = Text(f"{told['endpoint']}, {size}", "dim")
    conversation = told["conversation"]
    if conversation is None:
        return line.append("\nNo prompt can be read from it: it is placed by load alone.", "yellow")
    line.append("\nConversation ", "default").append_text(swatch(conversation["id"])).append(conversation["id"], "bold")
    if conversation["known"]:
        idle = f"quiet for {seconds(conversation['idle_s'])}" if not conversation["running"] else "running"
        line.append(
            f", turn {conversation['turn']}, at home on {conversation['home'] or 'no replica'}, {idle}", "default"
        )
    elif conversation["branch"]:
        line.append(f", a branch of {conversation['parent']}", "default")
    else:
        line.append(", which is new", "default")
        if conversation["reusable_tokens"]:
            line.append(f"; {count(conversation['reusable_tokens'])} tokens of it were seen before", "default")
    return line


def _verdict(told: dict[str, Any]) -> Text:
    decision, admission = told["decision"], told["admission"]
    where, mode = admission["replica"] or decision["replica"], admission["mode"]
    reason = decision["reason"] if where == decision["replica"] else "room"
    if admission["way"] == "free":
        line = Text("It would go to ").append(where, "bold green").append(f", reason {reason}")
        return line.append(f"; {admission['why']}" if admission["why"] else ", free of charge")
    would = (
        "would be held" if mode == "enforce" else "would go there at once, and would be held if admission were enforced"
    )
    if admission["way"] == "paid":
        line = Text("It would go to ").append(where, "bold yellow")
        return line.append(f" at the next look, in a second or less: it {admission['why']}")
    why = "; ".join(OBSTACLES.get(each, each) for each in admission["why"].split(", "))
    return (
        Text("It ")
        .append(would, "bold red")
        .append(f": {why}. Cheapest is {decision['replica']}, {decision['reason']}.")
    )


def _replicas(decision: dict[str, Any]) -> Table:
    table = Table(title="Seconds of waiting, by replica", title_justify="left", header_style="", expand=False)
    table.add_column("replica")
    terms = list(dict.fromkeys(name for row in decision["replicas"] for name in row["costs"]))
    for name in (*terms, "in all", "matched", "in flight"):
        table.add_column(name, justify="right")
    table.add_column("entry")
    for row in decision["replicas"]:
        entry = row.get("entry") or {"way": "-", "obstacle": None}
        way = entry["way"] if entry["obstacle"] is None else f"{entry['way']}: {OBSTACLES[entry['obstacle']]}"
        table.add_row(
            row["replica"],
            *(f"{row['costs'].get(name, 0.0):.2f}" for name in terms),
            f"{row['total_s']:.2f}",
            count(row["matched_tokens"]),
            count(row["in_flight"]),
            way,
            style="bold" if row["replica"] == decision["replica"] else "",
        )
    return table
