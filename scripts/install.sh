#!/bin/sh
# Install Ramjet into a virtual environment of its own: locked versions only, each checked against its hash.
# The image and scripts/check_deploy.sh both run this file, so that what is checked is what ships.
#
# usage: [LOCK=image] scripts/install.sh VENV [all|deps|project]
#   LOCK names the file in requirements/: run (the default), or image, which has the extras of a router beside it.
#   deps and project are apart because dependencies change rarely and code often: two image layers, one of them cached.
set -eu

venv=${1:?usage: scripts/install.sh VENV [all|deps|project]}
part=${2:-all}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
cd "$(dirname "$0")/.."

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }
deps() {
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    pip_install --require-hashes -r "requirements/${LOCK:-run}.txt"
}
# No isolation: the build backend is locked with the rest, and a build of its own would fetch one that is not.
project() { pip_install --no-deps --no-build-isolation .; }

case $part in
    all) deps && project ;;
    deps | project) "$part" ;;
    *) echo "scripts/install.sh: no part named '$part' (all, deps, project)" >&2 && exit 2 ;;
esac
