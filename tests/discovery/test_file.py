"""Replicas in a file that others write: what may stand in it, and what is no word."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ramjet.discovery import file
from ramjet.discovery.file import File, replicas_in
from tests.discovery.support import heard, until
from tests.rig import ramjet

ONE = {"name": "a", "url": "http://10.0.0.7:30000"}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The file is looked at a hundred times a second.
    """
    monkeypatch.setattr(file, "_LOOK_EVERY_S", 0.01)


@pytest.mark.parametrize(
    "text",
    [
        "- {name: a, url: http://10.0.0.7:30000}\n- http://[fd00::8]:30000\n",
        "replicas:\n- {name: a, url: http://10.0.0.7:30000}\n- url: http://[fd00::8]:30000\n",
        json.dumps([ONE, {"url": "http://[fd00::8]:30000"}]),
        json.dumps({"replicas": [ONE, "http://[fd00::8]:30000"]}, indent=2),
    ],
)
def test_a_list_of_replicas(tmp_path: Path, text: str) -> None:
    """
    YAML or JSON, by itself or under its key as in the configuration; who has no name is called by its address.
    """
    path = tmp_path / "replicas"
    path.write_text(text)

    found = {each.name: each.url for each in replicas_in(path)}

    assert found == {"a": "http://10.0.0.7:30000", "fd00--8-30000": "http://[fd00::8]:30000"}


def test_what_else_is_said_of_one_is_kept(tmp_path: Path) -> None:
    """
    Any key of a replica.
    """
    path = tmp_path / "replicas"
    path.write_text(json.dumps([ONE | {"engine": "vllm", "ranks": 2}]))

    assert replicas_in(path)[0].more == {"engine": "vllm", "ranks": 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "lists no replicas; write replicas: []"),
        ("replicas:\n", "lists no replicas; write replicas: []"),
        ("listen: x\n", "lists no replicas; write replicas: []"),
        ("glm", "must be a list of replicas"),
        ("replicas: {a: http://h}", "must be a list of replicas"),
        ("- {name: a}", "replicas.0: has no url; write it as {url: 'http://10.0.0.7:30000'}"),
        ("- http://h:1\n- 7", "replicas.1: has no url"),
        ("- {name: a, url: http://h:1}\n- {name: a, url: http://h:2}", "the name of a is given twice"),
        ("- {name: a, url: http://h:1}\n- {name: b, url: http://h:1}", "the url of a is given twice"),
        ("- {name: a", "line 1"),
        ("- {url: http://h:1, url: http://h:2}", "the key url is given twice"),
    ],
)
def test_what_is_no_word(tmp_path: Path, text: str, told: str) -> None:
    """
    The message names the file and the remedy. An empty file is one that is being written, or that nobody could write.
    """
    path = tmp_path / "replicas"
    path.write_text(text)

    with pytest.raises(ValueError, match="replicas: ") as refused:
        replicas_in(path)

    assert told in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("url", ["http://user:hunter2@h:1", "http://[::1", "ftp://h", ""])
async def test_a_url_that_is_none_is_told_of_without_what_is_secret_in_it(tmp_path: Path, url: str) -> None:
    """
    By its host, and with what would be one; nothing else of the file counts then.
    """
    path = tmp_path / "replicas"
    path.write_text(json.dumps([ONE, url]))
    sources = [{"name": "list", "file": {"path": str(path)}}]
    async with ramjet({}, watch=True, discovery={"sources": sources}) as front:
        listed = front.running.control.membership.heard["list"]
        await until(lambda: listed.error is not None)

    assert "url: " in str(listed.error)
    assert "hunter2" not in str(listed.error)
    assert len(front.router.fleet) == 0


async def test_the_file_is_read_when_it_has_changed(tmp_path: Path) -> None:
    """
    An empty list is a word, an empty file is none, and neither is one that is gone; each failure is told.
    """
    path = tmp_path / "replicas"

    def write(listed: Any) -> None:
        draft = tmp_path / "draft"
        draft.write_text(listed if isinstance(listed, str) else json.dumps(listed))
        draft.replace(path)

    async with heard(File(name="file", path=path)) as ear:
        await ear.fails("cannot be read: No such file")
        write([ONE])
        await ear.says({"a": ONE["url"]})
        words = len(ear.words)
        write("")
        await ear.fails("lists no replicas")
        path.unlink()
        await ear.fails("is not there any more")
        await asyncio.sleep(0.1)
        assert len(ear.words) == words
        write([ONE, "http://10.0.0.8:1"])
        await ear.says({"a": ONE["url"], "10.0.0.8-1": "http://10.0.0.8:1"})
        ear.refuses = "engine: there is no such engine"
        write([ONE | {"engine": "x"}])
        await ear.fails("no such engine")
        ear.refuses = None
        await ear.says({"a": ONE["url"]})
        write([])
        await ear.says({})


async def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    """
    Half a list is a list, of half of the replicas.
    """
    path = tmp_path / "replicas"
    listed = [f"http://10.0.0.{number}:1" for number in range(8)]
    path.write_text(json.dumps(listed))
    async with heard(File(name="file", path=path)) as ear:
        await ear.says({each.removeprefix("http://").replace(":", "-"): each for each in listed})
        for _ in range(3):
            with path.open("w") as out:
                for each in listed:
                    out.write(f"- {each}\n")
                    out.flush()
                    await asyncio.sleep(0.004)
        await asyncio.sleep(0.2)

    assert {len(word) for word in ear.words} == {8}
