# One image for both stages: an environment only runs on the interpreter it was built with.
ARG PYTHON_IMAGE=python:3.13.14-slim-trixie

# scripts/check_deploy.sh replays this stage outside Docker: keep each ARG, COPY and RUN on one line and its sources relative.
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY scripts/install.sh scripts/
COPY requirements/run.txt requirements/image.txt requirements/
# With what Kubernetes, Valkey, Envoy and KV events need. `--build-arg LOCK=run` leaves that out, and saves 103 MB of 202.
ARG LOCK=image
RUN scripts/install.sh /opt/ramjet deps
COPY pyproject.toml README.md LICENSE ./
COPY ramjet ramjet/
RUN scripts/install.sh /opt/ramjet project

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Ramjet" \
      org.opencontainers.image.description="The load balancer that sends every turn of a conversation to the replica that holds its cache" \
      org.opencontainers.image.licenses="Apache-2.0"

# Fixed ids: Kubernetes' runAsNonRoot wants a number, and files in a volume must keep their owner from image to image.
RUN groupadd --gid 10001 ramjet \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /var/lib/ramjet --shell /usr/sbin/nologin ramjet \
    && install -d -o ramjet -g ramjet -m 0750 /var/lib/ramjet
COPY --from=build /opt/ramjet /opt/ramjet

# The addresses inside the container are the image's contract (the health check below relies on one of them), so they win
# over the file; choose others outside it, with -p. The admin port must leave the container's own loopback to be scraped:
# publish it on a loopback or private address only, for metrics and health ask for no token.
ENV PATH=/opt/ramjet/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    STATE_DIRECTORY=/var/lib/ramjet \
    RAMJET_LISTEN=0.0.0.0:8000 \
    RAMJET_ADMIN=0.0.0.0:9090
EXPOSE 8000 9090

USER 10001:10001
WORKDIR /var/lib/ramjet

# 503 means that no replica can take a request: the container is of no use then, and is reported so. On the admin port, for
# the other may speak TLS, or gRPC with Envoy. http.client, because the image has no curl and urllib would go through a proxy
# named in the environment.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9090, timeout=4); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]

# On SIGTERM Ramjet lets running requests finish, for up to ten minutes: give `docker stop` the time (-t 630).
STOPSIGNAL SIGTERM
ENTRYPOINT ["ramjet"]
CMD ["serve", "--config", "/etc/ramjet/ramjet.yaml"]
