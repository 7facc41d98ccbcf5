"""What is taken for a hint of whose a prompt is, in which order, and that nothing but a hash is left of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from ramjet.core.hints import Hint, hashed, in_body, in_headers
from ramjet.core.prompt import read

SEED = 0x5EED
SESSION = "0196f0a2-7c1e-7d33-9f0e-5b1f6a3f2c11"
LADDER = (
    "x-claude-code-session-id", "session-id", "session_id", "x-session-affinity", "x-opencode-session", "x-session-id",
    "x-smg-routing-key",
)  # fmt: skip
TEXTS = st.text(min_size=1, max_size=40)


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_the_header_of_an_agent_is_a_hint_however_it_is_spelled(name: str, spell: Any) -> None:
    """
    Names of headers are read without regard to case, values as they are.
    """
    assert in_headers(CIMultiDict({spell(name): SESSION}), None) == (name, SESSION)
    assert in_headers(CIMultiDict({f"{name}-x": SESSION, "accept": SESSION}), None) is None


def test_the_configured_header_comes_first_and_then_the_more_telling() -> None:
    """
    A gateway that knows better is asked before the agent.
    """
    headers = CIMultiDict({name: name.upper() for name in ("x-mine", *LADDER)})

    assert in_headers(headers, "X-Mine") == ("x-mine", "X-MINE")
    for name in LADDER:
        assert in_headers(headers, None) == (name, name.upper())
        del headers[name]
    assert in_headers(headers, None) is None


@pytest.mark.parametrize(
    ("session", "child"),
    [("x-claude-code-session-id", "x-claude-code-agent-id"), ("session-id", "thread-id"), ("session_id", "thread_id")],
)
def test_a_child_under_its_parents_session_is_told_by_its_own_name(session: str, child: str) -> None:
    """
    Both names together are the hint, and a child's alone is none.
    """
    parent = {session: SESSION}

    family = [in_headers(headers, None) for headers in (parent, {**parent, child: "1"}, {**parent, child: "2"})]

    found = [hashed(said, SEED) for said in family if said is not None]
    assert len({each.value for each in found}) == 3
    assert {each.kind for each in found} == {session}
    assert in_headers({child: "1"}, None) is None


def test_the_bodys_fields_have_an_order_too() -> None:
    """
    What names a session comes before what names a user.
    """
    body: dict[str, Any] = {name: name.upper() for name in ("prompt_cache_key", "session_id", "user")}
    body["metadata"] = {"user_id": "USER_ID"}

    for name in ("prompt_cache_key", "session_id", "user"):
        assert in_body(body) == (name, name.upper())
        del body[name]
    assert in_body(body) == ("user", "USER_ID")
    del body["metadata"]
    assert in_body(body) is None


def test_only_a_user_names_no_session() -> None:
    """
    A user has many conversations at the same time.
    """
    assert not hashed(("user", "u"), SEED).names_session
    assert hashed(("prompt_cache_key", "u"), SEED).names_session
    assert hashed(("x-session-id", "u"), SEED).names_session


@pytest.mark.parametrize("value", [None, "", 0, 7, 1.5, True, [], ["u"], {}, {"id": "u"}, "u" * 513, "u" * (1 << 20)])
def test_what_is_no_name_is_no_hint(value: Any) -> None:
    """
    Wrong types, nothing, and a megabyte are passed over, and the next in the order is asked.
    """
    fields = {"prompt_cache_key": value, "session_id": value, "user": "u", "metadata": value}

    assert in_body(fields) == ("user", "u")
    assert in_body({**fields, "user": value}) is None
    assert in_body({"metadata": {"user_id": value}}) is None
    if isinstance(value, str):
        headers = {"x-claude-code-session-id": value, "session-id": SESSION, "thread-id": value}
        assert in_headers(headers, "x-mine") == ("session-id", SESSION)


def test_claude_codes_user_is_short_enough() -> None:
    """
    Since 2.1.78 it is JSON with a device, an account and a session in it.
    """
    user = json.dumps({"device_id": "d" * 64, "account_uuid": SESSION, "session_id": SESSION})

    assert in_body({"metadata": {"user_id": user}}) == ("user", user)


@given(one=TEXTS, other=TEXTS, seeds=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True))
def test_a_hash_is_all_that_is_left(one: str, other: str, seeds: list[int]) -> None:
    """
    Equal for equal words and otherwise not, another with another secret, and without the words.
    """
    said = ("x-session-id", one)

    assert hashed(said, seeds[0]) == hashed(("x-session-id", one), seeds[0])
    assert (hashed(said, seeds[0]) == hashed(("x-session-id", other), seeds[0])) == (one == other)
    assert hashed(said, seeds[0]) != hashed(said, seeds[1])
    assert hashed(said, seeds[0]).value != hashed(("user", one), seeds[0]).value
    assert isinstance(hashed(said, seeds[0]).value, int)


@pytest.mark.parametrize("text", ["\udcff", "汉字"], ids=["not UTF-8", "汉字"])
def test_any_text_can_be_hashed(text: str) -> None:
    """
    Also bytes of a header that are no UTF-8.
    """
    assert hashed(("x-session-id", text), SEED) == Hint("x-session-id", hashed(("x-session-id", text), SEED).value)


@pytest.mark.parametrize(
    ("endpoint", "prompt"),
    [
        ("chat", {"messages": []}),
        ("messages", {"messages": []}),
        ("responses", {"input": "hi"}),
        ("completions", {"prompt": "hi"}),
        ("generate", {"text": "hi"}),
    ],
)
def test_every_endpoint_may_have_a_hint_and_it_changes_no_prompt(endpoint: str, prompt: dict[str, Any]) -> None:
    """
    Engines do not render it.
    """
    with_hint = read(json.dumps({**prompt, "session_id": SESSION}).encode(), endpoint)
    without = read(json.dumps(prompt).encode(), endpoint)

    assert (with_hint.said, without.said) == (("session_id", SESSION), None)
    assert (with_hint.pieces, with_hint.namespace) == (without.pieces, without.namespace)
