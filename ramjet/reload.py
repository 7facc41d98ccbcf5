"""Take over the configuration file when it changes, and on SIGHUP. A file with a fault changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from ramjet.config import ConfigError, Settings
from ramjet.settled import Settled

log = structlog.get_logger()

LOOK_EVERY_S = 1.0


class Reloader:
    """Looks at the file every second; `asked` makes it look at once, whether or not the file seems changed."""

    def __init__(self, path: Path | None, read: Callable[[], Settings], apply: Callable[[Settings], list[str]]) -> None:
        self._path = path
        self._read = read
        self._apply = apply
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the configuration again now."""
        self._asked.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        file = Settled(self._path)
        while True:
            asked = await self._wait()
            file.look()
            if asked or (file.is_settled and file.is_new):
                file.read()
                self._reload()

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True

    def _reload(self) -> None:
        try:
            settings = self._read()
        except ConfigError as error:
            log.error("config_rejected", error=str(error))  # noqa: TRY400 - the message says all
            return
        if not (settings.replicas or settings.discovery.sources):
            told = f"{self._path}: replicas: is empty; a fleet is let go replica by replica, not at once"
            log.error("config_rejected", error=told)
            return
        needs_restart = self._apply(settings)
        log.info("config_reloaded", replicas=[each.name for each in settings.replicas], needs_restart=needs_restart)
