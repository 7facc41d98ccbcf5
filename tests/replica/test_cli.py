"""`ramjet sim`: its options, what it prints, how it starts and ends, and the page about it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from ramjet.core.cache import CacheSpec
from ramjet.replica.cli import sim_command, sizes
from ramjet.replica.faults import KINDS, load
from ramjet.sim.profile import ATTENTION, GLM, LLAMA_CPP, PROFILES, VLLM_HYBRID, Profile

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str], str]]:
    """A `ramjet sim` of its own, its lines until it listens, and its URL."""
    command = [sys.executable, "-m", "ramjet", "sim", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        try:
            while not (lines and lines[-1].startswith("ramjet sim:")):
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            yield process, lines, lines[-1].split()[-1]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(number: signal.Signals) -> None:
    """
    It says where it listens and how fast it is, logs as the engine does, and ends well at once.
    """
    with started("--profile", "glm-5.3-flash-tp2", "--states-per-path", "2", "--speed", "50") as (process, lines, url):
        answer = httpx.post(f"{url}/generate", json={"text": "Hello", "sampling_params": {"max_new_tokens": 3}})
        info = httpx.get(f"{url}/server_info").json()
        process.send_signal(number)
        _, rest = process.communicate(timeout=10)

    assert process.returncode == 0
    assert answer.json()["meta_info"]["completion_tokens"] == 3
    assert (info["simulated_speed"], info["mamba_max_states_per_path"]) == (50, 2)
    assert "Mamba Cache is allocated. max_mamba_cache_size: 28" in lines[0]
    assert "glm-5.3-flash-tp2 at 50 times its speed" in lines[-1]
    assert "Prefill batch" in rest
    assert "Traceback" not in rest


def test_the_list_has_every_profile_with_its_sizes() -> None:
    """
    Without naming one.
    """
    shown = CliRunner().invoke(sim_command, ["--list"])

    assert shown.exit_code == 0
    for profile in PROFILES.values():
        assert re.search(rf"^{profile.name} ", shown.output, flags=re.MULTILINE)
        assert sizes(profile) in shown.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "Missing option '--profile'"),
        (["--profile", "gpt"], "'gpt' is not one of"),
        (["--profile", "attention", "--slots", "28"], "attention has no snapshot pool"),
        (["--profile", "llama-cpp", "--kv-events", "tcp://127.0.0.1:5557"], "llama-cpp has no blocks to tell of"),
        (["--profile", "attention", "--kv-events-replay", "tcp://127.0.0.1:5558"], "give both"),
        (["--profile", "attention", "--kv-events", "tcp://nowhere"], "cannot listen on tcp://nowhere"),
        (["--profile", "attention", "--states-per-path", "2"], "attention has no snapshot pool"),
        (["--profile", "vllm-hybrid", "--host-tier"], "vllm-hybrid has no host tier"),
        (["--profile", "llama-cpp", "--host-tier"], "neither a snapshot pool nor a host tier"),
        (["--profile", "glm-5.3-flash-tp2", "--slots", "4"], "a request needs 5 snapshot slots"),
        (["--profile", "glm-5.3-flash-tp2", "--chunk-tokens", "64"], "reads at least 256 tokens at a time"),
        (["--profile", "attention", "--pool-tokens", "64"], "would take requests of 64 tokens"),
        (["--profile", "attention", "--speed", "0"], "0.0 is not in the range x>0"),
        (["--profile", "attention", "--faults", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(options: list[str], says: str) -> None:
    """
    Before anything listens, and without a traceback.
    """
    refused = CliRunner().invoke(sim_command, options)

    assert refused.exit_code in {1, 2}
    assert says in refused.output
    assert isinstance(refused.exception, SystemExit)


def test_a_port_that_is_taken_is_told_with_the_remedy() -> None:
    """
    Two of them on one machine is what everybody does first.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = CliRunner().invoke(sim_command, ["--profile", "attention", "--port", str(port)])

    assert refused.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in refused.output
    assert "--port" in refused.output


def test_other_sizes_are_a_replica_that_was_built_otherwise() -> None:
    """
    Snapshots decide how many run, a pool is whole pages, and slots divide theirs.
    """

    def cache(profile: Profile) -> CacheSpec:
        assert isinstance(profile.cache, CacheSpec)
        return profile.cache

    more = GLM.with_flags(slots=56, chunk_tokens=8_192, host_tier=True)
    small = ATTENTION.with_flags(pool_tokens=100_000)
    blocks = VLLM_HYBRID.with_flags(pool_tokens=100_000)
    two = LLAMA_CPP.with_flags(slots=2, pool_tokens=32_768)

    states = cache(more).snapshots
    assert states is not None
    assert (states.slots, more.max_running, cache(more).chunk_tokens) == (56, 11, 8_192)
    assert cache(more).host == GLM.default_host
    assert (cache(small).pool_tokens, cache(blocks).pool_tokens) == (99_968, 99_792)
    assert (two.most_tokens, two.max_running) == (16_384, 2)
    assert GLM.with_flags() == GLM


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_names_every_option_profile_and_fault() -> None:
    """
    And none that there is not.
    """
    options = {name for each in sim_command.params for name in each.opts}
    rows = re.findall(r"^\| `(--[a-z-]+)", PAGE, flags=re.MULTILINE)
    named = re.findall(r"^\| `([a-z_]+)` \|", PAGE, flags=re.MULTILINE)

    assert sorted(rows) == sorted(options)
    assert all(f"| `{name}` |" in PAGE for name in PROFILES)
    assert set(KINDS) <= set(named)
    assert {name for kind in KINDS.values() for name in kind.model_fields} - {"do"} <= set(named)


def test_the_example_on_the_page_is_one_that_is_accepted(tmp_path: Path) -> None:
    """
    As it stands.
    """
    example = re.search(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert example
    (tmp_path / "faults.yaml").write_text(example[1], encoding="utf-8")

    assert len(load(tmp_path / "faults.yaml").restarts) == 1
    assert [kind for kind in KINDS if f"do: {kind}" not in example[1]] == []
