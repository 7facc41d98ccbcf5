"""Every numbered case has its tests, and the page that says which is the one in docs/evidence."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from pathlib import Path

from tests import bugs
from tests.bugs import CASES, NOTES

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "bug_cases.md"
HEAD = """# Bug cases

What went wrong in other load balancers and streaming proxies, and the tests that play it against Ramjet.
The numbers are those of the list of bug cases that the tests were written from; those that are missing were left out of it on purpose.
`tests/bugs/test_behaviours.py` plays everything an engine may do at every endpoint, streaming or not, whatever the number.
`make test ARGS=tests/bugs` runs all of them, `python -m tests.bugs.test_cases` writes this page.

| Case | What goes wrong | Tests in `tests/bugs` |
|---|---|---|
"""


def names_by_case() -> dict[int, list[str]]:
    """The names of the tests of each case, as module::test."""
    found: dict[int, list[str]] = defaultdict(list)
    for module in pkgutil.iter_modules(bugs.__path__):
        if module.name.startswith("test_") and module.name != "test_cases":
            for name, value in vars(importlib.import_module(f"tests.bugs.{module.name}")).items():
                for mark in getattr(value, "pytestmark", ()) if name.startswith("test_") else ():
                    for number in mark.args if mark.name == "case" else ():
                        found[number].append(f"{module.name}::{name}")
    return found


def page() -> str:
    """The page as it should be."""
    found, rows = names_by_case(), []
    for number, what in CASES.items():
        names = "<br>".join(f"`{name}`" for name in found[number])
        note = f"<br>{NOTES[number]}" if number in NOTES else ""
        rows.append(f"| {number} | {what} | {names}{note} |")
    return HEAD + "\n".join(rows) + "\n"


def test_every_case_of_the_list_has_a_test() -> None:
    """
    The list is the one in `tests.bugs`; a case that cannot be tested would need a note there.
    """
    assert not [number for number in CASES if number not in names_by_case() and number not in NOTES]


def test_the_page_is_the_one_in_docs() -> None:
    """
    `python -m tests.bugs.test_cases` writes it.
    """
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
