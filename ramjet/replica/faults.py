"""Things that go wrong, by a file: at given times, to given requests. Pure but for reading the file.

All seconds are the replica's own, so `--speed` compresses them like everything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

_EXAMPLE = "- {at_s: 10, do: wedge, for_s: 20}"


class FaultsError(ValueError):
    """The file cannot be used; the message names the file, the entry, the field and the remedy."""


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    at_s: Annotated[float, Field(ge=0)] = Field(default=0.0, description="seconds after the start; left out, at once")
    for_s: Annotated[float, Field(gt=0)] | None = Field(default=None, description="for so long; left out, for ever")

    @property
    def ends_s(self) -> float:
        """When it is over."""
        return math.inf if self.for_s is None else self.at_s + self.for_s

    def counts(self, seconds: float) -> bool:
        """Whether it is on at a time."""
        return self.at_s <= seconds < self.ends_s


class _OfRequests(_Fault):
    request: Annotated[int, Field(ge=1)] | None = Field(default=None, description="this one alone, counted from 1")
    every: Annotated[int, Field(ge=1)] | None = Field(default=None, description="each so many-th")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.request is not None and self.every is not None:
            raise ValueError("names request and every: leave one of them out")
        return self

    @property
    def of_all(self) -> bool:
        """Whether it says nothing of which requests."""
        return self.request is None and self.every is None

    def hits(self, number: int, seconds: float) -> bool:
        """Whether it is meant for a request, by its number and the time at which it came."""
        if self.request is not None and number != self.request:
            return False
        return (self.every is None or number % self.every == 0) and self.counts(seconds)


class Wedge(_OfRequests):
    """Nothing comes any more, though `/health` says that all is well."""

    do: Literal["wedge"]


class Slow(_Fault):
    """All takes longer."""

    do: Literal["slow"]
    factor: Annotated[float, Field(gt=0)] = Field(description="so many times as long, for example 3")


class Restart(_Fault):
    """Connections break, nobody listens for a while, and then the cache is empty."""

    do: Literal["restart"]
    at_s: Annotated[float, Field(gt=0)] = Field(description="seconds after the start")
    for_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="for how long nobody listens; a real engine takes a minute and more"
    )


class Status(_OfRequests):
    """Requests are answered with an error."""

    do: Literal["status"]
    status: Annotated[int, Field(ge=400, le=599)] = Field(description="of HTTP, 400 to 599, for example 503")
    retry_after_s: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="said in `Retry-After`, and so in the client's seconds"
    )


class _MidStream(_OfRequests):
    after_tokens: Annotated[int, Field(ge=0)] = Field(
        default=1, description="so many tokens of the answer have come by then"
    )


class ResetMidStream(_MidStream):
    """The connection is reset in the middle of an answer."""

    do: Literal["reset_mid_stream"]


class ErrorEvent(_MidStream):
    """A stream ends with an error in the API's own shape; an answer in one piece is a 500."""

    do: Literal["error_event"]
    message: str = Field(default="CUDA error: an illegal memory access was encountered", description="what it says")


OfRequest = Wedge | Status | ResetMidStream | ErrorEvent
Fault = Annotated[OfRequest | Slow | Restart, Field(discriminator="do")]
_ENTRY: TypeAdapter[OfRequest | Slow | Restart] = TypeAdapter(Fault)
KINDS: dict[str, type[_Fault]] = {
    "wedge": Wedge,
    "slow": Slow,
    "restart": Restart,
    "status": Status,
    "reset_mid_stream": ResetMidStream,
    "error_event": ErrorEvent,
}
"""What an entry may `do`."""


class Faults:
    """All entries of a file."""

    def __init__(self, entries: Sequence[OfRequest | Slow | Restart] = ()) -> None:
        self._of_requests = [
            each
            for each in entries
            if isinstance(each, Status | ResetMidStream | ErrorEvent) or (isinstance(each, Wedge) and not each.of_all)
        ]
        self._wedges = [each for each in entries if isinstance(each, Wedge) and each.of_all]
        self._slow = [each for each in entries if isinstance(each, Slow)]
        self.restarts = sorted((each for each in entries if isinstance(each, Restart)), key=lambda each: each.at_s)
        """In order of time."""

    def of_request(self, number: int, seconds: float) -> OfRequest | None:
        """What happens to a request: the first entry that is meant for it; None for nothing.

        Args:
            number: counted from 1.
            seconds: when it came, after the start.
        """
        return next((each for each in self._of_requests if each.hits(number, seconds)), None)

    def pace(self, seconds: float) -> float:
        """How fast the whole replica is at a time: 1 as it should be, 0 when it stands still."""
        if any(each.counts(seconds) for each in self._wedges):
            return 0.0
        return 1 / math.prod(each.factor for each in self._slow if each.counts(seconds))

    @property
    def turns_s(self) -> list[float]:
        """When that changes."""
        times = {time for each in (*self._wedges, *self._slow) for time in (each.at_s, each.ends_s)}
        return sorted(time for time in times if time < math.inf)


def load(path: Path) -> Faults:
    """Read and check a file.

    Raises:
        FaultsError: it cannot be read, or says what there is not.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FaultsError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise FaultsError(f"{path}: {where}is not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FaultsError(f"{path}: is not YAML: {error}") from None
    if not isinstance(entries, list):
        raise FaultsError(f"{path}: must be a list of entries, such as {_EXAMPLE}")
    found: list[OfRequest | Slow | Restart] = []
    told: list[str] = []
    for number, entry in enumerate(entries, start=1):
        try:
            found.append(_ENTRY.validate_python(entry))
        except ValidationError as error:
            told += [f"{path}: entry {number}: {line}" for line in _explain(entry, error)]
    if told:
        raise FaultsError("\n".join(told))
    return Faults(found)


def _explain(entry: object, error: ValidationError) -> Iterator[str]:
    """What is wrong with an entry, and what would be right."""
    if not isinstance(entry, dict):
        yield f"{entry!r} given: write it as a mapping, such as {_EXAMPLE}"
        return
    model = KINDS.get(entry["do"]) if isinstance(entry.get("do"), str) else None
    if model is None:
        given = f"{entry['do']!r} given" if "do" in entry else "nothing given"
        yield f"do: {given}: one of {', '.join(KINDS)}"
        return
    known = model.model_fields
    for fault in error.errors(include_url=False):
        # The first step is the kind of entry that it was taken for.
        field = ".".join(str(step) for step in fault["loc"][1:])
        message = fault["msg"].removeprefix("Value error, ")
        if not field:
            yield f"{entry['do']} {message}"
        elif fault["type"] == "extra_forbidden":
            yield f"{field}: {entry['do']} has no such field; it has {', '.join(sorted(known))}"
        else:
            shown = "nothing" if fault["type"] == "missing" else repr(fault["input"])
            meaning = known[field].description if field in known else None
            yield f"{field}: {shown} given: {message[:1].lower()}{message[1:]}{f' ({meaning})' if meaning else ''}"
