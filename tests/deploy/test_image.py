"""What the image is made of."""

from __future__ import annotations

import re
import tomllib

from tests.test_deploy import ROOT

EXTRAS = ("envoy", "kubernetes", "kvevents", "valkey")
"""What a router can be told to use; the others are for people."""


def pinned(name: str) -> dict[str, str]:
    """Packages and their versions in a lock."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def test_the_image_is_what_was_tested() -> None:
    """
    One version of everything: what the image has is what the tests have, and what it can do without is in no other version.
    """
    run, image, dev = map(pinned, ("run", "image", "dev"))

    assert len(run) > 20
    assert run.items() <= image.items() <= dev.items()


def test_the_image_has_what_a_router_can_be_told_to_use() -> None:
    """
    Each package of those extras is in its lock, and none of the others' is.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {
        extra: {re.split(r"[^\w-]", each)[0].replace("_", "-").lower() for each in extras[extra]} for extra in extras
    }
    image = set(pinned("image"))

    assert set().union(*(names[extra] for extra in EXTRAS)) <= image
    assert not image & set().union(*(names[extra] for extra in extras if extra not in EXTRAS))
