"""A small Kubernetes API server on loopback: EndpointSlices by list and watch, bookmarks, 410, cuts and slowness."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

LIST = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
TOKEN = "a test's token"
Slice = dict[str, Any]


def endpoint(
    address: str, pod: str | None = None, *, uid: str = "", ready: bool | None = True, **conditions: bool
) -> dict[str, Any]:
    """An endpoint as a controller writes it."""
    target = {} if pod is None else {"targetRef": {"kind": "Pod", "namespace": "llm", "name": pod, "uid": uid or pod}}
    return {"addresses": [address], "conditions": {"ready": ready, **conditions}, **target}


def slice_of(
    name: str,
    *endpoints: dict[str, Any],
    ports: dict[str, int] | None = None,
    family: str = "IPv4",
    service: str = "glm",
    **labels: str,
) -> Slice:
    """An EndpointSlice of a Service."""
    listed = [{"name": port, "port": number, "protocol": "TCP"} for port, number in (ports or {"http": 30000}).items()]
    return {
        "metadata": {"name": name, "namespace": "llm", "labels": {"kubernetes.io/service-name": service, **labels}},
        "addressType": family,
        "endpoints": list(endpoints) or None,
        "ports": listed,
    }


class ApiServer:
    """It keeps what happened, so that a watch can go on from any version that it still knows."""

    def __init__(self) -> None:
        self.slices: dict[str, Slice] = {}
        self.url = ""
        self.version = 100
        self.oldest = 100
        """Of which it knows what came after."""
        self.lists = self.watches = 0
        self.versions: list[int] = []
        """From where each watch went on."""
        self.refuses: int | None = None
        """A status that it answers everything with."""
        self.refuses_watches: int | None = None
        """The same for watches alone: whoever asks may list, and may not watch."""
        self.stalled = asyncio.Event()
        """Set while it answers."""
        self.stalled.set()
        self.page = 500
        self.watch_s = 60.0
        self._pages: dict[int, list[Slice]] = {}
        """What was listed at a version, of which the next pages are read."""
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._changed = asyncio.Condition()
        self._open: set[asyncio.Transport] = set()

    async def put(self, *slices: Slice) -> None:
        """Write slices, as a controller does."""
        for each in slices:
            kind = "MODIFIED" if each["metadata"]["name"] in self.slices else "ADDED"
            await self._happen(kind, each)
            self.slices[each["metadata"]["name"]] = self._events[-1][1]["object"]

    async def delete(self, name: str) -> None:
        """Delete a slice."""
        await self._happen("DELETED", self.slices.pop(name))

    async def bookmark(self) -> None:
        """Tell those who watch how far they are."""
        await self._happen("BOOKMARK", {"metadata": {}})

    def forget(self) -> None:
        """Know nothing any more of what has happened until now."""
        self.oldest, self._events = self.version, []

    def cut(self) -> None:
        """Cut all watches off, wherever they are."""
        for transport in self._open:
            transport.abort()

    async def _happen(self, kind: str, about: Slice) -> None:
        async with self._changed:
            self.version += 1
            told = copy.deepcopy(about)
            told["metadata"]["resourceVersion"] = str(self.version)
            self._events.append((self.version, {"type": kind, "object": told}))
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """List or watch."""
        await self.stalled.wait()
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response(_status(401, "Unauthorized"), status=401)
        if self.refuses is not None:
            return web.json_response(_status(self.refuses, "refused"), status=self.refuses)
        if self.refuses_watches is not None and request.query.get("watch"):
            return web.json_response(_status(self.refuses_watches, "refused"), status=self.refuses_watches)
        wanted = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        return await (self._watch if request.query.get("watch") else self._list)(request, wanted)

    async def _list(self, request: web.Request, wanted: dict[str, str]) -> web.StreamResponse:
        self.lists += 1
        begin, version = map(int, request.query.get("continue", f"0-{self.version}").split("-"))
        if version < self.oldest:
            return web.json_response(_status(410, "the continue token is too old"), status=410)
        if not begin:
            self._pages[version] = [each for _, each in sorted(self.slices.items()) if _fits(each, wanted)]
        found, end = self._pages[version], begin + self.page
        meta = {"resourceVersion": str(version)} | ({"continue": f"{end}-{version}"} if end < len(found) else {})
        return web.json_response({"kind": "EndpointSliceList", "metadata": meta, "items": found[begin:end]})

    async def _watch(self, request: web.Request, wanted: dict[str, str]) -> web.StreamResponse:
        self.watches += 1
        version = int(request.query["resourceVersion"])
        self.versions.append(version)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        assert request.transport is not None
        self._open.add(request.transport)
        try:
            if version < self.oldest:
                await _say(response, {"type": "ERROR", "object": _status(410, "too old resource version")})
                return response
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self.watch_s, float(request.query["timeoutSeconds"]))):
                    await self._pour(
                        response, version, wanted, bookmarks=request.query["allowWatchBookmarks"] == "True"
                    )
        finally:
            self._open.discard(request.transport)
        return response

    async def _pour(
        self, response: web.StreamResponse, version: int, wanted: dict[str, str], *, bookmarks: bool
    ) -> None:
        while True:
            for number, event in list(self._events):
                if number > version and (bookmarks if event["type"] == "BOOKMARK" else _fits(event["object"], wanted)):
                    await self.stalled.wait()
                    await _say(response, event)
                version = max(version, number)
            async with self._changed:
                while self.version <= version:
                    await self._changed.wait()


def _fits(each: Slice, wanted: dict[str, str]) -> bool:
    labels: dict[str, str] = each["metadata"]["labels"]
    return wanted.items() <= labels.items()


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": "Expired", "message": message}


async def _say(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(json.dumps(event).encode() + b"\n")


@contextlib.asynccontextmanager
async def api_server(port: int = 0) -> AsyncIterator[ApiServer]:
    """An API server that serves inside the context."""
    server = ApiServer()
    app = web.Application()
    app.router.add_get(LIST, server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def kubeconfig(path: Path, url: str) -> Path:
    """A file that leads to an API server."""
    user, cluster = {"token": TOKEN}, {"server": url}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "here", "user": "me"}}],
                "clusters": [{"name": "here", "cluster": cluster}],
                "users": [{"name": "me", "user": user}],
            }
        )
    )
    return path
