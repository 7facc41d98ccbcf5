"""Engines' pages as values: JSON, Prometheus' text, and numbers that are numbers. Whatever a page says, nothing is raised."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ramjet.engines.facts import Facts, Loads

_MOST = 1 << 40
"""No count of an engine's is this large, but for those that never fall."""
_MOST_LINES = 4_096
"""Of one metric: 64 data-parallel ranks with 64 label values each."""

_LABEL = re.compile(r'([a-zA-Z_]\w*+)="((?:[^"\\]++|\\.)*+)"')
_SAMPLE = re.compile(r'(?:\{(?P<labels>(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?\s++(?P<value>\S++)(?:\s++\S++)?\s*+')
"""What follows a name: labels, a value, and perhaps a time."""

Object = Mapping[str, Any]


# -- JSON -----------------------------------------------------------------------------------------------------------


def document(text: str | None) -> object:
    """A page of JSON; None where it is none."""
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def mapping(value: object) -> Object:
    """A JSON object; an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Object]:
    """The objects of a JSON list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def count(value: object) -> int | None:
    """A whole number from 0 on, also where it is written as a float or, in a label, as text."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = float(value) if not value.isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        return None
    return int(value) if value == int(value) else None


def size(value: object) -> int | None:
    """The same from 1 on."""
    return count(value) or None


def flag(value: object) -> bool | None:
    """True or false, as JSON or, in a label, as Python writes it."""
    return {"True": True, "true": True, "False": False, "false": False}.get(str(value))


def word(value: object) -> str | None:
    """A short text that is not empty."""
    return value[:256] if isinstance(value, str) and value.strip() else None


def total(values: Iterable[int | None]) -> int | None:
    """The sum, where all are known and there is one."""
    known = list(values)
    return sum(each or 0 for each in known) if known and None not in known else None


def least(values: Iterable[int | None]) -> int | None:
    """The smallest, where all are known and there is one."""
    known = list(values)
    return min(each or 0 for each in known) if known and None not in known else None


def models(text: str | None) -> list[Object]:
    """The entries of `/v1/models`."""
    return mappings(mapping(document(text)).get("data"))


def owners(text: str | None) -> set[object]:
    """Who owns the models of `/v1/models`, by which engines give themselves away."""
    return {word(each.get("owned_by")) for each in models(text)}


# -- Prometheus -----------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A line of metrics."""

    labels: Mapping[str, str]
    value: float


def samples(text: str | None, *names: str) -> Iterator[Sample]:
    """The samples of these names, but for those that are less than 0 or no number.

    A page has a hundred kilobytes, of which a few lines are wanted, every second and of every replica. So only those are
    looked at, and with no more than it takes: Prometheus' own parser needs ten times as long for a line.
    """
    for name in names if text else ():
        for rest in _lines(text or "", name):
            found = _SAMPLE.fullmatch(rest)
            value = None if found is None else _number(found["value"])
            if found is not None and value is not None:
                yield Sample({each[1]: _unescaped(each[2]) for each in _LABEL.finditer(found["labels"] or "")}, value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda each: {"n": "\n"}.get(each[1], each[1]), text) if "\\" in text else text


def exports(text: str | None, prefix: str) -> bool:
    """Whether a page has metrics whose names begin so."""
    return bool(text) and (str(text).startswith(prefix) or f"\n{prefix}" in str(text))


def counted(text: str | None, name: str) -> float | None:
    """A counter, all its labels together, but for tensor-parallel ranks, which repeat one another; None without any."""
    values = [each.value for each in samples(text, name) if each.labels.get("tp_rank", "0") == "0"]
    return sum(values) if values else None


def _lines(text: str, name: str) -> Iterator[str]:
    """What follows a name, and nothing longer, on the lines that begin with it."""
    start = 0 if text.startswith(name) else text.find(f"\n{name}") + 1 or -1
    for _ in range(_MOST_LINES):
        if start < 0:
            return
        end = start + len(name)
        if text[end : end + 1] in {"{", " ", "\t"}:
            stop = text.find("\n", end)
            yield text[end:] if stop < 0 else text[end:stop]
            # By the format all that has a name stands together, and a comment begins what comes next.
            if stop < 0 or text.startswith("#", stop + 1):
                return
            end = stop
        start = text.find(f"\n{name}", end) + 1 or -1


# -- loads ----------------------------------------------------------------------------------------------------------


def loads_of(ranks: Mapping[int, Mapping[str, float]]) -> tuple[Loads, ...]:
    """Loads by data-parallel rank, of values by the loads' names."""
    return tuple(
        Loads(
            rank=rank,
            counted=values.get("counted"),
            **{name: int(value) for name, value in values.items() if name != "counted" and value < _MOST},
        )
        for rank, values in sorted(ranks.items())
    )


# -- facts ----------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A value, and the page and name that it has there; None: nothing is said."""

    value: Any
    source: str


class Told:
    """What an object of a page says."""

    def __init__(self, page: str, fields: Object) -> None:
        """
        Args:
            page: where it stands.
            fields: its names and values.
        """
        self.page = page
        self.fields = fields

    def size(self, name: str, *, sharers: int = 1) -> Said:
        """A number from 1 on, or the part of it that each of so many ranks has."""
        found = size(self.fields.get(name))
        return Said(None if found is None else found // sharers, f"{self.page} {name}")

    def flag(self, name: str, *, inverted: bool = False) -> Said:
        """True or false; the other way round where the name is of what is off."""
        found = flag(self.fields.get(name))
        return Said(found if found is None else found != inverted, f"{self.page} {name}")

    def word(self, name: str) -> Said:
        """A short text."""
        return Said(word(self.fields.get(name)), f"{self.page} {name}")


def least_of(page: str, objects: Iterable[Object], name: str) -> Said:
    """What each of several ranks has of something that a page names: the least, where they differ."""
    return Said(least(size(each.get(name)) for each in objects), f"{page} {name}")


def facts_of(
    engine: str, published: Iterable[str], found: Mapping[str, Sequence[Said]], *, ranks: int | None = None
) -> Facts:
    """Facts of what was found.

    Args:
        engine: whose.
        published: what that engine says in some version, by the facts' names.
        found: by a fact's name all that is said of it, the best first.
        ranks: data-parallel ranks; None is unknown.
    """
    best = {name: next((each for each in told if each.value is not None), None) for name, told in found.items()}
    known = {name: each for name, each in best.items() if each is not None}
    return Facts(
        engine=engine,
        ranks=ranks,
        sources={name: each.source for name, each in known.items()},
        missing=tuple(name for name in published if name not in known),
        **{name: each.value for name, each in known.items()},
    )
