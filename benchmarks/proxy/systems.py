"""The proxies side by side: how each is started, and what it has taken of its processor."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_START_S = 30.0
_PROXY_CORE, _LOAD_CORE = 0, 1
_HAPROXY = """
global
  nbthread 1
  maxconn 6000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-no-delay
frontend front
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
  balance roundrobin
  http-reuse always
{servers}
"""


@dataclass(frozen=True, slots=True)
class System:
    """Something that clients may be pointed at."""

    name: str
    urls: Sequence[str]
    process: psutil.Process | None = None
    """None where there is no proxy."""

    def used_s(self) -> tuple[float, float]:
        """Seconds of the processor it has taken, outside of the kernel and inside."""
        if self.process is None:
            return 0.0, 0.0
        times = self.process.cpu_times()
        return times.user, times.system

    def resident_mb(self) -> float | None:
        """Memory it has now."""
        return None if self.process is None else self.process.memory_info().rss / 1e6


@contextlib.contextmanager
def engines(number: int, directory: Path) -> Iterator[list[str]]:
    """The URLs of fake engines."""
    ports = _free_ports(number)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    command = [sys.executable, "-m", "benchmarks.proxy.engine", *map(str, ports)]
    with _started(command, directory / "engines.log", ports, core=_LOAD_CORE):
        yield urls


@contextlib.contextmanager
def haproxy(urls: Sequence[str], directory: Path) -> Iterator[System | None]:
    """haproxy in front of engines; None where it is not installed."""
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if program is None:
        yield None
        return
    (port,) = _free_ports(1)
    servers = "\n".join(f"  server r{place} {url.removeprefix('http://')}" for place, url in enumerate(urls))
    config = directory / "haproxy.cfg"
    config.write_text(_HAPROXY.format(port=port, servers=servers), encoding="utf-8")
    with _started([program, "-db", "-f", str(config)], directory / "haproxy.log", [port], core=_PROXY_CORE) as process:
        yield System("haproxy", [f"http://127.0.0.1:{port}"], process)


@contextlib.contextmanager
def ramjet(
    urls: Sequence[str], directory: Path, *, module: str = "ramjet", settings: Mapping[str, str] | None = None
) -> Iterator[System]:
    """Ramjet as it ships in front of engines: everything on, its log in a file.

    Args:
        urls: the engines.
        directory: for its log and its journal.
        module: what is run.
        settings: by the names of environment variables.
    """
    port, admin = _free_ports(2)
    replicas = [f"--replica=r{place}={url}" for place, url in enumerate(urls)]
    command = [sys.executable, "-m", module, "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    environment = {**os.environ, "XDG_STATE_HOME": str(directory), **(settings or {})}
    log = directory / "ramjet.log"
    with _started([*command, *replicas], log, [port], core=_PROXY_CORE, environment=environment) as process:
        yield System("ramjet", [f"http://127.0.0.1:{port}"], process)


def pin_load() -> None:
    """The clients share a core with the engines, and the proxies have one for themselves, where there are two."""
    _pin(psutil.Process(), _LOAD_CORE)


@contextlib.contextmanager
def _started(
    command: Sequence[str],
    log: Path,
    ports: Sequence[int],
    *,
    core: int,
    environment: dict[str, str] | None = None,
) -> Iterator[psutil.Process]:
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)  # noqa: S603 - our own
    try:
        process = psutil.Process(running.pid)
        _pin(process, core)
        until = time.perf_counter() + _START_S
        while not all(map(_listens, ports)):
            if running.poll() is not None or time.perf_counter() > until:
                said = log.read_text(encoding="utf-8", errors="replace")[-2_000:]
                raise RuntimeError(f"{command[0]} did not come up:\n{said}")
            time.sleep(0.05)
        yield process
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _pin(process: psutil.Process, core: int) -> None:
    cores = psutil.cpu_count() or 1
    with contextlib.suppress(AttributeError):  # not where the system has no such thing
        process.cpu_affinity([core % cores])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
