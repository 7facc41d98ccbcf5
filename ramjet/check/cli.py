"""`ramjet check` on the command line."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import click
import msgspec
from rich.console import Console

from ramjet.build import pools_of
from ramjet.check.ask import IDLE_MARGIN_S, Target, look_at
from ramjet.check.findings import find
from ramjet.check.findings.values import Finding, Found, Ours
from ramjet.check.show import document, show
from ramjet.config import Settings
from ramjet.options import CONFIG, NO_REPLICAS, REPLICAS, settings_of

_WIDTH = 120
"""Columns where no terminal says how many it has."""


@click.command(short_help="Ask every replica what it is, and say what is wrong.")
@CONFIG
@REPLICAS
@click.option("--quick", is_flag=True, help="Only ask: do not try what takes seconds, or makes an engine work.")
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(path: Path | None, replicas: tuple[dict[str, str], ...], *, quick: bool, strict: bool, as_json: bool) -> None:
    """Ask every replica what it is, before or while Ramjet stands in front of it, and say in words what was found and
    what is wrong: who does not answer, what is not reported, who differs from whom, what does not fit.

    Replicas are those of the configuration and of --replica. Without --quick it is also tried how long an engine keeps an
    unused connection (limits.idle_s and two seconds more), whether its health page makes the model work, and, where it does
    not say, whether it reports cached tokens: for that one prompt is sent twice.

    Exits with 1 where a replica has a fault, that is, where Ramjet could send it nothing.

    \b
    Examples:
      ramjet check --replica a=http://10.0.0.7:30000 --replica b=http://10.0.0.8:30000
      ramjet check --config /etc/ramjet/ramjet.yaml --strict
      ramjet check --config ramjet.yaml --quick --json | jq '.findings[] | [.severity, .id, .replicas]'
    """
    settings = settings_of(path, {"replicas": list(replicas)} if replicas else {})
    if not settings.replicas:
        listed = "only replicas that are listed are asked, not those of discovery: name them with --replica NAME=URL"
        raise click.ClickException(listed if settings.discovery.sources else NO_REPLICAS)
    ours = _ours(settings)
    fleet = _look(settings, ours, quick=quick)
    found = find(fleet, ours)
    now = time.monotonic()
    if as_json:
        click.echo(msgspec.json.encode(document(fleet, found, now)))
    else:
        show(fleet, found, now, Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False))
    sys.exit(_code(found, strict=strict))


def _code(found: Sequence[Finding], *, strict: bool) -> int:
    bad = {"fault", "warning"} if strict else {"fault"}
    return int(any(finding.severity in bad for finding in found))


def _ours(settings: Settings) -> Ours:
    health, spread = settings.health, settings.routing.spread_long
    return Ours(
        idle_s=settings.limits.idle_s,
        health_path=health.path,
        health_interval_s=health.interval_s,
        health_timeout_s=health.timeout_s,
        spread_long=spread.enabled,
        long_tokens=spread.tokens,
    )


def _look(settings: Settings, ours: Ours, *, quick: bool) -> list[Found]:
    targets = [
        Target(
            name=each.name,
            url=each.url,
            key=None if each.api_key is None else each.api_key.get_secret_value(),
            engine=each.engine,
            configured=pools_of(each),
        )
        for each in settings.replicas
    ]
    console = Console(stderr=True)
    wait_s = ours.idle_s + IDLE_MARGIN_S
    what = f"asking {len(targets)} replica{'' if len(targets) == 1 else 's'}"
    if not quick:
        what += f", and waiting up to {wait_s:g} s to see who closes an unused connection (--quick leaves that out)"
    if not console.is_terminal:
        click.echo(what, err=True)
    with console.status(what) if console.is_terminal else nullcontext():
        return asyncio.run(look_at(targets, ours, quick=quick))
