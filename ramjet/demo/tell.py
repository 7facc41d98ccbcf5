"""`ramjet demo --story` on the command line."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ramjet.demo import post
from ramjet.demo.story import STEPS, Story, tell


def story(*, keep: Path | None, as_json: bool) -> None:
    """Let the story happen, and print it.

    Args:
        keep: where the journals are to stay; None: they go.
        as_json: print one document, and no tables.
    """
    with _directory(keep) as directory, _bar() as on_step:
        told: Story = tell(directory, on_step=on_step)
    if as_json:
        click.echo(json.dumps(post.document(told), indent=2))
    else:
        for line in post.text(told):
            click.echo(line)
    if keep is not None:
        click.echo(f"the journals are in {keep}: ramjet report --journal {keep / 'stock.db'}", err=True)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ramjet-story-") as made:
            yield Path(made)
        return
    keep.mkdir(parents=True, exist_ok=True)
    there = [each.name for each in keep.glob("*.db")]
    if there:
        raise click.ClickException(f"{keep}: {', '.join(sorted(there))} is there already; name another directory")
    yield keep


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=STEPS, completed=-1)
        yield lambda name: progress.update(task, advance=1, description=name)
