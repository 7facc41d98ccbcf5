"""How commands are told which journal to read, and which part of it."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ramjet.secret import state_dir


class Moment(click.ParamType[float]):
    """A date, or a date and a time, as seconds since 1970; UTC unless it says otherwise."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, float):
            return value
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"{value}: write it as 2026-11-30 or 2026-11-30T18:45 (UTC), or with +01:00 behind it", param, ctx
            )
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _path(_: click.Context, __: click.Parameter, given: Path | None) -> Path:
    return given or state_dir() / "journal.db"


JOURNAL = click.option(
    "--journal",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="RAMJET_JOURNAL__PATH",
    callback=_path,
    help="The file.  [where `ramjet serve` keeps it]",
)
SINCE = click.option("--since", type=Moment(), help="Requests that arrived from then on.")
UNTIL = click.option("--until", type=Moment(), help="Requests that arrived before.")


def told(path: Path, error: Exception) -> click.ClickException:
    """What is wrong with a journal, for people; SQLite does not say of which file."""
    return click.ClickException(f"{path}: {error}" if isinstance(error, sqlite3.Error) else str(error))
