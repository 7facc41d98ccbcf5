"""What is secret stays so: TLS, keys at the door, and nothing of them in anything that is written."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramjet.engines.known import PATHS
from tests.operations.support import CHAT, QUICK_HEALTH, Live, address_of, body, config, live, sent, until
from tests.rig import ramjet
from tests.scripted import Connection, Seen, dead_url, scripted_engine

KEY = "a-client-key"
OTHER = "another-client-key"


# -- TLS ----------------------------------------------------------------------------------------------------------------


def certificate(directory: Path, name: str = "ramjet") -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    made, key = directory / f"{name}.pem", directory / f"{name}.key"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    files = ("-keyout", str(key), "-out", str(made))
    command = (openssl, "req", "-x509", "-nodes", "-days", "2", *curve, *subject, *files)
    subprocess.run(command, check=True, capture_output=True)
    return made, key


async def test_clients_are_served_over_tls(tmp_path: Path) -> None:
    """
    With the certificate that was given, streams included; without TLS nobody is served there.
    """
    made, key = certificate(tmp_path)

    async def stream(connection: Connection, seen: Seen) -> None:
        if seen.method == "GET":
            await connection.answer(b"{}")
            return
        await connection.start_stream()
        for _ in range(3):
            await connection.chunk(b"data: {}\n\n")
        await connection.chunk(b"")

    async with scripted_engine(stream) as engine:
        path = config(tmp_path / "ramjet.yaml", {"a": engine.url}, tls={"certificate": str(made), "key": str(key)})
        async with live(path) as served:
            assert served.url.startswith("https://")
            trusted = ssl.create_default_context(cafile=str(made))
            async with httpx.AsyncClient(verify=trusted) as client:
                answer = await client.post(served.url + CHAT, json=body(stream=True))
                assert (answer.status_code, answer.text) == (200, "data: {}\n\n" * 3)
                assert (await client.get(f"{served.url}/health")).status_code == 200
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"{served.url}/health")
                with pytest.raises(httpx.HTTPError):
                    await client.get(served.url.replace("https", "http") + "/health")

            old = ssl.create_default_context(cafile=str(made))
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            async with httpx.AsyncClient(verify=old) as client:
                assert (await client.get(f"{served.url}/health")).status_code == 200
            assert await served.stop() == 0
            assert "Traceback" not in served.written


async def test_a_renewed_certificate_is_taken_over(tmp_path: Path) -> None:
    """
    New connections see it, one that is open stays, and a pair that does not belong together changes nothing.
    """
    made, key = certificate(tmp_path)
    others = [certificate(tmp_path, name) for name in ("other", "third")]

    def trusting(*those: Path) -> httpx.AsyncClient:
        context = ssl.create_default_context()
        for each in those:
            context.load_verify_locations(each)
        return httpx.AsyncClient(verify=context)

    first = made.read_bytes()
    path = config(tmp_path / "ramjet.yaml", {"a": dead_url()}, tls={"certificate": str(made), "key": str(key)})
    async with live(path) as served, trusting(made) as before:
        health = f"{served.url}/health"
        assert (await before.get(health)).status_code == 503

        made.write_bytes(others[0][0].read_bytes())
        await until(lambda: "certificate_rejected" in served.written)
        (tmp_path / "first.pem").write_bytes(first)
        async with trusting(tmp_path / "first.pem") as still:
            assert (await still.get(health)).status_code == 503

        key.write_bytes(others[0][1].read_bytes())
        await until(lambda: "certificate_reloaded" in served.written)
        async with trusting(others[0][0]) as after, trusting(tmp_path / "first.pem") as late:
            assert (await after.get(health)).status_code == 503
            with pytest.raises(httpx.ConnectError):
                await late.get(health)
        assert (await before.get(health)).status_code == 503

        # As a mounted secret is renewed: both at once, by names that lead elsewhere.
        for file, new in zip((made, key), others[1], strict=True):
            (tmp_path / "link").symlink_to(new)
            (tmp_path / "link").replace(file)
        await until(lambda: served.written.count("certificate_reloaded") == 2)
        async with trusting(others[1][0]) as after:
            assert (await after.get(health)).status_code == 503
        assert "PRIVATE" not in served.written


@pytest.mark.parametrize("fault", ["no certificate", "another key", "missing", "only one", "unreadable"])
async def test_a_bad_certificate_is_a_clean_error_at_the_start(tmp_path: Path, fault: str) -> None:
    """
    One line that names the key or the file, no traceback, and an exit code.
    """
    made, key = certificate(tmp_path)
    tls: dict[str, Any] = {"certificate": str(made), "key": str(key)}
    if fault == "no certificate":
        made.write_text("not a certificate")
    elif fault == "another key":
        tls["key"] = str(certificate(tmp_path, "other")[1])
    elif fault == "missing":
        key.unlink()
    elif fault == "only one":
        del tls["key"]
    else:
        key.write_bytes(b"\x00\xff" * 100)
    path = config(tmp_path / "ramjet.yaml", {"a": dead_url()}, tls=tls)

    done = await asyncio.to_thread(
        subprocess.run,
        (sys.executable, "-m", "ramjet", "serve", "--config", str(path)),
        capture_output=True,
        check=False,
        timeout=30,
        text=True,
    )

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "tls." in done.stderr


# -- keys at the door -----------------------------------------------------------------------------------------------------


async def test_a_client_shows_one_of_the_keys() -> None:
    """
    401 in OpenAI's shape without one or with a wrong one, and nothing reaches a replica; the right one by any header.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, client_keys=[KEY, OTHER]) as front:
        async with httpx.AsyncClient() as client:
            for shown in (
                {},
                {"authorization": "Bearer wrong-wrong"},
                {"authorization": KEY},
                {"authorization": f"Basic {KEY}"},
                {"authorization": f"Bearer {KEY[:-1]}"},
                {"authorization": "Bearer"},
                {"x-api-key": f"{KEY}x"},
            ):
                for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/anything")):
                    answer = await client.request(method, front.url + path, headers=shown)
                    error = answer.json()["error"]
                    assert answer.status_code == 401
                    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
                    assert set(error) == {"message", "type", "param", "code"}
                    assert KEY not in answer.text
            assert engine.seen == []

            for shown in (
                {"authorization": f"Bearer {KEY}"},
                {"authorization": f"bearer {OTHER}"},
                {"x-api-key": KEY},
                {"api-key": OTHER},
                {"authorization": "Bearer wrong", "x-api-key": KEY},
            ):
                assert (await client.post(front.url + CHAT, json=body(), headers=shown)).status_code == 200
            assert (await client.get(f"{front.url}/health")).status_code == 200, "load balancers show no key"


async def test_a_key_in_odd_bytes_is_a_wrong_key() -> None:
    """
    401 as for any other, and no failure of Ramjet's.
    """
    async with scripted_engine() as engine, ramjet({"a": engine.url}, client_keys=[KEY]) as front:
        for line in (b"authorization: Bearer \xff\xfe", b"x-api-key: \xc3\x28", "x-api-key: schlüssel".encode()):
            raw = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + line + b"\r\nconnection: close\r\n\r\n"
            assert (await sent(front.url, raw)).startswith(b"HTTP/1.1 401")
        await front.settled()

        assert {record.outcome for record in front.records} == {"refused"}


async def test_a_clients_key_is_no_replicas_business() -> None:
    """
    Where Ramjet asks for keys, none of them reaches a replica, by whichever header; where it does not, they pass.
    """
    shown = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "api-key": OTHER, "proxy-authorization": KEY}
    async with scripted_engine() as engine, httpx.AsyncClient() as client:
        for keys, passes in (([KEY, OTHER], False), ([], True)):
            async with ramjet({"a": engine.url}, client_keys=keys) as front:
                engine.seen.clear()
                await client.post(front.url + CHAT, json=body(), headers=shown)
                await client.get(f"{front.url}/v1/models", headers=shown)
                await client.get(f"{front.url}/other", headers=shown)

                assert len(engine.seen) == 3
                for seen in engine.seen:
                    assert (KEY in repr(seen.headers)) is passes
                    assert (OTHER in repr(seen.headers)) is passes
                    assert seen.header("authorization") == (f"Bearer {KEY}" if passes else None)


@pytest.mark.parametrize("client_keys", [[], [KEY]])
async def test_a_replicas_key_takes_the_place_of_the_clients(client_keys: list[str]) -> None:
    """
    On requests, on the merged models, and on probes; each replica gets its own and nobody else's.
    """
    async with scripted_engine() as one, scripted_engine() as two, httpx.AsyncClient() as client:
        replicas: dict[str, str | dict[str, Any]] = {
            "a": {"url": one.url, "api_key": "key-of-a"},
            "b": {"url": two.url, "api_key": "key-of-b"},
        }
        shown = {"authorization": f"Bearer {KEY}", "x-api-key": KEY}
        async with ramjet(replicas, watch=True, health=QUICK_HEALTH, client_keys=client_keys) as front:
            for number in range(6):
                await client.post(front.url + CHAT, json=body(f"{number} " + "x" * 2_000), headers=shown)
            await client.get(f"{front.url}/v1/models", headers=shown)
            await until(lambda: all(sum(each.target == "/health" for each in e.seen) > 1 for e in (one, two)))
            await until(lambda: all({each.target for each in e.seen} >= set(PATHS) for e in (one, two)))

        for engine, key in ((one, "key-of-a"), (two, "key-of-b")):
            assert {seen.target for seen in engine.seen} >= {CHAT, "/v1/models", "/health", *PATHS}
            assert {seen.header("authorization") for seen in engine.seen} == {f"Bearer {key}"}
            assert {seen.header("x-api-key") for seen in engine.seen} == {None}


# -- nothing of it is written ---------------------------------------------------------------------------------------------


async def quoting_engine(connection: Connection, seen: Seen) -> None:
    """Fails in every way, and quotes in each what it was sent."""
    echo = b'{"error": {"message": "' + seen.target.encode() + repr(seen.headers).encode() + b'"}}'
    if seen.target.startswith("/health"):
        await connection.answer(b"x-s3cret-health-body", set_cookie="session=x-s3cret-cookie")
    elif b"fail-reset" in seen.body:
        connection.reset()
    elif b"fail-garbage" in seen.body:
        await connection.send(b"HTTP/9 x-s3cret-status-line " + seen.target.encode() + b"\r\n\r\n")
        connection.writer.close()
    elif b"fail-busy" in seen.body:
        await connection.answer(echo, status=503)
    elif b"fail-500" in seen.body:
        await connection.answer(echo, status=500)
    elif b"fail-stream" in seen.body:
        await connection.start_stream()
        await connection.chunk(b'data: {"error": {"message": "x-s3cret-answer"}}\n\n')
        connection.reset()
    else:
        await connection.answer(b'{"choices":[{"message":{"content":"x-s3cret-answer"}}]}')


SHOWN = {"authorization": "Bearer x-s3cret-client", "cookie": "x-s3cret-cookie", "x-other": "x-s3cret-x"}
FAILS = ("fail-reset", "fail-garbage", "fail-busy", "fail-500", "fail-stream", "nothing")


async def everything_goes_wrong(url: str, client: httpx.AsyncClient) -> None:
    """Requests with secrets in every place, most of which fail somewhere."""
    for text in FAILS:
        for stream in (False, True):
            target = f"{url}{CHAT}?api_key=x-s3cret-query&key=x-s3cret-query"
            request = body(f"x-s3cret-prompt {text} {stream}", stream=stream)
            with contextlib.suppress(httpx.RemoteProtocolError):
                await client.post(target, json=request, headers=SHOWN)
    for raw in (
        b'{"messages": [{"role": "user", "content": "x-s3cret-prompt',
        b'{"messages": "x-s3cret-prompt"}',
        b'{"messages": [{"role": "x-s3cret-prompt", "content": {"x-s3cret-prompt": "\\ud800"}}]}',
        b'{"messages": [{"role": "user", "content": "x-s3cret-prompt \xff"}]}',
        b"x-s3cret-prompt" * 100_000,
    ):
        await client.post(url + CHAT, content=raw, headers={**SHOWN, "content-type": "application/json"})
    key = b"authorization: Bearer x-s3cret-client\r\n"
    for target in ("//[x-s3cret-query", "/%zz?x-s3cret-query", "http://[x-s3cret-query/v1", "/x-s3cret-query/\x7f"):
        await sent(url, f"GET {target} HTTP/1.1\r\nhost: x\r\n".encode() + key + b"connection: close\r\n\r\n")
    post = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nconnection: close\r\n" + key
    for broken in (
        b"GET / HTTP/1.1\r\n" + key + b"x-s3cret-broken\r\n\r\n",
        b"x-s3cret-broken\r\n\r\n",
        post + b"content-length: x-s3cret\r\n\r\n",
        post + b"transfer-encoding: chunked\r\n\r\nx-s3cret\r\n",
        post + b"\xff: x-s3cret\r\n\r\n",
    ):
        await sent(url, broken, within_s=20)
    await leave(url, post + b"content-length: 99\r\n\r\nx-s3cret-prompt")
    await client.post(f"{url}/flush_cache?x-s3cret-query", headers=SHOWN)


async def leave(url: str, raw: bytes) -> None:
    """Send a part, and go."""
    _, writer = await asyncio.open_connection(*address_of(url))
    writer.write(raw)
    await writer.drain()
    writer.transport.abort()


async def pages_of(served: Live, client: httpx.AsyncClient, elsewhere: str) -> list[str]:
    """What Ramjet says of itself to anybody, to operators, and to those who are refused."""
    admin = {"authorization": "Bearer x-s3cret-admin"}
    added = {"name": "later", "url": f"{elsewhere}/later", "api_key": "x-s3cret-later"}
    asked: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("GET", f"{served.admin}/metrics", {}),
        ("GET", f"{served.admin}/health", {}),
        ("GET", f"{served.url}/health", {}),
        ("GET", f"{served.url}/v1/models?key=x-s3cret-query", {}),
        ("POST", f"{served.admin}/replicas", {"json": added, "headers": admin}),
        ("POST", f"{served.admin}/replicas", {"json": added, "headers": admin}),
        ("POST", f"{served.admin}/replicas", {"json": {**added, "name": "x", "x": 1}, "headers": admin}),
        ("POST", f"{served.admin}/replicas", {"content": b'{"x-s3cret', "headers": admin}),
        ("GET", f"{served.admin}/replicas", {"headers": {"authorization": "x-s3cret-wrong"}}),
        ("GET", f"{served.admin}/replicas", {"headers": admin}),
        ("GET", f"{served.admin}/x-s3cret", {"headers": admin}),
    )
    return [(await client.request(method, url, **more)).text for method, url, more in asked]


async def test_nothing_secret_is_in_anything_that_is_written(tmp_path: Path) -> None:
    """
    At debug level, through everything that goes wrong: no key, token, secret or word of a prompt, in either channel, on
    any page, in the printed configuration or the state directory.
    """
    state = tmp_path / "state"
    state.mkdir()
    async with scripted_engine(quoting_engine) as one, scripted_engine(quoting_engine) as two:
        path = config(
            tmp_path / "ramjet.yaml",
            {
                "a": {"url": one.url, "api_key": "x-s3cret-replica-a"},
                "b": {"url": two.url, "api_key": "x-s3cret-replica-b"},
                "dead": {"url": dead_url(), "api_key": "x-s3cret-replica-c"},
            },
            client_keys=["x-s3cret-client"],
            admin_token="x-s3cret-admin",
            secret="x-s3cret-seed",
            health={**QUICK_HEALTH, "interval_s": 0.2},
            limits={"drain_s": 1, "body_bytes": 1_000_000, "body_gap_s": 0.3},
        )
        command = (sys.executable, "-m", "ramjet", "serve", "--config", str(path), "--print-config")
        printed = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, text=True)
        async with live(path, "--log-level", "debug", STATE_DIRECTORY=str(state)) as served:
            async with httpx.AsyncClient(timeout=20) as client:
                await everything_goes_wrong(served.url, client)
                pages = await pages_of(served, client, one.url)
            await served.reload()
            path.write_text(path.read_text()[:-40])
            await served.reload("config_rejected")
            await asyncio.sleep(0.3)
            assert await served.stop() == 0
            written = served.written

    assert [line for line in written.splitlines() if "s3cret" in line] == []
    assert [page for page in pages if "s3cret" in page] == []
    assert "s3cret" not in printed.stdout + printed.stderr
    assert "replicas:" in printed.stdout
    assert [file.name for file in state.rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()] == []
    assert len(served.events("request")) > 20, "something was written at all"
    assert {seen.header("authorization") for seen in one.seen} <= {"Bearer x-s3cret-replica-a", "Bearer x-s3cret-later"}


async def test_the_secret_that_ramjet_made_is_kept_and_not_shown(tmp_path: Path) -> None:
    """
    For its owner alone, and in nothing that is written.
    """
    state = tmp_path / "state"
    path = config(tmp_path / "ramjet.yaml", {"a": dead_url()}, secret=None)
    async with live(path, "--log-level", "debug", STATE_DIRECTORY=str(state)) as served:
        async with httpx.AsyncClient() as client:
            scrape = (await client.get(f"{served.admin}/metrics")).text
        assert await served.stop() == 0

    kept = state / "secret"
    assert kept.stat().st_mode & 0o077 == 0
    assert kept.read_text().strip() not in served.written + scrape
