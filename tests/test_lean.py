"""Who serves has in memory what serving needs."""

from __future__ import annotations

import os
import subprocess
import sys

import certifi

HEAVY = {"httpx", "rich", "pygments", "greenlet", "numpy", "zmq", "h11"}
"""What other commands need, or extras, or libraries where it is installed."""


def test_serving_takes_along_nothing_that_it_does_not_need() -> None:
    """
    A library may take others along when it is imported: structlog does.
    """
    found = "import sys, ramjet.cli, ramjet.app; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", found], check=True, capture_output=True, text=True)

    assert "structlog" in done.stdout.split()
    assert not HEAVY & set(done.stdout.split())


def test_what_was_kept_out_can_be_had_afterwards() -> None:
    """
    Modules by the commands that print tables, certificate authorities by who calls a replica over TLS.
    """
    env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    authorities = (
        "import os, ssl; print(ssl.create_default_context().cert_store_stats(), os.environ.get('SSL_CERT_FILE'))"
    )

    def said(code: str, **more: str) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, check=True, capture_output=True, text=True, env={**env, **more}).stdout

    said("import ramjet, rich.console, httpx")
    for file in ({}, {"SSL_CERT_FILE": certifi.where()}):
        assert said(f"import ramjet; {authorities}", **file) == said(authorities, **file)
