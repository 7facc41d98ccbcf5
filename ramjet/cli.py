"""The `ramjet` command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import structlog
import uvloop

from ramjet import __version__, allocator, extensions, logs
from ramjet.app import CannotStart, serve
from ramjet.config import dump, load, unknown_variables
from ramjet.options import CONFIG, NO_REPLICAS, REPLICAS, settings_of

_ELSEWHERE = {
    "check": "ramjet.check.cli:check",
    "explain": "ramjet.console.cli:explain",
    "journal": "ramjet.journal.cli:journal",
    "lab": "ramjet.lab.cli:lab",
    "plan": "ramjet.plan.cli:plan_command",
    "probe": "ramjet.probes.cli:probe",
    "report": "ramjet.report.cli:report",
    "sim": "ramjet.replica.cli:sim_command",
    "top": "ramjet.console.cli:top",
}
"""Commands that serving does not need: their modules are imported when one is asked for."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            module, _, name = _ELSEWHERE[cmd_name].partition(":")
            command: click.Command = getattr(import_module(module), name)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ramjet")
def main() -> None:
    """Send every turn of a conversation to the replica that holds its cache."""


def _serving(listeners: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a command that serves until it is told to stop; `listeners` connect to it."""
    options = (
        CONFIG,
        REPLICAS,
        click.option("--listen", metavar="HOST:PORT", help=f"Where {listeners} connect.  [0.0.0.0:8000]"),
        click.option("--admin", metavar="HOST:PORT", help="Metrics and health.  [127.0.0.1:9090]"),
        click.option("--log-format", type=click.Choice(["json", "console"]), help="How log lines look.  [json]"),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[info]"),
        click.option(
            "--journal",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Where finished requests are kept.  [journal.db in the state directory]",
        ),
        click.option("--no-journal", is_flag=True, help="Keep no journal."),
        click.option(
            "--print-config", is_flag=True, help="Print the effective configuration, secrets masked, and exit."
        ),
    )
    return lambda command: reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


@main.command(name="serve", short_help="Run the load balancer.")
@_serving("clients")
def serve_command(path: Path | None, *, print_config: bool, **options: Any) -> None:
    """Run the load balancer in front of your replicas, until SIGTERM; running answers are then finished.

    \b
    Examples:
      ramjet serve --replica a=http://10.0.0.7:30000 --replica b=http://10.0.0.8:30000
      ramjet serve --config /etc/ramjet/ramjet.yaml --log-format console
      RAMJET_ROUTING__LONG_PROMPT__ENABLED=true ramjet serve --config ramjet.yaml --print-config
    """
    _serve(path, print_config=print_config, picking=False, **options)


@main.command(name="epp", short_help="Pick replicas for Envoy, which carries the requests.")
@_serving("Envoys")
def epp_command(path: Path | None, *, print_config: bool, **options: Any) -> None:
    """Run as an endpoint picker: Envoy listens to clients, and asks here, over gRPC, where each request is to go.

    It speaks Envoy's external processing protocol and what the Gateway API Inference Extension adds to that.
    docs/envoy.md shows Envoy's part. Replicas are given by IP address. Needs the extra: pip install 'ramjet-lb[envoy]'.

    \b
    Examples:
      ramjet epp --listen 127.0.0.1:9002 --replica a=http://10.0.0.7:30000 --replica b=http://10.0.0.8:30000
      ramjet epp --config /etc/ramjet/ramjet.yaml --listen 0.0.0.0:9002 --admin 127.0.0.1:9091
    """
    _serve(path, print_config=print_config, picking=True, **options)


def _serve(path: Path | None, *, print_config: bool, picking: bool, **options: Any) -> None:
    if options["journal"] and options["no_journal"]:
        raise click.UsageError("--journal and --no-journal exclude each other")
    overrides = _overrides(**options)
    settings = settings_of(path, overrides)
    unknown = list(unknown_variables())
    if print_config:
        for name, nearest in unknown:
            click.echo(f"warning: {name} means nothing; the nearest known is {nearest}", err=True)
        click.echo(dump(settings), nl=False)
        return
    if not (settings.replicas or settings.discovery.sources):
        raise click.ClickException(NO_REPLICAS)
    logs.configure(settings.log.format, settings.log.level)
    log = structlog.get_logger()
    for name, nearest in unknown:
        log.warning("unknown_variable", variable=name, nearest=nearest)
    if without := extensions.missing():
        log.warning("slow_extensions", missing=without, remedy="install their wheels, or a C compiler before them")
    allocator.keep_freed()
    # Long bodies are read in a thread; Python's own 5 ms would let it hold up the loop for so long, again and again.
    sys.setswitchinterval(0.0005)
    try:
        uvloop.run(serve(settings, path, partial(load, path, overrides), picking=picking))
    except CannotStart as error:
        raise click.ClickException(str(error)) from None


@main.command(name="demo", short_help="Try it: two simulated replicas with Ramjet in front.")
@click.option("--traffic", is_flag=True, help="Also drive agent conversations through it and show a live table.")
@click.option(
    "--replicas", "count", type=click.IntRange(1, 16), default=2, show_default=True, help="How many replicas."
)
@click.option(
    "--speed", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Times as fast as the seed's."
)
@click.option(
    "--compare-admission",
    "compare",
    is_flag=True,
    help="Let the same agents work with admission off and on, print both sides, and end; takes two minutes.",
)
@click.option(
    "--story",
    is_flag=True,
    help="Tell the story that Ramjet comes from: cold turns for want of snapshots, the cap that ends them, and two long "
    "conversations; in virtual time, in about half a minute.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --story: leave its journals in this directory, for ramjet report.",
)
@click.option("--json", "as_json", is_flag=True, help="With --compare-admission or --story: print figures as JSON.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8000", show_default=True)
@click.option("--admin", metavar="HOST:PORT", default="127.0.0.1:9090", show_default=True)
@click.option("--log-format", type=click.Choice(["json", "console"]), default="console", show_default=True)
def demo_command(
    *,
    traffic: bool,
    compare: bool,
    story: bool,
    keep: Path | None,
    as_json: bool,
    count: int,
    speed: float,
    **options: Any,
) -> None:
    """Run simulated replicas and Ramjet in front of them; Ctrl-C ends it.

    \b
    Examples:
      ramjet demo
      ramjet demo --traffic --speed 5
      ramjet demo --compare-admission
      ramjet demo --story --keep story
    """
    from ramjet.demo import run, tell  # noqa: PLC0415 - the demo's parts are not needed to serve

    if as_json and not (compare or story):
        raise click.UsageError("--json prints what --compare-admission or --story measures; give one of them too")
    if keep is not None and not story:
        raise click.UsageError("--keep is for the journals of --story; give both")
    if story and (traffic or compare):
        raise click.UsageError(
            "--story is told in virtual time, by itself: leave out --traffic and --compare-admission"
        )
    if story:
        tell.story(keep=keep, as_json=as_json)
        return
    settings = settings_of(None, _overrides(**options))
    logs.configure(settings.log.format, "warning" if traffic or compare else "info")
    try:
        if compare:
            uvloop.run(run.compare_admission(settings, count=count, speed=speed, as_json=as_json))
        else:
            uvloop.run(run.demo(settings, count=count, speed=speed, traffic=traffic))
    except CannotStart as error:
        raise click.ClickException(str(error)) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


def _overrides(
    replicas: tuple[dict[str, str], ...] = (),
    listen: str | None = None,
    admin: str | None = None,
    log_format: str | None = None,
    log_level: str | None = None,
    *,
    journal: Path | None = None,
    no_journal: bool = False,
) -> dict[str, Any]:
    """What the command line says, nested as the configuration is; what it leaves out is not in it."""
    log = {name: value for name, value in (("format", log_format), ("level", log_level)) if value is not None}
    kept = {"enabled": False} if no_journal else {"enabled": True, "path": str(journal)} if journal else None
    given = {
        "listen": listen,
        "admin": admin,
        "replicas": list(replicas) or None,
        "log": log or None,
        "journal": kept,
    }
    return {name: value for name, value in given.items() if value is not None}
