"""What is found gets a name that is stable, and that logs, metrics and paths can hold."""

from __future__ import annotations

import re
from hashlib import blake2b

_MOST = 63
"""Of the characters of a replica's name."""


def name_of(*parts: str) -> str:
    """A name out of what identifies a replica: an address and a port, a host's name; the same for the same."""
    text = re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(parts))
    if not text[:1].isalnum():
        text = f"0{text}"  # ::1 is 0::1
    if len(text) <= _MOST:
        return text
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{text[: _MOST - len(digest) - 1]}-{digest}"


def bracketed(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
