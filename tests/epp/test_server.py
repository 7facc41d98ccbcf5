"""The port that Envoy connects to: health, TLS, and what is said where it cannot be opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ramjet.app import CannotStart
from tests.operations.test_security import certificate
from tests.rig import ramjet
from tests.scripted import dead_url

SERVICES = ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(channel: Any, service: str) -> int:
    async with asyncio.timeout(10):
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request)
    return int(answer.status)


async def test_its_health_is_told_by_service() -> None:
    """
    By the names that the endpoint picker protocol has for it.
    """
    async with (
        ramjet({"a": dead_url()}, picking=True) as front,
        grpc.aio.insecure_channel(front.url.removeprefix("grpc://")) as channel,
    ):
        assert [await health(channel, name) for name in SERVICES] == [SERVING] * 4
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health(channel, "another")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_while_it_drains_it_is_alive_and_not_ready() -> None:
    """
    Envoy's health checks see it before the port is closed.
    """
    seen: list[int] = []
    async with ramjet({"a": dead_url()}, picking=True, limits={"drain_s": 2.0}) as front:
        picker = front.running.handler
        picker.entered()  # one that does not end

        async def watch() -> None:
            async with grpc.aio.insecure_channel(front.url.removeprefix("grpc://")) as channel:
                while not picker.draining:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                seen.extend([await health(channel, name) for name in SERVICES])

        watching = asyncio.create_task(watch())  # noqa: TID251 - awaited below
        await asyncio.sleep(0.1)
    await watching

    assert seen == [NOT_SERVING, SERVING, NOT_SERVING, NOT_SERVING]


async def test_its_port_may_have_tls(tmp_path: Path) -> None:
    """
    With the certificate of the port for clients.
    """
    chain, key = certificate(tmp_path)
    tls = {"certificate": str(chain), "key": str(key)}
    async with ramjet({"a": dead_url()}, picking=True, tls=tls) as front:
        assert front.url.startswith("grpcs://")
        credentials = grpc.ssl_channel_credentials(chain.read_bytes())
        address = front.url.removeprefix("grpcs://")
        async with grpc.aio.secure_channel(address, credentials) as channel:
            assert await health(channel, "readiness") == SERVING


async def test_a_port_that_is_taken_is_named() -> None:
    """
    A second picker does not share it without a word.
    """
    async with ramjet({"a": dead_url()}, picking=True) as front:
        address = front.url.removeprefix("grpc://")
        with pytest.raises(CannotStart, match=f"cannot listen on {address}: .*is another Ramjet running"):
            async with ramjet({"a": dead_url()}, picking=True, listen=address):
                pass


async def test_the_admin_port_is_as_ever() -> None:
    """
    Replicas are drained and taken in there, one that Envoy could not be sent to is passed over, and `explain` answers.
    """
    async with ramjet({"a": "http://127.0.0.1:1"}, picking=True) as front:
        control = front.running.control
        control.add({"name": "b", "url": "http://a-name:30000"})

        told = await control.explain(b'{"messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", {})
        assert told
        assert {each["name"] for each in control.replicas()} == {"a", "b"}
        assert control.health()[0] == 200
