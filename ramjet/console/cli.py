"""`ramjet explain` and `ramjet top`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_MOST_BYTES = 256 << 20
PATHS = {
    "messages": "/v1/messages",
    "system": "/v1/messages",
    "input": "/v1/responses",
    "text": "/generate",
    "input_ids": "/generate",
    "prompt": "/v1/completions",
}


def _common(command: F) -> F:
    """The options of whoever asks an admin port."""
    file = click.Path(path_type=Path, dir_okay=False)
    options = (
        click.option(
            "--admin",
            metavar="URL",
            default="http://127.0.0.1:9090",
            show_default=True,
            help="Where the admin port of your Ramjet is.",
        ),
        click.option("--token-file", type=file, help="A file with admin_token.  [the variable RAMJET_ADMIN_TOKEN]"),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    )
    for option in reversed(options):
        command = option(command)
    return command


class _Header(click.ParamType[tuple[str, str]]):
    name = "NAME:VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, colon, said = str(value).partition(":")
        if not (colon and name.strip().isascii() and said.isprintable()):
            self.fail(f"{value}: write it as NAME:VALUE, for example x-session-id:abc", param, ctx)
        return name.strip().lower(), said.strip()


@click.command(name="explain", short_help="Where would this request go now, and why?")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--path", help="The path it would be sent to.  [by what is in it; /v1/chat/completions where that is unclear]"
)
@click.option("--header", "headers", type=_Header(), multiple=True, help="A header of the request; may be repeated.")
@_common
def explain(
    file: Any,
    *,
    path: str | None,
    headers: tuple[tuple[str, str], ...],
    admin: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Ask a Ramjet that serves where a request would go now: what each replica would cost, and whether it would be held.

    FILE is a request's body, `-` for standard input. Nothing is sent to a replica and nothing is changed.

    \b
    Examples:
      ramjet explain request.json
      ramjet explain - --path /v1/messages < request.json
      ramjet explain request.json --header x-session-id:abc --json | jq .decision.replica
    """
    from rich.console import Console  # noqa: PLC0415 - serving needs none of these

    from ramjet.console import client, working  # noqa: PLC0415

    body = file.read(_MOST_BYTES)
    try:
        asked = client.Admin(admin, _token(token_file))
        told = asked.explain(body, path or guessed(body), dict(headers))
    except client.NoAnswer as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    Console(width=None if sys.stdout.isatty() else 120).print(working.explained(told))


@click.command(name="top", short_help="A Ramjet that serves, live in the terminal.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@_common
def top(*, once: bool, admin: str, token_file: Path | None, as_json: bool) -> None:
    """Show a Ramjet that serves: replicas and who lives there, who is held, TTFT, cold turns, the last decisions.

    q or Ctrl-C ends it. The same is on the page at the admin port.

    \b
    Examples:
      ramjet top
      ramjet top --admin http://10.0.0.5:9090 --token-file ~/.ramjet-token
      ramjet top --once
      ramjet top --json | jq '.replicas[] | [.name, .in_flight, .queue_s]'
    """
    from ramjet.console import client, live  # noqa: PLC0415 - serving needs none of these

    try:
        asked = client.Admin(admin, _token(token_file))
        if as_json:
            click.echo(json.dumps(client.document(next(asked.watch())), indent=2))
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            live.once(asked)
        else:
            live.show(asked)
    except client.NoAnswer as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)


def guessed(body: bytes) -> str:
    """The path that a body is most likely for: only Anthropic's has a system prompt beside its messages."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return "/v1/chat/completions"
    if not isinstance(fields, dict):
        return "/v1/chat/completions"
    if "messages" in fields:
        return "/v1/messages" if "system" in fields else "/v1/chat/completions"
    return next((path for name, path in PATHS.items() if name in fields), "/v1/chat/completions")


def _token(path: Path | None) -> str | None:
    from ramjet.console import client  # noqa: PLC0415 - serving needs none of it

    return client.token_of(path, os.environ.get(client.TOKEN_VARIABLE))
