"""What is wrong with a configuration, in words: where it stands, what was given, what would be right.

No secret is shown, wherever it stands.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the place, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where values came from, in falling order: the command line, variables, the file."""

    path: Path | None
    overrides: Mapping[str, Any]
    """What the command line says, nested as the file is."""
    variables: Mapping[str, str]
    """The variables that are set, by the key that each sets, be it a whole section."""


def explain(error: ValidationError, source: Source, meanings: Mapping[str, str]) -> str:
    """One line for each fault: where it is, what was given, what would be right.

    Args:
        error: the faults.
        source: where the values came from.
        meanings: what each key means, dotted.
    """
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(step) for step in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        where = _blamed(key or message.partition(":")[0], source, contradiction=not key)
        if not key:
            lines.append(f"{where}{message}")
        elif fault["type"] == "extra_forbidden":
            lines.append(f"{where}{key}: no such key{_nearest(key, meanings)}")
        else:
            shown = "nothing" if fault["type"] == "missing" else _shown(key, fault["input"])
            lines.append(f"{where}{key}: {shown} given: {message[:1].lower()}{message[1:]}{_meaning(key, meanings)}")
    return "\n".join(lines)


def _blamed(key: str, source: Source, *, contradiction: bool) -> str:
    """Where a faulty value came from: the command line, a variable, or the file.

    What contradicts itself is blamed on a variable of the same section, where there is one: the file was fine before.
    """
    given: Any = source.overrides
    for step in _plain(key).split("."):
        given = given.get(step) if isinstance(given, Mapping) else None
    if given is not None:
        return "command line: "
    names = [*_sections(_plain(key))]
    if contradiction and len(names) > 1:
        names += [name for name in source.variables if name.startswith(f"{names[1]}.")]
    in_file = f"{source.path}: " if source.path is not None else ""
    return next((f"{source.variables[name]}: " for name in names if name in source.variables), in_file)


_SECRETS = {"secret", "admin_token", "client_keys"}


def _shown(key: str, value: object) -> str:
    if key.partition(".")[0] in _SECRETS or key.rpartition(".")[2] == "api_key":
        return "***"
    if isinstance(value, (dict, list)) or key == "replicas":  # keys may stand in it
        return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "something else"
    try:
        shown = repr(value)
    except ValueError:  # Python does not write out integers of more than 4,300 digits
        return "a number too long to show"
    return re.sub(r"(?:(?<=//)|(?<=\A')|(?<=\A\")).*@", "***@", shown)


def _sections(key: str) -> Iterator[str]:
    steps = key.split(".")
    return (".".join(steps[:depth]) for depth in range(len(steps), 0, -1))


def _plain(key: str) -> str:
    return ".".join(step for step in key.split(".") if not step.isdigit())


def _meaning(key: str, meanings: Mapping[str, str]) -> str:
    return f" ({meanings[_plain(key)]})" if _plain(key) in meanings else ""


def _nearest(key: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(_plain(key), [*known, *(over for name in known for over in _sections(name))], n=1)
    return f"; did you mean {near[0]}?" if near else "; config/ramjet.yaml shows all keys"
