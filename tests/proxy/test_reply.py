"""What a client is sent: the head that fits what it can take, and bytes framed as that says."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from ramjet.proxy.headers import Head
from ramjet.proxy.reply import Reply
from tests.proxy.test_exchange import raw_writes_of

LINES = b"x-a: b\r\n"


async def told(
    head: Head, *, version: str = "1.1", method: str = "POST", given: str = "", is_last: bool = False
) -> tuple[str, list[str], bytes, bool]:
    """Status line, fields and body of an answer that is `hello`, and whether the connection stays."""
    stays = []

    async def play(request: web.BaseRequest) -> Reply:
        reply = Reply(request, head, more=b"x-request-id: r\r\n", is_last=is_last)
        stays.append(reply.keep_alive)
        reply.put(b"hello", is_end=True)
        return reply

    data = b"".join(await raw_writes_of(play, version, method, given))
    top, _, body = data.partition(b"\r\n\r\n")
    status, *fields = top.decode().split("\r\n")
    return status, fields, body, stays[0]


SIZED = Head(200, b"OK", b"x-a: b\r\ncontent-length: 5\r\n", is_sized=True)
UNSIZED = Head(200, b"Fine", LINES, is_sized=False)
KEEP, CHUNKED = "connection: keep-alive\r\n", b"5\r\nhello\r\n0\r\n\r\n"
PASSED = ["x-a: b", "x-request-id: r"]


@pytest.mark.parametrize(
    ("asked", "head", "more", "body", "stays"),
    [
        ({}, UNSIZED, ["transfer-encoding: chunked"], CHUNKED, True),
        ({"is_last": True}, UNSIZED, ["transfer-encoding: chunked", "connection: close"], CHUNKED, False),
        ({"version": "1.0", "given": KEEP}, UNSIZED, [], b"hello", False),
        ({}, SIZED, [], b"hello", True),
        ({"given": "connection: close\r\n"}, SIZED, ["connection: close"], b"hello", False),
        ({"version": "1.0"}, SIZED, [], b"hello", False),
        ({"version": "1.0", "given": KEEP}, SIZED, ["connection: keep-alive"], b"hello", True),
    ],
)  # fmt: skip
async def test_the_framing_is_one_that_the_client_can_take(
    asked: dict[str, Any], head: Head, more: list[str], body: bytes, stays: bool
) -> None:
    """
    An old client is shown the end of an answer of unknown length by the connection's.
    """
    status, fields, sent, kept = await told(head, **asked)

    assert (status, sent, kept) == (f"HTTP/{asked.get('version', '1.1')} 200 {head.reason.decode()}", body, stays)
    assert [field for field in fields if field != "content-length: 5"] == PASSED + more
    assert ("content-length: 5" in fields) is head.is_sized


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("POST", 304)])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_an_answer_without_a_body_has_none(method: str, status: int, version: str) -> None:
    """
    And no framing that would announce one; the connection stays.
    """
    head = Head(status, b"So", LINES, is_sized=False)

    line, fields, body, stays = await told(head, version=version, method=method, given=KEEP)

    assert (line, body, stays) == (f"HTTP/{version} {status} So", b"", True)
    assert fields == PASSED + (["connection: keep-alive"] if version == "1.0" else [])


async def test_a_head_keeps_the_length_of_what_it_does_not_send() -> None:
    _, fields, body, _ = await told(SIZED, method="HEAD")

    assert (fields, body) == (["x-a: b", "content-length: 5", "x-request-id: r"], b"")
