"""The manifests of deploy/kubernetes, built as `kubectl apply -k` builds them, and what one may ask of them.

Kustomize itself is asked to build them, so that a patch that changes nothing, or another thing than was meant, is seen.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))

KUBECTL = shutil.which("kubectl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="no kubectl here: scripts/kubectl.sh .venv, or install it")

BY_HAND = {"ramjet"}
"""Secrets that no manifest holds: docs/kubernetes.md says how they are made."""

Object = dict[str, Any]


@cache
def kustomize(directory: Path) -> str:
    """What `kubectl apply -k` would send, as YAML."""
    assert KUBECTL is not None
    built = subprocess.run(
        [KUBECTL, "kustomize", str(directory)], capture_output=True, text=True, check=False, timeout=60
    )
    assert built.returncode == 0, built.stderr
    # Kustomize says there what it will no longer understand one day.
    assert built.stderr == ""
    return built.stdout


@cache
def _together(overlay: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        # Kustomize wants relative paths.
        here = os.path.relpath(KUBERNETES, os.path.realpath(directory))
        whole = {
            "resources": [f"{here}/overlays/{overlay}", f"{here}/sglang"],
            "components": [f"{here}/monitoring"],
            "namespace": "ramjet",
        }
        Path(directory, "kustomization.yaml").write_text(yaml.safe_dump(whole))
        return kustomize(Path(directory))


def together(overlay: str) -> list[Object]:
    """An overlay with SGLang and monitoring, as docs/kubernetes.md puts them together."""
    return list(yaml.safe_load_all(_together(overlay)))


def of_kind(objects: list[Object], *kinds: str) -> Iterator[Object]:
    """Those of these kinds."""
    yield from (each for each in objects if each["kind"] in kinds)


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one of that kind and name."""
    return next(each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)


def workloads(objects: list[Object]) -> Iterator[Object]:
    """What runs pods."""
    yield from of_kind(objects, "Deployment", "StatefulSet")


def selected(objects: list[Object], labels: Mapping[str, str]) -> list[Object]:
    """The workloads whose pods have these labels."""
    return [
        each for each in workloads(objects) if labels.items() <= each["spec"]["template"]["metadata"]["labels"].items()
    ]


def pod(workload: Object) -> Object:
    """What its pods are."""
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def ports(workload: Object) -> set[str | int]:
    """Names and numbers of its pods' ports."""
    opened = [port for container in pod(workload)["containers"] for port in container.get("ports", ())]
    return {port["name"] for port in opened} | {port["containerPort"] for port in opened}


def environment(workload: Object) -> dict[str, str]:
    """The variables with a value that its first container is given."""
    return {each["name"]: each["value"] for each in pod(workload)["containers"][0].get("env", ()) if "value" in each}


UNITS = {"": 1, "m": 1e-3, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text: str) -> float:
    """A quantity as Kubernetes writes it, 512Mi or 500m."""
    match = re.fullmatch(r"([\d.]+)(\w*)", text)
    assert match, text
    return float(match[1]) * UNITS[match[2]]


# --- What does not fit together --------------------------------------------------------------------------------------


def faults(objects: list[Object]) -> list[str]:
    """Everything that is named and not there, or there and never meant."""
    found = [fault for each in workloads(objects) for fault in _of_workload(objects, each)]
    for each in objects:
        check = _CHECKS.get(each["kind"])
        if check is not None:
            found += [f"{each['kind']} {each['metadata']['name']}: {fault}" for fault in check(objects, each)]
    return found


def _exists(objects: list[Object], kind: str, name: str) -> bool:
    return any(each["metadata"]["name"] == name for each in of_kind(objects, kind))


def _of_workload(objects: list[Object], workload: Object) -> Iterator[str]:
    spec, at = workload["spec"], f"{workload['kind']} {workload['metadata']['name']}"
    if workload not in selected(objects, spec["selector"]["matchLabels"]):
        yield f"{at}: selects other pods than its own"
    account = pod(workload).get("serviceAccountName")
    if account is not None and not _exists(objects, "ServiceAccount", account):
        yield f"{at}: no ServiceAccount {account}"
    for spread in pod(workload).get("topologySpreadConstraints", ()):
        if workload not in selected(objects, spread["labelSelector"]["matchLabels"]):
            yield f"{at}: spreads other pods than its own"
    volumes = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", ())}
    for volume in pod(workload).get("volumes", ()):
        volumes.add(volume["name"])
        for key, kind, name in (
            ("configMap", "ConfigMap", "name"),
            ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
        ):
            if key in volume and not _exists(objects, kind, volume[key][name]):
                yield f"{at}: no {kind} {volume[key][name]}"
    for container in pod(workload)["containers"]:
        yield from (f"{at}: {fault}" for fault in _of_container(objects, workload, container, volumes))
    if workload["kind"] == "StatefulSet":
        service = spec["serviceName"]
        if not any(
            each["metadata"]["name"] == service and each["spec"].get("clusterIP") == "None"
            for each in of_kind(objects, "Service")
        ):
            yield f"{at}: no headless Service {service}"


def _of_container(objects: list[Object], workload: Object, container: Object, volumes: set[str]) -> Iterator[str]:
    mounted = {each["name"] for each in container.get("volumeMounts", ())}
    yield from (f"no volume {name}" for name in mounted - volumes)
    yield from (f"volume {name} is mounted nowhere" for name in volumes - mounted)
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        for how in ("httpGet", "tcpSocket", "grpc"):
            port = container.get(kind, {}).get(how, {}).get("port")
            if port is not None and port not in ports(workload):
                yield f"{kind}: no port {port}"
    for source in container.get("envFrom", ()):
        name = source["secretRef"]["name"]
        if name not in BY_HAND and not _exists(objects, "Secret", name):
            yield f"no Secret {name}"


def _of_service(objects: list[Object], service: Object) -> Iterator[str]:
    behind = selected(objects, service["spec"]["selector"])
    if not behind:
        yield "selects nothing"
    for port in service["spec"]["ports"]:
        yield from (
            f"no port {port['targetPort']} behind it" for each in behind if port["targetPort"] not in ports(each)
        )


def _of_budget(objects: list[Object], budget: Object) -> Iterator[str]:
    if not selected(objects, budget["spec"]["selector"]["matchLabels"]):
        yield "selects nothing"


def _of_policy(objects: list[Object], policy: Object) -> Iterator[str]:
    guarded = selected(objects, policy["spec"]["podSelector"]["matchLabels"])
    if not guarded:
        yield "selects nothing"
    for rule in policy["spec"]["ingress"]:
        for port in rule["ports"]:
            yield from (f"no port {port['port']}" for each in guarded if port["port"] not in ports(each))
        for peer in rule.get("from", ()):
            labels = peer.get("podSelector", {}).get("matchLabels")
            if labels is not None and not selected(objects, labels):
                yield f"lets in nobody: {labels}"


def _of_binding(objects: list[Object], binding: Object) -> Iterator[str]:
    for each in (binding["roleRef"], *binding["subjects"]):
        if not _exists(objects, each["kind"], each["name"]):
            yield f"no {each['kind']} {each['name']}"
    yield from (f"no namespace for {each['name']}" for each in binding["subjects"] if not each.get("namespace"))


def _of_monitor(objects: list[Object], monitor: Object) -> Iterator[str]:
    labels = monitor["spec"]["selector"]["matchLabels"]
    services = [each for each in of_kind(objects, "Service") if labels.items() <= each["metadata"]["labels"].items()]
    if not services:
        yield "selects nothing"
    for service in services:
        known = {port["name"] for port in service["spec"]["ports"]}
        yield from (f"no port {each['port']}" for each in monitor["spec"]["endpoints"] if each["port"] not in known)
        if monitor["spec"]["jobLabel"] not in service["metadata"]["labels"]:
            yield f"no label {monitor['spec']['jobLabel']}"


def _of_route(objects: list[Object], route: Object) -> Iterator[str]:
    for reference in (each for rule in route["spec"]["rules"] for each in rule["backendRefs"]):
        if not _exists(objects, reference.get("kind", "Service"), reference["name"]):
            yield f"no {reference.get('kind', 'Service')} {reference['name']}"
        if reference.get("kind", "Service") == "Service" and "port" not in reference:
            yield f"no port for {reference['name']}"


def _of_pool(objects: list[Object], pool: Object) -> Iterator[str]:
    members = selected(objects, pool["spec"]["selector"]["matchLabels"])
    if not members:
        yield "selects nothing"
    for port in pool["spec"]["targetPorts"]:
        yield from (f"no port {port['number']}" for each in members if port["number"] not in ports(each))
    picker = pool["spec"]["endpointPickerRef"]
    asked = [each for each in of_kind(objects, "Service") if each["metadata"]["name"] == picker["name"]]
    if not any(port["port"] == picker["port"]["number"] for each in asked for port in each["spec"]["ports"]):
        yield f"no Service {picker['name']} with a port {picker['port']['number']}"


_CHECKS = {
    "Service": _of_service,
    "PodDisruptionBudget": _of_budget,
    "NetworkPolicy": _of_policy,
    "RoleBinding": _of_binding,
    "ServiceMonitor": _of_monitor,
    "HTTPRoute": _of_route,
    "InferencePool": _of_pool,
}
