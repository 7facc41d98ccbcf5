"""The bar that is shown while settings are played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def playing() -> Iterator[Callable[[str, int], None]]:
    """A bar on stderr, where that is a terminal; gives what `run.plan` wants as `on_play`."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("settings", total=None)

        def on_play(name: str, total: int) -> None:
            known = progress.tasks[task].total is not None
            progress.update(task, total=total, advance=int(known), description=name)

        yield on_play
