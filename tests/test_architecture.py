"""Who may import whom: the core is pure, edges do not know one another, and one place wires them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import ramjet
from ramjet.cli import main

ROOT = Path(ramjet.__file__).parent

PURE = ("core", "engines", "sim", "check/findings")
EDGES = ("proxy", "epp", "watch", "discovery", "admin", "journal", "replica", "probes", "console", "check", "peers")
NOT_FOR_THE_PURE = frozenset(
    (
        *(f"ramjet.{name}" for name in (*EDGES, "demo", "app", "cli", "config", "config_faults", "config_file", "metrics", "gauges", "logs", "secret")),
        "aiohttp", "httpx", "asyncio", "time", "random", "socket", "secrets", "threading", "subprocess", "os", "io",
        "pathlib", "logging", "structlog", "datetime", "sqlite3", "prometheus_client", "pydantic", "uvloop", "urllib",
    )
)  # fmt: skip
"""Edges, and whatever opens, waits, draws lots or looks at a clock."""
PURE_MODULES = frozenset(f"ramjet.{name.replace('/', '.')}" for name in PURE)

WIRING = frozenset(
    (
        "ramjet.app",
        "ramjet.build",
        "ramjet.cli",
        "ramjet.control",
        "ramjet.demo.run",
        "ramjet.lab.recorded",
        "ramjet.plan.cli",
        "ramjet.plan.source",
        "ramjet.report.cli",
        "ramjet.report.source",
    )
)
"""Where parts are put together."""


def modules(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join((ROOT.name, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=path.name)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; of `from a import b` both `a` and `a.b`, for b may be one."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide who is imported"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def under(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("path", modules(*PURE), ids=name_of)
def test_the_core_touches_nothing(path: Path) -> None:
    """
    No edge, no socket, no clock, no chance: what it is told is all it knows.
    """
    touched = {
        module
        for module in imports(path)
        if any(under(module, each) for each in NOT_FOR_THE_PURE)
        and not any(under(module, each) for each in PURE_MODULES)
    }

    assert not touched


@pytest.mark.parametrize("path", modules(*PURE), ids=name_of)
def test_the_core_never_waits(path: Path) -> None:
    """
    Choosing and booking happen with nothing in between, so nothing in there may be a coroutine.
    """
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    lines = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, waiting)]

    assert not lines


@pytest.mark.parametrize("path", modules("core"), ids=name_of)
def test_the_core_stands_on_itself(path: Path) -> None:
    """
    Of Ramjet it imports the core alone.
    """
    others = {module for module in imports(path) if under(module, "ramjet") and not under(module, "ramjet.core")}

    assert others <= {"ramjet"}


@pytest.mark.parametrize("edge", EDGES)
def test_edges_do_not_know_one_another(edge: str) -> None:
    """
    Each is told what it needs by whoever wires it, and none wires.
    """
    foreign = [f"ramjet.{name}" for name in (*EDGES, "demo", "app", "cli") if name != edge]

    for path in modules(edge):
        known = {module for module in imports(path) if any(under(module, each) for each in foreign)}
        assert not known, name_of(path)


def test_what_ways_in_share_knows_none_of_them() -> None:
    """
    It stands below them, beside the client for HTTP: on the core, and on nothing that listens.
    """
    below = ("core", "front", "http1")
    for path in modules("front"):
        known = {module for module in imports(path) if under(module, "ramjet")}
        assert all(any(under(module, f"ramjet.{each}") for each in below) for module in known - {"ramjet"}), name_of(
            path
        )


def test_only_the_composition_roots_wire() -> None:
    """
    Outside the edges themselves, nobody but these imports one.
    """
    edges = [f"ramjet.{edge}" for edge in EDGES]
    inside = set(modules(*EDGES))
    wiring = {
        name_of(path)
        for path in modules("")
        if path not in inside and any(under(module, edge) for module in imports(path) for edge in edges)
    }

    assert wiring <= WIRING
    assert "ramjet.app" in wiring


def test_nobody_imports_the_composition_root_but_the_command_and_the_demo() -> None:
    """
    It knows everybody; whoever knew it would know everybody too.
    """
    importing = {name_of(path) for path in modules("") if any(under(module, "ramjet.app") for module in imports(path))}

    assert importing == {"ramjet.cli", "ramjet.demo.run"}


def test_only_the_command_imports_the_demo() -> None:
    """
    It is a composition like the root, and for one command alone; of the edges it knows the simulated replica.
    """
    importing = {name_of(path) for path in modules("") if any(under(module, "ramjet.demo") for module in imports(path))}
    assert {name for name in importing if not under(name, "ramjet.demo")} == {"ramjet.cli"}

    known = {
        edge
        for path in modules("demo")
        for module in imports(path)
        for edge in EDGES
        if under(module, f"ramjet.{edge}")
    }
    assert known == {"replica"}


def test_serving_loads_neither_the_demo_nor_what_is_simulated_or_probed() -> None:
    """
    Commands of their own import them when they run: the balancer starts without.
    """
    told = "import sys, ramjet.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout.split()

    assert "ramjet.app" in loaded
    others = [
        f"ramjet.{name}"
        for name in ("demo", "epp", "replica", "plan", "probes", "report", "sim", "lab", "console", "check")
    ]
    others += [
        "ramjet.discovery.dns",
        "ramjet.discovery.kubernetes",
        "dns",
        "kubernetes_asyncio",
        "zmq",
    ]  # which are for those who use them
    assert [each for each in loaded if any(under(each, other) for other in others)] == []


def test_commands_that_live_elsewhere_are_there() -> None:
    """
    Each is found under its name, with the name that its help shows.
    """
    with click.Context(main) as context:
        found = {name: main.get_command(context, name) for name in main.list_commands(context)}

    assert {"check", "demo", "epp", "explain", "plan", "probe", "report", "serve", "sim", "top"} <= set(found)
    assert all(command is not None and command.name == name for name, command in found.items())


def test_every_module_says_what_it_is_for() -> None:
    """
    The first thing a reader meets is a docstring.
    """
    assert not [name_of(path) for path in modules("") if path.stat().st_size and not ast.get_docstring(tree(path))]


def test_this_test_would_see_an_import(tmp_path: Path) -> None:
    """
    In any form and at any depth.
    """
    path = tmp_path / "module.py"
    path.write_text(
        "import time\nfrom ramjet import proxy\n\ndef f():\n    if True:\n        from asyncio.tasks import sleep\n"
    )

    assert {"time", "ramjet.proxy", "asyncio.tasks"} <= set(imports(path))
