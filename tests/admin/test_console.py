"""`ramjet explain` and `ramjet top`: what they print of a Ramjet that serves, and what they say where none does."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from ramjet.cli import main
from ramjet.console.cli import guessed
from tests.admin.support import CHAT, body
from tests.operations.support import longer
from tests.rig import QuickEngine, quick_engine, ramjet
from tests.scripted import dead_url, scripted_engine

TOKEN = "an-operators-token"  # a test's


async def run(*arguments: str, given: bytes | None = None, **environ: str) -> Result:
    """A command in a thread, beside the Ramjet that it asks."""
    runner = CliRunner(env={"COLUMNS": "160", "RAMJET_ADMIN_TOKEN": None, **environ})
    return await asyncio.to_thread(runner.invoke, main, list(arguments), given)


async def test_explain_prints_what_then_happens(tmp_path: Path) -> None:
    """
    Whose turn it is, where it would go and why, each replica's seconds by term; from a file and from standard input.
    """
    async with quick_engine() as one, quick_engine() as two, ramjet({"glm-1": one.url, "glm-2": two.url}) as front:
        async with httpx.AsyncClient() as client:
            talk = body("s3cret " * 4_000)
            home = (await client.post(front.url + CHAT, json=talk)).headers["x-ramjet-replica"]
        file = tmp_path / "request.json"
        file.write_text(json.dumps(longer(talk)))

        shown = await run("explain", str(file), "--admin", front.admin_url)
        piped = await run("explain", "-", "--admin", front.admin_url, "--json", given=json.dumps(body("hi")).encode())

        assert shown.exit_code == 0, shown.output
        assert f"turn 2, at home on {home}" in shown.stdout
        assert f"It would go to {home}, reason affinity, free of charge" in shown.stdout
        for word in ("prefill", "queue", "crowding", "balance", "leave", "in all", "matched", "glm-1", "glm-2"):
            assert word in shown.stdout
        assert "s3cret" not in shown.stdout
        assert json.loads(piped.stdout)["decision"]["reason"] == "new"
        assert len(front.records) == 1


async def test_explain_says_what_keeps_a_request_out() -> None:
    """
    One that would wait is told so, with the reason at each replica.
    """
    go = asyncio.Event()

    async def wait(_: QuickEngine) -> None:
        await go.wait()

    async with quick_engine() as engine, ramjet({"a": {"url": engine.url, "pool_tokens": 40_000}}) as front:
        engine.answer_when = wait
        async with httpx.AsyncClient(timeout=20) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(client.post(front.url + CHAT, json=body("one " * 30_000)))
            async with asyncio.timeout(10):
                while not front.in_flight["a"]:  # noqa: ASYNC110 - a ledger has no event
                    await asyncio.sleep(0.01)
            shown = await run(
                "explain", "-", "--admin", front.admin_url, given=json.dumps(body("two " * 30_000)).encode()
            )
            go.set()

        assert "It would be held: no room beside what runs. Cheapest is a" in shown.stdout


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "/v1/chat/completions"),
        ({"messages": [], "system": "s"}, "/v1/messages"),
        ({"prompt": "p"}, "/v1/completions"),
        ({"input": "p"}, "/v1/responses"),
        ({"text": "p"}, "/generate"),
        ({"input_ids": [1]}, "/generate"),
        ([1], "/v1/chat/completions"),
    ],
)
def test_the_path_is_guessed_from_the_body(fields: object, path: str) -> None:
    assert guessed(json.dumps(fields).encode()) == path
    assert guessed(b"\xff{") == "/v1/chat/completions"


async def test_top_prints_one_frame_or_one_document() -> None:
    """
    Where standard output is no terminal, one frame and the end; with --json one document, and nothing else on it.
    """
    async with quick_engine() as engine, ramjet({"glm-1": {"url": engine.url, "pool_tokens": 90_000}}) as front:
        async with httpx.AsyncClient() as client:
            for number in range(3):
                await client.post(front.url + CHAT, json=body(f"{number} " * 4_000))

        frame = await run("top", "--once", "--admin", front.admin_url)
        document = json.loads((await run("top", "--json", "--admin", front.admin_url)).stdout)

        assert frame.exit_code == 0, frame.output
        for word in ("glm-1", "up", "Last decisions", "only", "ok", "Last 5 minutes", "90k"):
            assert word in frame.stdout
        assert frame.stdout.count("■") == 3
        assert document["replicas"][0]["name"] == "glm-1"
        assert [row["number"] for row in document["decisions"]] == [3, 2, 1]
        assert len(document["residents"]["glm-1"]["largest"]) == 3


async def test_who_is_held_is_in_the_frame() -> None:
    """
    How many, which, and what keeps each out.
    """
    go = asyncio.Event()

    async def wait(_: QuickEngine) -> None:
        await go.wait()

    async with quick_engine() as engine, ramjet({"a": {"url": engine.url, "pool_tokens": 40_000}}) as front:
        engine.answer_when = wait
        async with httpx.AsyncClient(timeout=20) as client, asyncio.TaskGroup() as tasks:
            for name in ("one", "two"):
                tasks.create_task(client.post(front.url + CHAT, json=body(f"{name} " * 30_000)))
            async with asyncio.timeout(10):
                while not len(front.router.admission):  # noqa: ASYNC110 - a ledger has no event
                    await asyncio.sleep(0.01)
            frame = await run("top", "--once", "--admin", front.admin_url)
            go.set()

        assert "Held: 1" in frame.stdout
        assert "a no_room" in frame.stdout


async def test_q_ends_it() -> None:
    """
    On a terminal it goes on until somebody presses q, and leaves the terminal as it was.
    """
    async with quick_engine() as engine, ramjet({"glm-1": engine.url}) as front:
        ours, theirs = pty.openpty()
        command = (sys.executable, "-m", "ramjet", "top", "--admin", front.admin_url)
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        process = await asyncio.create_subprocess_exec(
            *command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ
        )
        os.close(theirs)
        seen = bytearray()
        async with asyncio.timeout(60):
            while b"Last decisions" not in seen:
                seen += await asyncio.to_thread(os.read, ours, 65_536)
            os.write(ours, b"q")
            status = await process.wait()
        os.close(ours)

        assert status == 0
        assert b"\x1b[?1049h" in seen


async def test_what_goes_wrong_is_told_with_its_remedy(tmp_path: Path) -> None:
    """
    Nobody there, somebody else there, no token, a wrong one, an unreadable file: one line each, and not 0.
    """
    right, empty = tmp_path / "token", tmp_path / "empty"
    right.write_text(TOKEN + "\n")
    empty.write_text("")
    async with scripted_engine() as engine, ramjet({"a": engine.url}, admin_token=TOKEN) as front:
        here, nowhere = front.admin_url, dead_url()
        cases: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
            (("top", "--once", "--admin", nowhere), {}, f"nothing listens at {nowhere}"),
            (("top", "--json", "--admin", engine.url), {}, "does not answer as a Ramjet's admin port"),
            (("top", "--once", "--admin", front.url), {}, "does not answer as a Ramjet's admin port"),
            (("explain", "-", "--admin", front.url), {}, "does not answer as a Ramjet's admin port"),
            (
                ("top", "--once", "--admin", here),
                {},
                "asks for its admin_token: set RAMJET_ADMIN_TOKEN, or use --token-file",
            ),
            (("top", "--once", "--admin", here), {"RAMJET_ADMIN_TOKEN": "wrong-token"}, "asks for its admin_token"),
            (("top", "--once", "--admin", here, "--token-file", str(empty)), {}, "is empty"),
            (("top", "--once", "--admin", here, "--token-file", str(tmp_path / "none")), {}, "No such file"),
            (("explain", "-", "--admin", here, "--header", "nonsense"), {}, "write it as NAME:VALUE"),
        )
        for arguments, environ, told in cases:
            failed = await run(*arguments, given=b"{}", **environ)
            assert (failed.exit_code > 0, told in failed.stderr, failed.stdout) == (True, True, ""), failed.output
            assert "Traceback" not in failed.output

        assert (await run("top", "--once", "--admin", here, "--token-file", str(right))).exit_code == 0
        assert (await run("top", "--once", "--admin", here, RAMJET_ADMIN_TOKEN=TOKEN)).exit_code == 0
        assert "--token " not in (await run("top", "--help")).stdout
