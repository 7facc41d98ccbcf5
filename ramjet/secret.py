"""The deployment's secret: given in the config, or made once and kept, so that a restart changes no hash."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import structlog

log = structlog.get_logger()


def state_dir() -> Path:
    """Where Ramjet keeps what outlives a restart: `$STATE_DIRECTORY` (systemd), else `$XDG_STATE_HOME/ramjet`."""
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "ramjet"


def seed_of(secret: str) -> int:
    """64 bits to seed all hashes with."""
    return int.from_bytes(hashlib.blake2b(secret.encode(), digest_size=8).digest(), "little")


def kept_secret(directory: Path | None = None) -> str:
    """The secret that was kept, made now if there is none; where it cannot be kept, one that lasts until the end."""
    path = (directory or state_dir()) / "secret"
    try:
        if path.exists():
            kept = path.read_text(encoding="ascii").strip()
            if kept:
                return kept
        path.parent.mkdir(parents=True, exist_ok=True)
        made = secrets.token_hex(32)
        # Made beside it and renamed, so that a crash or a second process never leaves or reads half a secret.
        draft = path.with_name(f".secret.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(made + "\n", encoding="ascii")
        draft.rename(path)
    except (OSError, UnicodeDecodeError) as error:
        log.warning("secret_not_kept", path=str(path), error=str(error), remedy="set secret in the config")
        return secrets.token_hex(32)
    return made
