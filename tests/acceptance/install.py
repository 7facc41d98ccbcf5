"""Install what is missing of the engines and their models: python -m tests.acceptance.install

Each engine gets an environment of its own, of exact versions with hashes (`requirements/`), some 3 GB, in a few minutes.
SGLang comes without its packages for GPUs: `cpu/sglang_cpu.py` says what stands in for them.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import click

from tests.acceptance.engines import HYBRID, LLAMA, MAMBA, SGLANG, VLLM, WORDS, home

_HERE = Path(__file__).parent
_PYTHON = "python3.11"
"""What the pinned wheels are made for."""


def install_engine(kind: str) -> None:
    """An environment that holds exactly what its requirements say, unless there is one."""
    folder = home() / kind
    requirements = _HERE / "requirements" / f"{kind}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    click.echo(f"installing {kind} into {folder}, some minutes and 3 GB", err=True)
    subprocess.run([_PYTHON, "-m", "venv", str(folder)], check=True)
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(requirements)], check=False)
    if done.returncode:
        raise click.ClickException(
            f"{kind} could not be installed. If it is torch that was not found: pip has to be told where its builds for the "
            "CPU are, with PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL"
        )
    stamp.write_text(digest)


def make_model(name: str) -> None:
    """A tiny random model, unless there is one made by the same lines."""
    script = _HERE / "cpu" / "tiny_model.py"
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    folder = home() / "models" / name
    stamp = folder / "made_by"
    if stamp.exists() and stamp.read_text() == digest:
        return
    kind = name.removesuffix(WORDS)
    command = [str(home() / SGLANG / "bin" / "python"), str(script), kind, str(folder)]
    subprocess.run([*command, *(["--words"] if kind != name else [])], check=True, stdout=sys.stderr)
    stamp.write_text(digest)


def main() -> None:
    """All engines, then the models, which need an engine's packages."""
    for kind in (SGLANG, VLLM):
        install_engine(kind)
    for name in (LLAMA, HYBRID, LLAMA + WORDS, HYBRID + WORDS, MAMBA):
        make_model(name)


if __name__ == "__main__":
    main()
