"""Who is in the fleet of those that sources have found: from what each source says, over time, to who comes and goes.

A source says all that it knows whenever it says something, so nothing depends on the order of events, or on one that was
missed: what counts is what each said last. One that fails says nothing, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramjet.core.fleet import whole_name

LOOKS = ("ok", "empty", "failed")
"""What a look at a source may come to. An empty one is an answer without replicas that is not believed."""


@dataclass(frozen=True, slots=True)
class Found:
    """One replica, as a source names it."""

    name: str
    url: str
    ready: bool = True
    """Whether it may get requests; one that may not for now, and will again, is left in peace."""
    made: str = ""
    """What is another word when it is another one under the same name and at the same URL; a pod's uid."""
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the source says of it besides, as keys of the configuration."""


@dataclass(slots=True)
class Heard:
    """What a source has said last, and how it is."""

    found: tuple[Found, ...] = ()
    good_at: float | None = None
    """When it last said something; None: never."""
    error: str | None = None
    """What is wrong with it now."""
    looks: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(LOOKS, 0)))
    """How often it was asked, by what came of it."""


@dataclass(slots=True)
class Member:
    """A replica that is in the fleet because a source has found it."""

    source: str
    found: Found
    gone_at: float | None = None
    """Since when no source names it any more; it may finish what it runs."""

    @property
    def serves(self) -> bool:
        """Whether it may get requests."""
        return self.found.ready and self.gone_at is None


@dataclass(frozen=True, slots=True)
class Changes:
    """What has to be done, in this order; a name that is removed and added is another replica."""

    removed: dict[str, str] = field(default_factory=dict)
    """With their sources."""
    added: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    enabled: list[str] = field(default_factory=list)
    left_out: list[tuple[str, Found]] = field(default_factory=list)
    """Those that are kept out from now on, because another has their name, by source; one whose URL another has is that."""


class Membership:
    """The replicas that were found, and those of them that are in the fleet."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        """By name."""
        self.heard: dict[str, Heard] = {}
        """By source, in the order in which they may claim names."""
        self._left_out: set[tuple[str, Found]] = set()
        self._dismissed: set[str] = set()

    def source_of(self, name: str) -> str | None:
        """Who has found a replica; None for one that is not there for having been found."""
        member = self.members.get(name)
        return None if member is None else member.source

    def known(self, source: str) -> int:
        """How many replicas are there because a source names them."""
        return sum(each.source == source and each.gone_at is None for each in self.members.values())

    @property
    def has_heard_all(self) -> bool:
        """Whether each source has said something, be it that it fails."""
        return all(each.good_at is not None or each.error is not None for each in self.heard.values())

    def listen_to(self, sources: Collection[str]) -> None:
        """These are the sources from now on; what others have found is gone."""
        self.heard = {source: self.heard.get(source) or Heard() for source in sources}

    def told(self, source: str, found: Sequence[Found], now: float) -> bool:
        """A source has said which replicas there are, all of them; True if it had failed before."""
        heard = self.heard.get(source)
        if heard is None:
            return False  # nobody listens to it any more
        failed = heard.error is not None
        heard.found, heard.good_at, heard.error = tuple(_each_once(found)), now, None
        heard.looks["ok"] += 1
        return failed

    def failed(self, source: str, error: str, *, empty: bool = False) -> bool:
        """A source has said nothing that can be believed; True if that is news."""
        heard = self.heard.get(source)
        if heard is None:
            return False
        news = heard.error is None
        heard.error = error
        heard.looks["empty" if empty else "failed"] += 1
        return news

    def dismiss(self, name: str) -> None:
        """A member was let go by hand. It is not taken in again before its source has left it out, and names it anew."""
        del self.members[name]
        self._dismissed.add(name)

    def settle(
        self, now: float, *, drain_s: float, others: Mapping[str, str], is_busy: Callable[[str], bool]
    ) -> Changes:
        """Make members of those who should be; returns what is to be done for that.

        Args:
            now: when.
            drain_s: how long one that is gone may finish what it runs.
            others: the replicas that are there without having been found, URLs by name; they come first.
            is_busy: whether a member runs anything.
        """
        wanted, left_out = self._wanted(others)
        changes = Changes(left_out=[each for each in left_out if each not in self._left_out])
        self._left_out = set(left_out)
        self._dismissed &= wanted.keys()
        claimed = {*others.values(), *(found.url for _, found in wanted.values())}
        names = _Names([*others, *wanted])
        for name, member in list(self.members.items()):
            serves = member.serves
            if name in others:
                del self.members[name]  # it is another's by now, and not ours to let go
            elif name in wanted:
                source, found = wanted.pop(name)
                if (found.url, found.made) != (member.found.url, member.found.made):
                    del self.members[name]
                    changes.removed[name] = member.source
                    wanted[name] = source, found
                    continue
                member.source, member.found, member.gone_at = source, found, None
                if member.serves is not serves:
                    (changes.enabled if member.serves else changes.drained).append(name)
            else:
                member.gone_at = now if member.gone_at is None else member.gone_at
                is_over = not is_busy(name) or now - member.gone_at >= drain_s
                if is_over or member.found.url in claimed or names.clash(name):
                    del self.members[name]
                    changes.removed[name] = member.source
                elif serves:
                    changes.drained.append(name)
        for name, (source, found) in wanted.items():
            if found.ready and name not in self._dismissed:
                self.members[name] = Member(source, found)
                changes.added.append(name)
        return changes

    def _wanted(self, others: Mapping[str, str]) -> tuple[dict[str, tuple[str, Found]], list[tuple[str, Found]]]:
        """Who should be there, by name and each URL once; and who cannot be, because another has its name."""
        wanted: dict[str, tuple[str, Found]] = {}
        left_out: list[tuple[str, Found]] = []
        urls, names = set(others.values()), _Names(others)
        for source, found in self._in_order():
            if found.url in urls:
                continue
            if names.clash(found.name):
                left_out.append((source, found))
                continue
            wanted[found.name] = source, found
            urls.add(found.url)
            names.add(found.name)
        return wanted, left_out

    def _in_order(self) -> Iterator[tuple[str, Found]]:
        """All that was found. Who is there stays: nobody is to lose a name, or a cache, to who comes later."""
        found = [(source, each) for source, heard in self.heard.items() for each in heard.found]

        def is_new(told: tuple[str, Found]) -> bool:
            member = self.members.get(told[1].name)
            return member is None or (member.source, member.found.url) != (told[0], told[1].url)

        return iter(sorted(found, key=is_new))


def _each_once(found: Iterable[Found]) -> Iterator[Found]:
    """The first of each name and of each URL."""
    seen: set[str] = set()
    for each in found:
        if each.name not in seen and each.url not in seen:  # no name looks like a URL
            seen |= {each.name, each.url}
            yield each


class _Names:
    """Names that are taken, and with each of them those of its ranks."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._wholes: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self._names.add(name)
        self._wholes.add(whole_name(name))

    def clash(self, name: str) -> bool:
        """Whether a name is taken, or that of a rank of another, or the other way round."""
        return name in self._wholes or name in self._names or whole_name(name) in self._names
