"""Options that more than one command has, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ramjet.config import ConfigError, Settings, load, replica_url

CONFIG = click.option(
    "--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file; see config/ramjet.yaml."
)


class _Replica(click.ParamType[dict[str, str]]):
    name = "NAME=URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        name, equals, url = str(value).partition("=")
        if not (name and equals):
            self.fail(f"{value}: write it as NAME=URL, for example glm-1=http://10.0.0.7:30000", param, ctx)
        try:
            return {"name": name, "url": replica_url(url)}
        except ValueError as error:
            self.fail(f"{value}: {error}", param, ctx)


REPLICAS = click.option("--replica", "replicas", type=_Replica(), multiple=True, help="A replica; may be repeated.")

NO_REPLICAS = (
    "no replicas: name one with --replica NAME=URL, list them in the config file, or say there where to find them"
)


def settings_of(path: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """The configuration, of the file, the environment and the command line.

    Raises:
        click.ClickException: with the place, the value and the remedy.
    """
    try:
        return load(path, overrides)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
