"""Write what a long measurement saw to docs/evidence/, in a form that people and later runs can read."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

_EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def write(name: str, title: str, says: str, rows: list[dict[str, Any]]) -> None:
    """A table as Markdown, and the same as JSON beside it.

    Args:
        name: of the files, without ending.
        title: of the page.
        says: what was done and how to do it again.
        rows: one dictionary a row, all with the same keys.
    """
    _EVIDENCE.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    lines = [f"# {title}", "", says, "", f"Python {platform.python_version()}, {platform.machine()}.", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    (_EVIDENCE / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (_EVIDENCE / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def rows(name: str) -> list[dict[str, Any]]:
    """What was seen the last time; nothing where nobody has looked yet."""
    path = _EVIDENCE / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _cell(value: Any) -> str:
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
