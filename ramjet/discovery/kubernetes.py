"""Replicas that are the endpoints of a Kubernetes Service: its EndpointSlices are listed once, and then watched.

kubernetes_asyncio asks, which is an extra: it finds the API server, the token and the certificates. Answers are taken as
they came, for what is needed of them is little, and the client's models are many. What a watch says is said of one slice
at a time, and told on as all replicas of all slices; one that ends goes on where it was, and where the API server no longer
knows what was before, everything is listed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp

from ramjet.discovery.endpoints import Slice, replicas_of
from ramjet.discovery.watch import Teller

if TYPE_CHECKING:
    from kubernetes_asyncio.client import DiscoveryV1Api

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_SERVICE = "kubernetes.io/service-name"
"""The label that every EndpointSlice of a Service has."""
_WATCH_S = 60
"""How long a watch may last: one whose connection is dead, which nobody says, is noticed by then."""
_PAGE = 500
_PAUSE_S = 1.0
"""Between two watches, where the first has ended at once."""
_GONE = 410
_REMEDIES = {
    401: ": it does not know the token",
    403: ": the service account needs list and watch of endpointslices in discovery.k8s.io, see docs/discovery.md",
    404: ": it has no discovery.k8s.io/v1",
}


class Expired(Exception):
    """The API server no longer knows what has changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The endpoints of a Service."""

    name: str
    namespace: str | None
    """None: that of Ramjet's own pod."""
    service: str | None
    selector: str | None
    port: str | int | None
    url: str
    """With {host} and {port}."""
    kubeconfig: Path | None
    """None: the service account of Ramjet's own pod."""
    timeout_s: float

    async def watch(self, teller: Teller) -> None:
        """List and watch until cancelled; whatever goes wrong ends in an exception, and is begun anew."""
        # It is large, and takes most of a second: not while requests wait.
        await asyncio.to_thread(import_module, "kubernetes_asyncio.client")
        async with self._api() as api:
            listing = _Listing(self, api, teller)
            while True:
                await listing.fetch()
                try:
                    while True:
                        await listing.watch()
                except Expired:
                    continue

    @asynccontextmanager
    async def _api(self) -> AsyncIterator[DiscoveryV1Api]:
        from kubernetes_asyncio import client, config  # noqa: PLC0415 - an extra

        configuration = client.Configuration()
        try:
            if self.kubeconfig is not None:
                await config.load_kube_config(str(self.kubeconfig), client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            remedy = "give one that can" if self.kubeconfig else "outside of a pod give kubeconfig and namespace"
            raise ValueError(f"{self.kubeconfig or 'the service account'} cannot be used: {error}; {remedy}") from None
        async with client.ApiClient(configuration) as connection:
            yield client.DiscoveryV1Api(connection)


class _Listing:
    """The slices as the API server has them."""

    def __init__(self, source: Kubernetes, api: DiscoveryV1Api, teller: Teller) -> None:
        self._source = source
        self._list = api.list_namespaced_endpoint_slice
        self._teller = teller
        self._namespace = source.namespace or _OWN_NAMESPACE.read_text("utf-8").strip()
        self._labels = source.selector or f"{_SERVICE}={source.service}"
        self._slices: dict[str, Slice] = {}
        self._next_at = -math.inf
        self._version = ""
        """Of the list as a whole, which a watch goes on from."""

    async def fetch(self) -> None:
        """List all slices, page by page."""
        slices: dict[str, Slice] = {}
        more: dict[str, str] = {}
        version = None
        async with asyncio.timeout(self._source.timeout_s):
            while version is None or more:
                page = json.loads(await (await self._ask(limit=_PAGE, **more)).read())
                slices |= {each["metadata"]["name"]: each for each in page.get("items") or ()}
                version = version or page["metadata"]["resourceVersion"]
                token = page["metadata"].get("continue")
                more = {"_continue": token} if token else {}
        self._slices, self._version = slices, version
        self._tell()

    async def watch(self) -> None:
        """Take in what changes, until the API server has had enough, or the connection is cut.

        Raises:
            Expired: it does not know what has changed since.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._next_at - loop.time())
        self._next_at = loop.time() + _PAUSE_S
        async with asyncio.timeout(self._source.timeout_s):
            answer = await self._ask(
                watch=True, resource_version=self._version, allow_watch_bookmarks=True, timeout_seconds=_WATCH_S
            )
        # A connection that is cut is no failure: the next watch goes on from what has come.
        with contextlib.suppress(aiohttp.ClientError, OSError), contextlib.closing(answer):
            async with asyncio.timeout(_WATCH_S + self._source.timeout_s):
                async for line in answer.content:
                    if not line.endswith(b"\n"):
                        break  # cut in the middle of it
                    self._take(json.loads(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, about = event["type"], event["object"]
        if kind == "ERROR":
            if about.get("code") == _GONE:
                raise Expired(about.get("message"))
            raise ValueError(f"the API server says {about.get('code')}: {about.get('message')}")
        meta = about["metadata"]
        self._version = meta["resourceVersion"]
        if kind == "DELETED":
            self._slices.pop(meta["name"], None)
        elif kind != "BOOKMARK":
            self._slices[meta["name"]] = about
        self._tell()

    def _tell(self) -> None:
        source = self._source
        self._teller.found(replicas_of(self._slices.values(), source.port, source.url))

    async def _ask(self, **how: Any) -> aiohttp.ClientResponse:
        """Ask for slices; the answer is good, and not read yet.

        Raises:
            Expired: of what is no longer known.
            ValueError: the API server refuses.
        """
        # Where an answer is not to become models, its status is not looked at either.
        answer: Any = await self._list(self._namespace, label_selector=self._labels, _preload_content=False, **how)
        if answer.status == 200:
            return cast("aiohttp.ClientResponse", answer)
        answer.close()
        if answer.status == _GONE:
            raise Expired("the API server no longer knows what is asked for")
        raise ValueError(f"the API server answers {answer.status}{_REMEDIES.get(answer.status, '')}")
