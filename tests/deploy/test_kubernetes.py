"""The manifests are valid by published schemas, fit together, and say what Ramjet says."""

from __future__ import annotations

import copy
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml

from ramjet import config
from ramjet.cli import main
from ramjet.config import ENV_PREFIX, Settings, keys
from tests.deploy.manifests import (
    BY_HAND,
    KUBERNETES,
    OVERLAYS,
    Object,
    environment,
    faults,
    kustomize,
    named,
    needs_kubectl,
    of_kind,
    pod,
    ports,
    quantity,
    together,
    workloads,
)
from tests.test_deploy import ADMIN, CONFIG, DEPLOY, FRONT, ROOT, STATE, compose, dockerfile

pytestmark = needs_kubectl

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""The oldest Kubernetes that the manifests are for, and the newest that is known here."""
PICKER = 9002
"""The port that endpoint pickers have by custom."""
SCHEMAS = {path.stem: path for path in (Path(__file__).parent / "schemas").glob("*.yaml")}
PAGE = ROOT / "docs" / "kubernetes.md"


# --- By the schemas --------------------------------------------------------------------------------------------------


def strict(schema: Any) -> Any:
    """The schema as a cluster heeds it: a field that it does not name is an error."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(each) for key, each in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def invalid(each: Object) -> str | None:
    """What is wrong with an object by its published schema; None for nothing."""
    path = SCHEMAS.get(each["kind"].lower())
    try:
        if path is not None:
            jsonschema.validate(each, strict(yaml.safe_load(path.read_text())))
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(each, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        return str(error)
    return None


@each_overlay
def test_every_object_is_valid(overlay: str) -> None:
    """
    By the schemas of Kubernetes, of the Prometheus operator and of the Gateway API, with no field that they do not know.
    """
    objects = together(overlay)

    assert len(objects) > 10
    assert [error for error in map(invalid, objects) if error is not None] == []


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Deployment", "ramjet", ("spec", "template", "spec", "terminationGracePeriodSecond"), 630),
        ("Deployment", "ramjet", ("spec", "replicas"), "two"),
        ("Service", "ramjet", ("spec", "ports", 0, "port"), "http"),
        ("ServiceMonitor", "ramjet", ("spec", "endpoints", 0, "interval"), "5 s"),
        ("ServiceMonitor", "ramjet", ("spec", "endpoint"), []),
        ("PrometheusRule", "ramjet", ("spec", "groups", 0, "rules", 0, "labels", "page"), True),
        ("InferencePool", "sglang", ("spec", "extensionRef"), {"name": "ramjet"}),
        ("HTTPRoute", "sglang", ("spec", "rules", 0, "timeouts", "request"), "forever"),
    ],
)
def test_an_invalid_object_is_seen(kind: str, name: str, path: tuple[Any, ...], value: Any) -> None:
    """
    The check above sees a field that does not exist and a value of another kind, in every group of schemas.
    """
    broken = copy.deepcopy(named(together("gateway"), kind, name))
    place = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    assert invalid(broken) is not None


@pytest.mark.parametrize("directory", ["sglang", *(f"overlays/{each}" for each in OVERLAYS)])
def test_every_part_can_be_applied_alone(directory: str) -> None:
    """
    Each has a namespace of its own for everything in it, so that `kubectl apply -k` needs no other word.
    """
    built = list(yaml.safe_load_all(kustomize(KUBERNETES / directory)))

    assert {each["metadata"]["namespace"] for each in built} == {"ramjet"}


# --- With one another ------------------------------------------------------------------------------------------------


@each_overlay
def test_what_is_named_exists(overlay: str) -> None:
    """
    Selectors select, ports have the names by which they are called, and every account, volume, role and Service is there.
    """
    assert faults(together(overlay)) == []


BREAKS = {
    "Deployment ramjet: no ConfigMap ramjet": ("ConfigMap", "ramjet", ("metadata", "name"), "ramjet-7h2k"),
    "Deployment ramjet: no ServiceAccount ramjet": ("ServiceAccount", "ramjet", ("metadata", "name"), "other"),
    "Deployment ramjet: no PersistentVolumeClaim ramjet-state": ("PersistentVolumeClaim", "ramjet-state", ("metadata", "name"), "state"),
    "Deployment ramjet: no Secret keys": ("Deployment", "ramjet", ("spec", "template", "spec", "containers", 0, "envFrom", 0, "secretRef", "name"), "keys"),
    "Deployment ramjet: no volume states": ("Deployment", "ramjet", ("spec", "template", "spec", "containers", 0, "volumeMounts", 1, "name"), "states"),
    "Deployment ramjet: livenessProbe: no port front": (
        "Deployment", "ramjet", ("spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "port"), "front",
    ),
    "Deployment ramjet: selects other pods than its own": ("Deployment", "ramjet", ("spec", "selector", "matchLabels"), {"app": "ramjet"}),
    "StatefulSet sglang: no headless Service sglang": ("Service", "sglang", ("spec", "clusterIP"), "10.0.0.1"),
    "Service ramjet: selects nothing": ("Service", "ramjet", ("spec", "selector"), {"app": "ramjet"}),
    "Service ramjet: no port web behind it": ("Service", "ramjet", ("spec", "ports", 0, "targetPort"), "web"),
    "PodDisruptionBudget ramjet: selects nothing": ("PodDisruptionBudget", "ramjet", ("spec", "selector", "matchLabels"), {"app": "ramjet"}),
    "NetworkPolicy sglang: lets in nobody: {'app': 'ramjet'}": (
        "NetworkPolicy", "sglang", ("spec", "ingress", 0, "from", 0, "podSelector", "matchLabels"), {"app": "ramjet"},
    ),
    "NetworkPolicy sglang: no port api": ("NetworkPolicy", "sglang", ("spec", "ingress", 0, "ports", 0, "port"), "api"),
    "RoleBinding ramjet: no Role ramjet": ("Role", "ramjet", ("metadata", "name"), "other"),
    "ServiceMonitor sglang: no port http": ("Service", "sglang", ("spec", "ports", 0, "name"), "api"),
    "ServiceMonitor ramjet: selects nothing": ("Service", "ramjet-admin", ("metadata", "labels"), {}),
}  # fmt: skip


@pytest.mark.parametrize("fault", BREAKS)
def test_what_does_not_fit_is_seen(fault: str) -> None:
    """
    The check above sees each of these faults, and has words for it.
    """
    kind, name, path, value = BREAKS[fault]
    objects = copy.deepcopy(together("single"))
    place: Any = named(objects, kind, name)
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    assert fault in faults(objects)


# --- With Ramjet -----------------------------------------------------------------------------------------------------


def settings_of(objects: list[Object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """What a pod's Ramjet would start with: the mounted file, and over it the pod's variables and those of the secret."""
    path = tmp_path / "ramjet.yaml"
    path.write_text(named(objects, "ConfigMap", "ramjet")["data"]["ramjet.yaml"])
    for key, value in environment(named(objects, "Deployment", "ramjet")).items():
        monkeypatch.setenv(key, value)
    for key in ("RAMJET_SECRET", "RAMJET_ADMIN_TOKEN"):
        monkeypatch.setenv(key, "a test's")
    return config.load(path)


@each_overlay
def test_the_configuration_is_one_that_ramjet_starts_with(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    File and variables are valid together, and every variable means something.
    """
    objects = together(overlay)
    deployment = named(objects, "Deployment", "ramjet")

    settings_of(objects, monkeypatch, tmp_path)

    known = {ENV_PREFIX + key.upper().replace(".", "__") for key in keys()}
    assert set(environment(deployment)) <= known


@each_overlay
def test_the_replicas_are_the_pods_of_sglang(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What the configuration looks for is what the example starts.
    """
    objects = together(overlay)
    settings = settings_of(objects, monkeypatch, tmp_path)
    sglang = named(objects, "StatefulSet", "sglang")
    service = named(objects, "Service", sglang["spec"]["serviceName"])

    (source,) = settings.discovery.sources
    assert source.kubernetes is not None
    assert source.kubernetes.namespace is None
    assert source.kubernetes.service == service["metadata"]["name"]
    assert source.kubernetes.port in {port["name"] for port in service["spec"]["ports"]}
    assert source.replica.engine == "sglang"
    # Else the cluster's probes decide who serves, and not Ramjet's.
    assert service["spec"]["publishNotReadyAddresses"] is True


@each_overlay
def test_there_is_time_to_drain(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Between the signal and the end the cluster waits for longer than Ramjet does, and a replica outlives what runs on it.
    """
    objects = together(overlay)
    drain_s = settings_of(objects, monkeypatch, tmp_path).limits.drain_s

    for name, kind in (("ramjet", "Deployment"), ("sglang", "StatefulSet")):
        spec = pod(named(objects, kind, name))
        waits_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert waits_s + drain_s < spec["terminationGracePeriodSeconds"], name


@each_overlay
def test_memory_holds_what_the_settings_allow(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The process, what it needs to ask the cluster and what it remembers, what is kept of bodies, and bodies twice.
    """
    objects = together(overlay)
    settings = settings_of(objects, monkeypatch, tmp_path)
    limit = quantity(pod(named(objects, "Deployment", "ramjet"))["containers"][0]["resources"]["limits"]["memory"])

    assert 2**20 * (110 + 40 + settings.beliefs.memory_mb + 32) + 2 * settings.limits.held_bytes < limit
    assert settings.limits.held_bytes > settings.limits.body_bytes


@each_overlay
def test_the_journal_fits_its_volume(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With SQLite's own log beside it, which docs/journal.md puts at 16 MB.
    """
    objects = together(overlay)
    settings = settings_of(objects, monkeypatch, tmp_path)
    volume = next(each for each in pod(named(objects, "Deployment", "ramjet"))["volumes"] if each["name"] == "state")
    if "persistentVolumeClaim" in volume:
        claim = named(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        size = quantity(claim["spec"]["resources"]["requests"]["storage"])
    else:
        size = quantity(volume["emptyDir"]["sizeLimit"])

    assert settings.journal.megabytes * 2**20 + 16 * 10**6 < size


@each_overlay
def test_only_one_process_has_a_journal(overlay: str) -> None:
    """
    Where the journal's volume outlives the pod, there is one router, and the old one is gone before the new one begins.
    """
    deployment = named(together(overlay), "Deployment", "ramjet")
    if any("persistentVolumeClaim" in each for each in pod(deployment)["volumes"]):
        assert deployment["spec"]["replicas"] == 1
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    else:
        assert deployment["spec"]["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@each_overlay
def test_image_and_manifests_agree(overlay: str) -> None:
    """
    Ports, paths, user and version are the image's, and what is run is a command that Ramjet has.
    """
    deployment = named(together(overlay), "Deployment", "ramjet")
    spec = pod(deployment)
    container, instructions = spec["containers"][0], dict(dockerfile())
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}

    assert {ADMIN, PICKER if "args" in container else FRONT} < ports(deployment)
    command = json.loads(instructions["ENTRYPOINT"]) + container.get("args", json.loads(instructions["CMD"]))
    assert command[0] == "ramjet"
    assert main.get_command(click.Context(main), command[1]) is not None
    assert command[command.index("--config") + 1] == CONFIG
    if "args" in container:
        assert command[command.index("--listen") + 1] == f"0.0.0.0:{PICKER}"
        assert container["readinessProbe"]["grpc"] == {"port": PICKER, "service": "readiness"}
    else:
        assert container["readinessProbe"]["httpGet"] == {"port": "http", "path": "/health"}
    assert (mounts["config"], mounts["state"]) == (str(Path(CONFIG).parent), STATE)
    assert instructions["USER"] == f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container["image"] == f"ramjet-lb:{version}"


@each_overlay
def test_nobody_has_more_rights_than_needed(overlay: str) -> None:
    """
    No root, no file system to write to, no capability; only Ramjet may ask the cluster anything, and only for EndpointSlices.
    """
    objects = together(overlay)
    for workload in workloads(objects):
        spec = pod(workload)
        # The engine's image wants root, and is not ours to change.
        if workload["metadata"]["name"] != "sglang":
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in spec["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
        if "serviceAccountName" not in spec:
            assert spec["automountServiceAccountToken"] is False
        # Their variables would begin with RAMJET_, and Ramjet would warn of each.
        assert spec["enableServiceLinks"] is False

    rules = [rule for role in of_kind(objects, "Role") for rule in role["rules"]]
    assert rules == [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    assert not list(of_kind(objects, "ClusterRole", "ClusterRoleBinding", "Secret"))


@each_overlay
def test_nobody_is_restarted_for_others_faults(overlay: str) -> None:
    """
    A restart only for who does not answer, and for a whole minute.
    """
    container = pod(named(together(overlay), "Deployment", "ramjet"))["containers"][0]

    alive = {"port": "admin", "path": "/live"}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == alive
    assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 60


def test_the_routers_of_a_fleet_meet_in_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    At the Service's port, with one secret for all, and with room for what they share.
    """
    objects = together("fleet")
    peers = settings_of(objects, monkeypatch, tmp_path).peers
    service, valkey = (named(objects, kind, "ramjet-valkey") for kind in ("Service", "Deployment"))
    container = pod(valkey)["containers"][0]
    most = re.fullmatch(r"(\d+)mb", container["args"][container["args"].index("--maxmemory") + 1])

    assert peers.url is not None
    assert peers.url.get_secret_value() == f"valkey://ramjet-valkey:{service['spec']['ports'][0]['port']}"
    assert most
    assert 1.5 * peers.megabytes < int(most[1]) < 0.75 * quantity(container["resources"]["limits"]["memory"]) / 2**20
    assert named(objects, "Deployment", "ramjet")["spec"]["replicas"] > 1


def test_sglang_is_started_as_compose_starts_it() -> None:
    """
    One set of flags for both: what Ramjet wants of SGLang is said once.
    """
    spec = pod(named(together("single"), "StatefulSet", "sglang"))
    container, service = spec["containers"][0], compose()["services"]["sglang-0"]
    given = " ".join(each.replace("=", " ") for each in container["args"]).split()
    theirs = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["command"]).split()

    assert given == theirs
    assert [container["image"], *container["command"]] == [
        re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"]),
        *service["entrypoint"],
    ]
    assert environment({"spec": {"template": {"spec": spec}}}) == {
        key: value for key, value in service["environment"].items() if key != "HF_TOKEN"
    }


# --- Monitoring ------------------------------------------------------------------------------------------------------


def test_the_operators_rules_are_the_rules() -> None:
    """
    What the Prometheus operator is given is deploy/alerts.yml; scripts/alerts.sh writes it anew.
    """
    rule = named(together("single"), "PrometheusRule", "ramjet")

    assert rule["spec"] == yaml.safe_load((DEPLOY / "alerts.yml").read_text())


def test_jobs_are_called_what_alerts_ask_for() -> None:
    """
    `up{job="ramjet"}` is about Ramjet: the job's name is the value of a label of the Service.
    """
    objects = together("single")
    jobs = {
        service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        for monitor in of_kind(objects, "ServiceMonitor")
        for service in of_kind(objects, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    }
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]

    assert jobs == {each["job_name"] for each in scraped}
    assert {*re.findall(r'job="(\w+)"', (DEPLOY / "alerts.yml").read_text())} <= jobs


# --- The page --------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """What docs/kubernetes.md has a reader type."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def test_the_page_makes_the_secret_that_pods_ask_for() -> None:
    """
    Under that name, with keys that mean something to Ramjet; and what it applies is there.
    """
    made = [line for line in commands() for name in BY_HAND if f"create secret generic {name} " in line]
    literals = {key for line in made for key in re.findall(r"--from-literal=(\w+)=", line)}

    assert len(made) == 1
    assert literals == {"RAMJET_SECRET", "RAMJET_ADMIN_TOKEN"}
    assert literals <= {ENV_PREFIX + key.upper().replace(".", "__") for key in keys()}
    applied = [each for line in commands() for each in re.findall(r"apply -k (\S+)", line)]
    assert len(applied) >= 2
    assert [
        each for each in applied if each.startswith("deploy/") and not (ROOT / each / "kustomization.yaml").exists()
    ] == []


def test_the_page_shows_an_overlay_that_builds(tmp_path: Path) -> None:
    """
    The overlay of one's own on the page is one that kustomize builds, with what it says it changes.
    """
    shown = re.search(
        r"^```yaml\n(apiVersion: kustomize.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert shown
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    own = tmp_path / "kubernetes" / "overlays" / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(shown[1])
    (own / "ramjet.yaml").write_text("log: {level: warning}\n")

    built = list(yaml.safe_load_all(kustomize(own)))

    assert named(built, "ConfigMap", "ramjet")["data"]["ramjet.yaml"] == "log: {level: warning}\n"
    assert named(built, "PrometheusRule", "ramjet")
    assert pod(named(built, "Deployment", "ramjet"))["containers"][0]["image"] == "registry.example/ramjet-lb:0.1.0"
    assert named(built, "Deployment", "ramjet")["spec"]["replicas"] == 2
