"""Whose a prompt is, as real clients say it: their headers and fields over real sockets, with the official SDKs."""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from structlog.testing import capture_logs

from tests.replica.support import quick
from tests.rig import Front, ramjet, settings_for

SESSION = "0196f0a2-7c1e-7d33-9f0e-5b1f6a3f2c11"
SYSTEM = "You are a coding agent. " * 200
CHILD = "You search files. " * 100
TOOLS: list[Any] = [{"name": "grep", "description": "Search.", "input_schema": {"type": "object"}}]

Turn = tuple[str | None, int | None]
"""Conversation and turn of a record."""


@contextlib.asynccontextmanager
async def ready(**routing: Any) -> AsyncIterator[Front]:
    async with quick() as one, quick() as two, ramjet({"a": one.url, "b": two.url}, routing=routing) as front:
        yield front


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


class Agent:
    """Messages that grow, and the SDK call that sends them."""

    def __init__(self, front: Front, send: Any, *messages: dict[str, Any]) -> None:
        self.front, self.send, self.messages = front, send, list(messages)

    async def turn(self, *more: dict[str, Any]) -> Turn:
        self.messages += more
        answer = await self.send(self.messages)
        record = self.front.record(answer.headers["x-request-id"])
        return record.conversation, record.turn


# -- stories ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("says_child", [True, False], ids=["2.1.139 and later", "before"])
async def test_claude_code_with_children_a_title_and_compaction(says_child: bool) -> None:
    """
    All have the session's header. The main agent is one conversation from its first turn to the last after compaction,
    every child is one, and so is the title, also where children say nothing of themselves.
    """
    async with (
        ready() as front,
        anthropic.AsyncAnthropic(
            base_url=front.url,
            api_key="none",
            max_retries=0,
            default_headers={"X-Claude-Code-Session-Id": SESSION},
        ) as sdk,
    ):

        def agent(system: str, question: str, child: str | None = None, tools: Any = TOOLS) -> Agent:
            async def send(messages: Any) -> Any:
                return await sdk.messages.with_raw_response.create(
                    model="m",
                    max_tokens=9,
                    tools=tools,
                    system=[
                        {"type": "text", "text": f"x-anthropic-billing-header: cch={len(front.records)};"},
                        {"type": "text", "text": system},
                    ],
                    messages=messages,
                    metadata={"user_id": f"user_1_account__session_{SESSION}"},
                    extra_headers={"X-Claude-Code-Agent-Id": child} if child and says_child else None,
                )

            return Agent(front, send, user(question))

        main = agent(SYSTEM, "Fix the cache. " * 50)
        title = agent("Write a title. " * 30, "Fix the cache. " * 50, tools=anthropic.NOT_GIVEN)
        name, number = await main.turn()
        assert number == 1
        titled = await title.turn()
        assert await main.turn(assistant("I look. " * 50), user("found " * 20_000)) == (name, 2)

        children = [agent(CHILD, f"Look into {each}. " * 50, child=each) for each in ("src", "tests")]
        first = [await child.turn() for child in children]
        second = [await child.turn(assistant("Grep. " * 50), user("hit " * 300)) for child in children]
        assert [each[1] for each in (titled, *first, *second)] == [1, 1, 1, 2, 2]
        assert len({each[0] for each in (titled, *first, (name, 1))}) == 4
        assert [each[0] for each in first] == [each[0] for each in second]

        assert await main.turn(assistant("They say. " * 50), user("go on " * 50)) == (name, 3)
        assert await main.turn(assistant("Done. " * 50), user("Summarize all this. " * 20)) == (name, 4)
        main.messages = [user("This session goes on from an earlier one. Its summary: " + "fixed " * 200)]
        assert await main.turn() == (name, 5)
        assert await main.turn(assistant("On with it. " * 50), user("hit " * 100)) == (name, 6)
        assert (await children[1].turn(assistant("More. " * 50), user("hit " * 99)))[0] == second[1][0]
        assert front.router.conversations.living == 4


@pytest.mark.parametrize("headers", [True, False], ids=["with its headers", "prompt_cache_key alone"])
async def test_codex_with_a_child_and_compaction(headers: bool) -> None:
    """
    One key for the whole session, also a child's. After compaction Codex keeps what the session began with, and what
    the user said; it is the same conversation.
    """
    async with (
        ready() as front,
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as sdk,
    ):

        def agent(instructions: str, thread: str, *messages: dict[str, Any]) -> Agent:
            async def send(given: Any) -> Any:
                return await sdk.responses.with_raw_response.create(
                    model="m",
                    instructions=instructions,
                    input=given,
                    prompt_cache_key=SESSION,
                    extra_headers={"session-id": SESSION, "thread-id": thread} if headers else None,
                )

            return Agent(front, send, *messages)

        context = [
            {"role": "developer", "content": "Sandboxed. " * 50},
            user("# AGENTS.md " * 50),
            user("cwd /work " * 30),
        ]
        main = agent(SYSTEM, "main", *context, user("Fix the cache. " * 50))
        name, number = await main.turn()
        assert number == 1
        child = agent(CHILD, "child", *context, user("Look into src. " * 50))
        child_name, number = await child.turn()
        assert (child_name != name, number) == (True, 1)
        assert await main.turn(assistant("I look. " * 50), user("found " * 20_000)) == (name, 2)
        assert await child.turn(assistant("Grep. " * 50), user("hit " * 300)) == (child_name, 2)
        assert await main.turn(assistant("Done. " * 50), user("Summarize for who comes next. " * 20)) == (name, 3)

        main.messages = [*context, user("Fix the cache. " * 50), user("Another began; its summary: " + "fixed " * 50)]
        assert await main.turn() == (name, 4)
        assert await main.turn(assistant("On. " * 50), user("hit " * 100)) == (name, 5)
        assert front.router.conversations.living == 2


WAYS: dict[str, Any] = {
    "OpenAI's user": ("chat", lambda name: {"user": name}),
    "OpenAI's prompt_cache_key": ("chat", lambda name: {"prompt_cache_key": name}),
    "prompt_cache_key on responses": ("responses", lambda name: {"prompt_cache_key": name}),
    "a session_id that engines know": ("chat", lambda name: {"extra_body": {"session_id": name}}),
    "Anthropic's metadata": ("messages", lambda name: {"metadata": {"user_id": name}}),
    "a header": ("messages", lambda name: {"extra_headers": {"X-Session-ID": name}}),
    "the configured header": ("chat", lambda name: {"extra_headers": {"X-Tenant-Chat": name, "X-Session-ID": "x"}}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_two_users_with_the_same_first_prompt_are_two_conversations(way: str) -> None:
    """
    Through the official SDKs; each goes on with its own, whatever the other does.
    """
    api, said = WAYS[way]
    async with (
        ready(identity={"header": "X-Tenant-Chat"}) as front,
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as gpt,
        anthropic.AsyncAnthropic(base_url=front.url, api_key="none", max_retries=0) as claude,
    ):

        def agent(name: str) -> Agent:
            async def send(messages: Any) -> Any:
                if api == "chat":
                    return await gpt.chat.completions.with_raw_response.create(
                        model="m", messages=messages, **said(name)
                    )
                if api == "responses":
                    return await gpt.responses.with_raw_response.create(model="m", input=messages, **said(name))
                return await claude.messages.with_raw_response.create(
                    model="m", max_tokens=9, messages=messages, **said(name)
                )

            return Agent(front, send, user("Good morning! " * 100))

        anna, ben = agent("anna"), agent("ben")
        one, other = await anna.turn(), await ben.turn()
        answer = assistant("Good morning to you. " * 50)
        more = [await each.turn(answer, user("And now? " * 50)) for each in (anna, ben)]

    assert one[0] != other[0]
    assert [one[1], other[1], *more] == [1, 1, (one[0], 2), (other[0], 2)]


# -- what is read, and what is not ------------------------------------------------------------------------------------

PROMPT = {"model": "m", "messages": [{"role": "system", "content": SYSTEM}, user("Good morning! " * 100)]}


async def conversations(front: Front, *requests: tuple[dict[str, str], dict[str, Any]]) -> list[str | None]:
    """The conversations that requests with the same prompt are taken for, by their headers and fields."""
    found = []
    async with httpx.AsyncClient(timeout=20) as client:
        for headers, fields in requests:
            got = await client.post(f"{front.url}/v1/chat/completions", headers=headers, json={**PROMPT, **fields})
            assert got.status_code == 200, got.text
            found.append(front.record(got.headers["x-request-id"]).conversation)
    return found


@pytest.mark.parametrize(
    "name",
    ["X-Claude-Code-Session-Id", "session-id", "session_id", "x-session-affinity", "x-opencode-session",
     "X-Session-ID", "X-SMG-Routing-Key"],
)  # fmt: skip
async def test_headers_of_agents_and_routers_tell_conversations_apart(name: str) -> None:
    """
    Another value is another conversation, and none at all the one that was there last.
    """
    async with ready() as front:
        one, other, again, without = await conversations(front, ({name: "1"}, {}), ({name: "12"}, {}),
                                                         ({name: "1"}, {}), ({}, {}))  # fmt: skip

    assert one == again != other
    assert without in {one, other}


async def test_without_hints_the_prompt_alone_decides_also_after_a_reload() -> None:
    """
    A switch for clients and gateways whose names are worse than none.
    """
    asked = [({"x-session-id": name}, {"user": name}) for name in "12"]
    async with quick() as one, ramjet({"a": one.url}, routing={"identity": {"hints": False}}) as front:
        off = await conversations(front, *asked)
        assert front.running.control.apply(settings_for({"a": one.url})) == []
        on = await conversations(front, *asked)

    assert len(set(off)) == 1
    assert len(set(on)) == 2


@pytest.mark.parametrize(
    "fields",
    [{"user": {}}, {"user": ["u"]}, {"user": 7}, {"user": ""}, {"metadata": "u"}, {"metadata": {"user_id": {"a": 1}}},
     {"prompt_cache_key": None}, {"session_id": False}, {"user": "u" * (1 << 20)}],
    ids=str,
)  # fmt: skip
async def test_a_field_that_is_no_name_is_passed_over(fields: dict[str, Any]) -> None:
    """
    Wrong types and a megabyte: the request is served, and its prompt says whose it is.
    """
    async with ready() as front:
        without, with_it = await conversations(front, ({}, {}), ({}, fields))

    assert without == with_it


async def test_of_a_name_nothing_is_kept_or_logged() -> None:
    """
    Hashes only: no record, no log line and no object of the router holds it.
    """
    secret = "anna-at-example-dot-org"
    with capture_logs() as lines:
        async with ready(identity={"header": "x-mine"}) as front:
            await conversations(
                front,
                ({"x-mine": secret}, {}),
                ({"x-session-id": secret}, {}),
                ({}, {"user": secret}),
                ({}, {"metadata": {"user_id": secret}}),
            )
            await front.settled()
            assert all(each.hint is not None for each in front.router.conversations)
            assert not any(secret in text for text in texts(front.router))
            assert secret not in str(front.records)

    assert secret not in str(lines)


def texts(of: object) -> Iterator[str]:
    """All texts that can be reached from an object, but through code."""
    seen, waiting = {id(of)}, [of]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if id(each) in seen or isinstance(each, (type, types.ModuleType, types.FunctionType, types.CodeType)):
                continue
            seen.add(id(each))
            waiting.append(each)
            if isinstance(each, (str, bytes)):
                yield each if isinstance(each, str) else each.decode("latin-1")
