"""From Kubernetes' EndpointSlices, as the API server writes them, to the replicas that they name. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ramjet.core.membership import Found
from ramjet.discovery.names import bracketed, name_of

Slice = Mapping[str, Any]

_FAMILIES = ("IPv4", "IPv6", "FQDN")
"""A pod with addresses of two families is in a slice of each; it is one replica, at the first."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    found: Found
    serving: bool
    """Whether it could serve, be it that it is going away."""
    terminating: bool
    family: str

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Who counts of several of one name: a slice that is being moved from is out of date for a moment."""
        return (self.terminating, not self.serving, _FAMILIES.index(self.family))


def replicas_of(slices: Iterable[Slice], port: str | int | None, url: str) -> list[Found]:
    """The replicas that slices name.

    Args:
        slices: all of one Service.
        port: which port of theirs, by name or number; None for the only one there is.
        url: what a replica's URL is made of, with {host} and {port}.

    Raises:
        ValueError: there is no such port, or more than one to choose from.
    """
    by_name: dict[str, _Endpoint] = {}
    ports_seen: set[str] = set()
    for each in slices:
        endpoints = each.get("endpoints") or ()
        number = _port(each, port)
        if number is None:
            ports_seen |= {str(one.get("name") or one.get("port")) for one in each.get("ports") or () if endpoints}
            continue
        for endpoint in endpoints:
            read = _endpoint(endpoint, str(each.get("addressType", "IPv4")), number, url)
            if read is None:
                continue
            other = by_name.get(read.found.name)
            if other is None or read.rank < other.rank:
                by_name[read.found.name] = read
    if ports_seen and not by_name:
        asked = "port is not given" if port is None else f"there is no port {port}"
        raise ValueError(f"{asked}: the Service's are {', '.join(sorted(ports_seen))}; name one of them")
    staying = [each.found for each in by_name.values() if not each.terminating]
    if any(found.ready for found in staying):
        return staying
    # Nobody else is there: those that are going away and still serve do better than nobody.
    leaving = [each.found for each in by_name.values() if each.terminating and each.serving]
    return staying + leaving


def _port(each: Slice, port: str | int | None) -> int | None:
    """The port's number in a slice; None where it has no such port, or more than one to choose from."""
    if isinstance(port, int):
        return port  # a pod may listen where its Service does not lead
    numbers = [
        one["port"] for one in each.get("ports") or () if one.get("port") and port in {None, one.get("name") or ""}
    ]
    return numbers[0] if len(numbers) == 1 else None


def _endpoint(endpoint: Mapping[str, Any], family: str, port: int, url: str) -> _Endpoint | None:
    addresses = endpoint.get("addresses") or ()
    if not addresses or family not in _FAMILIES:
        return None
    # All of them are the same endpoint's, and the first is to be used. What is not said of a condition means yes.
    address, conditions = str(addresses[0]), endpoint.get("conditions") or {}
    ready = conditions.get("ready") is not False
    serving = ready if conditions.get("serving") is None else bool(conditions["serving"])
    terminating = bool(conditions.get("terminating"))
    target = endpoint.get("targetRef") or {}
    name = target.get("name") or endpoint.get("hostname")
    found = Found(
        name_of(str(name)) if name else name_of(address, str(port)),
        url.format(host=bracketed(address), port=port),
        ready=serving if terminating else ready,
        made=str(target.get("uid") or ""),
    )
    return _Endpoint(found, serving, terminating, family)
