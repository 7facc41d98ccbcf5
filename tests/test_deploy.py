"""What ships besides the code agrees with the code, and its parts agree with one another."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ramjet import config
from tests.rig import metrics_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
CONFIG = "/etc/ramjet/ramjet.yaml"
STATE = "/var/lib/ramjet"
FRONT, ADMIN = 8000, 9090

Labels = dict[str, frozenset[str]]
"""Time series by the name Prometheus stores them under, and their labels."""


def exported() -> Labels:
    """What a scrape shows of a Ramjet that has served nothing yet: every series is there from the start."""
    scrape = metrics_of("a", "b").render().decode()
    families = text_string_to_metric_families(scrape)
    return {sample.name: frozenset(sample.labels) for family in families for sample in family.samples}


# --- PromQL, as much of it as tells metrics and labels from everything else ------------------------------------------

TOKEN = re.compile(
    r"""
      (?P<string> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` )
    | (?P<range>  \[ [^\]]* \] )                    # [5m], [$__rate_interval], [1h:5m]
    | (?P<skip>   \s+ | \#[^\n]* )
    | (?P<value>  \$\w+ | \$\{[^}]*\} | (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+|[a-z]\w*)? )
    | (?P<name>   [A-Za-z_:][\w:]* )
    | (?P<sign>   =~ | !~ | != | == | >= | <= | [-+*/%^=<>(){},@] )
    """,
    re.VERBOSE,
)
GROUPING = {"by", "without"}
MATCHING = {"on", "ignoring", "group_left", "group_right"}
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end", "atan2"}


@dataclass(frozen=True)
class Use:
    """A label that a query expects on a metric; without a label, only the metric."""

    metric: str
    label: str | None = None


def tokens(query: str) -> list[tuple[str, str]]:
    """Kind and text of each token; strings and ranges are opaque, since a label value may look like anything."""
    found, at = [], 0
    while at < len(query):
        match = TOKEN.match(query, at)
        assert match, f"cannot read {query[at:]!r} in {query!r}"
        at = match.end()
        if match.lastgroup != "skip":
            found.append((match.lastgroup or "", match.group()))
    return found


def closing(read: list[tuple[str, str]], at: int) -> int:
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(read)):
        kind, text = read[i]
        if kind == "sign":
            depth += (text in "({") - (text in ")}")
        if depth == 0:
            return i
    raise AssertionError(f"a bracket is never closed: {read}")


def opening(read: list[tuple[str, str]], at: int) -> int:
    """The place of the bracket that the one at `at` closes."""
    return next(i for i in range(at, -1, -1) if read[i] == ("sign", "(") and closing(read, i) == at)


def uses(query: str) -> Iterator[Use]:
    """Every metric a query reads, and every label it expects on one: selected, grouped by or matched on."""
    read = tokens(query)
    lists: list[tuple[int, int, int, int]] = []  # a list of labels, and the stretch whose metrics must have them
    metrics: list[tuple[int, str]] = []
    at = 0
    while at < len(read):
        kind, text = read[at]
        follows = read[at + 1] if at + 1 < len(read) else ("", "")
        if kind != "name" or text.lower() in WORDS:
            at += 1
        elif text in GROUPING | MATCHING and follows == ("sign", "("):
            end = closing(read, at + 1)
            if text in MATCHING:
                first, last = 0, len(read)
            elif end + 1 < len(read) and read[end + 1] == ("sign", "("):  # sum by (a) (...)
                first, last = end + 1, closing(read, end + 1)
            else:  # sum(...) by (a)
                first, last = opening(read, at - 1), at - 1
            lists.append((at + 1, end, first, last))
            at = end + 1
        elif text in MATCHING or follows == ("sign", "(") or (follows[0] == "name" and follows[1] in GROUPING):
            at += 1  # a bare group_left, a function, an aggregation
        else:
            metrics.append((at, text))
            at += 1
            if follows == ("sign", "{"):
                end = closing(read, at)
                lists.append((at, end, at - 1, at))
                at = end + 1
    for place, metric in metrics:
        yield Use(metric)
        for start, end, first, last in lists:
            if first <= place <= last:
                yield from (Use(metric, text) for kind, text in read[start:end] if kind == "name")


def queries(node: Any) -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of every panel, however deep in rows it sits."""
    for panel in node.get("panels", ()):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target.get("legendFormat", "")
        yield from queries(panel)
    for variable in node.get("templating", {}).get("list", ()):
        asked = variable.get("query")
        for text in {variable.get("definition"), asked.get("query") if isinstance(asked, dict) else None} - {None}:
            # label_values(metric, label) is Grafana's, not PromQL: said again as a query that needs the same.
            values = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", text)
            yield f"variable {variable['name']}", f"group by ({values[2]}) ({values[1]})" if values else text, ""


def faults(query: str, legend: str, known: Labels) -> list[str]:
    """What a query asks for that is not exported."""
    found = []
    metrics = set()
    for use in uses(query):
        metrics.add(use.metric)
        if use.metric not in known:
            found.append(f"no metric {use.metric}")
        elif use.label is not None and use.label not in known[use.metric]:
            found.append(f"no label {use.label} on {use.metric}")
    if not metrics:
        found.append("no metric at all")
    offered = {label for metric in metrics for label in known.get(metric, ())}
    found += [
        f"no label {label} for the legend" for label in re.findall(r"{{\s*(\w+)\s*}}", legend) if label not in offered
    ]
    return found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboard_asks_only_for_what_is_exported(path: Path) -> None:
    """Every metric and label a dashboard names is one that Ramjet exports: no panel stays empty for ever."""
    known = exported()
    asked = list(queries(json.loads(path.read_text())))
    assert len(asked) > 20
    assert [(title, fault) for title, query, legend in asked for fault in faults(query, legend, known)] == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboard_shows_absence_as_absence(path: Path) -> None:
    """No panel turns "nothing was reported" into a zero or a line drawn through the gap."""
    text = path.read_text()
    board = json.loads(text)
    assert [title for title, query, _ in queries(board) if re.search(r"\bor\s+(on\s*\(\)\s*)?vector\s*\(", query)] == []
    assert not re.search(r'"spanNulls": (true|\d)|"noValue": "0', text)
    assert all(panel["fieldConfig"]["defaults"].get("noValue") for panel in board["panels"] if panel["type"] == "stat")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboard_panels_do_not_collide(path: Path) -> None:
    """Panels have their own ids and places and fit the width of the page."""
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


KNOWN: Labels = {
    "a_total": frozenset({"replica", "outcome"}),
    "b_bucket": frozenset({"replica", "le"}),
    "c": frozenset(),
}


@pytest.mark.parametrize(
    ("query", "legend", "expected"),
    [
        ("a_totl", "", ["no metric a_totl"]),
        ("a", "", ["no metric a"]),
        ("rate(b_sum[5m])", "", ["no metric b_sum"]),
        ("sum by (reason) (rate(a_total[$__rate_interval]))", "", ["no label reason on a_total"]),
        ("sum(rate(a_total[5m])) by (reason) / c", "", ["no label reason on a_total"]),
        ('a_total{why="c"}', "", ["no label why on a_total"]),
        ('a_total{replica=~"$replica", why!~"x|{y}"} > 0', "", ["no label why on a_total"]),
        ("sum(a_total) / on (replica) sum(c)", "", ["no label replica on c"]),
        ("a_total * on (replica) group_left (outcome) b_bucket", "", ["no label outcome on b_bucket"]),
        ("c or vector(0) unless missing", "", ["no metric missing"]),
        ("a_total", "{{replica}} {{reason}}", ["no label reason for the legend"]),
        ("vector(1)", "", ["no metric at all"]),
    ],
)
def test_dashboard_check_can_fail(query: str, legend: str, expected: list[str]) -> None:
    """The check above sees a wrong metric or label wherever a query may name one."""
    assert faults(query, legend, KNOWN) == expected


@pytest.mark.parametrize(
    ("query", "legend"),
    [
        ('histogram_quantile($quantile, sum by (le) (rate(b_bucket{replica="<8k, by (x) {y="}[${span:raw}])))', ""),
        ("sum without (replica) (a_total offset 5m) > bool 1e-3 # missing", "{{outcome}}"),
        ("topk(3, a_total @ end()) and on () c == c ^ 2", "{{ replica }}"),
        ("max_over_time(c[1h:5m]) - -Inf", ""),
    ],
)
def test_dashboard_check_can_pass(query: str, legend: str) -> None:
    """The check above takes no function, keyword, label value, range or variable for a metric."""
    assert faults(query, legend, KNOWN) == []


# --- One path, one port, everywhere ----------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    """The Compose file as data."""
    data: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return data


def dockerfile() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with continuation lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def unit() -> configparser.SectionProxy:
    """The [Service] section; of a directive given twice, the last."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "systemd" / "ramjet.service")
    return parser["Service"]


def test_compose_matches_its_schema() -> None:
    """compose.yaml is valid by the Compose specification's own schema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    result = subprocess.run([*command, DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_shipped_config_loads() -> None:
    """The config that compose mounts is one Ramjet starts with, and names the replicas that compose starts."""
    settings = config.load(DEPLOY / "ramjet.yaml")
    services = compose()["services"]
    assert len(settings.replicas) == 2
    for replica in settings.replicas:
        host, port = str(replica.url).rstrip("/").removeprefix("http://").split(":")
        assert replica.name == host
        assert services[host]["expose"] == [port]
        assert f"--port {port}" in services[host]["command"]


def test_image_unit_and_compose_name_one_config_and_one_state() -> None:
    """Whoever moves from one way of running Ramjet to another finds the config and the state at the same paths."""
    instructions = dict(dockerfile())
    assert json.loads(instructions["CMD"]) == ["serve", "--config", CONFIG]
    assert instructions["WORKDIR"] == STATE

    mounts = compose()["services"]["ramjet"]["volumes"]
    assert f"./ramjet.yaml:{CONFIG}:ro" in mounts
    assert [mount for mount in mounts if mount.endswith(f":{STATE}")]
    assert "command" not in compose()["services"]["ramjet"]

    assert unit()["ExecStart"].split(maxsplit=1)[1] == f"serve --config {CONFIG}"
    assert f"STATE_DIRECTORY={STATE}" in instructions["ENV"]
    assert f"/var/lib/{unit()['StateDirectory']}" == STATE


def test_image_compose_and_scrape_name_the_same_ports() -> None:
    """The ports Ramjet listens on are those that are exposed, published, checked and scraped."""
    instructions = dict(dockerfile())
    assert f"RAMJET_LISTEN=0.0.0.0:{FRONT}" in instructions["ENV"]
    assert f"RAMJET_ADMIN=0.0.0.0:{ADMIN}" in instructions["ENV"]
    assert instructions["EXPOSE"] == f"{FRONT} {ADMIN}"
    assert f"'127.0.0.1', {ADMIN}," in instructions["HEALTHCHECK"]

    raw = yaml.safe_load((DEPLOY / "ramjet.yaml").read_text())
    assert (raw["listen"], raw["admin"]) == (f"0.0.0.0:{FRONT}", f"0.0.0.0:{ADMIN}")

    ports = compose()["services"]["ramjet"]["ports"]
    assert {port.rsplit(":", 1)[1] for port in ports} == {str(FRONT), str(ADMIN)}

    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in jobs}
    assert targets["ramjet"] == [f"ramjet:{ADMIN}"]
    assert targets["sglang"] == [str(replica["url"]).removeprefix("http://") for replica in raw["replicas"]]


def test_nothing_without_a_password_is_published_beyond_the_host() -> None:
    """Of everything compose starts, only Ramjet's front port is reachable from other machines."""
    published = {
        (name, port)
        for name, service in compose()["services"].items()
        for port in service.get("ports", ())
        if not port.startswith("127.0.0.1:")
    }
    assert published == {("ramjet", f"{FRONT}:{FRONT}")}


def test_replicas_share_no_memory_and_no_gpu() -> None:
    """Two engines never see one another's /dev/shm, where equal process ids would overwrite each other's segments."""
    services = compose()["services"]
    replicas = [service for name, service in services.items() if name.startswith("sglang-")]
    assert [service["ipc"] for service in replicas] == ["private", "private"]
    gpus = [service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for service in replicas]
    assert gpus == [["${GPU_0:-0}"], ["${GPU_1:-1}"]]
    assert {"--enable-cache-report", "--enable-metrics"} <= set(replicas[0]["command"].split())


def test_stopping_leaves_time_to_drain() -> None:
    """systemd and compose wait longer for Ramjet than Ramjet waits for its last requests."""
    drain = config.load(DEPLOY / "ramjet.yaml").limits.drain_s
    assert int(unit()["TimeoutStopSec"]) > drain
    grace = re.fullmatch(r"(\d+)m(\d+)s", compose()["services"]["ramjet"]["stop_grace_period"])
    assert grace
    assert int(grace[1]) * 60 + int(grace[2]) > drain
    # Compose stops dependents first: the replicas must outlive the drain.
    assert set(compose()["services"]["ramjet"]["depends_on"]) == {"sglang-0", "sglang-1"}


def test_build_context_holds_what_the_image_copies() -> None:
    """.dockerignore lets in every file the Dockerfile copies, and the files are there."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for word, rest in dockerfile()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == kept
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_dashboard_uses_the_provisioned_paths() -> None:
    """Grafana finds the data source and the dashboards where compose mounts them."""
    grafana = compose()["services"]["grafana"]
    provisioning = DEPLOY / "grafana" / "provisioning"
    provider = yaml.safe_load((provisioning / "dashboards" / "ramjet.yaml").read_text())["providers"][0]
    target = provider["options"]["path"]
    assert f"./grafana/dashboards:{target}:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{target}/{DASHBOARDS[0].name}"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    assert source["url"] == "http://prometheus:9090"
