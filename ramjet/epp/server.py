"""The gRPC server that Envoy connects to: the external processor, and the health service beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ramjet.epp.picker import Picker

_PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
_ALIVE = "liveness"
_READY = (health.OVERALL_HEALTH, "readiness", _PROCESSOR)

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # limits.body_bytes is looked at by the door, which can say so
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # two processes on one port would share it without a word
)


class Server:
    """Serves a picker on an address."""

    def __init__(self, picker: Picker) -> None:
        self._server = grpc.aio.server(options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        ext_proc.add_ExternalProcessorServicer_to_server(_Servicer(picker), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: str, certificate: tuple[Path, Path] | None = None) -> int:
        """Listen.

        Args:
            address: HOST:PORT, port 0 for any.
            certificate: the files of a certificate's key and of its chain, as PEM; None for no TLS.

        Returns:
            The port that was taken.

        Raises:
            OSError: the address cannot be listened on, or the certificate not be used.
        """
        try:
            if certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(*certificate))
        except RuntimeError as error:
            raise OSError(None, "the address is taken, or not ours") from error
        await self._server.start()
        for name in (_ALIVE, *_READY):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def drain(self) -> None:
        """Say that no more requests are wanted: Envoy's health checks see it."""
        for name in _READY:
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self) -> None:
        """End what still runs."""
        await self._server.stop(0)


def _credentials(key: Path, chain: Path) -> grpc.ServerCredentials:
    """A certificate that is read anew for every connection, of which Envoy makes few: it may have been renewed."""

    def read() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), chain.read_bytes())])

    return grpc.dynamic_ssl_server_credentials(read(), read)


class _Servicer(ext_proc.ExternalProcessorServicer):  # type: ignore[misc] # it is generated without types
    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    async def Process(self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:  # noqa: N802 - the service's name
        """Serve one request of Envoy's."""
        await self._picker.serve(_Stream(context))


class _Stream:
    """The messages of one call."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self.write = context.write

    async def read(self) -> pb.ProcessingRequest | None:
        """The next message of Envoy's; None after the last."""
        message = await self._context.read()
        return None if message is grpc.aio.EOF else cast("pb.ProcessingRequest", message)
