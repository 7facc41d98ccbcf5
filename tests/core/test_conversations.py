"""Which conversation a prompt belongs to, which are alive, and what a turn that nobody read leaves behind: nothing."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.cache import Blocks
from ramjet.core.conversations import Conversation, Conversations, Turn

BLOCK = 64
HEAD = 2
"""In these tests a head is two blocks: the system prompt and the first question."""


def prompt(*words: int | str) -> Blocks:
    """A prompt of one 64-token block a word; equal beginnings give equal hashes."""
    hashes, chain = array("Q"), 0
    for word in words:
        chain = hash((chain, word)) & (2**64 - 1)
        hashes.append(chain)
    return Blocks(hashes, array("I", range(BLOCK, BLOCK * len(words) + 1, BLOCK)))


def begin(known: Conversations, *words: int | str, now: float = 0.0) -> Turn:
    """A turn that runs."""
    blocks = prompt(*words)
    return known.admit(blocks, HEAD, known.recognise(blocks, HEAD), now)


def turn(known: Conversations, *words: int | str, now: float = 0.0, at: str = "a") -> Conversation:
    """A turn that a replica served."""
    running = begin(known, *words, now=now)
    known.settle(running.conversation, at)
    known.finish(running, now)
    return running.conversation


def fail(known: Conversations, *words: int | str, now: float = 0.0, at: str = "b") -> None:
    """A turn that was sent to a replica, which never read it."""
    running = begin(known, *words, now=now)
    known.settle(running.conversation, at)
    known.withdraw(running)
    known.finish(running, now)


# -- recognition ------------------------------------------------------------------------------------------------------


def test_each_turn_continues_the_one_before() -> None:
    """
    A prompt that extends the last one is the same conversation's next turn.
    """
    known = Conversations()

    first = turn(known, "system", "question")
    second = turn(known, "system", "question", "answer", "next")
    third = turn(known, "system", "question", "answer", "next", "answer 2", "next 2")

    assert first is second is third
    assert third.turn == 3
    assert third.id == third.head == prompt("system", "question").hashes[1]


def test_another_first_question_is_another_conversation() -> None:
    """
    A shared system prompt makes no shared conversation.
    """
    known = Conversations()

    one, other = turn(known, "system", "question"), turn(known, "system", "another")

    assert one is not other
    assert (one.turn, other.turn) == (1, 1)
    assert one.id != other.id


def test_the_last_turn_sent_again_is_the_next_turn() -> None:
    """
    A retry after the answer came, or an impatient client, starts no second conversation.
    """
    known = Conversations()
    first = turn(known, "system", "question", "answer", "next")

    assert turn(known, "system", "question", "answer", "next") is first
    assert first.turn == 2


def test_the_last_turn_with_another_ending_is_the_same_conversation() -> None:
    """
    Who rewrites their last question goes on with the conversation they had.
    """
    known = Conversations()
    first = turn(known, "system", "question")
    turn(known, "system", "question", "answer", "next")

    edited = turn(known, "system", "question", "answer", "better next")

    assert edited is first
    assert edited.turn == 3
    assert turn(known, "system", "question", "answer", "better next", "answer 2", "next 2") is first


def test_an_earlier_turn_with_another_ending_branches_off() -> None:
    """
    Going back further than the last turn is a new conversation that starts from what the old one had; both go on.
    """
    known = Conversations()
    for upto in (2, 4, 6):
        old = turn(known, *["system", "question", "answer", "next", "answer 2", "next 2"][:upto])

    branch = turn(known, "system", "question", "another answer", "other")

    assert branch is not old
    assert (branch.head, branch.turn) == (old.head, 4)
    assert branch.id != old.id
    assert turn(known, "system", "question", "answer", "next", "answer 2", "next 2", "x", "y") is old
    assert turn(known, "system", "question", "another answer", "other", "x", "y") is branch


def test_who_went_back_has_left_the_old_ending() -> None:
    """
    The opening sent again is the conversation; going on from where it was before is then a branch.
    """
    known = Conversations()
    turn(known, "system", "question")
    conversation = turn(known, "system", "question", "answer", "next")
    assert turn(known, "system", "question") is conversation

    branch = turn(known, "system", "question", "answer", "next", "answer 2", "next 2")

    assert branch is not conversation
    assert branch.turn == 4


def test_a_branch_while_the_turn_runs_is_a_conversation_of_its_own() -> None:
    """
    Two requests at once that differ at their end are two: an agent that tries two ways.
    """
    known = Conversations()
    turn(known, "system", "question")
    running = begin(known, "system", "question", "answer", "one way").conversation

    branch = begin(known, "system", "question", "answer", "another way").conversation

    assert branch is not running
    assert (running.turn, branch.turn) == (2, 3)
    assert (running.running, branch.running) == (1, 1)


def test_two_that_start_alike_are_told_apart_when_they_diverge() -> None:
    """
    The same system prompt and the same first question, then each its own answer: from then on they are two.
    """
    known = Conversations()
    turn(known, "system", "question")
    turn(known, "system", "question")
    turn(known, "system", "question", "answer", "next")
    turn(known, "system", "question", "other answer", "other next")

    one = turn(known, "system", "question", "answer", "next", "x")
    other = turn(known, "system", "question", "other answer", "other next", "y")

    assert one is not other
    assert turn(known, "system", "question", "answer", "next", "x", "z") is one
    assert turn(known, "system", "question", "other answer", "other next", "y", "z") is other


def test_recognising_changes_nothing() -> None:
    """
    Looking is free: the same question twice has the same answer.
    """
    known = Conversations()
    conversation = turn(known, "system", "question")

    for _ in range(2):
        sighting = known.recognise(prompt("system", "question", "answer", "next"), HEAD)
        assert (sighting.conversation, sighting.match.depth) == (conversation, 2)
    assert (conversation.turn, conversation.running, known.living) == (1, 0, 1)


def test_a_prompt_that_was_never_seen_has_no_conversation() -> None:
    """
    Also where nothing at all is known.
    """
    known = Conversations()

    sighting = known.recognise(prompt("system", "question"), HEAD)

    assert (sighting.conversation, sighting.parent, sighting.match.depth) == (None, None, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=40))
def test_conversations_that_only_grow_are_never_confused(history: list[tuple[int, int]]) -> None:
    """
    However their turns are mixed: one object each, and turns numbered without a gap.
    """
    known, words, seen = Conversations(), [["system", f"question {each}"] for each in range(4)], Counter[int]()
    owners: dict[int, Conversation] = {}

    for each, growth in history:
        conversation = turn(known, *words[each])
        seen[each] += 1
        assert owners.setdefault(each, conversation) is conversation
        assert conversation.turn == seen[each]
        words[each] += [f"{each} {len(words[each])} {step}" for step in range(growth)]

    assert known.living == len(owners)


# -- who is alive -----------------------------------------------------------------------------------------------------


def test_a_conversation_lives_for_five_minutes_after_its_last_turn() -> None:
    """
    98 % of an agent's turns come back within them.
    """
    known = Conversations(living_s=300)
    turn(known, "system", "one", now=0)
    turn(known, "system", "two", now=100, at="b")

    known.expire(now=300)
    assert (known.living, +known.living_at) == (2, Counter(a=1, b=1))
    known.expire(now=301)
    assert (known.living, +known.living_at) == (1, Counter(b=1))
    known.expire(now=401)
    assert (known.living, +known.living_at) == (0, Counter())


def test_a_running_turn_keeps_its_conversation_alive() -> None:
    """
    A long answer is no silence.
    """
    known = Conversations(living_s=300)
    conversation = begin(known, "system", "question", now=0)

    known.expire(now=10_000)
    assert known.living == 1
    known.finish(conversation, now=10_000)
    known.expire(now=10_301)

    assert known.living == 0


def test_who_comes_back_after_a_night_is_recognised() -> None:
    """
    No longer alive is not forgotten: turn and home are still known, and it is counted again.
    """
    known = Conversations(living_s=300)
    conversation = turn(known, "system", "question", at="b")
    known.expire(now=50_000)

    back = begin(known, "system", "question", "answer", "next", now=50_000).conversation

    assert back is conversation
    assert (back.turn, back.home) == (2, "b")
    assert (known.living, +known.living_at) == (1, Counter(b=1))


def test_a_conversation_that_moves_is_counted_where_it_went() -> None:
    """
    Each living conversation counts at one replica.
    """
    known = Conversations()
    conversation = turn(known, "system", "question", at="a")

    known.settle(conversation, "b")

    assert +known.living_at == Counter(b=1)


def test_the_oldest_that_does_not_run_is_forgotten_first() -> None:
    """
    When memory is short, whoever was seen least recently makes room; running ones stay.
    """
    known = Conversations()
    running = begin(known, "system", "running", now=0)
    quiet = [turn(known, "system", f"quiet {each}", now=1 + each) for each in range(2)]

    assert known.forget_oldest()
    assert list(known) == [running.conversation, quiet[1]]
    assert known.forget_oldest()
    assert not known.forget_oldest()
    assert list(known) == [running.conversation]


def test_what_a_living_conversation_remembers_is_not_evicted() -> None:
    """
    Its path is held until it is let go.
    """
    known = Conversations(living_s=300)
    turn(known, "system", "question", now=0)

    assert not known.history.evict_one()
    known.expire(now=1_000)

    assert known.history.evict_one()


def test_how_many_share_a_prompt_is_counted_from_front_to_end() -> None:
    """
    Two share the system prompt, and the rest is everybody's own; the asking one counts among them.
    """
    known = Conversations()
    turn(known, "system", "one", "x", "y")
    turn(known, "system", "two")
    again, new = prompt("system", "one", "x", "y", "z"), prompt("system", "three")

    assert known.sharing(again, known.recognise(again, HEAD)) == [(BLOCK, 2), (4 * BLOCK, 1)]
    assert known.sharing(new, known.recognise(new, HEAD)) == [(BLOCK, 3)]
    nobody = prompt("nobody's", "question")
    assert known.sharing(nobody, known.recognise(nobody, HEAD)) == []


def test_who_is_no_longer_alive_shares_nothing() -> None:
    """
    A system prompt read for a hundred past conversations serves one now.
    """
    known = Conversations(living_s=300)
    turn(known, "system", "one")
    known.expire(now=1_000)
    new = prompt("system", "two")

    assert known.sharing(new, known.recognise(new, HEAD)) == [(BLOCK, 1)]


def test_long_conversations_are_counted_by_their_tokens_where_they_live() -> None:
    """
    One asks about the others, so it is left out itself.
    """
    known = Conversations()
    sizes = {"one": 290_000, "two": 150_000, "three": 149_999, "four": 300_000}
    homes = {"one": "a", "two": "a", "three": "a", "four": "b"}
    each = {name: turn(known, "system", name, at=homes[name]) for name in sizes}
    for name, conversation in each.items():
        known.measure(conversation, sizes[name])

    assert known.long_tokens(150_000, None) == Counter(a=440_000, b=300_000)
    assert known.long_tokens(150_000, each["one"]) == Counter(a=150_000, b=300_000)


def test_memory_is_counted_for_blocks_and_for_conversations() -> None:
    """
    A conversation takes a node and some hundred bytes, a block twelve.
    """
    known = Conversations()
    turn(known, "system", *range(99))
    small = known.cost_bytes
    turn(known, "system", *range(99), *range(100))

    assert 1_000 < small < 3_000
    assert known.cost_bytes == small + 100 * 12


# -- turns that nobody read -------------------------------------------------------------------------------------------


def test_a_new_conversation_that_nobody_read_leaves_nothing() -> None:
    """
    Its prompt is no history: nobody could have reused it.
    """
    known = Conversations()
    turn(known, "system", "question")

    fail(known, "system", "another", "x")

    assert known.recognise(prompt("system", "another", "x"), HEAD).match.depth == 1
    assert turn(known, "system", "another", "x").turn == 1


def test_a_new_conversation_that_nobody_read_is_not_alive() -> None:
    """
    A client that tries a dead replica for minutes does not make it look crowded for five more.
    """
    known = Conversations()

    for attempt in range(10):
        fail(known, "system", f"question {attempt}")

    assert (known.living, +known.living_at) == (0, Counter())


def test_a_turn_that_nobody_read_is_tried_again_under_its_number() -> None:
    """
    The turn before is still there, and the retry continues it.
    """
    known = Conversations()
    conversation = turn(known, "system", "question")

    fail(known, "system", "question", "answer", "next")

    assert known.recognise(prompt("system", "question", "answer", "next"), HEAD).match.depth == 2
    assert turn(known, "system", "question", "answer", "next") is conversation
    assert conversation.turn == 2


def test_a_turn_that_nobody_read_leaves_the_home_where_it_was() -> None:
    """
    Home is who served the last turn, and the replica that failed did not.
    """
    known = Conversations()
    conversation = turn(known, "system", "question", at="a")

    fail(known, "system", "question", "answer", "next", at="b")

    assert conversation.home == "a"
    assert +known.living_at == Counter(a=1)


def test_an_edit_that_nobody_read_does_not_lose_the_turn_it_edited() -> None:
    """
    The conversation goes on from either ending.
    """
    known = Conversations()
    turn(known, "system", "question")
    conversation = turn(known, "system", "question", "answer", "next")

    fail(known, "system", "question", "answer", "better next")

    assert turn(known, "system", "question", "answer", "next", "answer 2", "next 2") is conversation


def test_a_turn_that_nobody_read_leaves_the_last_one_open_to_edits() -> None:
    """
    After a failure the last turn may be rewritten as before it.
    """
    known = Conversations()
    turn(known, "system", "question")
    conversation = turn(known, "system", "question", "answer", "next")

    fail(known, "system", "question", "answer", "next", "answer 2", "next 2")

    assert turn(known, "system", "question", "answer", "better next") is conversation


def test_a_turn_sent_again_before_the_first_try_has_ended_is_not_lost_with_it() -> None:
    """
    A client times out, sends the same prompt again, and only then is the first request seen to be gone.
    """
    known = Conversations()
    conversation = turn(known, "system", "question")
    words = ("system", "question", "answer", "next")
    first = begin(known, *words)
    again = begin(known, *words)
    assert first.conversation is again.conversation is conversation

    known.withdraw(first)
    known.finish(first, 1)
    known.finish(again, 2)

    assert known.recognise(prompt(*words), HEAD).match.depth == 4
    assert turn(known, *words, "answer 2", "next 2") is conversation


def test_what_others_built_on_a_turn_stays_when_it_is_withdrawn() -> None:
    """
    A conversation that grew from it meanwhile keeps its history.
    """
    known = Conversations()
    turn(known, "system", "question")
    running = begin(known, "system", "question", "answer", "one way")
    branch = begin(known, "system", "question", "answer", "another way", "x")

    known.withdraw(running)
    known.finish(running, 1)
    known.finish(branch, 1)

    assert turn(known, "system", "question", "answer", "another way", "x", "y") is branch.conversation


WORDS = st.lists(st.integers(0, 1), max_size=4)


@given(history=st.lists(WORDS, min_size=1, max_size=8), failing=WORDS)
def test_after_a_turn_that_nobody_read_everything_is_as_before(history: list[list[int]], failing: list[int]) -> None:
    """
    Whatever was known, and whatever fails: how far each prompt is known, and whose it is, does not change.
    """
    known = Conversations()
    for now, words in enumerate(history):
        turn(known, "system", "question", *words, now=now)

    def view() -> list[tuple[int, object, object]]:
        prompts = [prompt("system", "question", *words, *more) for words in (*history, failing) for more in ((), (7,))]
        sightings = [known.recognise(each, HEAD) for each in prompts]
        return [(each.match.depth, each.conversation, each.parent) for each in sightings]

    before = view()
    turns = {conversation: (conversation.turn, conversation.home) for conversation in known}

    fail(known, "system", "question", *failing, now=99)

    assert view() == before
    assert {each: (each.turn, each.home) for each in known} == turns


@pytest.mark.parametrize("times", [1, 5])
def test_failing_again_and_again_changes_no_turn_number(times: int) -> None:
    """
    Turns are counted when they are read.
    """
    known = Conversations()
    conversation = turn(known, "system", "question")

    for _ in range(times):
        fail(known, "system", "question", "answer", "next")

    assert (conversation.turn, conversation.running) == (1, 0)
