"""`ramjet probe`: the experiments as commands."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    # They load an HTTP client and more, which `ramjet serve` does without: each command imports what it needs.
    from ramjet.engines.facts import Facts
    from ramjet.probes.run import Measured
    from ramjet.probes.steps import Finding, Plan, Step

F = TypeVar("F", bound=Callable[..., Any])

_LEAST_TOKENS = 2_048
"""Of a prompt that is to tell something: some engines reuse nothing shorter."""
_TAIL_TOKENS = 256
_INTERRUPTED = 130
_PIPE_COLUMNS = 120


class _Key(click.ParamType[str]):
    name = "KEY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key = str(value).strip()
        # The library that sends it would name it in its error.
        if not (key.isascii() and key.isprintable()):
            self.fail("the key has characters that no header can hold", param, ctx)
        return key


class _Url(click.ParamType[str]):
    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        parts = urlsplit(str(value))
        try:
            fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            self.fail(f"{value}: write it as http://HOST:PORT, for example http://10.0.0.7:30000", param, ctx)
        return str(value)


def _common(*urls: str, requests: int, prompt_tokens: int, seconds: int) -> Callable[[F], F]:
    """The options that every probe has, with its own limits."""
    path = click.Path(path_type=Path, dir_okay=False, writable=True)
    options = [
        click.option(*urls, "url", type=_Url(), required=True, help="The replica, or what stands in front of some."),
        click.option("--model", metavar="NAME", help="The model's name in requests.  [the first that is listed]"),
        click.option(
            "--api-key", type=_Key(), envvar="OPENAI_API_KEY", show_envvar=True, help="Sent as a bearer token."
        ),
        click.option("--busy-ok", is_flag=True, help="Go on though others use the replica."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--html", "page", type=path, help="Write a page with a plot."),
        click.option("--png", "picture", type=path, help="Write the plot alone."),
        _most("--max-requests", click.IntRange(1), requests, "Send no more requests than this."),
        _most("--max-prompt-tokens", click.IntRange(1), prompt_tokens, "Send no more prompt tokens than this."),
        _most("--max-seconds", click.FloatRange(1), seconds, "Take no longer than this."),
    ]

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _most(name: str, kind: click.ParamType[Any], default: float, text: str) -> Callable[[F], F]:
    return click.option(name, type=kind, metavar="N", default=default, show_default=True, help=text)


def _tokens(name: str, default: int, text: str) -> Callable[[F], F]:
    return _most(name, click.IntRange(_LEAST_TOKENS), default, text)


@click.group(name="probe", short_help="Ask a live replica what it can resume and what it keeps.")
def probe() -> None:
    """Experiments against a live replica with an OpenAI-compatible API: what can it resume, and what does it keep?

    They send prompts of made-up words that nobody has sent before, one at a time, marked with the header x-ramjet-probe,
    and read how much of each was reused from the engine's own usage report. A probe takes the replica's cache for itself,
    and refuses to run while others use it.

    \b
    Examples:
      ramjet probe prefix --url http://10.0.0.7:30000
      ramjet probe eviction --url http://10.0.0.7:30000 --html eviction.html
      ramjet probe capacity --url http://10.0.0.7:30000 --json | jq .findings
      ramjet probe pair --via http://10.0.0.5:8000
    """


@probe.command(name="prefix", short_help="Where can this engine resume?")
@_tokens("--tokens", 19_845, "Length of the prompt.")
@click.option(
    "--branch",
    type=click.IntRange(1_024),
    metavar="N",
    help="Where others leave it.  [14900, or as far into another length]",
)
@click.option(
    "--append", type=click.IntRange(1), metavar="N", default=300, show_default=True, help="How much is appended to it."
)
@_common("--url", requests=60, prompt_tokens=1_000_000, seconds=1_800)
def prefix_command(*, tokens: int, branch: int | None, append: int, **common: Any) -> None:
    """Send a prompt, the same again, a longer one and two that leave it: where does reuse end?

    Finds the multiples on which it ends, whether the engine resumes at snapshots only and how far apart they lie, and
    whether it reports what it reused at all.

    \b
    Examples:
      ramjet probe prefix --url http://10.0.0.7:30000
      ramjet probe prefix --url http://10.0.0.7:30000 --tokens 8000 --branch 6000 --json
    """
    from ramjet.probes import prefix  # noqa: PLC0415 - see above

    at = branch or tokens * prefix.BRANCH_AT_TOKENS // prefix.TOKENS
    if at + _TAIL_TOKENS > tokens:
        raise click.BadParameter(f"{at:,} is not well within the prompt of {tokens:,} tokens", param_hint="--branch")

    def plan(writer: Any, facts: Facts) -> Plan:
        del facts
        return prefix.plan(writer, tokens=tokens, branch_at_tokens=at, append_tokens=append)

    _run("prefix", plan, prefix.judge, **common)


@probe.command(name="eviction", short_help="Does one long prompt push everybody else out?")
@click.option("--sessions", type=click.IntRange(1, 1_000), metavar="N", default=6, show_default=True, help="How many.")
@_tokens("--tokens", 20_050, "Length of each session.")
@_tokens("--long", 308_000, "Length of the prompt between; lowered if the engine does not take it.")
@_common("--url", requests=100, prompt_tokens=2_000_000, seconds=3_600)
def eviction_command(*, sessions: int, tokens: int, long: int, **common: Any) -> None:
    """Send some sessions, one long prompt, and the sessions again: how many survive?

    Where some do not, two prompts that leave a third one tell whether it was the snapshot pool or the token pool.

    \b
    Examples:
      ramjet probe eviction --url http://10.0.0.7:30000
      ramjet probe eviction --url http://10.0.0.7:30000 --long 100000 --json
    """
    from ramjet.probes import eviction  # noqa: PLC0415 - see above

    def plan(writer: Any, facts: Facts) -> Plan:
        return eviction.plan(writer, facts, sessions=sessions, tokens=tokens, long_tokens=long)

    _run("eviction", plan, eviction.judge, **common)


@probe.command(name="capacity", short_help="How many sessions stay, and which pool is the limit?")
@_tokens("--tokens", 20_000, "Length of a session.")
@click.option(
    "--other-tokens",
    type=click.IntRange(512),
    metavar="N",
    help="Length of the second kind.  [four times the first, if it fits]",
)
@click.option(
    "--most-sessions",
    type=click.IntRange(2, 4_096),
    metavar="N",
    default=64,
    show_default=True,
    help="More are not tried.",
)
@_common("--url", requests=2_000, prompt_tokens=30_000_000, seconds=14_400)
def capacity_command(*, tokens: int, other_tokens: int | None, most_sessions: int, **common: Any) -> None:
    """Find the largest number of sessions that all come back when they are sent twice around.

    Does it for two lengths of session, for the snapshot pool ends the number of short ones, and the token pool that of
    long ones. Every attempt has fresh prompts; expect some minutes to an hour.

    \b
    Examples:
      ramjet probe capacity --url http://10.0.0.7:30000
      ramjet probe capacity --url http://10.0.0.7:30000 --tokens 20000 --other-tokens 100000 --json
    """
    from ramjet.probes import capacity  # noqa: PLC0415 - see above

    if other_tokens == tokens:
        raise click.BadParameter(f"{tokens:,} is the first kind's length too", param_hint="--other-tokens")

    def plan(writer: Any, facts: Facts) -> Plan:
        return capacity.plan(writer, facts, tokens=tokens, other_tokens=other_tokens, most_sessions=most_sessions)

    _run("capacity", plan, capacity.judge, **common)


@probe.command(name="host-tier", short_help="What comes back from the host's memory, and how fast?")
@_tokens("--tokens", 20_000, "Length of a session.")
@click.option(
    "--fits", type=click.IntRange(1), metavar="N", help="How many fit on the device.  [found out, with many requests]"
)
@click.option(
    "--most-sessions",
    type=click.IntRange(2, 4_096),
    metavar="N",
    default=64,
    show_default=True,
    help="More are not tried.",
)
@_common("--url", requests=2_000, prompt_tokens=30_000_000, seconds=14_400)
def host_tier_command(*, tokens: int, fits: int | None, most_sessions: int, **common: Any) -> None:
    """Send one, two, four and eight sessions more than fit on the device, and again: what comes back?

    What came from the host is told by the engine's metrics where they count it (SGLang with --enable-metrics), and by its
    time to the first token otherwise.

    \b
    Examples:
      ramjet probe host-tier --url http://10.0.0.7:30000 --fits 12
      ramjet probe host-tier --url http://10.0.0.7:30000 --html tier.html
    """
    from ramjet.probes import host_tier  # noqa: PLC0415 - see above

    def plan(writer: Any, facts: Facts) -> Plan:
        return host_tier.plan(writer, facts, tokens=tokens, fits=fits, most_sessions=most_sessions)

    _run("host-tier", plan, host_tier.judge, **common)


@probe.command(name="pair", short_help="Are two long conversations kept apart by the load balancer?")
@_tokens("--long", 290_000, "First prompt of the two long conversations.")
@click.option(
    "--growth",
    type=click.IntRange(128),
    metavar="N",
    default=4_000,
    show_default=True,
    help="What a turn adds to them.",
)
@click.option(
    "--ordinary", type=click.IntRange(0, 100), metavar="N", default=6, show_default=True, help="How many ordinary ones."
)
@_tokens("--tokens", 20_000, "First prompt of an ordinary conversation.")
@click.option(
    "--turns", type=click.IntRange(2, 100), metavar="N", default=4, show_default=True, help="Of each conversation."
)
@_common("--via", "--url", requests=200, prompt_tokens=8_000_000, seconds=7_200)
def pair_command(*, long: int, growth: int, ordinary: int, tokens: int, turns: int, **common: Any) -> None:
    """Send two long conversations and some ordinary ones through a Ramjet, turn by turn.

    Shows where each of them went, and how much of it was still cached.

    \b
    Examples:
      ramjet probe pair --via http://10.0.0.5:8000
      ramjet probe pair --via http://10.0.0.5:8000 --long 150000 --turns 6 --html pair.html
    """
    from ramjet.probes import pair  # noqa: PLC0415 - see above

    def plan(writer: Any, facts: Facts) -> Plan:
        del facts
        return pair.plan(
            writer, long_tokens=long, growth_tokens=growth, ordinary=ordinary, ordinary_tokens=tokens, turns=turns
        )

    _run("pair", plan, pair.judge, **common)


def _run(
    name: str,
    plan: Callable[[Any, Facts], Plan],
    judge: Callable[[Sequence[Step], Facts], Finding],
    *,
    url: str,
    model: str | None,
    api_key: str | None,
    busy_ok: bool,
    as_json: bool,
    page: Path | None,
    picture: Path | None,
    max_requests: int,
    max_prompt_tokens: int,
    max_seconds: float,
) -> None:
    from ramjet.probes import report  # noqa: PLC0415 - see above
    from ramjet.probes.client import Client, ProbeError  # noqa: PLC0415
    from ramjet.probes.progress import Progress  # noqa: PLC0415
    from ramjet.probes.prompts import Writer  # noqa: PLC0415
    from ramjet.probes.run import LimitReached, Limits, Measured, Spent, measure  # noqa: PLC0415
    from ramjet.probes.steps import REFUSED  # noqa: PLC0415

    _see_that_files_can_be_written(page, picture)
    limits = Limits(requests=max_requests, prompt_tokens=max_prompt_tokens, seconds=max_seconds)
    spent = Spent(limits=limits, started_at=time.monotonic())
    measured = Measured(probe=name, writer=Writer(secrets.token_hex(8)), spent=spent)
    stopped, code = None, 0
    with Progress(name) as progress:

        async def all_of_it() -> None:
            client = Client(url, probe=name, api_key=api_key, model=model)
            await measure(
                client, plan, measured, busy_ok=busy_ok,
                on_note=progress.note, on_ask=progress.ask, on_step=progress.step,
            )  # fmt: skip

        try:
            asyncio.run(all_of_it())
        except KeyboardInterrupt:
            stopped, code = "it was interrupted", _INTERRUPTED
        except (ProbeError, LimitReached) as error:
            if not any(step.role != REFUSED for step in measured.steps):
                raise click.ClickException(str(error)) from None
            stopped, code = str(error), 1
    finding = judge(measured.steps, measured.facts)
    if stopped is not None:
        finding = report.broken_off(finding, stopped, len(measured.steps))
    told = report.document(measured, finding, stopped=stopped, took_s=time.monotonic() - spent.started_at)
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        _show(measured, finding)
    if page is not None:
        page.write_text(report.page(told, measured.steps), encoding="utf-8")
    if picture is not None:
        report.figure(told, measured.steps).savefig(picture, format="png", dpi=150)
    if code:
        sys.exit(code)


def _show(measured: Measured, finding: Finding) -> None:
    from rich.console import Console  # noqa: PLC0415 - see above

    from ramjet.probes import report  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    console.print(report.table(measured))
    # Not by the console, which would break the lines.
    click.echo(report.words(finding))


def _see_that_files_can_be_written(*paths: Path | None) -> None:
    from ramjet.probes import report  # noqa: PLC0415 - see above

    wanted = [path for path in paths if path is not None]
    for path in wanted:
        if not path.absolute().parent.is_dir():
            raise click.ClickException(f"{path}: there is no folder {path.parent}; make it first")
    if wanted:
        try:
            report.need_plots()
        except report.NoPlots as error:
            raise click.ClickException(str(error)) from None
