"""Hints beside the prompt: what they decide, what they never decide, and what is left of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramjet.core.cache import Blocks
from ramjet.core.conversations import Conversation, Conversations, Turn
from ramjet.core.hints import Hint, hashed
from tests.effort import examples

HEAD = 2
"""In these tests a prompt is one block a word: the first is the system prompt, the second the first question."""

ANNA, BEN = (hashed(("user", name), 1) for name in ("anna", "ben"))
ONE, TWO = (hashed(("x-session-id", name), 1) for name in ("one", "two"))


def prompt(*words: int | str) -> Blocks:
    hashes, chain = array("Q"), 0
    for word in words:
        chain = hash((chain, word)) & (2**64 - 1)
        hashes.append(chain)
    return Blocks(hashes, array("I", range(64, 64 * len(words) + 1, 64)))


def begin(
    known: Conversations, words: Sequence[str], hint: Hint | None = None, now: float = 0.0, head: int = HEAD
) -> Turn:
    """A turn that runs; each letter of a string is a word."""
    blocks = prompt(*words)
    preamble = blocks.hashes[0] if len(words) > 1 and words[0] != "-" else None
    head = min(head, len(blocks))
    return known.admit(blocks, head, known.recognise(blocks, head, preamble=preamble, hint=hint), now)


def turn(
    known: Conversations, words: Sequence[str], hint: Hint | None = None, now: float = 0.0, at: str = "a"
) -> Conversation:
    """A turn that a replica served."""
    running = begin(known, words, hint, now)
    known.settle(running.conversation, at)
    known.finish(running, now)
    return running.conversation


def fail(known: Conversations, words: Sequence[str], hint: Hint | None = None, now: float = 0.0) -> Conversation:
    """A turn that was sent to a replica, which never read it."""
    running = begin(known, words, hint, now)
    known.settle(running.conversation, "b")
    known.withdraw(running)
    known.finish(running, now)
    return running.conversation


def check(known: Conversations) -> None:
    """What is indexed is what the living have, they hold their paths and nobody else does, and are counted at home."""
    hinted: dict[object, set[Conversation]] = {}
    for each in known:
        for key in (each.tail, each.preamble) if each.hint is not None and each.tail is not None else ():
            hinted.setdefault((each.hint, key), set()).add(each)
    assert {key: set(alike) for key, alike in known._hinted.items()} == hinted
    assert +known.living_at == Counter(each.home for each in known if each.home is not None)
    holders = Counter(node for each in known if each.holding and each.tail is not None for node in each.tail.path())
    assert all(node.holders == holders[node] for node in known.history._order)


# -- two users --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [(ANNA, BEN), (ONE, TWO)])
def test_two_with_the_same_opening_are_two_conversations(one: Hint, other: Hint) -> None:
    """
    The same first prompt, even the same answer: each goes on with its own, and neither is where the other is by name.
    """
    known = Conversations()
    mine, yours = turn(known, "sq", one, at="a"), turn(known, "sq", other, at="b")

    assert mine is not yours
    assert (yours.turn, yours.home, mine.id != yours.id, mine.head != yours.head) == (1, "b", True, True)
    assert turn(known, "sqax", one) is mine
    assert turn(known, "sqay", other) is yours
    assert turn(known, "sqayb", other) is yours
    assert turn(known, "sqaxb", one) is mine
    assert (mine.turn, yours.turn, known.living) == (3, 3, 2)


def test_the_same_prompt_is_no_second_users_edit() -> None:
    """
    Somebody begins as another did, who has gone on: without hints that is the other's last turn with another ending.
    """
    known = Conversations()
    mine = turn(known, "sq", ANNA)
    assert turn(known, "sqax", ANNA) is mine

    yours = begin(known, "sq", BEN).conversation

    assert yours is not mine
    assert (yours.turn, yours.home) == (1, None)


def test_who_goes_on_under_another_name_branches_off() -> None:
    """
    A forked session, or one resumed under a new name: a conversation of its own, which starts where the other is.
    """
    known = Conversations()
    turn(known, "sq", ONE)
    original = turn(known, "sqax", ONE, at="b")

    fork = begin(known, "sqaxbz", TWO).conversation

    assert fork is not original
    assert (fork.turn, fork.home) == (3, "b")
    assert turn(known, "sqaxby", ONE) is original


def test_only_a_common_beginning_gives_no_home() -> None:
    """
    Agents in one repository begin with the same long message; their sessions are not one crowd at one replica.
    """
    known = Conversations()
    turn(known, "sq1", ONE, at="b")
    turn(known, "sq1ax", ONE, at="b")

    other = begin(known, "sq2", TWO).conversation

    assert (other.turn, other.home) == (1, None)
    assert begin(known, "sq3").conversation.home == "b"


def test_a_name_that_somebody_alive_has_is_not_made_up() -> None:
    """
    Anna, who has a chat, goes on from what only Ben has sent so far: that is not Ben's next turn. Nobody knows of Eve.
    """
    for hint, is_bens in ((ANNA, False), (hashed(("user", "eve"), 1), True)):
        known = Conversations()
        turn(known, "sr", ANNA)
        bens = turn(known, "sq", BEN)

        assert (turn(known, "sqax", hint) is bens) == is_bens


def test_hints_of_different_kinds_are_not_compared() -> None:
    """
    A client behind two gateways, one of which drops a header: the prefix decides.
    """
    known = Conversations()
    turn(known, "sq", ANNA)
    conversation = turn(known, "sqax", ANNA)

    assert turn(known, "sqaxby", ONE) is conversation
    assert turn(known, "sqaxbycz") is conversation


def test_whose_hint_agrees_comes_before_whose_cannot_be_compared() -> None:
    """
    Of two that begin alike one has got a name of another kind meanwhile: the next turn still goes to its own.
    """
    known = Conversations()
    mine, yours = turn(known, "sq", ANNA), turn(known, "sq", BEN)
    assert turn(known, "sq", ONE) is yours

    assert turn(known, "sqax", ANNA) is mine
    assert turn(known, "sqay", ONE) is yours


def test_a_hint_that_is_made_up_for_each_request_changes_nothing() -> None:
    """
    Some clients send a new one each time: their conversations are told by their prompts, as if there were none.
    """
    known = Conversations()
    words, made_up = ["sq", "sr"], (hashed(("user", str(number)), 1) for number in range(99))
    conversations = [turn(known, each, next(made_up)) for each in words]

    for number in range(2, 8):
        for each, conversation in enumerate(conversations):
            words[each] += f"{number}x"
            assert turn(known, words[each], next(made_up)) is conversation
            assert conversation.turn == number

    assert known.living == 2


# -- compaction -------------------------------------------------------------------------------------------------------


def compacted(known: Conversations, hint: Hint | None = ONE) -> tuple[Conversation, Conversation]:
    """A conversation of three turns, and whoever a summary of it is taken for."""
    for words in ("sq", "sqaw", "sqawbv"):  # of six words
        before = turn(known, words, hint, at="b")
    return before, turn(known, "sZ", hint, at="b")


def test_after_compaction_the_conversation_goes_on() -> None:
    """
    Its messages are replaced by a summary: the same name, the next number, the same home, and one that is alive.
    """
    known = Conversations()
    before, after = compacted(known)

    assert (after.id, after.head, after.turn, after.home) == (before.id, before.head, 4, "b")
    assert (known.living, +known.living_at) == (1, Counter(b=1))
    assert turn(known, "sZcu", ONE) is after
    assert after.turn == 5
    check(known)


def test_without_a_hint_a_summary_is_a_new_conversation() -> None:
    """
    So it was before there were hints.
    """
    known = Conversations()
    before, after = compacted(known, None)

    assert (after.turn, after.id != before.id, known.living) == (1, True, 2)


def test_a_users_next_chat_is_not_the_last_one_compacted() -> None:
    """
    A user names no session: the same system prompt and a short question are what the next chat looks like.
    """
    known = Conversations()
    before, after = compacted(known, ANNA)

    assert (after.turn, after.id != before.id, known.living) == (1, True, 2)


def test_compaction_may_happen_again_and_again() -> None:
    """
    Each time the same conversation, which remembers nobody it was.
    """
    known = Conversations()
    first = turn(known, "sA", ONE)
    for number, summary in enumerate("ABCDE"):
        for turns, words in enumerate((f"s{summary}", f"s{summary}aw", f"s{summary}awbv")):
            latest = turn(known, words, ONE)
            assert (latest.id, latest.turn) == (first.id, 2 + 3 * number + turns)

    assert list(known) == [latest]
    assert latest.replaces is None
    check(known)


def test_compaction_that_keeps_the_opening_goes_on_too() -> None:
    """
    With a hint; without one it is a branch, at the same home and with the count, as it was before there were hints.
    """
    for hint, same in ((ONE, True), (None, False)):
        known = Conversations()
        for words in ("sq", "sqaw", "sqawbv", "sqawbvcu"):
            before = turn(known, words, hint, at="b")

        after = turn(known, "sqZ", hint, at="b")

        assert ((after.id == before.id), after.turn, after.home) == (same, 5, "b")
        assert known.living == (1 if same else 2)


def test_the_prefix_comes_before_compaction() -> None:
    """
    What begins as somebody's who gave no name did is a branch of that, not a summary of the one who did.
    """
    known = Conversations()
    for words in ("q", "qaw", "qawbv"):
        other = turn(known, f"s{words}")
    for words in ("r", "raw", "rawbv", "rawbvcu"):
        before = turn(known, f"s{words}", ONE)

    branch = turn(known, "sqZ", ONE)

    assert (branch.turn, branch.head, branch is not other) == (4, other.head, True)
    assert turn(known, "srawbvcudt", ONE) is before


@pytest.mark.parametrize(
    ("words", "hint", "why"),
    [
        ("tZ", ONE, "another system prompt"),
        ("-Z", ONE, "no system prompt"),
        ("sZ", TWO, "another name"),
        ("sZ", hashed(("x-session-affinity", "one"), 1), "another kind of name"),
        ("sZ", None, "no name"),
        ("sZx", ONE, "half of what there was"),
    ],
)
def test_what_is_no_compaction(words: str, hint: Hint | None, why: str) -> None:
    """
    A hint alone never makes one conversation of two prompts.
    """
    known = Conversations()
    for each in ("sq", "sqaw", "sqawbv"):
        before = turn(known, each, ONE)

    other = turn(known, words, hint)

    assert (other.turn, other.id != before.id, known.living) == (1, True, 2), why
    assert turn(known, "sqawbvc", ONE) is before


def test_a_prompt_without_a_system_prompt_is_never_compacted() -> None:
    """
    There is nothing but the hint that the two would have in common.
    """
    known = Conversations()
    turn(known, "-q", ONE)
    before = turn(known, "-qaw", ONE)

    assert turn(known, "-Z", ONE).id != before.id


def test_nothing_is_compacted_while_a_turn_runs() -> None:
    """
    Children and side calls come while the agent works.
    """
    known = Conversations()
    turn(known, "sq", ONE)
    running = begin(known, "sqaw", ONE)

    side = turn(known, "sZ", ONE)

    assert side.turn == 1
    known.finish(running, 1)
    assert turn(known, "sqawbv", ONE) is running.conversation


def test_one_shots_are_not_each_others_summaries() -> None:
    """
    Titles under one name: what had no answer in it had nothing to be compacted.
    """
    known = Conversations()

    titles = []
    for words in ("tAAAA", "tBBB", "tC"):
        running = begin(known, words, ONE, head=len(words))
        known.finish(running, 0)
        titles.append(running.conversation)

    assert [each.turn for each in titles] == [1, 1, 1]
    assert known.living == 3


def test_a_second_child_of_a_kind_is_no_summary_of_the_first() -> None:
    """
    It begins with about as much as the first has after a turn or two.
    """
    known = Conversations()
    for words in ("sqqq", "sqqqaw", "sqqqawb"):
        running = begin(known, words, ONE, head=4)
        known.finish(running, 0)

    second = begin(known, "sppp", ONE, head=4).conversation

    assert (running.conversation.turn, second.turn, known.living) == (3, 1, 2)


def test_of_two_with_the_same_name_and_system_prompt_none_is_compacted() -> None:
    """
    Nobody can tell whose summary it would be.
    """
    known = Conversations()
    for question in "qr":
        begin(known, f"s{question}", ONE)
    agents = [turn(known, f"s{question}aw", ONE) for question in "qr"]
    assert known.living == 2

    other = turn(known, "sZ", ONE)

    assert other not in agents
    assert (other.turn, known.living) == (1, 3)


# -- side calls -------------------------------------------------------------------------------------------------------


def test_after_a_side_call_the_conversation_is_recognised_by_its_prefix() -> None:
    """
    A short prompt with the same system prompt looks like a summary until the conversation comes back: then it was none,
    and is a conversation of its own.
    """
    known = Conversations()
    main, side = compacted(known)
    assert side.id == main.id

    assert turn(known, "sqawbvcu", ONE) is main
    assert (main.turn, main.home) == (4, "a")
    assert side.id != main.id
    assert (known.living, +known.living_at) == (2, Counter(a=1, b=1))
    assert turn(known, "sZdt", ONE) is side
    assert turn(known, "sqawbvcuet", ONE) is main
    check(known)


def test_once_bitten_nothing_is_taken_for_compaction() -> None:
    """
    While both are alive, that name says nothing of which is which.
    """
    known = Conversations()
    compacted(known)
    turn(known, "sqawbvcu", ONE)

    other = turn(known, "sY", ONE)

    assert (other.turn, known.living) == (1, 3)


def test_a_side_call_that_still_runs_when_the_conversation_comes_back_ends_on_its_own() -> None:
    """
    Two conversations from then on, each with its own turns.
    """
    known = Conversations()
    for words in ("sq", "sqaw", "sqawbv"):
        main = turn(known, words, ONE)
    side = begin(known, "sZ", ONE)

    running = begin(known, "sqawbvcu", ONE)
    known.finish(side, 1)
    known.finish(running, 2)

    assert running.conversation is main
    assert side.conversation.id != main.id
    assert (main.running, side.conversation.running, known.living) == (0, 0, 2)
    check(known)


def test_a_side_call_that_fails_when_the_conversation_is_back_takes_nothing_along() -> None:
    """
    It is gone, and the conversation is not.
    """
    known = Conversations()
    for words in ("sq", "sqaw", "sqawbv"):
        main = turn(known, words, ONE)
    side = begin(known, "sZ", ONE)
    assert turn(known, "sqawbvcu", ONE) is main

    known.withdraw(side)
    known.finish(side, 1)

    assert list(known) == [main]
    check(known)


def test_a_side_call_that_fails_revives_nobody_who_came_back_and_died() -> None:
    """
    Only who gave up the place for it gets it back.
    """
    known = Conversations()
    for words in ("sq", "sqaw", "sqawbv"):
        turn(known, words, ONE)
    side = begin(known, "sZ", ONE)
    turn(known, "sqawbvcu", ONE)
    assert known.forget_oldest()

    known.withdraw(side)
    known.finish(side, 1)

    assert not list(known)
    check(known)


def test_the_last_but_one_of_a_row_of_summaries_may_come_back() -> None:
    """
    Whoever is in its place then gets a name of its own, however often that changed hands.
    """
    known = Conversations()
    main, second = compacted(known)
    turn(known, "sZcudt", ONE)
    third = turn(known, "sY", ONE)
    assert third.id == second.id == main.id

    assert turn(known, "sqawbvcu", ONE) is main
    assert third.id != main.id
    check(known)


def test_a_summary_that_nobody_read_leaves_the_conversation_as_it_was() -> None:
    """
    It is tried again, and takes the place then.
    """
    known = Conversations()
    for words in ("sq", "sqaw", "sqawbv"):
        before = turn(known, words, ONE, at="a")

    fail(known, "sZ", ONE)

    assert list(known) == [before]
    assert (before.turn, before.home, +known.living_at) == (3, "a", Counter(a=1))
    check(known)
    after = turn(known, "sZ", ONE)
    assert (after.id, after.turn) == (before.id, 4)
    assert not known.history.evict_one() or known.recognise(prompt(*"sZ"), HEAD).conversation is after


def test_a_turn_that_nobody_read_leaves_the_hint_as_it_was() -> None:
    """
    One that failed under another name has proved nothing.
    """
    known = Conversations()
    conversation = turn(known, "sq", ONE)

    assert fail(known, "sqax", TWO) is conversation

    assert (conversation.hint, conversation.hint_stays) == (ONE, False)
    assert turn(known, "sq", TWO) is not conversation
    check(known)


# -- what must always hold --------------------------------------------------------------------------------------------

HINTS = st.sampled_from((None, ANNA, BEN, ONE, TWO))
WORDS = st.text("st-", min_size=1, max_size=1).flatmap(
    lambda system: st.text("qab", max_size=5).map(lambda rest: system + rest)
)


class Traffic(RuleBasedStateMachine):
    """Turns that begin, end, fail and die in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.now = Conversations(living_s=300), 0.0
        self.running: list[Turn] = []

    @rule(words=WORDS, hint=HINTS, at=st.sampled_from("ab"))
    def begin(self, words: str, hint: Hint | None, at: str) -> None:
        self.now += 1
        self.running.append(begin(self.known, words, hint, self.now))
        self.known.settle(self.running[-1].conversation, at)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), fails=st.booleans())
    def end(self, which: int, fails: bool) -> None:
        self.now += 1
        ended = self.running.pop(which % len(self.running))
        if fails:
            self.known.withdraw(ended)
        self.known.finish(ended, self.now)

    @rule(seconds=st.sampled_from((10, 200, 301)))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        self.known.expire(self.now)

    @rule()
    def forget(self) -> None:
        self.known.forget_oldest()

    @rule()
    def evict(self) -> None:
        self.known.history.evict_one()

    @invariant()
    def indexed_as_they_live(self) -> None:
        check(self.known)

    @invariant()
    def who_runs_lives(self) -> None:
        counted = Counter(each.conversation for each in self.running)
        assert {each: each.running for each in self.known if each.running} == counted

    @invariant()
    def nobody_is_in_two_places(self) -> None:
        for each in self.known:
            assert each.successor is None
            assert each.replaces is None or (each.replaces not in self.known and each.replaces.successor is each)

    def teardown(self) -> None:
        while self.running:
            self.end(0, fails=False)
        self.known.expire(self.now + 1_000)
        assert not list(self.known)
        assert not self.known._hinted
        assert not any(node.holders for node in self.known.history._order)


Traffic.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
test_whatever_happens_the_index_is_what_lives = Traffic.TestCase


@dataclass
class Row:
    """What a sequence of turns was recognised as: which conversation by its first appearance, and which turn."""

    seen: list[Conversation] = field(default_factory=list)

    def of(self, conversation: Conversation) -> tuple[int, int]:
        if not any(each is conversation for each in self.seen):
            self.seen.append(conversation)
        return next(at for at, each in enumerate(self.seen) if each is conversation), conversation.turn


STEPS = st.lists(st.tuples(st.sampled_from(("turn", "fail", "run")), WORDS, st.integers(0, 1)), max_size=14)


def recognised(steps: list[tuple[str, str, int]], hint: Hint | None) -> Iterator[tuple[int, int, int]]:
    known, row = Conversations(), Row()
    running: list[Turn] = []
    for now, (what, words, ends) in enumerate(steps):
        if ends and running:
            known.finish(running.pop(0), now)
        if what == "run":
            running.append(begin(known, words, hint, now))
            conversation = running[-1].conversation
        else:
            conversation = (turn if what == "turn" else fail)(known, words, hint, now)
        yield *row.of(conversation), known.living


@given(STEPS)
def test_a_user_that_everybody_is_changes_nothing(steps: list[tuple[str, str, int]]) -> None:
    """
    A name that a gateway gives to all: recognised is what would be without it, edits, branches and failures included.
    """
    assert list(recognised(steps, ANNA)) == list(recognised(steps, None))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(("grow", "again", "edit", "fail"))), max_size=40),
    st.sampled_from(("user", "x-session-id")),
)
def test_with_a_name_each_conversations_are_what_they_are_without(steps: list[tuple[int, str]], kind: str) -> None:
    """
    Whoever grows, repeats or rewrites its last turn, or fails, is recognised the same, hint or none.
    """

    def play(hinted: bool) -> Iterator[tuple[int, int, int]]:
        known, row = Conversations(), Row()
        talks = [["s" if each < 2 else "t", str(each)] for each in range(4)]
        for each, what in steps:
            words, hint = talks[each], hashed((kind, str(each)), 1) if hinted else None
            if what in {"grow", "fail"}:
                grown = [*words, f"answer {len(words)}", f"next {len(words)}"]
                if what == "grow":
                    words[:] = grown
                run = turn if what == "grow" else fail
                yield *row.of(run(known, grown, hint)), known.living
                continue
            if what == "edit" and len(words) > HEAD:
                words[-1] += "!"
            yield *row.of(turn(known, words, hint)), known.living

    assert list(play(hinted=True)) == list(play(hinted=False))


@given(
    st.lists(st.tuples(WORDS, HINTS, st.booleans()), max_size=25),
)
def test_a_hint_never_joins_what_has_no_system_prompt_in_common(
    steps: list[tuple[str, Hint | None, bool]],
) -> None:
    """
    All prompts of a conversation, and of whoever has its name, begin with the same.
    """
    known = Conversations()
    systems: dict[int, str] = {}
    for now, (words, hint, fails) in enumerate(steps):
        conversation = (fail if fails else turn)(known, words, hint, now)
        if not fails:
            assert systems.setdefault(conversation.id, words[0]) == words[0]
