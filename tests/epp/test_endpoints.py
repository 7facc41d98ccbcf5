"""What Envoy calls a replica."""

from __future__ import annotations

import pytest

from ramjet.epp.endpoints import endpoint_at


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.7:30000", "10.0.0.7:30000"),
        ("http://10.0.0.7", "10.0.0.7:80"),
        ("https://10.0.0.7", "10.0.0.7:443"),
        ("http://[fd00:0::7]:30000", "[fd00::7]:30000"),
    ],
)
def test_a_replica_is_called_by_its_address(url: str, endpoint: str) -> None:
    """
    In the form that Envoy itself writes, for it compares them as text.
    """
    assert endpoint_at(url) == endpoint


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://glm-1:30000", "glm-1 is a name; Envoy is told of replicas by IP address and port: write its address"),
        ("http://10.0.0.7:30000/glm", "has a base path"),
    ],
)
def test_where_envoy_could_not_go_is_said(url: str, why: str) -> None:
    """
    With what is wrong, and what would be right.
    """
    with pytest.raises(ValueError, match=why) as told:
        endpoint_at(url)
    assert url in str(told.value)
