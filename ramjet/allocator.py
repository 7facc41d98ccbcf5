"""How the C library keeps memory that was freed: bodies are long, and come and go with every request.

Left alone, glibc maps each long body anew and unmaps it when it goes, and the page faults in between cost more than all
the copying. So what is freed is kept for the next one, up to a bound.
"""

from __future__ import annotations

import ctypes

MAPPED_BYTES = 32 << 20
"""What is longer is mapped by itself, and goes back to the system at once; glibc's own choice grows up to this."""
KEPT_BYTES = 64 << 20
"""Of what is free at the end of the heap so much is kept: the bodies of some dozens of requests at once."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed() -> bool:
    """Have freed memory kept; false where the C library is another and knows no such thing, as musl."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return bool(libc.mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(libc.mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
