"""What goes wrong by a file: at given times, to given requests; and what is wrong with the file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.replica.faults import KINDS, Faults, FaultsError, load
from ramjet.sim.profile import GLM, LLAMA_CPP
from tests.replica.support import ask, client, frames, prompt, quick, until


def faults(tmp_path: Path, *entries: dict[str, Any]) -> Faults:
    """As they come from a file."""
    path = tmp_path / "faults.yaml"
    path.write_text(json.dumps(list(entries)), encoding="utf-8")
    return load(path)


# -- the file ---------------------------------------------------------------------------------------------------------

EXAMPLE = """
- {at_s: 10, do: wedge, for_s: 20}
- {request: 5, do: reset_mid_stream}
- {every: 50, do: status, status: 503, retry_after_s: 2}
- {at_s: 60, do: slow, factor: 3}
- {at_s: 30, do: restart}
- {at_s: 90, do: error_event, after_tokens: 3}
"""


def test_a_file_says_what_happens_when(tmp_path: Path) -> None:
    """
    By time, by number, or to all; the first entry that is meant for a request is the one that counts.
    """
    path = tmp_path / "faults.yaml"
    path.write_text(EXAMPLE, encoding="utf-8")
    found = load(path)

    def done(number: int, seconds: float) -> str | None:
        fault = found.of_request(number, seconds)
        return None if fault is None else fault.do

    assert [found.pace(at_s) for at_s in (0, 10, 29.9, 30, 60)] == [1, 0, 0, 1, 1 / 3]
    assert found.turns_s == [10, 30, 60]
    assert [done(number, 0) for number in (1, 5, 49, 50, 100)] == [None, "reset_mid_stream", None, "status", "status"]
    assert [done(1, 90), done(50, 90)] == ["error_event", "status"]
    assert [(each.at_s, each.for_s) for each in found.restarts] == [(30, 5)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {at_s: -1, do: wedge}", "entry 1: at_s: -1 given: input should be greater than or equal to 0 (seconds"),
        ("- {do: slow, factor: 3}\n- {do: slow}", "entry 2: factor: nothing given: field required (so many times as"),
        ("- {do: status, status: 200}", "entry 1: status: 200 given: input should be greater than or equal to 400"),
        ("- {do: restart}", "entry 1: at_s: nothing given: field required (seconds after the start)"),
        ("- {do: wedge, request: 1, every: 2}", "entry 1: wedge names request and every: leave one of them out"),
        ("- {do: wedge, whom: 1}", "entry 1: whom: wedge has no such field; it has at_s, do, every, for_s, request"),
        ("- {do: explode}", "entry 1: do: 'explode' given: one of wedge, slow, restart, status, reset_mid_stream"),
        ("- {at_s: 1}", "entry 1: do: nothing given: one of wedge"),
        ("- {do: [wedge]}", "entry 1: do: ['wedge'] given: one of wedge"),
        ("- wedge", "entry 1: 'wedge' given: write it as a mapping, such as - {at_s: 10, do: wedge, for_s: 20}"),
        ("do: wedge", "must be a list of entries, such as - {at_s: 10, do: wedge, for_s: 20}"),
        ("", "must be a list of entries"),
        ("- {do: wedge", "line 1, column 13: is not YAML"),
        ("- 2026-13-45", "is not YAML"),
        ("- {do: slow, factor: .inf}", "entry 1: factor: inf given: input should be a finite number"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_the_remedy(text: str, says: str, tmp_path: Path) -> None:
    """
    File, entry, field, what was given, what would be right.
    """
    path = tmp_path / "faults.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(FaultsError) as refused:
        load(path)

    assert str(refused.value).startswith(f"{path}: {says}")


def test_all_entries_that_are_wrong_are_told_at_once(tmp_path: Path) -> None:
    """
    A line for each; and a file that is not there is told too.
    """
    with pytest.raises(FaultsError) as refused:
        faults(tmp_path, {"do": "slow"}, {"do": "wedge"}, {"do": "status", "status": 1, "retry_after_s": -1})
    with pytest.raises(FaultsError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")

    assert [line.split(": ")[1:3] for line in str(refused.value).splitlines()] == [
        ["entry 1", "factor"],
        ["entry 3", "status"],
        ["entry 3", "retry_after_s"],
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_says_what_it_means(kind: str) -> None:
    """
    The meaning is part of the message about it.
    """
    assert [name for name, field in KINDS[kind].model_fields.items() if not field.description and name != "do"] == []


# -- requests ---------------------------------------------------------------------------------------------------------


async def test_a_status_comes_with_its_retry_after_and_the_engines_shape(tmp_path: Path) -> None:
    """
    Every second request; the others are served.
    """
    wrong = faults(tmp_path, {"every": 2, "do": "status", "status": 503, "retry_after_s": 2})
    async with quick(faults=wrong) as replica, client(replica.url) as http:
        answers = [await http.post("/v1/chat/completions", json=ask("Hello")) for _ in range(4)]

        assert replica.in_flight == 0
    assert [answer.status_code for answer in answers] == [200, 503, 200, 503]
    assert [answer.headers.get("retry-after") for answer in answers] == [None, "2", None, "2"]
    assert answers[1].json()["type"] == "InternalServerError"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_reset_in_its_middle(stream: bool, tmp_path: Path) -> None:
    """
    Two tokens have come, then the connection breaks; the engine is free, and the next request is served.
    """
    wrong = faults(tmp_path, {"request": 1, "do": "reset_mid_stream", "after_tokens": 2})
    body = {"text": "Hello", "stream": stream, "sampling_params": {"max_new_tokens": 200}}
    seen = ""
    async with quick(speed=20, faults=wrong) as replica, client(replica.url) as http:

        async def read() -> None:
            nonlocal seen
            async with http.stream("POST", "/generate", json=body) as response:
                async for text in response.aiter_text():
                    seen += text

        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await read()
        await until(lambda: replica.in_flight == 0)
        again = await http.post("/generate", json=body | {"stream": False})

    assert [frame["meta_info"]["completion_tokens"] for frame in frames(seen)] == ([1, 2] if stream else [])
    assert again.status_code == 200


PATHS = {
    "/v1/chat/completions": ask("Hello"),
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": ask("Hello", max_tokens=16),
    "/generate": {"text": "Hello"},
}


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_ends_with_an_error_in_its_own_shape(path: str, tmp_path: Path) -> None:
    """
    After three tokens, in every dialect; in one piece it is a 500.
    """
    wrong = faults(tmp_path, {"do": "error_event", "after_tokens": 3, "message": "out of memory"})
    async with quick(faults=wrong) as replica, client(replica.url) as http:
        streamed = await http.post(path, json=PATHS[path] | {"stream": True})
        whole = await http.post(path, json=PATHS[path])
        await until(lambda: replica.in_flight == 0)

    last = frames(streamed.text)[-1]
    assert last.get("type") == "error" or "error" in last
    assert "out of memory" in json.dumps(last)
    assert whole.status_code == 500
    assert "out of memory" in whole.text


async def test_a_wedged_request_gets_nothing_until_its_client_leaves(tmp_path: Path) -> None:
    """
    The others are served meanwhile.
    """
    wrong = faults(tmp_path, {"request": 1, "do": "wedge"})
    async with quick(faults=wrong) as replica, client(replica.url) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/chat/completions", json=ask("Hello"), timeout=0.2)
        served = await http.post("/v1/chat/completions", json=ask("Hello"))

        assert replica.engine.aborted_total == 0
    assert served.status_code == 200


# -- the whole replica ------------------------------------------------------------------------------------------------


async def test_a_wedge_swallows_everything_and_its_health_page_says_yes(tmp_path: Path) -> None:
    """
    From the start, for 30 of its seconds: at 100 times its speed they are 0.3 of ours. Then what waited is served.
    """
    wrong = faults(tmp_path, {"do": "wedge", "for_s": 30})
    began = time.perf_counter()
    async with quick(speed=100, faults=wrong) as replica, client(replica.url) as http:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(http.post("/v1/chat/completions", json=ask("Hello")))
            await until(lambda: replica.in_flight == 1)
            health = await http.get("/health")
            assert replica.engine.prompt_tokens_total == 0
        waited = time.perf_counter() - began

    assert health.status_code == 200
    assert task.result().status_code == 200
    assert waited > 0.28


async def test_a_slow_replica_takes_so_many_times_as_long(tmp_path: Path) -> None:
    """
    Reading 20,000 tokens at 100 times the speed, and ten times as long.
    """
    body = {"text": prompt(20_000), "sampling_params": {"max_new_tokens": 1}}
    took = []
    for wrong in (Faults(), faults(tmp_path, {"do": "slow", "factor": 10})):
        async with quick(speed=100, faults=wrong) as replica, client(replica.url) as http:
            began = time.perf_counter()
            await http.post("/generate", json=body)
            took.append(time.perf_counter() - began)

    assert took[1] > 0.33
    assert took[0] < took[1] / 2


@pytest.mark.parametrize("profile", [GLM, LLAMA_CPP], ids=lambda profile: profile.name)
async def test_a_restart_breaks_connections_refuses_new_ones_and_forgets(profile: Any, tmp_path: Path) -> None:
    """
    Who is served then loses its connection, nobody listens for a while, and afterwards the cache is empty.
    """
    body = {"prompt": prompt(3_000), "max_tokens": 8, "ignore_eos": True}
    lines: list[str] = []
    async with (
        quick(profile, speed=100, faults=faults(tmp_path, {"at_s": 100, "do": "restart", "for_s": 30})) as replica,
        client(replica.url) as http,
    ):
        replica._log = lines.append
        for _ in range(2):
            answer = await http.post("/v1/completions", json=body)
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await http.post("/v1/completions", json=body | {"max_tokens": 100_000})
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")
        began = time.perf_counter()
        while True:
            with contextlib.suppress(httpx.ConnectError):
                await http.get("/health")
                break
            await asyncio.sleep(0.01)
        refused = time.perf_counter() - began
        assert (replica.in_flight, replica.engine.cache.used_tokens) == (0, 0)
        again = (await http.post("/v1/completions", json=body)).json()["usage"]["prompt_tokens_details"]

    assert cached > 2_500
    assert 0.2 < refused < 3
    assert again in (None, {"cached_tokens": 0})
    # It boots as it did before.
    assert any("499968" in line or "n_slots = 4" in line for line in lines)
