"""The certificate of the port that clients connect to: read when it is opened, and again when its files have changed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from ramjet.reload import LOOK_EVERY_S
from ramjet.settled import stamp

log = structlog.get_logger()


class Certificate:
    """A context for TLS whose certificate is that of two files, as they are; connections keep what they began with."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """
        Args:
            certificate: with its chain, as PEM.
            key: its private key, as PEM and without a passphrase.

        Raises:
            OSError: they cannot be used (ssl.SSLError is one).
        """
        self._files = certificate, key
        self._seen = self._stamps()
        self.context = self._loaded()

    def look(self) -> None:
        """Take over what the files are now; if that cannot be used, all stays as it was."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        certificate, key = map(str, self._files)
        try:
            self._loaded()  # in a context that nobody uses: one that fails half-way has lost its old key
            self.context.load_cert_chain(certificate, key)
        except OSError as error:
            remedy = "put a certificate and its own key in place; the one before is still used"
            log.error("certificate_rejected", certificate=certificate, key=key, error=str(error), remedy=remedy)  # noqa: TRY400
        else:
            log.info("certificate_reloaded", certificate=certificate)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files)
        return context

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(stamp, self._files))
