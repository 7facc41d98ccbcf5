"""What a probe is at, on standard error: a bar on a terminal, a line for each request elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from ramjet.probes.steps import Ask, Step


class Progress:
    """Told what is sent and what came back; use it as a context manager."""

    def __init__(self, probe: str, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._probe = probe
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                # How many requests there will be is not known: what comes back decides what is sent next.
                BarColumn(bar_width=20),
                TextColumn("{task.completed:,.0f} requests"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(f"{self._probe}: looking at the engine", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, text: str) -> None:
        """What a reader should know."""
        self._console.print(f"note: {text}", markup=False)

    def ask(self, ask: Ask) -> None:
        """A request is about to be sent."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"{self._probe}: {ask.name} ({ask.tokens:,} tokens)")

    def step(self, step: Step) -> None:
        """It has been answered."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)
            return
        cached = "unknown" if step.cached_tokens is None else f"{step.cached_tokens:,}"
        prompt = "unknown" if step.prompt_tokens is None else f"{step.prompt_tokens:,}"
        waited = "" if step.ttft_s is None else f", {step.ttft_s:.3f} s"
        self._console.print(f"{step.name}: {cached} of {prompt} cached{waited}", markup=False)
