"""What docs/scale.md says is what was measured."""

from __future__ import annotations

import re

from tests.evidence.scale import PAGE, ROOT, costs, tables


def test_the_tables_are_the_measurements() -> None:
    """
    Else `python -m tests.evidence.scale` writes them anew.
    """
    text = PAGE.read_text(encoding="utf-8")

    for table in tables().values():
        assert f"\n{table}\n" in text


def test_each_figure_has_a_command_that_prints_it() -> None:
    """
    A target of the Makefile, or a module here.
    """
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    for what, _, command in costs():
        words = command.split()
        if words[0] == "make":
            assert words[1] in targets, what
        else:
            assert (ROOT / (words[2].replace(".", "/") + ".py")).exists(), what
