"""The journal of a `ramjet serve`: what was served is in it, what was said is not, and trouble with it is no trouble."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner

from ramjet.cli import main
from ramjet.core.fingerprint import fingerprint
from ramjet.core.fleet import Fleet
from ramjet.core.prompt import read
from ramjet.core.router import Policy, Router
from ramjet.journal.blocks import salter
from ramjet.journal.read import Reader, Row
from ramjet.replica.server import running_replica
from ramjet.secret import seed_of
from ramjet.sim.profile import PROFILES
from tests.operations.support import CHAT, body, config, live, longer
from tests.rig import quick_engine, ramjet

GLM = PROFILES["glm-5.3-flash-tp2"]
SECRET = "a test's"
"""That of `config`."""
UNSAID = "correct-horse-battery-staple"


def prompt(words: int = 900) -> str:
    random = Random(5)
    return " ".join([UNSAID, *(f"word-{random.randrange(1_000)}" for _ in range(words))])


def rows(path: Path) -> list[Row]:
    with Reader(path) as reader:
        return list(reader.rows())


def files(directory: Path) -> Iterator[bytes]:
    return (each.read_bytes() for each in directory.rglob("*") if each.is_file())


def hashes(request: dict[str, Any]) -> list[int]:
    """A request's blocks as they should be in the file."""
    raw = httpx.Request("POST", "http://x", json=request).content
    return [*map(salter(SECRET), fingerprint(read(raw, "chat"), seed_of(SECRET)).usable.hashes)]


async def test_a_served_conversation_is_in_the_journal(tmp_path: Path) -> None:
    """
    Turn by turn with what the engine reported, with its blocks, after a stop and over a restart; without its text.
    """
    state = tmp_path / "state"
    first = body(prompt(), model=GLM.model, max_tokens=4)
    second = longer(first, "and " + UNSAID)
    async with running_replica(GLM, speed=50) as one, running_replica(GLM, speed=50) as two:
        path = config(tmp_path / "ramjet.yaml", {"a": one.url, "b": two.url})
        for request in (first, second):
            async with live(path, STATE_DIRECTORY=str(state)) as served, httpx.AsyncClient(timeout=20) as client:
                answer = await client.post(served.url + CHAT, json=request, headers={"x-session-id": UNSAID})
                assert answer.status_code == 200
                assert await served.stop() == 0
                logged = served.events("request")[0]
                found = rows(state / "journal.db")[-1]
                assert {name: logged[name] for name in found.record.log_fields()} == {
                    **found.record.log_fields(), "costs": logged["costs"],
                }  # fmt: skip

    turns = rows(state / "journal.db")
    assert [row.record.outcome for row in turns] == ["ok", "ok"]
    assert [row.fingerprint and [*row.fingerprint.usable.hashes] for row in turns] == [hashes(first), hashes(second)]
    assert len(hashes(first)) > 5
    assert hashes(second)[: len(hashes(first)) - 1] == hashes(first)[:-1]
    assert turns[0].arrived_at < turns[1].arrived_at
    assert turns[1].record.conversation == turns[0].record.conversation
    router = Router(Fleet(), Policy())
    again = [router.arrive(row.arrival, row.arrived_at) for row in turns]
    # Replayed by a router that is not restarted between them, they are one conversation.
    assert [row.record.turn for row in turns] == [1, 1]
    assert [visit.number for visit in again] == [1, 2]
    assert all(UNSAID.encode() not in content for content in files(state))


async def test_what_the_replicas_were_is_in_the_journal(tmp_path: Path) -> None:
    """
    When it began, when nothing was in them, and when it ended; by name, and without their URLs.
    """
    state = tmp_path / "state"
    async with quick_engine() as engine, quick_engine() as other:
        path = config(tmp_path / "ramjet.yaml", {"a": engine.url, "b": other.url})
        async with live(path, STATE_DIRECTORY=str(state)) as served, httpx.AsyncClient() as client:
            assert (await client.post(served.url + CHAT, json=body(prompt()))).status_code == 200
            assert await served.stop() == 0

    with Reader(state / "journal.db") as reader:
        found = list(reader.samples())
    assert [each.replica for _, each in found] == ["a", "b", "a", "b"]
    assert sum(each.resident_tokens for _, each in found[:2]) == 0 < sum(each.resident_tokens for _, each in found[2:])
    assert sum(each.living for _, each in found[2:]) == 1
    assert found[0][0] < found[2][0]
    assert all(engine.url.removeprefix("http://").encode() not in content for content in files(state))


async def test_a_request_that_was_refused_is_there_without_a_prompt(tmp_path: Path) -> None:
    async with quick_engine() as engine:
        path = config(tmp_path / "ramjet.yaml", {"a": engine.url}, client_keys=["a-key-of-ours"])
        journal = tmp_path / "elsewhere" / "j.db"
        async with live(path, "--journal", str(journal)) as served, httpx.AsyncClient() as client:
            assert (await client.post(served.url + CHAT, json=body())).status_code == 401
            assert await served.stop() == 0

    (row,) = rows(journal)
    assert (row.record.outcome, row.record.status, row.fingerprint) == ("refused", 401, None)


async def test_metrics_say_what_was_written(tmp_path: Path) -> None:
    async with quick_engine() as engine:
        path = config(tmp_path / "ramjet.yaml", {"a": engine.url}, journal={"path": str(tmp_path / "j.db")})
        async with live(path) as served, httpx.AsyncClient() as client:
            for _ in range(3):
                await client.post(served.url + CHAT, json=body())
            async with asyncio.timeout(20):
                while "ramjet_journal_written_total 3.0" not in (await client.get(served.admin + "/metrics")).text:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert "ramjet_journal_dropped_total 0.0" in (await client.get(served.admin + "/metrics")).text
            # It can be read while it is written.
            assert len(rows(tmp_path / "j.db")) == 3


@pytest.mark.parametrize("content", [b"x" * 5_000, None])
async def test_a_journal_that_cannot_be_used_keeps_nobody_from_being_served(
    tmp_path: Path, content: bytes | None
) -> None:
    """
    A damaged file is left as it is, and a place that is no directory as well; the log says so.
    """
    place = tmp_path / "place"
    place.write_bytes(content or b"")
    async with quick_engine() as engine:
        path = config(tmp_path / "ramjet.yaml", {"a": engine.url})
        journal = place if content else place / "journal.db"
        async with live(path, "--journal", str(journal)) as served, httpx.AsyncClient() as client:
            assert (await client.post(served.url + CHAT, json=body())).status_code == 200
            assert await served.stop() == 0

    (said,) = served.events("journal_off")
    assert str(place) in said["error"]
    assert place.read_bytes() == (content or b"")


async def test_no_journal_is_none(tmp_path: Path) -> None:
    async with quick_engine() as engine:
        path = config(tmp_path / "ramjet.yaml", {"a": engine.url})
        async with live(path, "--no-journal", STATE_DIRECTORY=str(tmp_path / "state")) as served:
            async with httpx.AsyncClient() as client:
                assert (await client.post(served.url + CHAT, json=body())).status_code == 200
            assert await served.stop() == 0

    assert not (tmp_path / "state").exists()


def test_options_say_where_or_that_there_is_none() -> None:
    """
    The command line wins over the environment, and one thing at a time is asked for.
    """
    runner = CliRunner(env={"RAMJET_JOURNAL__ENABLED": "false"})
    shown = {
        arguments: yaml.safe_load(runner.invoke(main, ["serve", *arguments, "--print-config"]).stdout)["journal"]
        for arguments in ((), ("--journal", "j.db"), ("--no-journal",))
    }
    both = runner.invoke(main, ["serve", "--journal", "j.db", "--no-journal"])

    assert [(each["enabled"], each["path"]) for each in shown.values()] == [
        (False, None),
        (True, "j.db"),
        (False, None),
    ]
    assert "--journal and --no-journal exclude each other" in both.stderr


async def test_a_ramjet_inside_another_program_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The demo's, and the tests' own.
    """
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    async with quick_engine() as engine, ramjet({"a": engine.url}) as front, httpx.AsyncClient() as client:
        assert (await client.post(front.url + CHAT, json=body())).status_code == 200
        await front.settled()

    assert os.listdir(tmp_path) == []
