"""Memory of long bodies is kept for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
