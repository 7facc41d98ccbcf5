"""The traffic as a live table: a row for each conversation, then a row for each replica."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ramjet.demo.traffic import TurnResult

_UNKNOWN = "-"
# The design's words for a turn by its share of reuse: warm, partial, cold. Here they are only colours: what a turn
# could have reused is not known to a client, so a first turn is as red as a cold one.
_WARM_RATIO, _PARTIAL_RATIO = 0.9, 0.5


class TrafficTable:
    """Shows turns as they end: on a terminal while its `with` block lasts, elsewhere once, when the block is left.

    Give `take` to `drive` as `on_turn`.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._last: dict[int, TurnResult] = {}
        self._replicas: defaultdict[str, list[TurnResult]] = defaultdict(list)
        self._live: Live | None = None

    def __enter__(self) -> TrafficTable:
        if self._console.is_terminal:
            # Drawn when a turn ends and not by a thread, which would read the rows while they change.
            self._live = Live(self.render(), console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is None:
            self._console.print(self.render())
        else:
            # A live table stays on the screen as it was last.
            self._live.stop()
            self._live = None

    def take(self, result: TurnResult) -> None:
        """A turn has ended."""
        self._last[result.conversation] = result
        self._replicas[result.replica or _UNKNOWN].append(result)
        if self._live is not None:
            self._live.update(self.render(), refresh=True)

    def render(self) -> Group:
        """Both tables as they stand."""
        return Group(self._conversations(), self._totals())

    def _conversations(self) -> Table:
        table = _table("Conversations: the last turn of each")
        for name in ("conversation", "turn"):
            table.add_column(name, justify="right")
        for name in ("replica", "reason"):
            table.add_column(name)
        for name in ("prompt tokens", "cached", "TTFT s"):
            table.add_column(name, justify="right")
        for number, turn in sorted(self._last.items()):
            told = (
                (_count(turn.prompt_tokens), _share(turn.cached_tokens, turn.prompt_tokens), _seconds(turn.ttft_s))
                if turn.ok
                else (Text(f"failed: {turn.status or 'no answer'}", "red"), "", "")
            )
            table.add_row(str(number), str(turn.turn), turn.replica or _UNKNOWN, turn.reason or _UNKNOWN, *told)
        return table

    def _totals(self) -> Table:
        table = _table("Replicas: all turns")
        table.add_column("replica")
        for name in ("turns", "failed", "prompt tokens", "cached", "median TTFT s", "longest"):
            table.add_column(name, justify="right")
        for replica, turns in sorted(self._replicas.items()):
            prompt_tokens = sum(turn.prompt_tokens or 0 for turn in turns)
            cached = [turn.cached_tokens for turn in turns if turn.cached_tokens is not None]
            waits = [turn.ttft_s for turn in turns if turn.ttft_s is not None]
            table.add_row(
                replica,
                _count(len(turns)),
                _count(sum(not turn.ok for turn in turns)),
                _count(prompt_tokens),
                _share(sum(cached) if cached else None, prompt_tokens),
                _seconds(median(waits) if waits else None),
                _seconds(max(waits, default=None)),
            )
        return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", header_style="", expand=False)


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _share(cached_tokens: int | None, prompt_tokens: int | None) -> Text:
    if cached_tokens is None or not prompt_tokens:
        return Text(_UNKNOWN)
    ratio = cached_tokens / prompt_tokens
    colour = "green" if ratio >= _WARM_RATIO else "yellow" if ratio >= _PARTIAL_RATIO else "red"
    return Text(f"{ratio:.1%}", colour)
