"""What Envoy calls a replica: the IP address and port that it connects to."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def endpoint_at(url: str) -> str:
    """A replica's address as Envoy writes it, `10.0.0.7:30000` or `[fd00::7]:30000`.

    Args:
        url: of the replica, in its one form.

    Raises:
        ValueError: Envoy could not go there; the message says why, and what to write.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        raise ValueError(
            f"{url}: {host} is a name; Envoy is told of replicas by IP address and port: write its address"
        ) from None
    if parts.path:
        raise ValueError(f"{url}: has a base path, of which Envoy is not told; have Envoy's route rewrite it")
    port = parts.port or _PORTS[parts.scheme]
    return f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"
