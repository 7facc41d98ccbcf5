"""Replicas that a file lists, which others write: it is looked at every second, and read when it has changed."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramjet.config_file import read_document
from ramjet.core.membership import Found
from ramjet.discovery.names import name_of
from ramjet.discovery.watch import Teller
from ramjet.settled import Settled

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A list of replicas in a file."""

    name: str
    path: Path

    async def watch(self, teller: Teller) -> None:
        """Look at the file until cancelled."""
        file, is_first, is_good = Settled(self.path), True, False
        while True:
            if is_first or (file.is_settled and (file.is_new or not is_good)):
                file.read()
                try:
                    teller.found(replicas_in(self.path))
                    is_good = True
                except ValueError as error:
                    teller.failed(str(error))
                    is_good = False
            elif file.is_gone:
                teller.failed(f"{self.path}: is not there any more")
                is_good = False
            is_first = False
            await asyncio.sleep(_LOOK_EVERY_S)
            file.look()


def replicas_in(path: Path) -> list[Found]:
    """The replicas that a file lists.

    Raises:
        ValueError: it does not; what is wrong with it, and where.
    """
    document = read_document(path)
    listed = document.get("replicas") if isinstance(document, Mapping) else document
    if listed is None:
        # Who writes a file anew empties it first, and a program that failed leaves it so.
        raise ValueError(f"{path}: lists no replicas; write replicas: [] where there are none")
    if not isinstance(listed, list):
        raise ValueError(f"{path}: must be a list of replicas, as in the configuration, or have one under replicas")  # noqa: TRY004
    found = [_found(path, number, each) for number, each in enumerate(listed)]
    for what in ("name", "url"):
        times = Counter(getattr(each, what) for each in found)
        if twice := next((each.name for each in found if times[getattr(each, what)] > 1), None):
            raise ValueError(f"{path}: the {what} of {twice} is given twice; each replica needs its own")
    return found


def _found(path: Path, number: int, given: Any) -> Found:
    if isinstance(given, str):
        given = {"url": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("url"), str):
        raise ValueError(f"{path}: replicas.{number}: has no url; write it as {{url: 'http://10.0.0.7:30000'}}")  # noqa: TRY004
    more = {key: value for key, value in given.items() if key not in {"name", "url"}}
    # What is wrong with the URL is said where it is read; a password in it must not become a name.
    place = given["url"].partition("://")[2].partition("/")[0].rpartition("@")[2]
    name = given.get("name", name_of(re.sub(r"[\[\]]", "", place)))
    return Found(name if isinstance(name, str) else str(name), given["url"], more=more)
