"""The admin port of a Ramjet that serves, for whoever asks it from a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

TIMEOUT_S = 10.0
TOKEN_VARIABLE = "RAMJET_ADMIN_TOKEN"  # noqa: S105 - the variable's name

_SOMEBODY_ELSE = "does not answer as a Ramjet's admin port"


class NoAnswer(Exception):
    """Nobody answers there, or not as asked; the message says what to do."""


class Admin:
    """One admin port.

    Args:
        url: where it is, without a path.
        token: its `admin_token`; None where none is set.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def explain(self, body: bytes, path: str, headers: dict[str, str]) -> dict[str, Any]:
        """Where a request with this body would go now.

        Raises:
            NoAnswer: it cannot be asked.
        """
        with self._asking("/api/explain", "POST", content=body, params={"path": path}, headers=headers) as answer:
            answer.read()
            told = answer.json()
            if not (isinstance(told, dict) and "decision" in told):
                raise NoAnswer(f"{self.url} {_SOMEBODY_ELSE}: see --admin")
            return told

    def watch(self) -> Iterator[dict[str, Any]]:
        """The parts of the picture, by name: all of them again after each change, once a second, for ever.

        Raises:
            NoAnswer: it cannot be asked, or has ended.
        """
        parts: dict[str, Any] = {}
        with self._asking("/api/events", "GET") as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise NoAnswer(f"{self.url} {_SOMEBODY_ELSE}: see --admin")
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                for name, part in msgspec.json.decode(line[len("data: ") :]).items():
                    if part is None:
                        parts.pop(name, None)
                    else:
                        parts[name] = part
                yield parts
        raise NoAnswer(f"{self.url} has ended")

    @contextmanager
    def _asking(self, path: str, method: str, **more: Any) -> Iterator[httpx.Response]:
        headers = {**more.pop("headers", {}), **self._headers}
        try:
            with (
                httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
                client.stream(method, self.url + path, headers=headers, **more) as answer,
            ):
                if answer.status_code != 200:
                    raise NoAnswer(_refusal(self.url, answer))
                yield answer
        except httpx.ConnectError:
            hint = "is a Ramjet serving, and is --admin its admin address?"
            raise NoAnswer(f"nothing listens at {self.url}: {hint}") from None
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, ValueError) as error:
            raise NoAnswer(f"{self.url} {_SOMEBODY_ELSE}: {type(error).__name__}") from None


def document(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts as one document: what is there of each replica or request is together."""
    told: dict[str, Any] = {"residents": {}, "decisions": []}
    for name, part in parts.items():
        kind, _, key = name.partition("/")
        if kind == "residents":
            told["residents"][key] = part
        elif kind == "decision":
            told["decisions"].append(part)
        else:
            told[kind] = part
    told["decisions"].sort(key=lambda row: -row["number"])
    return told


def token_of(path: Path | None, variable: str | None) -> str | None:
    """The token from a file, else from the environment; None where neither is given.

    Raises:
        NoAnswer: the file cannot be read, or holds nothing that a header can.
    """
    if path is None:
        token = (variable or "").strip()
    else:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NoAnswer(f"--token-file {path}: {getattr(error, 'strerror', None) or 'is no text'}") from None
        if not token:
            raise NoAnswer(f"--token-file {path}: is empty; write admin_token into it")
    if not (token.isascii() and token.isprintable()):
        raise NoAnswer("the token has characters that no header can hold")
    return token or None


def _refusal(url: str, answer: httpx.Response) -> str:
    answer.read()
    try:
        said = str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        said = f"status {answer.status_code}"
    if answer.status_code == 401 and "show admin_token" in said:
        return f"{url} asks for its admin_token: set {TOKEN_VARIABLE}, or use --token-file"
    if answer.status_code == 404:
        return f"{url} is no Ramjet's admin port, or that of an older one"
    return f"{url}: {said}"
