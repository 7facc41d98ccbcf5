"""Slices: where a prompt may be cut, which starts of it are sent, what is sent for each, and what the router makes of them."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ramjet.core.admission import Terms
from ramjet.core.fingerprint import fingerprint
from ramjet.core.policies import Reading
from ramjet.core.prompt import read
from ramjet.core.router import Router
from ramjet.core.slices import LEAST_SHARE, TEXT_STEP_BYTES, body_of, cuts, starts
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Lease, Visit
from tests.core.test_fingerprint import CONVERSATIONS, SEED, blocks, bodies, common
from tests.core.test_router import Talk, arrival, assistant, believed, end, idle, router, text, user

READ_S = Reading().seconds
SLICE_S = 3.0
TOOL: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": "28 slots"}
CALL: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "grep"}}]}


def cuts_of(body: dict[str, Any], endpoint: str = "chat") -> list[int]:
    return list(cuts(read(json.dumps(body).encode(), endpoint), endpoint))


def start_of(body: dict[str, Any], endpoint: str = "chat", cut: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(body_of(json.dumps(body).encode(), endpoint, cut))
    return made


# -- where it may be cut ----------------------------------------------------------------------------------------------


def test_a_conversation_is_cut_where_its_requests_ended() -> None:
    """
    Before each answer of the assistant's; behind a tool's result if that was answered, and nowhere else.
    """
    messages = [
        {"role": "system", "content": "You are."},
        user("one"),
        CALL,
        TOOL,
        TOOL,
        assistant("two"),
        assistant("three"),
        user("four"),
        user("five"),
        {"role": "system", "content": "Hurry."},
        assistant("six"),
        user("seven"),
        assistant("eight"),
        user("nine"),
    ]

    ends = [len(start_of({"messages": messages}, cut=cut)["messages"]) for cut in range(3)]

    assert len(cuts_of({"messages": messages})) == 3
    assert ends == [2, 5, 12]


@pytest.mark.parametrize("messages", [[user("one")], [assistant("one"), user("two")], []])
def test_a_conversation_without_an_earlier_request_is_cut_nowhere(messages: list[Any]) -> None:
    """
    Who sends everything at once gives no place where a template would end.
    """
    assert cuts_of({"messages": messages}) == []


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("completions", {"prompt": "x" * (2 * TEXT_STEP_BYTES + 1)}),
        ("completions", {"prompt": ["x" * (2 * TEXT_STEP_BYTES + 1)]}),
        ("completions", {"prompt": list(range(TEXT_STEP_BYTES // 2 + 1))}),
        ("completions", {"prompt": [list(range(TEXT_STEP_BYTES // 2 + 1))]}),
        ("generate", {"text": "x" * (2 * TEXT_STEP_BYTES + 1)}),
        ("generate", {"text": None, "input_ids": list(range(TEXT_STEP_BYTES // 2 + 1))}),
    ],
)
def test_a_plain_text_is_cut_at_every_step(endpoint: str, fields: dict[str, Any]) -> None:
    """
    Text and token ids, alone or as a list of one, and never at the very end.
    """
    assert cuts_of(fields, endpoint) == [TEXT_STEP_BYTES, 2 * TEXT_STEP_BYTES]


def test_what_responses_takes_in_is_cut_nowhere() -> None:
    """
    A start of its input may be no input at all: a call without its result.
    """
    body = {"input": [user("one"), assistant("two"), user("three")]}

    assert cuts_of(body, "responses") == []


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("completions", {"echo": True}),
        ("completions", {"prompt_logprobs": 0}),
        ("chat", {"prompt_logprobs": 1}),
        ("completions", {"truncate_prompt_tokens": 100}),
        ("generate", {"logprob_start_len": 0}),
        ("generate", {"return_hidden_states": True}),
        ("generate", {"session_params": {"id": "s"}}),
        ("generate", {"image_data": ["data:"]}),
    ],
)
def test_what_says_something_of_the_whole_prompt_is_cut_nowhere(endpoint: str, fields: dict[str, Any]) -> None:
    """
    Who wants something of each of its tokens has it read in one, whatever is cached; a session would be added to with
    every start; pictures beside a text do not tell where in it they are. Said in so many words not to be wanted, they
    are not.
    """
    body: dict[str, Any] = {"messages": [user("one"), assistant("two"), user("three")]}
    body |= {"prompt": "x" * 10_000, "text": "x" * 10_000}

    assert cuts_of(body, endpoint)
    assert cuts_of(body | dict.fromkeys(fields), endpoint)
    assert cuts_of(body | dict.fromkeys(fields, False), endpoint)
    assert not cuts_of(body | fields, endpoint)


# -- which starts -----------------------------------------------------------------------------------------------------

LENGTHS = st.integers(1, 400_000)


@given(
    turns=st.lists(st.integers(0, 60_000) | st.integers(0, 500), max_size=40),
    matched=st.integers(0, 300_000),
    rest=st.integers(0, 60_000),
    slice_s=st.sampled_from((0.5, 1.5, 3.0, 6.0)),
)
def test_starts_grow_by_a_slice_each_as_far_as_turns_allow(
    turns: list[int], matched: int, rest: int, slice_s: float
) -> None:
    """
    Each is longer than the one before, adds at most a slice unless a single turn is about as long, and adds and leaves
    enough to be worth a request; what is left at the end is at most one and a half, unless there is no place to cut.
    """
    at = 0
    places = [at := at + turn for turn in turns]
    length = max(1, at + rest)
    matched = min(matched, length - 1)

    found = starts(places, matched, length, READ_S, slice_s)

    ends = [matched, *(each.tokens for each in found)]
    least = LEAST_SHARE * slice_s
    for (before, after), each in zip(pairwise(ends), found, strict=True):
        assert each.tokens == places[each.cut]
        assert before < after < length
        assert least <= each.read_s == READ_S(before, after)
        assert READ_S(after, length) >= least
        if each.read_s > slice_s:
            assert not [place for place in places if least <= READ_S(before, place) <= slice_s]
    if READ_S(ends[-1], length) > 1.5 * slice_s:
        usable = [place for place in places if READ_S(ends[-1], place) >= least]
        assert not usable or READ_S(usable[0], length) < least
    elif found:
        assert READ_S(ends[-2], length) > 1.5 * slice_s


@given(length=LENGTHS, matched=LENGTHS, slice_s=st.sampled_from((1.5, 3.0, 6.0)))
def test_where_it_can_be_cut_anywhere_all_starts_but_the_last_are_whole_slices(
    length: int, matched: int, slice_s: float
) -> None:
    """
    Nothing waits for more than one and a half slices.
    """
    matched = min(matched, length - 1)
    places = range(256, length, 256)

    found = starts(places, matched, length, READ_S, slice_s)

    ends = [matched, *(each.tokens for each in found), length]
    assert all(slice_s - 0.2 < each.read_s <= slice_s for each in found)
    assert READ_S(*ends[-2:]) <= 1.5 * slice_s
    assert len(found) == 0 or READ_S(*ends[-2:]) >= 0.5 * slice_s


def test_a_long_prompt_of_the_seeds_is_read_in_six_requests() -> None:
    """
    17 s for 100,000 tokens: five starts of almost 3 s each, and the prompt.
    """
    found = starts(range(256, 100_000, 256), 0, 100_000, READ_S, SLICE_S)

    assert [each.tokens for each in found] == [17_920, 35_584, 52_992, 70_400, 87_552]
    assert [each.cut for each in found] == [69, 138, 206, 274, 341]


@pytest.mark.parametrize(("matched", "requests"), [(99_999, 0), (75_000, 0), (74_000, 1)])
def test_what_takes_one_and_a_half_slices_is_read_in_one(matched: int, requests: int) -> None:
    """
    4.4 s are not worth a second request, and 4.6 s are.
    """
    assert len(starts(range(256, 100_000, 256), matched, 100_000, READ_S, SLICE_S)) == requests


def test_a_long_message_at_the_end_of_a_known_conversation_is_sent_at_once() -> None:
    """
    All that is known but for the end of a page, and then a tool's result of 60,000 tokens: the place where the last turn
    ended leaves everything still to be read, so a request for it would buy nothing.
    """
    assert starts([10_000, 20_000, 40_010], 39_936, 100_000, READ_S, SLICE_S) == []


def test_a_long_message_before_a_short_question_is_sent_at_once() -> None:
    """
    Nobody gains if the question of twenty tokens is a request of its own.
    """
    assert starts([99_980], 0, 100_000, READ_S, SLICE_S) == []


def test_a_long_message_in_the_middle_is_a_start_of_its_own() -> None:
    """
    It cannot be cut, and what comes before and after it can.
    """
    found = starts([10_000, 90_000, 100_000], 0, 115_000, READ_S, SLICE_S)

    assert [(each.cut, each.tokens) for each in found] == [(0, 10_000), (1, 90_000)]


# -- what is sent -----------------------------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(("agent ", "é", "汉", "😀", "\n", "\0", "12,288 ")), max_size=30).map("".join)
TEXTS = st.builds(
    lambda word, times, end: word * times + "x" * TEXT_STEP_BYTES + end, WORDS, st.sampled_from((1, 30, 300)), WORDS
).map(lambda text: text + ".")
IDS = st.builds(
    lambda start, size: list(range(start, start + size)), st.integers(0, 100_000), st.integers(1_025, 9_000)
)
RAW = (
    st.tuples(st.just("completions"), st.fixed_dictionaries({"prompt": TEXTS | TEXTS.map(lambda text: [text]) | IDS}))
    | st.tuples(st.just("generate"), st.fixed_dictionaries({"text": TEXTS}))
    | st.tuples(st.just("generate"), st.fixed_dictionaries({"input_ids": IDS}))
)
MESSAGES = st.builds(
    lambda endpoint, one, other: (endpoint, bodies(endpoint, [*one, user("so"), assistant("yes"), *other])),
    st.sampled_from(("chat", "messages")),
    CONVERSATIONS,
    CONVERSATIONS,
)


@given(asked=MESSAGES | RAW, data=st.data())
def test_a_start_is_a_strict_prefix_of_the_prompt(asked: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    """
    Every block of it, but possibly the last, is a block of the whole; and it ends where it was said to.
    """
    endpoint, fields = asked
    body = json.dumps({"model": "glm", **fields}, ensure_ascii=data.draw(st.booleans())).encode()
    whole = read(body, endpoint)
    places = cuts(whole, endpoint)
    number = data.draw(st.integers(0, len(places) - 1))

    start = read(body_of(body, endpoint, number), endpoint)

    one, other = fingerprint(start, SEED), fingerprint(whole, SEED)
    assert common(one.usable, other.usable) >= len(one.usable) - 1
    assert common(one.identity, other.identity) >= len(one.identity) - 1
    assert one.usable.size_bytes < other.usable.size_bytes
    # A character is never cut.
    assert places[number] - 3 <= one.usable.size_bytes <= places[number]
    assert start.namespace == whole.namespace
    assert not start.stream


def test_blocks_of_a_long_text_end_where_it_may_be_cut() -> None:
    """
    So the whole of a start is what the next one is believed to find.
    """
    body = json.dumps({"prompt": "x" * 100_000}).encode()

    start = fingerprint(read(body_of(body, "completions", 9), "completions"), SEED).usable
    whole = fingerprint(read(body, "completions"), SEED).usable

    assert blocks(start) == blocks(whole)[: len(start)]
    assert start.ends[-1] == start.size_bytes == 10 * TEXT_STEP_BYTES


def test_a_start_asks_for_one_token_and_nothing_else_of_its_answer() -> None:
    """
    What decides the prompt stays, and what the answer is to be like goes.
    """
    talk = [user("one"), assistant("two"), user("three")]
    kept = {
        "model": "glm",
        "messages": talk,
        "tools": [{"type": "function", "function": {"name": "grep"}}],
        "tool_choice": "none",
        "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.0,
        "user": "u",
        "cache_salt": "s",
    }
    gone = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 3,
        "best_of": 3,
        "logprobs": True,
        "top_logprobs": 5,
        "response_format": {"type": "json_object"},
        "min_tokens": 100,
        "n_predict": 500,
        "store": True,
    }

    assert start_of(kept | gone) == {**kept, "messages": talk[:1], "max_tokens": 1}


@pytest.mark.parametrize(
    ("given_fields", "sent"),
    [
        ({}, {"max_tokens": 1}),
        ({"max_tokens": 500}, {"max_tokens": 1}),
        ({"max_completion_tokens": 500}, {"max_completion_tokens": 1}),
        ({"max_completion_tokens": 500, "max_tokens": 400}, {"max_completion_tokens": 1}),
        ({"max_completion_tokens": None, "max_tokens": 400}, {"max_completion_tokens": 1}),
    ],
)
def test_the_limit_is_set_by_the_name_that_the_client_uses(given_fields: dict[str, Any], sent: dict[str, Any]) -> None:
    """
    There are two, and an engine that knows only the newer would write on.
    """
    made = start_of({"messages": [user("one"), assistant("two"), user("three")], **given_fields})

    assert {name: value for name, value in made.items() if name != "messages"} == sent


def test_thinking_of_anthropics_stays() -> None:
    """
    It may decide how the prompt is rendered; an engine that refuses it with one token gets the whole prompt.
    """
    thinking = {"type": "enabled", "budget_tokens": 4_000}

    made = start_of(
        {"messages": [user("one"), assistant("two"), user("three")], "thinking": thinking, "max_tokens": 8_000},
        "messages",
    )

    assert made == {"messages": [user("one")], "thinking": thinking, "max_tokens": 1}


@pytest.mark.parametrize("params", [{"max_new_tokens": 9, "min_new_tokens": 5, "n": 2, "regex": "a+"}, None, [], "?"])
def test_what_is_asked_of_generate_is_one_token(params: object) -> None:
    """
    Its parameters are all about the answer, and some would refuse an answer so short.
    """
    made = start_of({"text": "x" * 10_000, "sampling_params": params, "return_logprob": True}, "generate")

    assert made == {"text": "x" * TEXT_STEP_BYTES, "sampling_params": {"max_new_tokens": 1}}


def test_a_suffix_stays() -> None:
    """
    It stands before or behind the prompt, in every start alike.
    """
    made = start_of({"prompt": "x" * 10_000, "suffix": "end"}, "completions", cut=1)

    assert made == {"prompt": "x" * 2 * TEXT_STEP_BYTES, "suffix": "end", "max_tokens": 1}


@pytest.mark.parametrize("prompt", ["汉" * 5_000, "é" * 5_000, "x汉" * 5_000, "😀" * 3_000])
def test_a_character_is_never_cut(prompt: str) -> None:
    """
    A start ends before the one in which the cut lies.
    """
    made = start_of({"prompt": prompt}, "completions", cut=0)["prompt"]

    assert prompt.startswith(made)
    assert TEXT_STEP_BYTES - 3 <= len(made.encode()) <= TEXT_STEP_BYTES


def test_messages_go_out_as_they_came() -> None:
    """
    Numbers no float can hold, spellings, escapes, and the last of two equal keys: an engine that puts them in the prompt
    must find the same in the start.
    """
    first = b'{"role": "user",  "content":[{"type":"tool_result","content":{"id":123456789012345678901234567890,"x":1.50e1}}]}'
    second = b'{"role":"assistant","content":"\\u6c49 \xe6\xb1\x89"}'
    third = b'{"role":"user","role":"user","content":"go on"}'
    more = b'{"role":"assistant","content":"yes"},{"role":"user","content":"so"}'
    body = b'{"messages":[],"seed":1e3, "messages": [' + b", ".join((first, second, third, more)) + b"]}"

    made = body_of(bytearray(body), "chat", 1)

    assert made == b'{"messages":[' + b",".join((first, second, third)) + b'],"seed":1e3,"max_tokens":1}'


# -- the router -------------------------------------------------------------------------------------------------------


def long_text(tokens: int = 100_000, name: str = "long", *, stream: bool = True) -> Arrival:
    """A text that may be cut at every 1,024 tokens."""
    return replace(arrival(endpoint="completions", prompt=text(tokens, name), name=name), stream=stream)


def place(to: Router, asked: Arrival, now: float = 0.0) -> tuple[Visit, Lease]:
    visit = to.arrive(asked, now)
    lease = to.place(visit, now)
    assert lease is not None
    return visit, lease


def read_all(to: Router, visit: Visit, now: float = 0.0, first: Usage | None = None) -> float:
    """Have all starts read as fast as expected; returns when the prompt itself is sent."""
    assert visit.lease is not None
    while visit.lease.starts:
        now += visit.lease.starts[0].read_s
        to.start_read(visit, now, Usage(prompt_tokens=1, cached_tokens=90_000) if visit.lease.slices else first)
    return now


def test_who_comes_while_a_start_is_read_waits_for_no_more_than_that() -> None:
    """
    17 s of reading are ahead where it is sent whole, and 3 s where it is not; at the end it is the same.
    """
    whole, sliced = router("a"), router("a", slice_s=SLICE_S)

    place(whole, long_text())
    visit, lease = place(sliced, long_text())

    assert 16 < whole.fleet["a"].queue_s < 18
    assert 2.8 < sliced.fleet["a"].queue_s == lease.starts[0].read_s <= SLICE_S
    now = read_all(sliced, visit)
    assert lease.slices == 5
    assert 0 < sliced.fleet["a"].queue_s <= 1.5 * SLICE_S
    assert now + sliced.fleet["a"].queue_s == pytest.approx(whole.fleet["a"].queue_s)


def test_the_next_start_goes_behind_who_came_meanwhile() -> None:
    """
    The engine takes up first who was sent first.
    """
    to = router("a", slice_s=SLICE_S)
    visit, lease = place(to, long_text())
    _, other = place(to, long_text(5_000, "short"), 1.0)
    assert list(to.fleet["a"].queue) == [lease, other]

    to.start_read(visit, 3.0, None)

    assert list(to.fleet["a"].queue) == [other, lease]
    assert to.fleet["a"].queue_at(3.5) == pytest.approx(other.reading_s + lease.starts[0].read_s - 0.5)
    assert lease.read_at == pytest.approx(3.0 + other.reading_s + READ_S(lease.read_tokens, visit.prompt_tokens))


def test_each_start_is_counted_from_its_own_beginning() -> None:
    """
    What was read of the first says nothing of the second, though nobody came between them.
    """
    to = router("a", slice_s=SLICE_S)
    visit, lease = place(to, long_text())
    assert to.fleet["a"].queue_at(0.0) == lease.starts[0].read_s

    to.start_read(visit, 3.0, None)

    assert to.fleet["a"].queue_at(3.0) == lease.starts[0].read_s
    assert to.fleet["a"].queue_at(4.0) == pytest.approx(lease.starts[0].read_s - 1.0)


def test_who_comes_at_the_very_instant_at_which_a_start_ends_sees_the_next() -> None:
    """
    What was worked out for that instant before is no longer so.
    """
    to = router("a", slice_s=SLICE_S)
    visit, lease = place(to, long_text())
    asked = to.arrive(long_text(100, "short"), 2.0)
    to.fleet["a"].queue_at(0.0)
    before = next(to.offers.candidates(asked, to.offers.able(asked), {}, 2.0)).queue_s

    to.start_read(visit, 2.0, None)

    after = next(to.offers.candidates(asked, to.offers.able(asked), {}, 2.0)).queue_s
    assert before == pytest.approx(0.9, abs=0.1)
    assert after == pytest.approx(lease.starts[0].read_s)


def test_a_sliced_prompt_is_one_cold_read_until_its_first_token() -> None:
    """
    Another is held for as long as without slices, and then let in.
    """
    to = router("a", slice_s=SLICE_S, terms=Terms())
    visit, _ = place(to, long_text())
    other = to.arrive(long_text(50_000, "other"), 0.0)
    assert to.place(other, 0.0) is None

    now = read_all(to, visit)
    assert to.admit(now) == []
    to.first_token(visit, now + 4.0)

    assert to.admit(now + 4.0, quick=True) == [other]
    assert other.lease is not None
    assert other.lease.starts


def test_a_sliced_prompt_that_is_late_keeps_others_out_until_its_end() -> None:
    """
    Who slipped in made it late, and while starts are left it is not about to end, whatever was expected.
    """
    to = router("a", slice_s=SLICE_S, terms=Terms())
    visit, lease = place(to, long_text())
    other = to.arrive(long_text(50_000, "other"), 0.0)
    assert to.place(other, 0.0) is None

    assert to.admit(lease.read_at - 0.1) == []

    now = read_all(to, visit, 20.0)
    assert to.admit(lease.read_at - 1.0) == []
    assert to.admit(lease.read_at - 0.1) == [other]
    assert now < lease.read_at


def test_a_warm_turn_is_let_in_between() -> None:
    """
    It is no cold read, and waits for nobody.
    """
    to, talk = router("a", slice_s=SLICE_S, terms=Terms()), Talk("agent", 20_000)
    visit, lease = place(to, talk.arrival())
    end(to, visit)
    place(to, long_text())
    talk.grow()

    _, lease = place(to, talk.arrival(), 5.0)

    assert not lease.starts
    assert lease.reading_s < 0.1


def test_the_record_says_what_the_first_start_found() -> None:
    """
    What the others found was read for this very request.
    """
    to = router("a", slice_s=SLICE_S)
    visit, _ = place(to, long_text())

    now = read_all(to, visit, first=Usage(prompt_tokens=18_000, cached_tokens=64))
    to.first_token(visit, now + 4)
    usage = Usage(prompt_tokens=100_100, cached_tokens=88_000, completion_tokens=7)
    record = to.finish(visit, now + 5, outcome="ok", status=200, usage=usage)

    assert record.slices == 5
    assert record.usage == replace(usage, cached_tokens=64)
    assert record.log_fields()["slices"] == 5
    assert record.ttft_s == now + 4
    assert idle(to)


@pytest.mark.parametrize("first", [None, Usage(), Usage(prompt_tokens=18_000)])
def test_what_the_first_start_did_not_say_is_not_known(first: Usage | None) -> None:
    """
    Not 88,000, which only says that the starts were found; where an engine leaves out what is 0, as it does once it has
    reported anything, it is 0.
    """
    to = router("a", slice_s=SLICE_S)
    visit, _ = place(to, long_text())

    now = read_all(to, visit, first=first)
    record = end(to, visit, now + 4, Usage(prompt_tokens=100_100, cached_tokens=88_000))

    assert record.usage.cached_tokens == (0 if first is not None and first.prompt_tokens else None)


def test_a_belief_learns_from_what_the_first_start_found() -> None:
    """
    It was believed to be there and was not, so what grew from it in other conversations is gone too.
    """
    to, system = router("a", slice_s=SLICE_S), text(17_000, "system")
    talks = [Talk(name, 3_000, system) for name in ("one", "two")]
    for each in talks:
        visit, lease = place(to, each.arrival())
        end(to, visit, lease.reading_s)
    before = believed(to, talks[1].arrival())["a"]
    for _ in range(3):
        talks[0].grow(20_000)
    visit, lease = place(to, talks[0].arrival())
    assert lease.read_tokens == pytest.approx(20_000, rel=0.01)
    assert len(lease.starts) == 2

    now = read_all(to, visit, first=Usage(prompt_tokens=40_000, cached_tokens=0))
    end(to, visit, now + 3, Usage(prompt_tokens=80_000, cached_tokens=60_000))

    assert before > 19_000
    assert believed(to, talks[0].arrival())["a"] > 79_000
    # The system prompt is there again, for the first has been read; the second's own part is not.
    assert believed(to, talks[1].arrival())["a"] < 18_000


def test_nothing_is_learned_of_a_replicas_pace() -> None:
    """
    Others were read in between, and each request costs something.
    """
    to = router("a", slice_s=SLICE_S)
    visit, _ = place(to, long_text())

    end(to, visit, 10 * read_all(to, visit))

    assert to.beliefs["a"].pace.factor == 1.0


def test_another_replica_reads_starts_of_its_own() -> None:
    """
    What the first one read is not there, and what it found counts for nothing.
    """
    to = router("a", "b", slice_s=SLICE_S)
    visit, first = place(to, long_text())
    for _ in range(3):
        to.start_read(visit, 3.0, Usage(prompt_tokens=1_000, cached_tokens=9_999))

    to.failed(visit, 9.0)
    second = to.place(visit, 9.0)

    assert second is not None
    assert second is not first
    assert (len(second.starts), second.slices, second.found) == (5, 0, None)
    now = read_all(to, visit, first=Usage(prompt_tokens=18_000, cached_tokens=0))
    record = end(to, visit, now + 4, Usage(prompt_tokens=100_000, cached_tokens=88_000))
    assert (record.slices, record.usage.cached_tokens, record.attempts) == (5, 0, 2)
    assert idle(to)


@pytest.mark.parametrize("leaves", [True, False], ids=["client left", "replica busy"])
def test_what_was_read_until_the_end_came_is_there(leaves: bool) -> None:
    """
    The starts that were read, and nothing behind them.
    """
    to = router("a", slice_s=SLICE_S)
    visit, lease = place(to, long_text())
    for now in (3.0, 6.0):
        to.start_read(visit, now, None)

    if leaves:
        to.finish(visit, 8.0, outcome="client_disconnect", status=None)
    else:
        to.failed(visit, 8.0)
        to.finish(visit, 8.0, outcome="http_4xx", status=429)

    assert lease.read_tokens == pytest.approx(35_000, rel=0.02)
    assert believed(to, long_text())["a"] == pytest.approx(lease.read_tokens, abs=1_024)
    assert idle(to)


@pytest.mark.parametrize("before", [0, 2])
def test_what_is_left_is_sent_in_one_where_a_start_is_refused(before: int) -> None:
    """
    Whoever comes now waits for all of it. What was there before is known only if a start was read: the refused one may
    have been read too.
    """
    to = router("a", slice_s=SLICE_S)
    visit, lease = place(to, long_text())
    for _ in range(before):
        to.start_read(visit, 3.0, Usage(prompt_tokens=18_000, cached_tokens=0))

    to.send_whole(visit, 6.0)

    assert not lease.starts
    assert to.fleet["a"].queue_s == pytest.approx(READ_S(lease.read_tokens, visit.prompt_tokens))
    record = end(to, visit, 20.0, Usage(prompt_tokens=100_000, cached_tokens=50_000))
    assert record.slices == before
    assert record.usage.cached_tokens == (0 if before else None)
    assert to.beliefs["a"].pace.factor == 1.0
    assert idle(to)


def test_an_answer_that_is_no_stream_is_taken_to_be_read_when_it_should_be() -> None:
    """
    Nobody sees its first token: from the last start on, the time that is left tells.
    """
    to = router("a", slice_s=SLICE_S, terms=Terms())
    visit, lease = place(to, long_text(stream=False))
    other = to.arrive(long_text(50_000, "other"), 0.0)
    assert to.place(other, 0.0) is None

    assert to.admit(100.0) == []
    now = read_all(to, visit, 100.0)
    left_s = READ_S(lease.read_tokens, visit.prompt_tokens)

    assert to.admit(now + left_s - 1.0) == []
    assert to.admit(now + left_s) == [other]


def test_a_policy_that_stops_slicing_stops_with_the_next_request() -> None:
    """
    What is under way goes on as it began; who was held goes in one.
    """
    to = router("a", slice_s=SLICE_S, terms=Terms())
    visit, lease = place(to, long_text())
    held = to.arrive(long_text(50_000, "held"), 0.0)
    assert to.place(held, 0.0) is None

    to.change_policy(dataclasses.replace(to.policy, slice_s=None))
    now = read_all(to, visit)
    to.first_token(visit, now)
    to.admit(now)

    assert lease.slices == 5
    assert held.lease is not None
    assert not held.lease.starts


def test_a_request_that_nobody_has_cut_is_sent_whole() -> None:
    """
    It came before slices were turned on, or has no place to be cut.
    """
    to = router("a", slice_s=SLICE_S)

    _, lease = place(to, replace(long_text(), cuts=()))

    assert not lease.starts
    assert to.fleet["a"].queue_s == lease.reading_s


def test_a_start_that_was_there_whole_says_that_more_may_have_been() -> None:
    """
    After a restart of Ramjet's, which believed in nothing, an engine that holds it all: what was there is what the first
    request found that had to read something, and if that is the last, what it found.
    """
    for whole, cached in ((2, 50_000), (5, 99_000)):
        to = router("a", slice_s=SLICE_S)
        visit, lease = place(to, long_text())

        while lease.starts:
            size = lease.starts[0].tokens
            to.start_read(
                visit, 1.0, Usage(prompt_tokens=size, cached_tokens=size - 64 if lease.slices < whole else 50_000)
            )
        record = end(to, visit, 20.0, Usage(prompt_tokens=100_000, cached_tokens=99_000))

        assert record.usage.cached_tokens == cached


def test_a_restart_between_two_starts_forgets_what_they_read() -> None:
    """
    The rest is read all the same, and when it has been, all of it is believed to be there.
    """
    to = router("a", slice_s=SLICE_S)
    visit, _ = place(to, long_text())
    to.start_read(visit, 3.0, Usage(prompt_tokens=18_000, cached_tokens=0))

    to.restarted("a")
    assert to.resident_tokens("a") == 0
    now = read_all(to, visit, 30.0)
    end(to, visit, now + 4, Usage(prompt_tokens=100_000, cached_tokens=80_000))

    assert believed(to, long_text())["a"] > 98_000
    assert idle(to)


def test_a_short_cold_prompt_is_let_in_between_two_slices() -> None:
    """
    And is a cold read itself: the next has to wait for it.
    """
    to = router("a", slice_s=SLICE_S, terms=Terms())
    place(to, long_text())

    between, lease = place(to, long_text(18_000, "short"), 1.0)
    late = to.arrive(long_text(18_000, "late"), 1.5)

    assert lease.is_cold
    assert not lease.starts
    assert to.place(late, 1.5) is None
    assert late.held_since is not None
    to.first_token(between, 6.0)
    to.finish(between, 7.0, outcome="ok", status=200)
    assert to.admit(7.0) == [late]
