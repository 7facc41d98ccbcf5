"""Bodies that were read before: reading on from them says what reading them whole does, and costs only what is new."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core import bodies
from ramjet.core.bodies import LEAST_BYTES, STEP_BYTES, Bodies, Reading, whole
from ramjet.core.fingerprint import Chain
from ramjet.core.prompt import Envelope, Unreadable
from tests.effort import examples

SEED = 0x5EED
TOOL = {"type": "function", "function": {"name": "grep", "description": "Search, fast.", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}
CLOCK = "Current time: 12:04\n"

Said = tuple[object, ...]


def read(known: Bodies, body: bytes, endpoint: str) -> tuple[Reading, int]:
    """A body as the proxy reads it, and in how many steps."""
    running, steps, done = known.steps(body, endpoint), 1, None
    while True:
        try:
            work = running.send(done)
        except StopIteration as end:
            return end.value or whole(body, endpoint, SEED), steps
        done = None if work is None else work()
        steps += 1


def said(reading: Reading) -> Said:
    """All that routing can tell of a reading."""
    usable, identity = reading.fingerprint.usable, reading.fingerprint.identity
    around = tuple(getattr(reading.envelope, name) for name in Envelope.__struct_fields__)
    return around, _said(usable), _said(identity), usable is identity, list(reading.cuts)


def _said(chain: Chain) -> Said:
    return list(chain.hashes), list(chain.ends), chain.head, chain.size_bytes, chain.preamble


def outcome(known: Bodies | None, body: bytes, endpoint: str) -> Said:
    try:
        return said(whole(body, endpoint, SEED) if known is None else read(known, body, endpoint)[0])
    except Unreadable:
        return ("unreadable",)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, steps and bodies that a test can fill."""
    monkeypatch.setattr(bodies, "LEAST_BYTES", 60)
    monkeypatch.setattr(bodies, "_BLOCK_BYTES", 50)
    monkeypatch.setattr(bodies, "STEP_BYTES", 200)
    monkeypatch.setattr(bodies, "_TAIL_BYTES", 60)
    monkeypatch.setattr(bodies, "LONG_BYTES", 800)
    monkeypatch.setattr(bodies, "_STEP_PIECES", 3)


# -- the same as whole ------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=30) | st.sampled_from(
    (CLOCK, "x" * 300, 'a "quoted" \\ line\n', '{"role":"user"},{"role"', "]}", "é" * 40, "\U0001f600", "", "you " * 90)
)
PARTS: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(("text", "input_text"))}, optional={"text": TEXTS}),
    st.just(IMAGE),
    st.fixed_dictionaries({"type": st.just("tool_result"), "content": TEXTS}, optional={"cache_control": st.just({})}),
    TEXTS,
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": '{"role":"user"}'}}
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "assistant", "system", "developer", "tool")), "content": TEXTS},
        optional={"name": TEXTS, "id": TEXTS, "tool_calls": st.lists(st.just(CALL), max_size=2), "n": st.none()},
    ),
    st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "assistant", "system")), "content": st.lists(PARTS, max_size=3)}
    ),
    st.fixed_dictionaries({"type": st.just("function_call"), "arguments": TEXTS}),
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(("glm", "qwen", None, 7)),
        "stream": st.booleans(),
        "stream_options": st.sampled_from((None, {}, {"include_usage": True})),
        "tools": st.sampled_from((None, [], [TOOL], [TOOL, {**TOOL, "cache_control": {"type": "ephemeral"}}])),
        "functions": st.sampled_from((None, [TOOL])),
        "system": st.sampled_from((None, "You are.", CLOCK + "You are.", [{"type": "text", "text": "You are."}])),
        "instructions": st.sampled_from((None, "You are.")),
        "cache_salt": st.sampled_from((None, "salt")),
        "user": st.sampled_from(("ann", "")),
        "metadata": st.sampled_from(({"user_id": "u"}, {"messages": [{"role": "user"}]}, None)),
        "echo": st.booleans(),
        "temperature": st.floats(0, 2),
    },
)


def spelled(value: object, random: Random) -> str:
    """JSON, with spaces, escapes and an order of keys as they come."""

    def space() -> str:
        return random.choice(("", "", "", " ", "\n\t", " \r"))

    if isinstance(value, dict):
        keys = list(value)
        inner = [f"{spelled(key, random)}{space()}:{space()}{spelled(value[key], random)}" for key in keys]
        return "{" + space() + f"{space()},{space()}".join(inner) + space() + "}"
    if isinstance(value, list):
        return "[" + space() + f"{space()},{space()}".join(spelled(each, random) for each in value) + space() + "]"
    return json.dumps(value, ensure_ascii=random.random() < 0.5)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Bodies of a conversation that grows, branches, is edited and has other tools; and how each of them is spelled."""
    endpoint = draw(st.sampled_from(("chat", "messages", "responses")))
    name = "input" if endpoint == "responses" else "messages"
    messages: list[Any] = []
    around, behind = draw(FIELDS), draw(FIELDS)
    style, found = draw(st.integers(0, 3)), []
    for _ in range(draw(st.integers(2, 6))):
        what = draw(st.sampled_from(("grow", "grow", "grow", "edit", "back", "around", "behind", "twice", "broken")))
        if what == "edit" and messages:
            messages[draw(st.integers(0, len(messages) - 1))] = draw(MESSAGES)
        elif what == "back":
            del messages[draw(st.integers(0, len(messages))) :]
        elif what == "around":
            around = draw(FIELDS)
        elif what == "behind":
            behind = draw(FIELDS)
        messages += draw(st.lists(MESSAGES, min_size=1, max_size=4))
        random = Random(style)
        if style:
            text = spelled({**around, name: messages, **behind}, random)
        else:
            text = json.dumps({**around, name: messages, **behind}, separators=(",", ":"))
        if what == "twice":
            other = draw(st.sampled_from((name, "model", "tools", "system", "stream")))
            text = text[:-1] + f',"{other}":{json.dumps(draw(st.lists(MESSAGES, max_size=2) | FIELDS))}' + "}"
        body = text.encode(errors="surrogatepass")
        if what == "broken":
            at = draw(st.integers(0, len(body) - 1))
            body = (
                body[:at]
                + draw(st.sampled_from((b"", b"\xff", b'"', b"}", b"]", b",", b"\x00", b"[", b"1")))
                + body[at + 1 :]
            )
        found.append(body)
    return endpoint, found


@pytest.mark.usefixtures("small")
@given(talk=conversations(), most_bytes=st.sampled_from((1 << 20, 6_000)))
@settings(max_examples=examples(300))
def test_a_body_says_the_same_whatever_was_read_before(talk: tuple[str, list[bytes]], most_bytes: int) -> None:
    """
    However a conversation grows, branches, is edited or broken, and however it is spelled: each of its bodies has the
    same fingerprint, cuts and everything else as if it were the first and read whole.
    """
    endpoint, found = talk
    known = Bodies(SEED, most_bytes)

    for body in found:
        assert outcome(known, body, endpoint) == outcome(None, body, endpoint)
        assert outcome(known, body, endpoint) == outcome(None, body, endpoint)


@pytest.mark.usefixtures("small")
@given(talk=conversations())
@settings(max_examples=examples(50))
def test_what_is_kept_is_counted_and_bounded(talk: tuple[str, list[bytes]]) -> None:
    """
    Whatever comes, no more is kept than may be, and nothing is left of what was let go.
    """
    endpoint, found = talk
    known = Bodies(SEED, 5_000)

    for body in found:
        outcome(known, body, endpoint)

        assert known.cost_bytes == sum(each.cost_bytes for each in known._known.values()) <= 5_000
        assert sorted(each.name for alike in known._alike.values() for each in alike) == sorted(known._known)


# -- what it costs ----------------------------------------------------------------------------------------------------


def turn(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"{number} " + "Why is it cold? " * 300},
        {"role": "assistant", "content": f"{number} " + "Because of the snapshots. " * 300},
    ]


def long_talk(turns: int, *last: dict[str, Any], **more: Any) -> bytes:
    """A conversation in its last turn, which some messages may follow."""
    messages = [message for number in range(turns) for message in turn(number)][:-1]
    return json.dumps({"model": "glm", "messages": [*messages, *last], **more}).encode()


def test_a_next_turn_is_read_in_one_step_where_the_first_needs_several() -> None:
    """
    A conversation of a megabyte takes several steps once, and one for each turn after that.
    """
    known = Bodies(SEED)

    taken = [read(known, long_talk(turns, stream=True, tools=[TOOL]), "chat") for turns in (85, 86, 87, 88)]

    assert len(long_talk(85)) > 4 * STEP_BYTES
    assert [steps for _, steps in taken] == [taken[0][1], 1, 1, 1]
    assert taken[0][1] > len(long_talk(85)) / STEP_BYTES + 3, "decoded in steps, and hashed in some"
    assert all(len(one.cuts) + 1 == len(other.cuts) for (one, _), (other, _) in pairwise(taken))


@pytest.mark.parametrize("turns", [85, 86])
def test_a_call_beside_the_next_turn_is_read_in_one_step_too(turns: int) -> None:
    """
    What goes on from the turn before, or from the next one, finds what it needs.
    """
    known = Bodies(SEED)
    read(known, long_talk(85), "chat")
    read(known, long_talk(86), "chat")

    assert read(known, long_talk(turns, {"role": "user", "content": "A title, please."}), "chat")[1] == 1


def test_markers_that_move_with_the_last_messages_do_not_matter() -> None:
    """
    Clients mark the last two messages of theirs, so that two of the turn before are spelled otherwise in the next.
    """

    def marked(turns: int) -> bytes:
        talk = json.loads(long_talk(turns))
        for message in talk["messages"][-3::2]:
            text = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
            message["content"] = [text]
        return json.dumps(talk).encode()

    known = Bodies(SEED)

    taken = [read(known, marked(turns), "messages")[1] for turns in (85, 86, 87)]

    assert taken[0] > 4
    assert taken[1:] == [1, 1]


def test_other_tools_are_read_as_if_nothing_were_known() -> None:
    """
    Tools that follow the messages decide all of the prefix.
    """
    known = Bodies(SEED)
    read(known, long_talk(85, tools=[TOOL]), "chat")

    other, steps = read(known, long_talk(86, tools=[TOOL, TOOL]), "chat")

    assert steps > 4
    assert said(other) == said(whole(long_talk(86, tools=[TOOL, TOOL]), "chat", SEED))


def test_of_a_conversation_only_its_last_body_is_kept() -> None:
    """
    What is kept of a conversation does not grow with its turns, but with its blocks.
    """
    known = Bodies(SEED)

    for turns in range(15, 50):
        read(known, long_talk(turns), "chat")

    assert len(known) == 1
    assert known.cost_bytes < 3_000 + 12 * len(long_talk(150)) / 2_500


def test_of_short_bodies_nothing_is_kept() -> None:
    """
    Reading them again costs less than remembering them.
    """
    known = Bodies(SEED)

    for turns in (8, 9, 10):
        read(known, long_talk(turns), "chat")

    assert len(long_talk(10)) < LEAST_BYTES
    assert len(known) == 0


def test_many_that_share_their_blocks_leave_only_some() -> None:
    """
    Whoever shares a beginning with others does not pay for all of them: eight are kept, the newest.
    """
    known = Bodies(SEED)

    for number in range(20):
        read(known, long_talk(15, *({"role": "user", "content": f"{number} or {each}"} for each in range(6))), "chat")

    assert len(known) == 8


def test_the_same_bytes_at_another_endpoint_are_another_body() -> None:
    """
    What renders otherwise is never taken for the same.
    """
    known = Bodies(SEED)
    body = json.dumps({"messages": json.loads(long_talk(15))["messages"], "input": "hello"}).encode()

    read(known, body, "chat")

    assert said(read(known, body, "responses")[0]) == said(whole(body, "responses", SEED))


@pytest.mark.parametrize("spaces", ["", " ", "\n  "])
def test_steps_are_taken_however_the_messages_are_set_apart(spaces: str) -> None:
    """
    Clients put spaces between messages, or none.
    """
    text = ("," + spaces).join(json.dumps(message) for number in range(85) for message in turn(number))
    body = b'{"messages":[%b]}' % text.encode()

    reading, steps = read(Bodies(SEED), body, "chat")

    assert steps > 4
    assert said(reading) == said(whole(body, "chat", SEED))


@pytest.mark.parametrize(
    ("many", "most", "turns"), [('{"":"0123456789 0123456789"}', 10_000, (8, 9, 11)), ("0", 499_000, (7, 8, 9))]
)
def test_a_body_with_too_many_parts_is_unreadable_also_where_it_grew(many: str, most: int, turns: list[int]) -> None:
    """
    The limit holds for all of a body, not for what is new in it; and for no body that is shorter than it was.
    """
    known = Bodies(SEED)
    message = b'{"role":"user","content":[{"type":"x","of":[%b]}]}' % b",".join([many.encode()] * most)

    found = [outcome(known, b'{"messages":[%b]}' % b",".join([message] * each), "chat") for each in turns]

    assert len(known) == 1
    assert [each == ("unreadable",) for each in found] == [False, False, True]
