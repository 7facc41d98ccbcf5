"""Runs of the laboratory whose figures are kept as they come: what takes an hour and is cut short goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

import ramjet
from ramjet.lab.measure import Figures
from ramjet.lab.runs import Case, run_all

_PACKAGE = Path(ramjet.__file__).parent
_KEPT = _PACKAGE.parent / ".evidence"
_DECIDING = ("core", "sim", "lab")
"""The packages on whose code figures depend."""


def digest() -> str:
    """Of the code that makes figures: other code, other figures."""
    code = hashlib.blake2b(digest_size=8)
    for package in _DECIDING:
        for path in sorted((_PACKAGE / package).rglob("*.py")):
            code.update(path.read_bytes())
    return code.hexdigest()


def figures_of(cases: Sequence[Case], *, processes: int = 2, directory: Path = _KEPT) -> list[Figures]:
    """The figures of all cases, in their order; those that this code has made before are not made again."""
    path = directory / f"{digest()}.jsonl"
    found = dict(_read(path))
    missing = [case for case in dict.fromkeys(cases) if case not in found]
    directory.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.truncate(_whole(path))  # what was cut short would spoil the next line
        for place, figures in run_all(missing, processes=processes) if missing else ():
            found[missing[place]] = figures
            file.write(msgspec.json.encode([asdict(missing[place]), asdict(figures)]) + b"\n")
            file.flush()
    return [found[case] for case in cases]


def _read(path: Path) -> Iterator[tuple[Case, Figures]]:
    for line in path.read_bytes()[: _whole(path)].splitlines() if path.exists() else []:
        case, figures = msgspec.json.decode(line)
        yield Case(**case), Figures(**figures)


def _whole(path: Path) -> int:
    """Bytes of its lines that were written to their end."""
    return path.read_bytes().rfind(b"\n") + 1
