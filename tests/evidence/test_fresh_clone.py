"""What a newcomer does: clone, `make run`, a few requests, Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.evidence import report

pytestmark = pytest.mark.evidence

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8000"


def test_a_fresh_clone_serves_within_two_minutes(tmp_path: Path) -> None:
    """
    With an empty package cache: `make run` answers within two minutes, streaming and not, and Ctrl-C ends it cleanly.
    """
    clone = tmp_path / "ramjet"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    env = {**os.environ, "PIP_CACHE_DIR": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    env.pop("VIRTUAL_ENV", None)
    started_at = time.monotonic()
    with subprocess.Popen(
        ["make", "run"], cwd=clone, env=env, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        try:
            while time.monotonic() - started_at < 180:
                try:
                    if httpx.get(f"{URL}/health", timeout=1).status_code == 200:
                        break
                except httpx.HTTPError:
                    assert running.poll() is None, (running.stderr.read() if running.stderr else b"").decode()
                    time.sleep(0.2)
            served_s = time.monotonic() - started_at
            answers = [_curl(stream=stream) for stream in (True, False)]
        finally:
            stopped_at = time.monotonic()
            os.killpg(running.pid, signal.SIGINT)
            said = running.communicate(timeout=20)[1].decode()
    stopped_s = time.monotonic() - stopped_at
    assert b"data: [DONE]" in answers[0]
    assert b'"usage"' in answers[1]
    assert "Traceback" not in said
    assert served_s < 120
    report.write(
        "fresh_clone",
        "From a clone to an answer",
        "`git clone`, then `make run` with an empty package cache; `make evidence ARGS='-k fresh_clone'` runs it again.",
        [{"until it served, s": round(served_s, 1), "until Ctrl-C had ended it, s": round(stopped_s, 2)}],
    )


def _curl(*, stream: bool) -> bytes:
    body = '{"model":"demo","stream":%s,"max_tokens":8,"messages":[{"role":"user","content":"hello"}]}'
    curl = shutil.which("curl")
    assert curl is not None
    command = [curl, "-sSf", f"{URL}/v1/chat/completions", "-H", "content-type: application/json"]
    return subprocess.run(
        [*command, "-d", body % str(stream).lower()], check=True, capture_output=True, timeout=30
    ).stdout
