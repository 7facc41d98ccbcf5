"""One frame of `ramjet top`: the essence of the page, as wide as the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ramjet.console.words import colour, count, seconds, share, swatch, tokens

Parts = dict[str, Any]
_MOODS = {"up": "green", "ok": "green", "trial": "yellow", "draining": "yellow", "degraded": "yellow", "down": "red"}


def frame(parts: Parts, decisions: int = 12, replicas: int = 40) -> RenderableType:
    """All of it.

    Args:
        parts: as the admin port sends them.
        decisions: how many of the last ones to show.
        replicas: how many of a large fleet.
    """
    shown: list[RenderableType] = [_head(parts), "", _replicas(parts, replicas)]
    if parts["held"]["count"]:
        shown += ["", _held(parts)]
    return Group(*shown, "", _figures(parts), "", _decisions(parts, decisions))


class Bar:
    """Who lives at a replica: a stretch for each conversation, as wide as its part of the pool."""

    def __init__(self, residents: Parts, pool_tokens: int | None, used_tokens: int) -> None:
        self._largest = [(row[0], row[1]) for row in residents["largest"]]
        self._shared, self._others = residents["shared_tokens"], residents["others_tokens"]
        self._most = max(
            1, pool_tokens or 0, used_tokens, self._shared + self._others + sum(size for _, size in self._largest)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A line of blocks; what is free is dim."""
        width, at, drawn = max(10, options.max_width), 0, 0
        stretches = [("bright_black", self._shared, "▒"), *((colour(name), size, "█") for name, size in self._largest)]
        for style, size, block in (*stretches, ("bright_black", self._others, "░")):
            at += size
            cells = round(width * at / self._most) - drawn
            if cells > 0:
                yield Segment(block * cells, Style.parse(style))
                drawn += cells
        if drawn < width:
            yield Segment("·" * (width - drawn), Style.parse("bright_black"))


def _head(parts: Parts) -> Text:
    clock, lately, held = parts["clock"], parts["series"]["lately"], parts["held"]["count"]
    line = Text("Ramjet ", "bold").append(clock["status"], _MOODS.get(clock["status"], "default"))
    line.append(f"  {clock['version']}, up {clock['uptime_s'] // 60} min, admission {clock['admission']}", "dim")
    in_flight = sum(each["in_flight"] for each in parts["replicas"])
    line.append(f"\nin flight {count(in_flight)}   held ").append(count(held), "yellow" if held else "default")
    line.append(f"   living conversations {count(clock['living'])}")
    minutes = f"{lately['seconds'] / 60:.0f} min"
    line.append(f"   last {minutes}: {count(lately['requests'])} requests, cached {share(lately['cached'])}, ")
    cold = sum(lately["cold"].values())
    return line.append(f"cold {count(cold)} of {count(lately['later_turns'])}", "red" if cold else "default")


def _replicas(parts: Parts, most: int) -> Table:
    table = _table("Replicas")
    table.add_column("replica")
    table.add_column("state")
    for name in ("in flight", "queue", "living", "tokens", "of pool", "snapshots"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("residents", ratio=1)
    for each in parts["replicas"][:most]:
        state = "draining" if each["draining"] else each["state"]
        residents = parts.get(f"residents/{each['name']}")
        slots = "-" if each["slots"] is None else f"{count(each['used_slots'])}/{count(each['slots'])}"
        table.add_row(
            each["name"],
            Text(state, _MOODS.get(state, "default")),
            count(each["in_flight"]),
            seconds(each["queue_s"]),
            count(each["conversations"]),
            tokens(each["used_tokens"]),
            tokens(each["pool_tokens"]),
            slots,
            "" if residents is None else Bar(residents, each["pool_tokens"], each["used_tokens"]),
        )
    if len(parts["replicas"]) > most:
        table.add_row(f"and {len(parts['replicas']) - most} more")
    return table


def _held(parts: Parts) -> Table:
    held, now = parts["held"], parts["clock"]["now"]
    table = _table(f"Held: {count(held['count'])}")
    for name in ("conversation", "for", "tokens", "why"):
        table.add_column(name, justify="right" if name in {"for", "tokens"} else "left")
    for row in held["rows"][:5]:
        why = ", ".join(f"{each['replica']} {each['obstacle'] or 'full'}" for each in row["waiting"])
        waited = None if row["since"] is None else max(0.0, now - row["since"])
        table.add_row(_name(row), seconds(waited), tokens(row["prompt_tokens"]), why or "-")
    return table


def _figures(parts: Parts) -> Table:
    lately = parts["series"]["lately"]
    table = _table(f"Last {lately['seconds'] / 60:.0f} minutes")
    table.add_column("prompts")
    for name in ("turns", "TTFT median", "TTFT p95", "cached"):
        table.add_column(name, justify="right")
    table.add_column("cold by cause")
    cold = ", ".join(f"{cause} {number}" for cause, number in lately["cold"].items()) or "none"
    for at, (name, each) in enumerate(lately["classes"].items()):
        times = seconds(each["p50"]), seconds(each["p95"])
        table.add_row(name, count(each["turns"]), *times, share(each["cached"]), "" if at else cold)
    return table


def _decisions(parts: Parts, most: int) -> Table:
    now = parts["clock"]["now"]
    table = _table("Last decisions")
    table.add_column("conversation")
    table.add_column("ago", justify="right")
    table.add_column("replica")
    table.add_column("why")
    for name in ("prompt", "cached", "TTFT", "held"):
        table.add_column(name, justify="right")
    table.add_column("ended")
    rows = sorted(
        (part for name, part in parts.items() if name.startswith("decision/")), key=lambda row: -row["number"]
    )
    for row in rows[:most]:
        cached, prompt = row["cached_tokens"], row["prompt_tokens"]
        ended = row["cold_cause"] or row["outcome"] or "runs"
        table.add_row(
            _name(row),
            seconds(max(0.0, now - row["at"])),
            row["replica"] or "-",
            row["reason"] or "-",
            tokens(prompt),
            share(None if cached is None or not prompt else cached / prompt),
            seconds(row["ttft_s"]),
            seconds(row["held_s"]) if row["held_s"] else "-",
            Text(ended, "green" if ended == "ok" else "dim" if ended == "runs" else "red"),
        )
    return table


def _name(row: Parts) -> Text:
    line = swatch(row["conversation"]).append(row["conversation"] or "no prompt", "default")
    return line if row["turn"] is None else line.append(f" turn {row['turn']}", "dim")


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        expand=False,
        pad_edge=False,
    )
