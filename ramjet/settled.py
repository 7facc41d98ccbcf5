"""Whether a file that others write has changed, and is no longer being written."""

from __future__ import annotations

from pathlib import Path


class Settled:
    """Looks at a file, time and again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read = self._before = self._now = stamp(path)

    def look(self) -> None:
        """See what it is like now."""
        self._before, self._now = self._now, stamp(self._path)

    def read(self) -> None:
        """It is read as it is now."""
        self._read = self._now

    @property
    def is_settled(self) -> bool:
        """Whether two looks in a row saw the same: a file that is being written changes from look to look."""
        return self._now is not None and self._now == self._before

    @property
    def is_new(self) -> bool:
        """Whether it is not what was read, or was there at the start."""
        return self._now != self._read

    @property
    def is_gone(self) -> bool:
        """Whether two looks in a row saw none: one that is being replaced may be gone for a moment."""
        return self._now is self._before is None


def stamp(path: Path | None) -> tuple[int, int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
