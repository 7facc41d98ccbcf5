"""`ramjet sim`: a simulated replica on a port of its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from ramjet.core.cache import HostTier, SlotSpec
from ramjet.replica.faults import Faults, FaultsError, load
from ramjet.replica.server import running_replica
from ramjet.sim.profile import PROFILES, Profile

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _list(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click calls it so
    """Print the profiles and exit."""
    if not asked or ctx.resilient_parsing:
        return
    for profile in PROFILES.values():
        click.echo(f"{profile.name:20}{profile.about}\n{'':20}{sizes(profile)}")
        if profile.default_host is not None:
            click.echo(f"{'':20}with --host-tier {_host(profile.default_host)} more")
    ctx.exit()


def sizes(profile: Profile) -> str:
    """A profile's pools in a line."""
    cache = profile.cache
    if isinstance(cache, SlotSpec):
        said = [f"{cache.slots} slots of {cache.slot_tokens:,} tokens"]
    else:
        said = [f"{cache.pool_tokens or 0:,} tokens"]
        states = cache.snapshots
        if states is not None:
            cap = "" if states.per_path is None else f", {states.per_path} a path"
            said.append("snapshots in the same pool" if states.slots is None else f"{states.slots} snapshots{cap}")
        if cache.host is not None:
            said.append(f"on the host {_host(cache.host)}")
    chunk, page = f"chunks of {cache.chunk_tokens:,}", f"pages of {cache.page_tokens}"
    ranks = [] if profile.ranks == 1 else [f"each of {profile.ranks} ranks"]
    return ", ".join([*said, chunk, page, f"{profile.max_running} requests at a time", *ranks])


def _host(tier: HostTier) -> str:
    return f"{tier.tokens:,} tokens{'' if tier.slots is None else f' and {tier.slots} snapshots'}"


def _size(name: str, says: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=click.IntRange(1), metavar="N", help=f"{says}  [the profile's]")


@click.command(name="sim", short_help="Run a simulated replica.")
@click.option(
    "--profile", "name", type=click.Choice(sorted(PROFILES)), metavar="NAME", required=True, help="What to simulate."
)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Show the profiles, and exit."
)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="PORT", default=30_000, show_default=True, help="0: a free one."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    default=1.0,
    show_default=True,
    help="How many of its seconds pass in a real one.",
)
@click.option("--model", metavar="NAME", help="The model that it lists.  [the profile's]")
@_size("--states-per-path", "Most snapshots of one conversation.")
@click.option("--host-tier", is_flag=True, help="Keep copies in server memory.")
@_size("--slots", "Snapshots; for llama.cpp, sequences.")
@_size("--pool-tokens", "What its cache holds.")
@_size("--chunk-tokens", "What it reads at a time.")
@click.option("--ranks", type=click.IntRange(1, 256), metavar="N", help="Data-parallel ranks, each as large.  [1]")
@click.option("--kv-events", metavar="URL", help="Publish what the cache stores and lets go, at tcp://HOST:PORT.")
@click.option("--kv-events-replay", metavar="URL", help="Publish it there once more on demand.")
@click.option(
    "--faults", "path", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file: what goes wrong, and when."
)
def sim_command(
    *,
    name: str,
    host: str,
    port: int,
    speed: float,
    model: str | None,
    kv_events: str | None,
    kv_events_replay: str | None,
    path: Path | None,
    **flags: Any,
) -> None:
    """Run a simulated replica: an engine's API, cache, waiting times, metrics and log lines, without a model.

    \b
    Examples:
      ramjet sim --list
      ramjet sim --profile glm-5.3-flash-tp2 --states-per-path 2 --speed 50
      ramjet sim --profile attention --port 0 --faults faults.yaml
    """
    try:
        profile = PROFILES[name].with_flags(**flags)
        faults = Faults() if path is None else load(path)
    except FaultsError as error:
        raise click.ClickException(str(error)) from None
    except ValueError as error:
        raise click.ClickException(f"{error}; see ramjet sim --list") from None
    if model is not None:
        profile = replace(profile, model=model)
    if kv_events_replay is not None and kv_events is None:
        raise click.UsageError("--kv-events-replay sends again what --kv-events publishes: give both")
    published = None if kv_events is None else (kv_events, kv_events_replay)
    if published is not None:
        _must_publish(profile)
    try:
        uvloop.run(_serve(profile, host, port, speed, faults=faults, kv_events=published))
    except OSError as error:
        remedy = "choose another with --port or --host; --port 0 takes a free one"
        if error.filename is not None:
            remedy = "give --kv-events and --kv-events-replay as tcp://HOST:PORT, each a port that is free"
        where = error.filename or f"{host}:{port}"
        raise click.ClickException(f"cannot listen on {where}: {error.strerror}; {remedy}") from None


def _must_publish(profile: Profile) -> None:
    if isinstance(profile.cache, SlotSpec):
        raise click.ClickException(f"profile {profile.name} has no blocks to tell of; leave out --kv-events")
    if find_spec("zmq") is None:
        raise click.ClickException("--kv-events needs pyzmq: pip install 'ramjet-lb[kvevents]'")


async def _serve(
    profile: Profile,
    host: str,
    port: int,
    speed: float,
    *,
    faults: Faults,
    kv_events: tuple[str, str | None] | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def log(line: str) -> None:
        click.echo(line, err=True)

    serving = running_replica(profile, speed=speed, host=host, port=port, faults=faults, log=log, kv_events=kv_events)
    async with serving as replica:
        times = "its own speed" if speed == 1 else f"{speed:g} times its speed"
        log(f"ramjet sim: {profile.name} at {times}, {sizes(profile)}; listening on {replica.url}")
        await stop.wait()
