"""`ramjet plan`: yesterday, or a trace, under other settings."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramjet.journal.options import Moment
from ramjet.journal.schema import JournalError
from ramjet.secret import state_dir

if TYPE_CHECKING:
    from ramjet.plan.replay import Replay
    from ramjet.plan.report import Plan
    from ramjet.plan.setup import Maker, Setup
    from ramjet.plan.span import Span

_WIDTH = 180
"""Columns of a table that nobody's terminal limits."""
LIMIT = 20_000
PLAYS, FEW_REQUESTS = 3, 2_000
"""So many plays, for spans so short that chance does not even out in them."""


def _profiles() -> list[str]:
    from ramjet.sim.profile import PROFILES  # noqa: PLC0415 - serving needs none of this

    return list(PROFILES)


class _Profile(click.ParamType[str]):
    name = "NAME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _profiles():
            self.fail(f"no profile {value!r}; there are {', '.join(_profiles())}", param, ctx)
        return value


@click.command(name="plan", short_help="Replay the journal under other settings.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="RAMJET_JOURNAL__PATH",
    help="The journal.  [where `ramjet serve` keeps it]",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A trace instead: Mooncake's JSON lines, or recorded sessions as in ramjet/lab/data; .gz is opened.",
)
@click.option(
    "--since", type=Moment(), help="Requests that arrived from then on; half an hour before fills the caches."
)
@click.option("--until", type=Moment(), help="Requests that arrived before.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=LIMIT,
    show_default=True,
    help="At most so many: of a journal the latest, of a trace the first.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The configuration that held then: how Ramjet decided, and what it was told of the replicas.",
)
@click.option("--replicas", type=click.IntRange(1, 256), help="How many there are.  [those in the journal]")
@click.option("--tokens", type=click.IntRange(1), help="What each one's token pool holds.")
@click.option("--slots", type=click.IntRange(1), help="Snapshots that each one holds, for hybrid models.")
@click.option("--per-path", type=click.IntRange(1), help="Most snapshots of one conversation.  [no cap]")
@click.option("--chunk-tokens", type=click.IntRange(1), help="What one forward reads.  [6144]")
@click.option(
    "--running", type=click.IntRange(1), help="Requests that each runs at a time.  [32, or a fifth of the slots]"
)
@click.option("--host-tier", is_flag=True, help="They keep copies in server memory.")
@click.option("--host-tokens", type=click.IntRange(1), help="What that holds.  [308288]")
@click.option("--host-slots", type=click.IntRange(1), help="Snapshots that it holds.  [41]")
@click.option("--profile", type=_Profile(), help="A simulated replica whose habits they have; see ramjet sim --list.")
@click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    help="A key of the configuration that held then; may be repeated.",
)
@click.option(
    "--try",
    "tries",
    metavar="KEY=VALUE,...",
    multiple=True,
    help="Other settings, each a row; may be repeated.  [a cap of two, a host tier, one replica more, rules the other way]",
)
@click.option(
    "--plays",
    type=click.IntRange(1),
    help="Plays of each, which differ by nothing that anybody would notice.  [3, and 1 from 2000 requests on]",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time.  [one for each processor]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Also write a page to this file.",
)
def plan_command(
    *, tries: Sequence[str], sets: Sequence[str], jobs: int | None, as_json: bool, page: Path | None, **options: Any
) -> None:
    """Replay what the journal holds, or a trace, under other settings: what would they have changed?

    The production router decides again, in front of simulated replicas and in virtual time.
    First it plays what happened under the settings that held then, and says how near that comes: so far is the rest to be
    trusted.

    What can be tried: replicas, tokens, slots, per_path, chunk_tokens, running, host_tier, host_tokens, host_slots, every
    key of the configuration that begins with routing. or beliefs., and policy: another router's rule in Ramjet's place, by
    its name in ramjet lab list.

    \b
    Examples:
      ramjet plan --config ramjet.yaml --since 2026-11-29 --until 2026-11-30
      ramjet plan --slots 28 --tokens 499968 --try per_path=2 --try slots=56 --try per_path=2,host_tier=on
      ramjet plan --try replicas=3 --try routing.admission.mode=off --json
      ramjet plan --try policy=round_robin --try policy=sglang_cache_aware
      ramjet plan --trace trace.jsonl --replicas 4 --tokens 499968 --try replicas=6
    """
    from ramjet.plan import report  # noqa: PLC0415 - the help needs none of this
    from ramjet.plan.setup import SettingsError  # noqa: PLC0415
    from ramjet.plan.source import NoSpan  # noqa: PLC0415

    if page is not None and not page.parent.is_dir():
        raise click.ClickException(f"{page}: there is no directory {page.parent}")
    try:
        # Before anything is read that takes time.
        changes = _changes(tries)
        span = _span(**options)
        maker = _maker(span, sets, **options)
        found = _plan(
            span,
            maker,
            changes,
            plays=options["plays"],
            processes=jobs or os.cpu_count() or 1,
            configured=_is_configured(sets, **options),
        )
    except sqlite3.Error as error:
        raise click.ClickException(f"{_journal(options)}: {error}") from None
    except (OSError, NoSpan, JournalError, SettingsError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)
    if page is not None:
        page.write_text(report.page(found), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(report.document(found), indent=2))
    else:
        _show(found)
    if found.error is not None:
        raise click.ClickException(report.verdict(found))


def _journal(options: Mapping[str, Any]) -> Path:
    return options["journal"] or state_dir() / "journal.db"


def _is_configured(sets: Sequence[str], **options: Any) -> bool:
    return bool(sets) or options["config"] is not None


def _changes(tries: Sequence[str]) -> dict[str, dict[str, Any]]:
    from ramjet.plan.setup import parse  # noqa: PLC0415

    return {text: parse(text) for text in tries}


def _span(**options: Any) -> Span:
    from ramjet.plan import source  # noqa: PLC0415

    if options["trace"] is None:
        path = _journal(options)
        return source.from_journal(path, since=options["since"], until=options["until"], limit=options["limit"])
    if options["since"] is not None or options["until"] is not None:
        raise click.UsageError("--since and --until go with a journal: a trace has no dates; --limit cuts it")
    return source.from_trace(options["trace"], limit=options["limit"])


def _maker(span: Span, sets: Sequence[str], **options: Any) -> Maker:
    from ramjet.plan.setup import FACTS, Maker, SettingsError, parse  # noqa: PLC0415
    from ramjet.plan.speed import fit  # noqa: PLC0415
    from ramjet.sim.profile import PROFILES  # noqa: PLC0415

    base = None if options["profile"] is None else PROFILES[options["profile"]]
    routing: dict[str, Any] = {}
    for text in sets:
        routing |= parse(text)
    wrong = [key for key in routing if not key.startswith(("routing.", "beliefs."))]
    if wrong:
        raise SettingsError(f"--set {wrong[0]}: sets keys of the configuration that begin with routing. or beliefs.")
    given = {
        name: options[name] for name in ("replicas", *FACTS) if options[name] is not None and options[name] is not False
    }
    return Maker(
        names=span.replicas,
        known=span.known,
        config=options["config"],
        given=given,
        routing=routing,
        speed=fit(span, None if base is None else base.timing),
        base=base,
    )


def _plan(
    span: Span,
    maker: Maker,
    changes: Mapping[str, Mapping[str, Any]],
    *,
    plays: int | None,
    processes: int,
    configured: bool,
) -> Plan:
    from ramjet.plan import report  # noqa: PLC0415
    from ramjet.plan.setup import parse, usual  # noqa: PLC0415

    setup = maker.make(report.AS_IT_WAS)
    changes = changes or {text: parse(text) for text in usual(setup)}
    setups = [setup, *(maker.make(name, change) for name, change in changes.items())]
    found = _replays(span, setups, plays or (PLAYS if len(span.requests) < FEW_REQUESTS else 1), processes)
    return report.plan_of(
        span, setup, [(each.name, done) for each, done in zip(setups, found, strict=True)], configured=configured
    )


def _replays(span: Span, setups: Sequence[Setup], plays: int, processes: int) -> list[Replay | str]:
    """What becomes of each of the settings, in their order, with a bar on stderr meanwhile."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    from ramjet.plan.replay import middle, replay_all  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done: defaultdict[int, list[Replay]] = defaultdict(list)
    failed: dict[int, str] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("settings", total=len(setups) * plays)
        for place, each in replay_all(span, setups, plays=plays, processes=processes):
            if isinstance(each, str):
                failed[place] = each
            else:
                done[place].append(each)
            progress.update(task, advance=1, description=setups[place].name)
    return [failed[place] if place in failed else middle(done[place]) for place in range(len(setups))]


def _show(found: Plan) -> None:
    from rich.console import Console  # noqa: PLC0415

    from ramjet.plan import report  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    for each in report.tables(found):
        console.print(each, markup=False) if isinstance(each, str) else console.print(each)
