"""A real dnsmasq on loopback, whose records a test writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.discovery.support import free_port

DNSMASQ = shutil.which("dnsmasq") or "/usr/sbin/dnsmasq"
needs_dnsmasq = pytest.mark.skipif(
    not Path(DNSMASQ).exists(), reason="dnsmasq is not installed: apt-get install dnsmasq-base"
)


@dataclass(slots=True)
class DnsServer:
    """Answers for the domain `test`, and knows no other."""

    hosts: Path
    port: int
    ttl_s: int = 1
    _process: asyncio.subprocess.Process | None = field(default=None)

    @property
    def resolver(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", self.port

    async def write(self, **names: Sequence[str]) -> None:
        """Let names of the domain lead to addresses from now on, and no others."""
        lines = [f"{address} {name}.test" for name, addresses in names.items() for address in addresses]
        self.hosts.write_text("\n".join(lines) + "\n")
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
            await self._has_read()

    async def start(self, *options: str) -> None:
        """Begin to answer, with what else its command line says."""
        self._process = await asyncio.create_subprocess_exec(
            DNSMASQ, "--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=",
            f"--user={os.environ.get('USER') or 'root'}", "--listen-address=127.0.0.1", "--bind-interfaces",
            f"--port={self.port}", "--local=/test/", f"--local-ttl={self.ttl_s}", f"--addn-hosts={self.hosts}",
            *options, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await self._has_read()

    async def _has_read(self) -> None:
        """Wait until it says that it has read the file."""
        assert self._process is not None
        assert self._process.stderr is not None
        said = b""
        async with asyncio.timeout(10):
            while line := await self._process.stderr.readline():
                said += line
                if b"read " in line:
                    return
        raise AssertionError(f"dnsmasq has ended: {said.decode()}")

    async def stop(self) -> None:
        """Answer nothing more; its port is closed."""
        if self._process is not None:
            self._process.terminate()
            await self._process.communicate()
            self._process = None


@contextlib.asynccontextmanager
async def dns_server(folder: Path, *options: str, ttl_s: int = 1) -> AsyncIterator[DnsServer]:
    """A server that answers inside the context."""
    server = DnsServer(folder / "hosts", free_port(["127.0.0.1"]), ttl_s)
    server.hosts.touch()
    await server.start(*options)
    try:
        yield server
    finally:
        await server.stop()
