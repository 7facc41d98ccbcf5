"""Who is told of answers by Envoy's observability mode and does nothing with them: what that way costs at the least.

Run as a program it prints the port that it listens on.
"""

from __future__ import annotations

from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


class Observer(ext_proc.ExternalProcessorServicer):  # type: ignore[misc] # it is generated without types
    """Reads, and says nothing: Envoy waits for nothing."""

    async def Process(self, requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:  # noqa: N802 - the service's name
        """Take in all messages of one request."""
        while await context.read() is not grpc.aio.EOF:
            pass


async def _main() -> None:
    server, healthy = grpc.aio.server(), health.aio.HealthServicer()
    ext_proc.add_ExternalProcessorServicer_to_server(Observer(), server)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    name = "envoy.service.ext_proc.v3.ExternalProcessor"
    await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201 - for whoever started it
    await server.wait_for_termination()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_main())
