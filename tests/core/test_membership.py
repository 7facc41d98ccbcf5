"""Who comes and goes, from what sources say over time: nobody is lost or doubled, in whatever order things happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ramjet.core.fleet import whole_name
from ramjet.core.membership import Changes, Found, Membership

DRAIN_S = 60.0


def found(name: str, at: str | None = None, *, ready: bool = True, made: str = "") -> Found:
    return Found(name, f"http://{at or name}:30000", ready=ready, made=made)


A, B, C = found("a"), found("b"), found("c")


def one(*listed: Found) -> Membership:
    """A membership with one source, which has named these."""
    membership = Membership()
    membership.listen_to(["dns"])
    membership.told("dns", listed, now=0.0)
    settle(membership)
    return membership


def settle(
    membership: Membership, now: float = 0.0, *, busy: tuple[str, ...] = (), others: Mapping[str, str] | None = None
) -> Changes:
    return membership.settle(now, drain_s=DRAIN_S, others=others or {}, is_busy=lambda name: name in busy)


def test_who_is_named_comes_and_who_is_not_goes() -> None:
    """
    One that runs nothing goes at once; the same word twice changes nothing.
    """
    membership = one(A, B)
    assert list(membership.members) == ["a", "b"]

    membership.told("dns", [B, C], now=1.0)

    assert settle(membership, 1.0) == Changes(removed={"a": "dns"}, added=["c"])
    assert settle(membership, 2.0) == Changes()


def test_one_that_is_busy_drains_first() -> None:
    """
    It is removed when it has become idle, or at the limit.
    """
    for idle_at in (30.0, None):
        membership = one(A, B)
        membership.told("dns", [B], now=1.0)

        assert settle(membership, 1.0, busy=("a",)) == Changes(drained=["a"])
        assert settle(membership, 30.0, busy=("a",)) == Changes()
        if idle_at is not None:
            assert settle(membership, idle_at) == Changes(removed={"a": "dns"})
        else:
            assert settle(membership, 61.0, busy=("a",)) == Changes(removed={"a": "dns"})


def test_one_that_returns_while_it_drains_goes_on_as_it_was() -> None:
    """
    It never went away: the same name, the same address, the same process.
    """
    membership = one(A, B)
    membership.told("dns", [B], now=1.0)
    settle(membership, 1.0, busy=("a",))

    membership.told("dns", [B, A], now=2.0)

    assert settle(membership, 2.0, busy=("a",)) == Changes(enabled=["a"])
    assert settle(membership, 100.0) == Changes()


def test_one_that_is_not_ready_rests_and_is_not_removed() -> None:
    """
    A pod that fails its readiness probe for a moment has not lost its cache; one that was never ready is not taken in.
    """
    membership = one(A, replace(B, ready=False))
    assert list(membership.members) == ["a"]

    membership.told("dns", [replace(A, ready=False), B], now=1.0)
    assert settle(membership, 1.0) == Changes(added=["b"], drained=["a"])
    assert settle(membership, 1_000.0) == Changes()

    membership.told("dns", [A, B], now=1_001.0)
    assert settle(membership, 1_001.0) == Changes(enabled=["a"])


def test_the_same_name_at_another_address_is_another_replica() -> None:
    """
    It is removed and taken in, also while it is busy; so is another pod that got the name and the address.
    """
    for other in (found("a", "elsewhere"), replace(A, made="another uid")):
        membership = one(A, B)
        membership.told("dns", [other, B], now=1.0)

        assert settle(membership, 1.0, busy=("a",)) == Changes(removed={"a": "dns"}, added=["a"])
        assert settle(membership, 1.0, busy=("a",)) == Changes()


def test_an_address_that_another_has_got_is_no_longer_drained() -> None:
    """
    Two replicas at one URL would be probed as one.
    """
    membership = one(A, B)
    membership.told("dns", [found("c", "a"), B], now=1.0)

    assert settle(membership, 1.0, busy=("a",)) == Changes(removed={"a": "dns"}, added=["c"])


def test_a_source_that_fails_changes_nothing() -> None:
    """
    It is news once, and so is that it is well again.
    """
    membership = one(A, B)

    assert membership.failed("dns", "timeout")
    assert not membership.failed("dns", "SERVFAIL", empty=True)
    assert settle(membership, 1_000_000.0) == Changes()
    assert membership.heard["dns"].looks == {"ok": 1, "empty": 1, "failed": 1}
    assert membership.told("dns", [A, B], now=1.0)
    assert not membership.told("dns", [A, B], now=2.0)


def test_an_empty_word_is_a_word() -> None:
    """
    Whether one is to be believed is for the source to say.
    """
    membership = one(A, B)
    membership.told("dns", [], now=1.0)

    assert settle(membership, 1.0).removed == {"a": "dns", "b": "dns"}


def test_those_that_are_listed_come_first() -> None:
    """
    Who lists a replica that was found takes it over: it is not for a source to remove any more.
    """
    membership = one(A, B, found("x.1"))

    changes = settle(membership, others={"a": "http://a:30000", "other": "http://b:30000", "x": "http://x:30000"})

    assert changes.removed == {"b": "dns", "x.1": "dns"}
    assert changes.left_out == [("dns", found("x.1"))]
    assert membership.members == {}
    assert settle(membership).added == ["a", "b", "x.1"]


def test_names_that_end_in_numbers_are_no_ranks_of_one_another() -> None:
    """
    gpu.1 and gpu.2 may both be there; gpu may not, for gpu.1 would be its rank.
    """
    membership = one(found("gpu.1"), found("gpu.2"), found("gpu"))

    assert list(membership.members) == ["gpu.1", "gpu.2"]


def test_who_is_there_keeps_its_name() -> None:
    """
    A source that is asked first, and names another so later, does not push it out; that is said once.
    """
    membership = Membership()
    membership.listen_to(["first", "second"])
    membership.told("second", [A, B], now=0.0)
    settle(membership)

    membership.told("first", [found("a", "elsewhere"), found("z", "b")], now=1.0)

    assert settle(membership, 1.0) == Changes(left_out=[("first", found("a", "elsewhere"))])
    assert settle(membership, 2.0) == Changes()
    membership.told("second", [], now=3.0)
    changes = settle(membership, 3.0)
    assert (changes.removed, set(changes.added)) == ({"a": "second", "b": "second"}, {"a", "z"})
    assert membership.source_of("a") == "first"
    assert (membership.known("first"), membership.known("second")) == (2, 0)


def test_what_a_dropped_source_has_found_is_gone() -> None:
    """
    And what it still says is not heard.
    """
    membership = one(A)
    membership.listen_to(["file"])

    assert settle(membership, 1.0, busy=("a",)) == Changes(drained=["a"])
    assert not membership.told("dns", [A, B], now=2.0)
    assert not membership.failed("dns", "timeout")
    assert settle(membership, 2.0) == Changes(removed={"a": "dns"})


def test_one_that_was_dismissed_stays_away_until_it_is_named_anew() -> None:
    """
    An operator's word holds against a source that says the same as before.
    """
    membership = one(A, B)
    membership.dismiss("a")

    assert settle(membership, 1.0) == Changes()
    membership.told("dns", [B], now=2.0)
    assert settle(membership, 2.0) == Changes()
    membership.told("dns", [A, B], now=3.0)
    assert settle(membership, 3.0) == Changes(added=["a"])


NAMES = st.sampled_from(["a", "b", "c", "d", "a.1", "a.2"])
URLS = st.sampled_from(["u", "v", "w", "x"])
FOUND = st.builds(found, NAMES, URLS, ready=st.booleans(), made=st.sampled_from(["", "1"]))
WORDS = st.lists(FOUND, max_size=5)
SOURCES = ("file", "dns", "kubernetes")


class Fleet(RuleBasedStateMachine):
    """A membership beside a fleet that does as it is told, and complains where that cannot be done."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership()
        self.membership.listen_to(SOURCES)
        self.said: dict[str, list[Found]] = {}
        self.fleet: dict[str, Found] = {}
        self.draining: set[str] = set()
        self.busy: set[str] = set()
        self.others: dict[str, str] = {}
        self.now = 0.0

    @rule(source=st.sampled_from(SOURCES), word=WORDS)
    def told(self, source: str, word: list[Found]) -> None:
        self.membership.told(source, word, self.now)
        self.said[source] = word
        self.settle()

    @rule(source=st.sampled_from(SOURCES), empty=st.booleans())
    def failed(self, source: str, *, empty: bool) -> None:
        before = dict(self.fleet), set(self.draining)
        self.membership.failed(source, "down", empty=empty)
        self.settle()
        idle = {name for name in before[1] - self.draining if name not in self.fleet}
        assert {**before[0]} == {**self.fleet, **{name: before[0][name] for name in idle}}

    @rule(seconds=st.sampled_from([1.0, DRAIN_S]))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    @rule(names=st.sets(NAMES))
    def works(self, names: set[str]) -> None:
        self.busy = names

    @rule(others=st.dictionaries(st.sampled_from(["a", "e"]), URLS.map("http://{}:30000".format), max_size=1))
    def lists(self, others: dict[str, str]) -> None:
        self.others = others
        for name in others:
            self.fleet.pop(name, None)
            self.draining.discard(name)
        self.settle()

    def settle(self) -> None:
        changes = settle(self.membership, self.now, busy=tuple(self.busy), others=self.others)
        for name in changes.removed:
            del self.fleet[name]
            self.draining.discard(name)
        for name in changes.added:
            assert name not in self.fleet
            self.fleet[name] = self.membership.members[name].found
        for name in changes.drained:
            assert name in self.fleet
            assert name not in self.draining
            self.draining.add(name)
        for name in changes.enabled:
            self.draining.remove(name)

    @invariant()
    def nobody_is_doubled(self) -> None:
        assert self.fleet.keys() == self.membership.members.keys()
        assert not self.fleet.keys() & self.others.keys()
        urls = [*(each.url for each in self.fleet.values()), *self.others.values()]
        names = [*self.fleet, *self.others]
        assert len(urls) == len(set(urls))
        assert not [name for name in names if whole_name(name) != name and whole_name(name) in names]

    @invariant()
    def who_serves_is_named_and_ready(self) -> None:
        named = {(each.name, each.url) for word in self.said.values() for each in word if each.ready}
        serving = {(name, each.url) for name, each in self.fleet.items() if name not in self.draining}
        assert serving <= named

    @invariant()
    def who_could_be_there_is(self) -> None:
        for word in self.said.values():
            for each in word:
                names = [*self.membership.members, *self.others]
                is_taken = each.name in names or whole_name(each.name) in names
                is_taken |= any(whole_name(name) == each.name for name in names)
                urls = [*(member.found.url for member in self.membership.members.values()), *self.others.values()]
                # What is said twice of one name or one URL is anybody's guess.
                twice = sum(
                    other.name == each.name or other.url == each.url for one in self.said.values() for other in one
                )
                clashing = any(
                    other is not each and whole_name(other.name) == whole_name(each.name)
                    for one in self.said.values()
                    for other in one
                )
                assert not each.ready or is_taken or each.url in urls or twice > 1 or clashing


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


@given(
    words=st.lists(st.tuples(st.sampled_from(SOURCES), st.lists(st.sampled_from([A, B, C]), unique=True)), max_size=8)
)
def test_only_the_last_words_count(words: list[tuple[str, list[Found]]]) -> None:
    """
    Whatever was said before: in the end those are there that somebody names, each once.
    """
    membership = Membership()
    membership.listen_to(SOURCES)
    last: dict[str, list[Found]] = {}
    for now, (source, word) in enumerate(words):
        membership.told(source, word, float(now))
        settle(membership, float(now))
        last[source] = word

    assert {name: each.found.url for name, each in membership.members.items()} == {
        each.name: each.url for word in last.values() for each in word
    }
