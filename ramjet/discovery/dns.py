"""Replicas that a name in DNS leads to: asked again when the answer's time to live is over.

dnspython asks, and is loaded when there is something to ask: as the system's resolver does by default, /etc/resolv.conf
with its search list included, or one server alone. What an answer does not name is taken to be gone only when the next one
does not either: servers that have answers of their own cached take turns, and some name a few of many.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ramjet.core.membership import Found
from ramjet.discovery.names import bracketed, name_of
from ramjet.discovery.watch import Teller

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.name import Name
    from dns.resolver import Answer
    from dns.rrset import RRset

_PAYLOAD_BYTES = 1_232
"""Of an answer over UDP, which passes everywhere; a longer one is fetched over TCP."""
_MOST_CHARACTERS = 300
"""Of an error: dnspython names every attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dns:
    """A name that is asked for."""

    name: str
    host: str
    record: str
    """A, AAAA or SRV."""
    port: int | None
    """Where replicas listen; None with SRV, which says it."""
    url: str
    """With {host} and {port}."""
    resolver: tuple[str, int] | None
    """Address and port of the server that is asked; None: as the system does."""
    least_s: float
    most_s: float
    timeout_s: float

    async def watch(self, teller: Teller) -> None:
        """Ask until cancelled."""
        # Loading it takes a tenth of a second: not while requests wait.
        await asyncio.to_thread(import_module, "dns.asyncresolver")
        from dns.exception import DNSException  # noqa: PLC0415 - most need no DNS
        from dns.resolver import NXDOMAIN, NoAnswer  # noqa: PLC0415

        before: dict[str, Found] = {}
        while True:
            try:
                found, ttl_s = await self._look()
                if found:
                    teller.found([*(before | found).values()])
                    before, wait_s = found, min(max(ttl_s, self.least_s), self.most_s)
                else:
                    wait_s = teller.failed(f"no target of {self.host} has an address", empty=True)
            except (NXDOMAIN, NoAnswer) as error:
                # All replicas gone at once, and a server that has just started and knows nothing yet, look the same.
                wait_s = teller.failed(_said(error), empty=True)
            except (DNSException, OSError, EOFError) as error:  # a timeout is an OSError
                wait_s = teller.failed(_said(error))
            await asyncio.sleep(wait_s)

    async def _look(self) -> tuple[dict[str, Found], float]:
        """The replicas by name, and for how many seconds that holds."""
        resolver = self._resolver()
        answer = await resolver.resolve(self.host, self.record, search=True, lifetime=self.timeout_s)
        ttl_s = answer.chaining_result.minimum_ttl
        if self.record == "SRV":
            found, targets_ttl_s = await self._targets(resolver, answer)
            return found, min(ttl_s, targets_ttl_s)
        addresses = (record.address for record in answer)
        return _by_name(self._found(name_of(each, str(self.port)), each, self.port) for each in addresses), ttl_s

    async def _targets(self, resolver: Resolver, answer: Answer) -> tuple[dict[str, Found], float]:
        """What the targets of SRV records are, each at the lowest of its addresses."""
        found, ttl_s = [], self.most_s
        for target, port in sorted({(record.target, record.port) for record in answer}):
            addresses = await self._addresses(resolver, target, answer)
            if addresses is None:
                continue  # it is not there any more, or not yet
            ttl_s = min(ttl_s, addresses.ttl)
            name = name_of(self._short(target.to_text(omit_final_dot=True)), str(port))
            found.append(self._found(name, min(record.address for record in addresses), port))
        return _by_name(found), ttl_s

    async def _addresses(self, resolver: Resolver, target: Name, answer: Answer) -> RRset | None:
        """Where a target is; None where it is nowhere. Most servers say so in the same answer."""
        from dns.rdataclass import IN  # noqa: PLC0415
        from dns.rdatatype import AAAA, A  # noqa: PLC0415
        from dns.resolver import NXDOMAIN, NoAnswer  # noqa: PLC0415

        response = answer.response
        for kind in (A, AAAA):
            if (said := response.get_rrset(response.additional, target, IN, kind)) is not None:
                return said
        for kind in (A, AAAA):
            with contextlib.suppress(NXDOMAIN, NoAnswer):
                return (await resolver.resolve(target, kind, lifetime=self.timeout_s)).rrset
        return None

    def _short(self, target: str) -> str:
        """A target without what it has in common with all others: the name that was asked for, without its services."""
        domain = ".".join(label for label in self.host.rstrip(".").split(".") if not label.startswith("_"))
        return target.lower().removesuffix(f".{domain.lower()}")

    def _found(self, name: str, address: str, port: int | None) -> Found:
        return Found(name, self.url.format(host=bracketed(address), port=port))

    def _resolver(self) -> Resolver:
        """A new one each time, so that what /etc/resolv.conf says now counts."""
        from dns.asyncresolver import Resolver  # noqa: PLC0415

        resolver = Resolver(configure=self.resolver is None)
        if self.resolver is not None:
            address, resolver.port = self.resolver
            resolver.nameservers = [address]
        resolver.use_edns(0, 0, _PAYLOAD_BYTES)
        return resolver


def _by_name(found: Iterable[Found]) -> dict[str, Found]:
    return {each.name: each for each in found}


def _said(error: Exception) -> str:
    return f"{error}"[:_MOST_CHARACTERS] or type(error).__name__
