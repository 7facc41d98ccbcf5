"""HTTP itself: framing, sizes, codings, paths nobody knows, and bytes that are meant to be read in two ways."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest

from tests.bugs import case
from tests.bugs.wire import Reply, ask, body_for, chunked, request, wire
from tests.rig import ramjet
from tests.scripted import Connection, Seen, scripted_engine

CHAT = "/v1/chat/completions"
BODY = body_for(CHAT, "hello")
ZSTD = b"\x28\xb5\x2f\xfd\x04\x58\x29\x00\x00hello\x93\x81\x00\x00"
"""A frame of zstd as it comes over the wire; nobody here needs to read it."""


async def echo(connection: Connection, seen: Seen) -> None:
    """Answers with the length of what came."""
    await connection.answer(b"%d" % len(seen.body))


# -- sizes --------------------------------------------------------------------------------------------------------------


@case(56)
@pytest.mark.parametrize("mb", [0.9, 1.1, 9, 40])
async def test_a_real_prompts_size_is_no_obstacle(mb: float) -> None:
    """
    With a length or in chunks, by default.
    """
    content = b"x" * int(mb * 1e6)
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        for raw in (
            request(CHAT, content),
            request(CHAT, chunked(content[:1_000], content[1_000:]), "Transfer-Encoding: chunked"),
        ):
            assert (await ask(front.url, raw)).body == b"%d" % len(content)


@case(56)
@pytest.mark.parametrize("form", ["length", "chunked"])
@pytest.mark.parametrize("pause_s", [0.0, 0.02])
async def test_a_body_above_the_limit_gets_a_readable_refusal(form: str, pause_s: float) -> None:
    """
    A client that sends all before it reads, fast or slow, finds a 413 and no reset; it is in the log.
    """
    pieces = [b"x" * 50_000] * 20
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}, limits={"body_bytes": 200_000}) as front:
        async with wire(front.url) as line:
            framing = "Transfer-Encoding: chunked" if form == "chunked" else f"Content-Length: {20 * 50_000}"
            line.send(request(CHAT, b"", framing))
            for piece in pieces:
                line.send(b"%x\r\n%s\r\n" % (len(piece), piece) if form == "chunked" else piece)
                await line.writer.drain()
                await asyncio.sleep(pause_s)
            line.send(b"0\r\n\r\n" if form == "chunked" else b"")
            reply = await line.reply()

        assert (reply.status, reply.complete, reply.header("connection")) == (413, True, "close")
        assert "limits.body_bytes = 200,000" in reply.json()["error"]["message"]
        assert [(record.outcome, record.status) for record in front.records] == [("refused", 413)]
        assert not engine.seen


# -- codings ------------------------------------------------------------------------------------------------------------

CODED = {
    "gzip": ("gzip", gzip.compress(BODY)),
    "deflate": ("deflate", zlib.compress(BODY)),
    "zstd": ("zstd", ZSTD),
    "two": ("gzip, zstd", ZSTD),
    "br": ("br", b"\x0b\x02\x80hello\x03"),
    "wrong label": ("gzip", BODY),
    "truncated": ("gzip", gzip.compress(BODY)[:-6]),
    "bomb": ("gzip", 200 * gzip.compress(bytes(1 << 20), 9)),
    "unknown": ("rot13", BODY),
}


@case(57)
@pytest.mark.parametrize("what", CODED)
async def test_a_compressed_body_is_the_engines_to_open(what: str) -> None:
    """
    Byte for byte with its label, placed without a prompt, never unpacked here, and in the log.
    """
    label, content = CODED[what]
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        reply = await ask(front.url, request(CHAT, content, f"Content-Encoding: {label}"))

        assert (reply.status, reply.body) == (200, b"%d" % len(content))
        assert (engine.seen[0].body, engine.seen[0].header("content-encoding")) == (content, label)
        assert [(record.outcome, record.reason, record.turn) for record in front.records] == [("ok", "no_prompt", None)]


@case(57)
async def test_what_is_said_to_be_plain_is_plain() -> None:
    """
    `identity` is no compression, and no reason to lose the conversation.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url, "b": f"{engine.url}/b"}) as front:
        await ask(front.url, request(CHAT, BODY, "Content-Encoding: identity"))

        assert front.records[0].turn == 1


@case(58)
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("offer", ["gzip", None])
async def test_a_compressed_answer_can_be_opened(status: int, stream: bool, offer: str | None) -> None:
    """
    An engine that compresses without being asked: what comes is what its label says, the errors too.
    """
    content = b'{"usage":{"prompt_tokens":9}}' * 20

    async def script(connection: Connection, seen: Seen) -> None:
        kind = "text/event-stream" if stream else "application/json"
        await connection.answer(gzip.compress(content), status=status, kind=kind, content_encoding="gzip")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        lines = [f"Accept-Encoding: {offer}"] if offer else []
        reply = await ask(front.url, request(CHAT, body_for(CHAT, "x", stream=stream), *lines))

        assert (reply.status, reply.header("content-encoding")) == (status, "gzip")
        assert gzip.decompress(reply.body) == content
        assert front.records[0].usage.prompt_tokens is None


@case(58)
async def test_nobody_offers_compression_in_the_clients_name() -> None:
    """
    On a path that is looked into nothing is offered at all, elsewhere exactly what the client did.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        await ask(front.url, request(CHAT, BODY))
        await ask(front.url, request(CHAT, BODY, "Accept-Encoding: gzip, zstd"))
        await ask(front.url, request("/tokenize", b"{}"))
        await ask(front.url, request("/tokenize", b"{}", "Accept-Encoding: zstd"))

        assert [seen.header("accept-encoding") for seen in engine.seen] == [None, None, None, "zstd"]


# -- framing ------------------------------------------------------------------------------------------------------------


@case(59)
async def test_headers_of_one_connection_stay_on_it() -> None:
    """
    In both directions, also those that `Connection` names; what is the client's own passes.
    """
    hop = ("Keep-Alive: timeout=9", "TE: trailers", "Trailer: X-Sum", "Upgrade: h2c", "Proxy-Authorization: Basic eA==")

    async def script(connection: Connection, seen: Seen) -> None:
        lines = ("Connection: X-Theirs, keep-alive", "X-Theirs: 1", "X-Kept: 2", "Proxy-Authenticate: Basic", *hop[:3])
        head = "\r\n".join(("HTTP/1.1 200 OK", *lines, "content-length: 2", "", ""))
        await connection.send(head.encode() + b"{}")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        lines = ("Connection: X-Mine, Upgrade", "X-Mine: 1", "X-Kept: 2", *hop)
        reply = await ask(front.url, request(CHAT, BODY, *lines))

        gone = {"connection", "x-mine", "x-theirs", "proxy-authenticate"} | {
            line.partition(":")[0].lower() for line in hop
        }
        assert (reply.status, reply.body, reply.header("x-kept")) == (200, b"{}", "2")
        assert not gone & {name.lower() for name, _ in reply.headers}
        assert not gone & {name.lower() for name, _ in engine.seen[0].headers}
        assert engine.seen[0].header("x-kept") == "2"


@case(59)
async def test_a_clients_close_closes_its_own_connection_only() -> None:
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        for _ in range(3):
            async with wire(front.url) as line:
                line.send(request(CHAT, BODY, "Connection: close"))
                assert (await line.reply()).complete
                assert await line.closed()

        assert (len(engine.seen), engine.connections) == (3, 1)


@case(59)
async def test_an_engines_close_does_not_close_the_clients_connection() -> None:
    async def script(connection: Connection, seen: Seen) -> None:
        await connection.answer(b"{}", connection="close")
        connection.writer.close()

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        for _ in range(3):
            line.send(request(CHAT, BODY))
            assert (await line.reply()).body == b"{}"

        assert engine.connections == 3


@case(59)
async def test_http_1_0_clients_get_answers_they_can_read() -> None:
    """
    No chunks; a stream ends with its connection.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.start_stream()
        await connection.chunk(b"data: 1\n\n")
        await connection.chunk(b"")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, request(CHAT, body_for(CHAT, "x", stream=True), version="1.0"))

        assert (reply.status, reply.header("transfer-encoding"), reply.body) == (200, None, b"data: 1\n\n")


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKS = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLING = {
    "length and chunks": HEAD + b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": HEAD + b"content-length: 0\r\ncontent-length: 36\r\n\r\n" + HIDDEN,
    "a list of lengths": HEAD + b"content-length: 0, 36\r\n\r\n" + HIDDEN,
    "a length with a sign": HEAD + b"content-length: +0\r\n\r\n" + HIDDEN,
    "a length with an underscore": HEAD + b"content-length: 3_6\r\n\r\n" + HIDDEN,
    "a negative length": HEAD + b"content-length: -1\r\n\r\n" + HIDDEN,
    "a folded header": HEAD + b"x-a: b\r\n transfer-encoding: chunked\r\ncontent-length: 36\r\n\r\n" + HIDDEN,
    "a folded length": HEAD + b"content-length:\r\n 36\r\n\r\n" + HIDDEN,
    "space before the colon": HEAD + b"content-length : 36\r\n\r\n" + HIDDEN,
    "xchunked": HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked, identity": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked twice": HEAD + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked, then identity": HEAD
    + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "a tab before chunked": HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a chunk size in 0x": CHUNKS + b"0x0\r\n\r\n" + HIDDEN,
    "a negative chunk size": CHUNKS + b"-1\r\n\r\n" + HIDDEN,
    "a chunk size that overflows": CHUNKS + b"10000000000000000\r\n" + HIDDEN,
    "a chunk shorter than it is": CHUNKS + b"3\r\nhello\r\n0\r\n\r\n" + HIDDEN,
    "chunk lines of bare LF": CHUNKS + b"0\n\n" + HIDDEN,
    "a chunk extension with a bare LF": CHUNKS + b"5;a\nxxxxx\r\n0\r\n\r\n" + HIDDEN,
    "NUL in a header": HEAD + b"x-a: b\0c\r\ncontent-length: 36\r\n\r\n" + HIDDEN,
    "CR in a header": HEAD + b"x-a: b\rcontent-length: 36\r\ncontent-length: 0\r\n\r\n" + HIDDEN,
    "a header line of bare LF": HEAD + b"x-a: b\ncontent-length: 36\r\n\r\n" + HIDDEN,
    "a head of bare LF": HEAD.replace(b"\r", b"") + b"content-length: 0\n\n" + HIDDEN,
    "a header without a name": HEAD + b": 36\r\ncontent-length: 0\r\n\r\n" + HIDDEN,
    "no host": b"POST /x HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    "two hosts": b"POST /x HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 0\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
}


@case(59)
@pytest.mark.parametrize("late", [False, True])
async def test_what_can_be_read_in_two_ways_is_not_read_at_all(late: bool) -> None:
    """
    Refused, in one packet or in two: whatever is hidden behind never reaches an engine.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}, limits={"body_gap_s": 0.2}) as front:
        async with asyncio.TaskGroup() as tasks:
            statuses = {
                shape: tasks.create_task(smuggle(front.url, raw, late=late), name=shape)
                for shape, raw in SMUGGLING.items()
            }
        await front.settled()

        assert {shape: task.result() for shape, task in statuses.items() if task.result() not in {400, 408}} == {}
        assert not engine.seen


async def smuggle(url: str, raw: bytes, *, late: bool) -> int:
    async with wire(url) as line:
        cut = raw.index(b"\r\n\r\n") + 4 if late and b"\r\n\r\n" in raw else len(raw)
        line.send(raw[:cut])
        await asyncio.sleep(0.03 if late else 0)
        line.send(raw[cut:])
        reply = await line.reply(within_s=5)
        # Behind a head that was taken, what the client still sends is read and thrown away for a while.
        assert late or await line.closed()
        return reply.status


@case(59)
async def test_a_body_that_looks_like_a_request_is_a_body() -> None:
    """
    Whatever the method: the length rules, and the connection goes on behind it.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        for method in ("GET", "DELETE", "POST"):
            line.send(request("/x", HIDDEN, method=method))
            assert (await line.reply()).body == b"%d" % len(HIDDEN)

        assert [(seen.method, seen.target) for seen in engine.seen] == [
            ("GET", "/x"), ("DELETE", "/x"), ("POST", "/x"),
        ]  # fmt: skip


@case(59)
async def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        line.send(b"".join(request(f"/{number}", b"x" * number) for number in range(5)))
        replies = [await line.reply() for _ in range(5)]

        assert [reply.body for reply in replies] == [b"%d" % number for number in range(5)]
        assert [seen.target for seen in engine.seen] == [f"/{number}" for number in range(5)]


@case(57, 59)
async def test_a_transfer_coding_that_is_taken_off_is_not_lost() -> None:
    """
    `gzip, chunked`: the gzip would reach the engine without its label. It is refused.
    """
    raw = request(CHAT, chunked(gzip.compress(BODY)), "Transfer-Encoding: gzip, chunked")
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, raw)

        assert reply.status in {400, 501}
        assert not engine.seen


@case(59)
@pytest.mark.parametrize("value", [b"caf\xe9", "café".encode()])
async def test_bytes_of_headers_are_not_lost(value: bytes) -> None:
    """
    Latin-1 is old, but not ours to drop, in either direction.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\nx-text: " + value + b"\r\ncontent-length: 2\r\n\r\n{}")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, request(CHAT, BODY, f"X-Text: {value.decode('latin-1')}"))

        # What is no UTF-8 comes as the UTF-8 of the same text: aiohttp writes headers in no other way.
        assert engine.seen[0].header("x-text") in {value.decode("latin-1"), "caf\xc3\xa9"}
        assert reply.header("x-text") in {value.decode("latin-1"), "caf\xc3\xa9"}


# -- paths and methods ----------------------------------------------------------------------------------------------------

UNKNOWN = {
    "/v1/messages/count_tokens": "POST",
    "/v1/rerank": "POST",
    "/tokenize": "POST",
    "/v1/audio/transcriptions": "POST",
    "/v1/responses/resp_1": "DELETE",
    "/v1/files/x": "PATCH",
    "/get_server_info": "GET",
    "/metrics": "GET",
    "/v1/models/glm": "GET",
    "/a%0Ab": "GET",
    "/a%2F..%2Fb?x=%0D%0Ay": "GET",
    "/": "GET",
    "/v1/x?key=a/b?c": "GET",
}


@case(62)
@pytest.mark.parametrize("path", UNKNOWN)
async def test_what_nobody_knows_is_passed_on(path: str) -> None:
    """
    Same path, method, body and key.
    """
    method = UNKNOWN[path]
    multipart = "Content-Type: multipart/form-data; boundary=x"
    content = b"--x\r\ncontent-disposition: form-data; name=file\r\n\r\n\0\xff\r\n--x--\r\n"
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        raw = request(path, content, multipart, "Authorization: Bearer mine", method=method)
        reply = await ask(front.url, raw)

        assert reply.status == 200
        (seen,) = engine.seen
        assert (seen.method, seen.target, seen.body) == (method, path, content)
        assert seen.header("authorization") == "Bearer mine"
        assert [record.endpoint for record in front.records] == ["other"]


@case(62)
@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("http://example.test/v1/x?y=1", "/v1/x?y=1"),
        ("http://example.test?y=1", "/?y=1"),
        ("http://example.test", "/"),
        ("*", "/"),
    ],
)
async def test_a_target_in_another_form_is_served_or_refused_in_the_log(target: str, sent: str) -> None:
    """
    A client that takes Ramjet for a proxy names the host too; `OPTIONS *` asks the server itself.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        reply = await ask(front.url, request(target, None, method="OPTIONS"))

        assert reply.complete
        assert [seen.target for seen in engine.seen] == [sent] * (1 if "?" in target else len(engine.seen))
        assert len(front.records) == 1


@case(62)
async def test_engine_administration_is_not_open_by_accident() -> None:
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front:
        for path in ("/flush_cache", "/abort_request", "//flush_cache", "/./flush_cache?x", "http://x/flush%5Fcache"):
            assert (await ask(front.url, request(path))).status == 403

        assert not engine.seen


@case(62)
async def test_an_expectation_is_met_here_and_not_sent_on() -> None:
    """
    `100-continue` is answered before the body comes, also where the engine would never do so.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        line.send(request(CHAT, b"", f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.send(BODY)

        assert (await line.reply()).body == b"%d" % len(BODY)
        assert engine.seen[0].header("expect") is None


@case(62)
async def test_who_is_refused_is_not_told_to_go_on() -> None:
    """
    A body that is too long is refused before it is sent; what nobody knows how to meet is refused too.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}, limits={"body_bytes": 10}) as front:
        for lines, status in (
            ((f"Content-Length: {len(BODY)}", "Expect: 100-continue"), 413),
            (("Content-Length: 2", "Expect: the-unexpected"), 417),
        ):
            assert (await ask(front.url, request(CHAT, b"", *lines))).status == status

        assert not engine.seen


@case(59)
@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
async def test_an_upgrade_is_not_promised(upgrade: str) -> None:
    """
    Clients offer HTTP/2 in passing; they are answered in HTTP/1.1, and their connection goes on.
    """
    async with scripted_engine(echo) as engine, ramjet({"a": engine.url}) as front, wire(front.url) as line:
        lines = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAMAAABk")
        line.send(request(CHAT, BODY, *lines))
        reply = await line.reply()

        assert (reply.status, reply.body) == (200, b"%d" % len(BODY))
        assert engine.seen[0].header("upgrade") is None


CORS = {"access_control_allow_origin": "https://app.test", "access_control_allow_headers": "authorization"}


@case(63)
async def test_a_browsers_preflight_is_answered_by_the_engine() -> None:
    """
    Without a key, and the engine's CORS headers stay on its answers and its errors.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        status = {"OPTIONS": 204}.get(seen.method, 200 if seen.header("authorization") else 401)
        if status == 204:
            await connection.send(b"HTTP/1.1 204 No Content\r\naccess-control-allow-origin: https://app.test\r\n\r\n")
        else:
            await connection.answer(b"{}", status=status, **CORS)

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}) as front:
        asking = ("Origin: https://app.test", "Access-Control-Request-Method: POST")
        preflight = await ask(front.url, request(CHAT, None, *asking, method="OPTIONS"))
        real = await ask(front.url, request(CHAT, BODY, asking[0], "Authorization: Bearer k"))
        refused = await ask(front.url, request(CHAT, BODY, asking[0]))

        assert [reply.status for reply in (preflight, real, refused)] == [204, 200, 401]
        for reply in (preflight, real, refused):
            assert reply.header("access-control-allow-origin") == "https://app.test"
        assert engine.seen[0].header("access-control-request-method") == "POST"


@case(63)
async def test_a_preflight_has_no_key_and_needs_none() -> None:
    """
    Browsers never send one with it: where Ramjet asks for keys, the question itself is let through.
    """

    async def script(connection: Connection, seen: Seen) -> None:
        await connection.send(b"HTTP/1.1 204 No Content\r\naccess-control-allow-origin: *\r\n\r\n")

    async with scripted_engine(script) as engine, ramjet({"a": engine.url}, client_keys=["k3y-of-a-client"]) as front:
        asking = ("Origin: https://app.test", "Access-Control-Request-Method: POST")
        reply: Reply = await ask(front.url, request(CHAT, None, *asking, method="OPTIONS"))

        assert (reply.status, len(engine.seen)) == (204, 1)
        assert (await ask(front.url, request(CHAT, BODY))).status == 401


async def test_models_come_through_whatever_one_replica_says() -> None:
    """
    Nested without end, cut off, or no JSON: it is left out, and the others are listed.
    """

    def says(content: bytes) -> object:
        async def script(connection: Connection, seen: Seen) -> None:
            await connection.answer(content)

        return script

    good = json.dumps({"data": [{"id": "m"}]}).encode()
    for bad in (b"[" * 100_000 + b"]" * 100_000, b'{"data":[{"id"', b"\xff", b'{"data":{"id":1}}', b""):
        async with scripted_engine(says(bad)) as one, scripted_engine(says(good)) as two:  # type: ignore[arg-type]
            async with ramjet({"a": one.url, "b": two.url}) as front:
                reply = await ask(front.url, request("/v1/models", None, method="GET"))

                assert [entry["id"] for entry in reply.json()["data"]] == ["m"]
