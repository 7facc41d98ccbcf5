"""What engines have answered: a folder for each engine and version, a file for each page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent


def answers(name: str) -> Mapping[str, str]:
    """The pages of one of them by path: `v1_loads.json` is `/v1/loads`."""
    return {
        "/" + path.stem.replace("v1_", "v1/"): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / name).iterdir())
    }


EVERY = tuple(sorted(each.name for each in ROOT.iterdir() if each.is_dir() and each.name != "__pycache__"))
