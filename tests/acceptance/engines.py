"""Real engines on this machine's CPU: started, asked and stopped. Nothing is installed here: see `install`.

In a test, or anywhere else:

    with started(Start("sglang", "qwen3_next", ("--max-mamba-cache-size", "28")), directory) as engine:
        engine.url, engine.pid, engine.json("/server_info"), engine.metric("sglang:prompt_tokens_total")
        engine.flush()

From a shell, until Ctrl-C or SIGTERM; what stands behind `--` goes to the engine:

    python -m tests.acceptance.engines sglang qwen3_next --port 18100 -- --max-mamba-cache-size 28

An engine takes 2 to 3 GB, some 30 CPU seconds to start and a second to stop. Each listens on 127.0.0.1 alone, calls its
model "tiny". One ASCII character is one token: a user's message of n characters makes a prompt of n + 19 tokens. To the
models whose names end in `-words`, each word of the lexicon is one token too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import httpx

from tests.soak.process import lasting_port

SGLANG, VLLM = "sglang", "vllm"
LLAMA, HYBRID, MAMBA = "llama", "qwen3_next", "granitemoehybrid"
"""A plain model; a hybrid one, three layers of Gated DeltaNet to one of attention; and one that vLLM dies of."""
WORDS = "-words"
"""Ends the name of a model that knows the words of the lexicon, each of them one token; other text is read by the byte."""
MODEL = "tiny"
"""What every engine calls its model."""

_CPU = Path(__file__).parent / "cpu"
_START_S = 900.0
"""Two that start together on idle cores take some 40 s, and have been seen to take five minutes beside other work."""
_STOP_S = 20.0
_MOST_AT_ONCE = 2


def home() -> Path:
    """Where engines and models are: the folder that ENGINES_DIR names, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ENGINES_DIR") or cache / "ramjet-engines")


@dataclass(frozen=True, slots=True)
class Start:
    """How an engine is started; two that are equal are alike in everything but their port."""

    kind: str
    """`sglang` or `vllm`."""
    model: str
    """A folder below `home() / "models"`."""
    flags: tuple[str, ...] = ()
    """Added to those that all of a kind get; of two that are the same the later one counts."""

    def command(self, port: int) -> list[str]:
        """The engine's command line."""
        python = home() / self.kind / "bin" / "python"
        model = home() / "models" / self.model
        for needed in (python, model / "config.json"):
            if not needed.exists():
                raise FileNotFoundError(f"{needed} is missing: python -m tests.acceptance.install makes it")
        where = ("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port))
        program: tuple[str, ...]
        if self.kind == SGLANG:
            program = (str(_CPU / "sglang_cpu.py"), "--model-path", str(model), *where, *_SGLANG)
        else:
            # `vllm serve` asks for metadata of a package named vllm, which the CPU build does not have.
            program = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *where, *_VLLM)
        return [str(python), *program, *self.flags]


_SGLANG = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--context-length", "65536", "--max-total-tokens", "131072"),
    *("--max-running-requests", "8", "--enable-metrics", "--enable-cache-report"),
)
_VLLM = (
    *("--max-model-len", "65536", "--max-num-seqs", "8", "--enforce-eager"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
)
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


class Engine:
    """One that runs, or has run."""

    def __init__(self, start: Start, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.start = start
        self.url = url
        self.log = log
        """What it says on standard output and standard error."""
        self._process = process
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=120)

    @property
    def pid(self) -> int:
        """Of its main process, which leads a group of its own with all its children in it."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its main process runs."""
        return self._process.poll() is None

    def page(self, path: str) -> httpx.Response:
        """What it answers to a GET."""
        return self._client.get(path)

    def json(self, path: str) -> Any:
        """A page that is JSON."""
        return self.page(path).raise_for_status().json()

    def metric(self, name: str) -> float:
        """The sum of a metric's samples; 0.0 where there are none, for counters appear with their first use."""
        samples = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)", self.page("/metrics").text, re.MULTILINE)
        return sum(map(float, samples))

    def ask(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
        """Its answer to a request that is no stream."""
        answer = self._client.post(path, json={"model": MODEL, "temperature": 0} | body)
        return dict(answer.raise_for_status().json())

    def flush(self, patience_s: float = 20.0) -> None:
        """Empty SGLang's cache, as soon as it is idle; vLLM has no such page outside of its development mode."""
        gives_up_at = time.monotonic() + patience_s
        while not (answer := self._client.post("/flush_cache")).is_success:
            if time.monotonic() > gives_up_at:
                raise TimeoutError(f"{self.url} did not empty its cache in {patience_s:g} s: {answer.text[:200]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """End it at once, with its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._client.close()

    def stop(self) -> None:
        """End it as an operator would, and at once if it does not."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()

    def wait_until_ready(self) -> Engine:
        """Wait for its health.

        Raises:
            RuntimeError: it has ended, or is not ready after some minutes.
        """
        gives_up_at = time.monotonic() + _START_S
        while self.alive and time.monotonic() < gives_up_at:
            with contextlib.suppress(httpx.TransportError):
                if self.page("/health").is_success:
                    return self
            time.sleep(0.2)
        what = f"was not ready after {_START_S:g} s" if self.alive else f"ended with {self._process.returncode}"
        raise RuntimeError(f"{self.start} {what}: {self.log.read_text(errors='replace')[-3_000:]}")

    def wait_until_gone(self, patience_s: float = 60.0) -> None:
        """Wait for one that ends by itself.

        Raises:
            subprocess.TimeoutExpired: it does not.
        """
        self._process.wait(patience_s)

    def _signal(self, number: signal.Signals) -> None:
        # Children may outlive the main process; while one does, nobody else can have the group's number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def launch(start: Start, directory: Path, port: int | None = None) -> Engine:
    """Start an engine, and do not wait for it; its log is in the directory."""
    port = port or lasting_port()
    log = directory / f"{start.kind}-{start.model}-{port}.log"
    with log.open("wb") as said:
        return Engine(start, _popen(start.command(port), said), f"http://127.0.0.1:{port}", log)


def _popen(command: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        env=environment | _ENVIRONMENT,
        start_new_session=True,  # one group for all its processes; Ctrl-C is for the program that watches it
    )


@contextlib.contextmanager
def started(start: Start, directory: Path, port: int | None = None) -> Iterator[Engine]:
    """An engine that is ready, until the block ends."""
    engine = launch(start, directory, port)
    try:
        yield engine.wait_until_ready()
    finally:
        engine.stop()


class Engines:
    """Those of a test session: started when they are first asked for, and kept for others who ask for the same."""

    def __init__(self, directory: Path, most: int = _MOST_AT_ONCE) -> None:
        self._directory = directory
        self._most = most
        self._running: list[Engine] = []
        """Who was asked for last comes last."""

    def take(self, *starts: Start) -> list[Engine]:
        """Engines that are started like this, one for each, ready and idle; others make room for them if need be."""
        if len(starts) > self._most:
            raise ValueError(f"{len(starts)} engines are more than the {self._most} that may run at once")
        spare = [engine for engine in self._running if engine.alive]
        for engine in self._running:
            if engine not in spare:
                engine.stop()  # its children may have outlived it
        taken: list[Engine | None] = []
        for start in starts:
            found = next((engine for engine in spare if engine.start == start), None)
            if found is not None:
                spare.remove(found)
            taken.append(found)
        while len(spare) + len(starts) > self._most:
            spare.pop(0).stop()
        fresh = [launch(start, self._directory) for start, found in zip(starts, taken, strict=True) if found is None]
        self._running = [*spare, *(engine for engine in taken if engine is not None), *fresh]
        for engine in fresh:
            engine.wait_until_ready()
        come = iter(fresh)
        return [next(come) if engine is None else engine for engine in taken]

    def stop(self) -> None:
        """End them all."""
        for engine in self._running:
            engine.stop()
        self._running = []


@click.command()
@click.argument("kind", type=click.Choice([SGLANG, VLLM]))
@click.argument("model")
@click.option("--port", type=int, help="A free one unless given.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def main(kind: str, model: str, port: int | None, flags: tuple[str, ...]) -> None:
    """Run an engine until it is told to stop; its URL comes on standard output when it is ready."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as directory:
        with started(Start(kind, model, flags), Path(directory), port) as engine:
            click.echo(engine.url)
            with contextlib.suppress(KeyboardInterrupt):
                while engine.alive:
                    time.sleep(0.5)
            click.echo(f"stopping; the last of its log:\n{engine.log.read_text(errors='replace')[-500:]}", err=True)


if __name__ == "__main__":
    main()
