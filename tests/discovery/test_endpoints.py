"""From EndpointSlices to replicas: who is ready, who is going away, who is there twice, and at which port."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.discovery.endpoints import replicas_of
from ramjet.discovery.names import name_of
from tests.discovery.api_server import Slice, endpoint, slice_of

URL = "http://{host}:{port}"


def found(*slices: Slice, port: str | int | None = "http") -> dict[str, tuple[str, bool]]:
    """Who is found: URL and whether it is ready, by name."""
    return {each.name: (each.url, each.ready) for each in replicas_of(slices, port, URL)}


def who(*slices: Slice) -> dict[str, bool]:
    return {name: ready for name, (_, ready) in found(*slices).items()}


def test_a_pod_is_a_replica_under_its_name() -> None:
    """
    One without a pod has its host name, and one without either its address.
    """
    endpoints = [endpoint("10.0.0.7", "glm-0"), {**endpoint("10.0.0.8"), "hostname": "gpu"}, endpoint("10.0.0.9")]

    assert found(slice_of("a", *endpoints)) == {
        "glm-0": ("http://10.0.0.7:30000", True),
        "gpu": ("http://10.0.0.8:30000", True),
        "10.0.0.9-30000": ("http://10.0.0.9:30000", True),
    }


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ({"ready": True}, True),
        ({"ready": None}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": False, "terminating": False}, False),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False, "serving": True, "terminating": True}, None),
        ({"ready": False, "serving": False, "terminating": True}, None),
    ],
)
def test_who_is_going_away_is_gone(conditions: dict[str, Any], ready: bool | None) -> None:
    """
    One that is not ready is there; what is not said means yes.
    """
    shown = who(slice_of("a", endpoint("10.0.0.1", "stays"), endpoint("10.0.0.2", "pod", **conditions)))

    assert shown.get("pod") is ready
    assert shown["stays"]


def test_those_that_go_away_serve_where_nobody_else_does() -> None:
    """
    As Kubernetes' own proxy does: the last ones of a Service, or of a rollout that has nobody new yet.
    """
    leaving = endpoint("10.0.0.1", "old", ready=False, serving=True, terminating=True)
    dead = endpoint("10.0.0.2", "dead", ready=False, serving=False, terminating=True)
    starting = endpoint("10.0.0.3", "new", ready=False)

    assert who(slice_of("a", leaving, dead, starting)) == {"old": True, "new": False}
    assert who(slice_of("a", leaving, dead, endpoint("10.0.0.3", "new"))) == {"new": True}


def test_one_in_two_slices_is_one() -> None:
    """
    While slices are rearranged an endpoint is in two of them, one of which may be out of date; and one with addresses of
    two families is in one of each.
    """
    old = slice_of("a", endpoint("10.0.0.1", "glm-0", ready=False))
    new = slice_of("b", endpoint("10.0.0.1", "glm-0"))
    six = slice_of("c", endpoint("fd00::1", "glm-0"), family="IPv6")

    for order in ((old, new, six), (six, new, old), (new, old), (six, old, new)):
        assert found(*order) == {"glm-0": ("http://10.0.0.1:30000", True)}
    assert found(six) == {"glm-0": ("http://[fd00::1]:30000", True)}


def test_a_port_is_named_numbered_or_the_only_one() -> None:
    """
    A slice that has no such port has no replicas; where no slice has, the Service's are named.
    """
    pod = endpoint("10.0.0.1", "glm-0")
    both = slice_of("a", pod, ports={"http": 30000, "metrics": 9000})
    only = slice_of("b", pod, ports={"": 8080})
    none = {**slice_of("c", pod), "ports": None}

    assert found(both)["glm-0"][0] == "http://10.0.0.1:30000"
    assert found(both, port="metrics")["glm-0"][0] == "http://10.0.0.1:9000"
    assert found(both, port=1)["glm-0"][0] == found(none, port=1)["glm-0"][0] == "http://10.0.0.1:1"
    assert found(only, port=None)["glm-0"][0] == "http://10.0.0.1:8080"
    assert found(slice_of("d", ports={"other": 1})) == {}
    with pytest.raises(ValueError, match="port is not given: the Service's are http, metrics; name one of them"):
        found(both, port=None)
    with pytest.raises(ValueError, match="there is no port grpc: the Service's are http, metrics"):
        found(both, port="grpc")


def test_another_pod_under_the_same_name_is_another() -> None:
    """
    A StatefulSet's pod comes back under its name, now and then at the same address, and with nothing in its cache.
    """
    (one,) = replicas_of([slice_of("a", endpoint("10.0.0.1", "glm-0", uid="1"))], "http", URL)
    (two,) = replicas_of([slice_of("a", endpoint("10.0.0.1", "glm-0", uid="2"))], "http", URL)

    assert (one.name, one.url) == (two.name, two.url)
    assert one != two


@given(st.lists(st.integers(0, 12), max_size=20), st.randoms(use_true_random=False))
def test_how_endpoints_are_cut_into_slices_never_matters(pods: list[int], lots: random.Random) -> None:
    """
    Nobody is lost or doubled, wherever they stand and however often.
    """
    slices = [slice_of(f"s{cut}", *[]) for cut in range(4)]
    for pod in pods:
        chosen = lots.choice(slices)
        chosen["endpoints"] = [*(chosen["endpoints"] or ()), endpoint(f"10.0.0.{pod}", f"glm-{pod}")]

    shown = replicas_of(slices, "http", URL)

    assert sorted(each.url for each in shown) == sorted(f"http://10.0.0.{pod}:30000" for pod in set(pods))
    assert {each.name for each in shown} == {f"glm-{pod}" for pod in pods}
    assert all(each.ready for each in shown)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=3))
def test_any_words_make_a_name_and_the_same_words_the_same(words: list[str]) -> None:
    """
    One that logs, metrics and paths can hold.
    """
    name = name_of(*words)

    assert name == name_of(*words)
    assert 0 < len(name) <= 63
    assert name[0].isascii()
    assert all(each.isascii() and (each.isalnum() or each in "._-") for each in name)


def test_long_names_differ_where_their_ends_do() -> None:
    """
    Most of a name is in its beginning, and what tells pods apart in its end.
    """
    assert name_of("a" * 70 + "b") != name_of("a" * 70 + "c")
