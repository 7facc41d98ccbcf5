"""The headers by which requests are known, whoever carries them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping

REQUEST_ID = "x-request-id"
PROBE = "x-ramjet-probe"
RANK = "x-data-parallel-rank"
"""By which SGLang and vLLM are told which of their data-parallel ranks is meant."""
KEYS = frozenset({"authorization", "x-api-key", "api-key"})
"""In which clients show a key."""
OURS = "x-ramjet-"
"""How the names begin that mean something to Ramjet alone."""

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}\Z")
_IDS_AT_ONCE = 256
"""Asking the system for chance takes longer than all else about an id."""


def request_id_of(given: Mapping[str, str]) -> str:
    """The client's request id when it is sane, else a new one."""
    said = given.get(REQUEST_ID)
    return said if said is not None and _SANE_REQUEST_ID.match(said) else next(_new_ids)


def _ids() -> Iterator[str]:
    while True:
        many = secrets.token_hex(16 * _IDS_AT_ONCE)
        yield from (many[at : at + 32] for at in range(0, len(many), 32))


_new_ids = _ids()
