"""How the C library keeps memory that was freed: bodies are long, and come and go with every request.

Left alone, glibc maps each long body anew and unmaps it when it goes, and the page faults in between cost more than all
the copying. So what is freed is kept for the next one, up to a bound; and nobody fills a buffer that is about to be filled.
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


def room(size: int) -> bytearray:
    """A buffer in which stands anything, for who writes all of it before it is read: to fill it with zeros first takes
    half as long as receiving a body into it.
    """
    if _new_bytearray is None:
        return bytearray(size)
    made: bytearray = _new_bytearray(None, size)
    return made


_new_bytearray = getattr(getattr(ctypes, "pythonapi", None), "PyByteArray_FromStringAndSize", None)
if _new_bytearray is not None:
    _new_bytearray.restype, _new_bytearray.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
