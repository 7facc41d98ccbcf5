"""Memory of long bodies is kept for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from ramjet import allocator

_FAULTS = """
import resource, sys
from ramjet.allocator import keep_freed

if sys.argv[1] == "keep":
    assert keep_freed()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    bodies = [b"x" * 1_000_000 for _ in range(8)]
    del bodies
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    command = [sys.executable, "-c", _FAULTS, how]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such settings")
def test_memory_of_long_bodies_is_not_mapped_anew_for_each() -> None:
    """
    Eight megabytes come and go 50 times, and are mapped once; left alone, most of the 100,000 pages are mapped anew.
    """
    left_alone, kept = page_faults("leave"), page_faults("keep")

    assert kept < 5_000 < left_alone


@pytest.mark.parametrize("native", [True, False])
def test_there_is_room_for_as_much_as_was_asked_for(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A buffer like any other, also where the interpreter is another.
    """
    if not native:
        monkeypatch.setattr(allocator, "_new_bytearray", None)
    for size in (0, 1, 4_097, 5_000_000):
        made = allocator.room(size)
        made[:] = b"x" * size
        assert (type(made), len(made), made.count(b"x")) == (bytearray, size, size)
