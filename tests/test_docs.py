"""The documentation says what the code says: nothing is missing from it, and nothing in it does not exist."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from math import factorial
from pathlib import Path
from typing import Any, cast, get_args

import click
import pytest
import yaml
from aiohttp.test_utils import make_mocked_request
from prometheus_client import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from structlog.testing import capture_logs

from ramjet.admin.server import admin_app
from ramjet.build import fleet_of, policy_of, polling_of
from ramjet.cli import demo_command, main, serve_command
from ramjet.config import ENV_PREFIX, ConfigError, ReplicaSettings, Settings, SourceSettings, keys, load
from ramjet.control import ONLY_AT_START, Control
from ramjet.core.admission import Obstacle
from ramjet.core.bodies import LEAST_BYTES, MOST_BYTES
from ramjet.core.causes import CAUSES
from ramjet.core.hints import AGENT_HEADERS, SESSION_FIELDS
from ramjet.core.policies import BalanceCost, Reading
from ramjet.core.prompt import ENDPOINTS, SMALL_BYTES, Unreadable, read
from ramjet.core.record import EVIDENCE, OUTCOMES, SIZE_CLASSES, TEMPERATURES, Record
from ramjet.core.retry import Failure
from ramjet.core.route import REASONS, Ask, Candidate
from ramjet.core.router import Router
from ramjet.front import errors
from ramjet.front.reading import _THREAD_BYTES
from ramjet.metrics import DRIFTS, ENDPOINT_NAMES, Metrics
from ramjet.proxy.server import health_body
from ramjet.reload import Reloader
from ramjet.watch.stats import StatsWatch
from tests.rig import metrics_of
from tests.test_deploy import exported, faults

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


README, CONFIGURATION, METRICS, DESIGN, RUNBOOK = map(
    page, ("README.md", "docs/configuration.md", "docs/metrics.md", "docs/design.md", "docs/runbook.md")
)


def sections(text: str, level: str = "### ") -> dict[str, str]:
    """What stands below each heading of a level whose title is code, up to the next heading."""
    found = re.findall(rf"^{level}`([^`]+)`\n\n(.*?)(?=^#|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found))
    return dict(found)


def table(text: str, head: str) -> dict[str, list[str]]:
    """The rows of the table with this first cell in its head, by their first cell without backticks."""
    found = re.search(rf"^\| {re.escape(head)} \|.*\n\|---.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert found, head
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].strip("`"): row for row in rows}


def blocks(text: str, language: str) -> list[str]:
    """The code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


# -- configuration ----------------------------------------------------------------------------------------------------


def documented_keys() -> Iterator[str]:
    for key in keys():
        yield key
        if key == "replicas":
            yield from (f"replicas.{name}" for name in ReplicaSettings.model_fields)
        if key == "discovery.sources":
            yield from source_fields()


def source_fields(model: type[BaseModel] = SourceSettings, prefix: str = "discovery.sources.") -> dict[str, FieldInfo]:
    """The keys of a source; the template's are those of a replica."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        kinds = [kind for kind in get_args(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        fields |= source_fields(kinds[0], f"{prefix}{name}.") if kinds else {prefix + name: field}
    return fields


def test_every_key_has_a_section() -> None:
    """
    Every key has a section of its own, in the model's order, and no section is about a key that does not exist.
    """
    assert list(sections(CONFIGURATION)) == list(documented_keys())


@pytest.mark.parametrize("key", list(keys()))
def test_section_names_variable_and_default(key: str) -> None:
    """
    The line below the heading says the variable, the type and the default, and then comes a reason.
    """
    facts, _, reasons = sections(CONFIGURATION)[key].partition("\n")
    variable, kind, default = facts.split(" · ")
    shown = re.fullmatch(r"default `(.*)`", default)
    value: object = Settings()
    for step in key.split("."):
        value = getattr(value, step)

    assert variable == f"`{ENV_PREFIX}{key.upper().replace('.', '__')}`"
    assert kind
    assert shown
    assert yaml.safe_load(shown[1]) == value
    assert reasons.strip()


@pytest.mark.parametrize("name", list(ReplicaSettings.model_fields))
def test_section_of_a_replica_names_its_default(name: str) -> None:
    """
    The same for the keys of a replica, which have no variables.
    """
    facts, _, reasons = sections(CONFIGURATION)[f"replicas.{name}"].partition("\n")
    field = ReplicaSettings.model_fields[name]

    if field.is_required():
        assert facts.endswith(", required")
    else:
        shown = re.fullmatch(r".* · default `(.*)`", facts)
        assert shown
        assert yaml.safe_load(shown[1]) == field.default
    assert reasons.strip()


@pytest.mark.parametrize("name", list(source_fields()))
def test_section_of_a_source_names_its_default(name: str) -> None:
    """
    The same for the keys of a source, which have no variables either.
    """
    facts, _, reasons = sections(CONFIGURATION)[name].partition("\n")
    field = source_fields()[name]

    if field.is_required():
        assert facts.endswith(", required")
    else:
        shown = re.fullmatch(r".* · default `(.*)`", facts)
        assert shown
        default = (
            field.default.model_dump(exclude_unset=True) if isinstance(field.default, BaseModel) else field.default
        )
        assert yaml.safe_load(shown[1]) == default
    assert reasons.strip()


ERRORS = table(CONFIGURATION, "`ramjet.yaml`")


@pytest.mark.parametrize("text", list(ERRORS))
def test_error_messages_are_as_shown(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whoever looks for a message they got finds it on the page, word for word.
    """
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    (tmp_path / "ramjet.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as refused:
        load(Path("ramjet.yaml"))

    assert str(refused.value) == ERRORS[text][1].strip("`| ")


def test_variables_in_examples_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The environment shown is one that Ramjet starts with, and every variable in it changes something.
    """
    shown = re.findall(rf"^({ENV_PREFIX}\w+)=(.*)$", blocks(CONFIGURATION, "sh")[0], flags=re.MULTILINE)
    assert len(shown) == 4
    for name, value in shown:
        if "LONG_PROMPT" in name:
            monkeypatch.setenv(f"{ENV_PREFIX}ROUTING__LONG_PROMPT__REPLICAS", '["glm-1"]')
        monkeypatch.setenv(name, value.strip("'"))
        before = load()
        monkeypatch.delenv(name)

        assert load() != before

    words = {
        word for text in (README, CONFIGURATION, RUNBOOK) for word in re.findall(rf"{ENV_PREFIX}[A-Z_]+[A-Z]", text)
    }
    known = {ENV_PREFIX + key.upper().replace(".", "__") for key in keys()}
    assert words <= known | {f"{ENV_PREFIX}LOG"}


def test_keys_that_need_a_restart_are_listed() -> None:
    """
    The table that says why has every key that a running Ramjet cannot take over, and no other.
    """
    rows = table(CONFIGURATION, "Key")
    listed = {name for cells in rows.values() for name in re.findall(r"`([\w.]+)`", cells[0])}
    needed = {key for key in keys() for name in ONLY_AT_START if key == name or key.startswith(f"{name}.")}

    assert listed == needed
    assert all(cells[1] for cells in rows.values())


def test_file_without_replicas_is_refused_as_shown() -> None:
    """
    What the log says of it is on the pages, word for word, and nothing is taken over.
    """
    applied: list[Settings] = []

    def apply(settings: Settings) -> list[str]:
        applied.append(settings)
        return []

    with capture_logs() as logged:
        Reloader(Path("ramjet.yaml"), Settings, apply)._reload()
    told = logged[0]["error"].removeprefix("ramjet.yaml: ")

    assert [each["event"] for each in logged] == ["config_rejected"]
    assert f"`{told}`" in CONFIGURATION
    assert f"`{told.partition(';')[0]}`" in RUNBOOK
    assert applied == []


# -- metrics and records ----------------------------------------------------------------------------------------------


def families() -> dict[str, Metric]:
    """Every exported family by the name that a scrape shows it under."""
    metrics = metrics_of("a")
    metrics.prompt_size.observe(1)
    collected = metrics.registry.collect()
    return {each.name + ("_total" if each.type == "counter" else ""): each for each in collected}


def test_every_metric_has_a_section() -> None:
    """
    Every exported metric has a section of its own, and no section is about one that is not exported.
    """
    assert set(sections(METRICS)) == set(families())


@pytest.mark.parametrize("name", list(sections(METRICS)))
def test_section_of_a_metric_says_what_is_exported(name: str) -> None:
    """
    Type, labels and buckets are those of the scrape.
    """
    facts, _, meaning = sections(METRICS)[name].partition("\n")
    kind, labels, *buckets = facts.split(" · ")
    family = families()[name]
    seen = {label for sample in family.samples for label in sample.labels}

    assert kind.lower() == family.type
    assert set(re.findall(r"`(\w+)`", labels)) == seen - {"le"}
    if family.type == "histogram":
        bounds = {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels}
        shown = {float(bound) for bound in buckets[0].removeprefix("buckets ").split(", ")}
        assert shown == bounds - {float("inf")}
    assert meaning.strip()


@pytest.mark.parametrize("query", blocks(METRICS, "promql") + blocks(README, "promql"))
def test_queries_ask_for_what_is_exported(query: str) -> None:
    """
    Every metric and label in an example is exported, and every value that a label is compared with can occur.
    """
    assert faults(query, "", exported()) == []

    values = {"outcome": OUTCOMES, "temperature": TEMPERATURES, "size_class": SIZE_CLASSES, "endpoint": ENDPOINT_NAMES}
    values |= {"cause": CAUSES, "kind": DRIFTS, "linked": ("yes", "no")}
    for label, text in re.findall(r'(\w+)[!=]~?"([^"]*)"', query):
        assert set(text.split("|")) <= set(values[label])


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("`outcome`", OUTCOMES),
        ("`reason`", REASONS),
        ("`temperature`", TEMPERATURES),
        ("`cause`", CAUSES),
        ("`size_class`", SIZE_CLASSES),
        ("`endpoint`", ENDPOINT_NAMES),
        ("Field", tuple(Record(request_id="", endpoint="").log_fields())),
    ],
)
def test_every_value_is_explained(head: str, values: tuple[str, ...]) -> None:
    """
    Every outcome, reason, temperature, cause, size class, endpoint and log field has its row, and there are no others.
    """
    rows = table(METRICS, head)

    assert list(rows) == list(values)
    assert all(cells[1] for cells in rows.values())


def test_endpoints_have_their_paths() -> None:
    """
    Each endpoint's row names its path.
    """
    rows = table(METRICS, "`endpoint`")

    assert [name for path, name in ENDPOINTS.items() if f"`{path}`" not in rows[name][1]] == []


def test_refusals_are_shown_with_status_and_code() -> None:
    """
    What a client is told when Ramjet answers in its own name is in the outcome's row.
    """
    rows = table(METRICS, "`outcome`")
    refusals = [value for value in vars(errors).values() if isinstance(value, errors.Refusal)]
    assert refusals
    for refusal in refusals:
        assert f"{refusal.status}, code `{refusal.code}`" in rows[refusal.outcome][2]


def test_log_line_shown_is_one_that_could_be_written() -> None:
    """
    The example has the fields of a record in their order, and what the logger adds.
    """
    fields = json.loads(blocks(METRICS, "json")[0])

    assert list(fields) == [*Record(request_id="", endpoint="").log_fields(), "event", "level", "timestamp"]
    assert fields["reason"] in REASONS
    assert fields["outcome"] in OUTCOMES


def events() -> dict[str, str]:
    """Every event that the code logs, but for the request lines, and its level."""
    logged: dict[str, str] = {}
    for path in sorted((ROOT / "ramjet").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for level, arguments in re.findall(r"\blog\.(debug|info|warning|error)\(([^,)]*)", source):
            # An event is named in the call, or looked up in a mapping of the same file.
            mapping = re.match(r"(_[A-Z]+)\[", arguments)
            named = re.search(rf"^{mapping[1]} = \{{.*?\}}", source, re.MULTILINE | re.DOTALL) if mapping else None
            found = re.findall(r'"(\w+)"', named[0] if named else arguments)
            assert found, f"{path.name}: no event in {arguments}"
            logged |= dict.fromkeys(found, level)
    del logged["request"]
    return logged


def test_every_event_is_explained() -> None:
    """
    Every event that the code logs has its row, with its level, and there are no others.
    """
    assert {event: cells[1] for event, cells in table(METRICS, "`event`").items()} == events()


def test_failures_are_those_that_are_logged() -> None:
    """
    The event of a failed replica names every failure but "busy", which is no fault.
    """
    meaning = table(METRICS, "`event`")["replica_failed"][2]
    named = re.findall(r"`(\w+)`", meaning.partition("`failure`")[2])

    assert set(named) == {each.value for each in Failure} - {"busy"}


def test_errors_in_the_first_look_exist() -> None:
    """
    What the runbook tells to look for in a replica's error is said by a probe, or by the client that it asks with.
    """
    probe = page("ramjet/watch/health.py") + page("ramjet/http1/client.py") + page("ramjet/core/fleet.py")
    shown = [cells[0] for cells in table(RUNBOOK, "What `/replicas` shows").values()]
    errors_shown = {
        text.rstrip(". ") for cell in shown if "error `" in cell for text in re.findall(r"`([^`]+)`", cell)[1:]
    }

    assert {"connection refused", "cannot be reached"} <= errors_shown
    assert [text for text in sorted(errors_shown) if text not in probe] == []


def test_every_outcome_says_whose_fault_it_is() -> None:
    """
    What counts against a replica is a connection or silence, and never what a client did or an engine answered.
    """
    blamed = {outcome for outcome, cells in table(METRICS, "`outcome`").items() if cells[3] == "the replica"}

    assert all(cells[3] for cells in table(METRICS, "`outcome`").values())
    assert blamed == {outcome for outcome in OUTCOMES if outcome.startswith(("upstream_", "timeout_"))}


def test_health_and_replicas_are_as_shown() -> None:
    """
    The bodies on the page have the fields of the real ones, in their order, and each field of a replica has its row.
    """
    shown = {next(iter(each)): each for each in map(json.loads, blocks(METRICS, "json")[1:])}
    settings = load(None, {"replicas": [{"name": "glm-1", "url": "http://10.0.0.7:30000"}]})
    router = Router(fleet_of(settings), policy_of(settings))
    absent = cast("Any", None)
    stats = StatsWatch(router, polling_of(settings, settings.replicas))
    control = Control(
        settings, router=router, handler=absent, upstream=absent, metrics=Metrics(), watch=absent, stats=stats, seed=0
    )
    health = json.loads(health_body(router.fleet, draining=False)[1])

    assert list(shown["status"]) == list(health)
    assert list(shown["status"]["replicas"]["glm-1"]) == list(health["replicas"]["glm-1"])
    assert list(shown["replicas"]["replicas"][0]) == list(control.replicas()[0])
    rows = table(METRICS, "Field of a replica")
    named = [name for cells in rows.values() for name in re.findall(r"`(\w+)`", cells[0])]
    assert named == list(control.replicas()[0])


def test_every_header_is_explained() -> None:
    """
    Every header of Ramjet's own that the code names is on the page.
    """
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "ramjet").rglob("*.py")))
    named = set(re.findall(r"x-ramjet-[a-z]+", source))

    assert named
    assert [name for name in sorted(named) if f"`{name}`" not in METRICS] == []
    assert set(table(METRICS, "Header")) <= named | {"x-request-id"}


# -- the runbook ------------------------------------------------------------------------------------------------------


def curls(text: str) -> Iterator[tuple[str, str, str]]:
    """Every curl command in a page's blocks for the shell: method, server and path."""
    for block in blocks(re.sub(r"^ +", "", text, flags=re.MULTILINE), "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for given in re.findall(r"\bcurl (-.*?)(?: \||\)|$)", line):
                named = re.search(r"-X ([A-Z]+)", given)
                target = re.search(r"(\$[A-Z]+|http://[\w.]+:\d+)(/[^\s'\"]*)", given)
                assert target, given
                yield named[1] if named else "POST" if " -d " in given else "GET", target[1], target[2]


def serves(method: str, path: str) -> bool:
    """Whether the admin application has a page there."""
    router = admin_app(cast("Any", None)).router
    return asyncio.run(router.resolve(make_mocked_request(method, path))).http_exception is None


def test_runbook_asks_for_pages_that_exist() -> None:
    """
    Every curl to the admin port has a page there, and every page there has a curl; the others ask for known paths.
    """
    asked = list(curls(RUNBOOK))
    ours = {(method, re.sub(r"glm-\d", "glm-1", path)) for method, server, path in asked if server == "$ADMIN"}
    others = {path for _, server, path in asked if server != "$ADMIN"}
    pages = {
        (
            route.method,
            route.resource.canonical.replace("{name}", "glm-1").replace("{number}", "1").replace("{change}", change),
        )
        for route in admin_app(cast("Any", None)).router.routes()
        for change in ("drain", "enable")
        if route.resource is not None and route.method != "HEAD"
    }

    assert ours == pages
    assert all(serves(*each) for each in ours)
    assert not serves("POST", "/replicas/glm-1/restart")
    assert others <= {*ENDPOINTS, "/health"}
    assert all(serves(method, path) for method, server, path in curls(README) if server.endswith(":9090"))


def test_admin_requests_in_the_reference_exist() -> None:
    """
    The same for the table of what changes replicas.
    """
    for request in table(METRICS, "Request"):
        method, _, path = request.partition(" ")
        assert serves(method, path.replace("{name}", "glm-1")), request


def test_requests_of_the_page_exist() -> None:
    """
    The same for the page's own, and every obstacle that admission can name has its row.
    """
    shown = page("docs/page.md")
    asked = [request.partition(" ") for request in table(shown, "Request")]

    assert len(asked) == 4
    assert all(serves(method, path.replace("{number}", "1")) for method, _, path in asked)
    assert sorted(table(shown, "In the way")) == sorted([*get_args(Obstacle), "warm_home_is_full"])


def test_runbook_knows_every_outcome_and_event() -> None:
    """
    Each has a row that says what to do, none is invented, and the log lines shown are of events that exist.
    """
    rows = table(RUNBOOK, "`event`")
    named = [event for cells in rows.values() for event in re.findall(r"`(\w+)`", cells[0])]

    assert list(table(RUNBOOK, "`outcome`")) == list(OUTCOMES)
    assert sorted(named) == sorted(events())
    assert all(cells[1] for cells in (*rows.values(), *table(RUNBOOK, "`outcome`").values()))
    lines = [json.loads(block) for block in blocks(re.sub(r"^ +", "", RUNBOOK, flags=re.MULTILINE), "json")]
    assert lines
    assert all(events()[line["event"]] == line["level"] for line in lines)


def test_words_in_the_runbook_exist() -> None:
    """
    Every key, metric, outcome, event, reason or field in backticks is one that there is.
    """
    words = set(re.findall(r"`([a-z]+(?:[_.][a-z_]+)+)`", RUNBOOK))
    known = {
        *OUTCOMES,
        *CAUSES,
        *EVIDENCE,
        *events(),
        *REASONS,
        *families(),
        *Record(request_id="", endpoint="").log_fields(),
    }
    known |= {step.rsplit(".", depth)[0] for step in documented_keys() for depth in range(step.count(".") + 1)}
    known |= {
        name for cells in table(METRICS, "Field of a replica").values() for name in re.findall(r"`(\w+)`", cells[0])
    }
    known |= {"api_key", "needs_restart"}

    assert words
    assert sorted(words - known) == []


# -- commands ---------------------------------------------------------------------------------------------------------


def options(command: click.Command) -> set[str]:
    """The long options of a command."""
    return {name for each in command.params for name in each.opts if name.startswith("--")}


def commanded(name: str, given: str) -> click.Command:
    """The command that a line on a page means: `ramjet name ...`, or one of a group's."""
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    if isinstance(command, click.Group) and (words := given.split()):
        return command.commands.get(words[0], command)
    return command


def code(text: str) -> str:
    """Everything in code blocks and between backticks, a line each; continued lines joined."""
    without = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    pieces = [
        *re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL),
        *re.findall("`([^`]+)`", without),
    ]
    return "\n".join(pieces).replace("\\\n", " ")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_exist(path: Path) -> None:
    """
    Every `make` target and every option of `ramjet` on a page exists.
    """
    targets = set(re.findall(r"^([a-z]+):", page("Makefile"), flags=re.MULTILINE))
    for line in code(path.read_text(encoding="utf-8")).splitlines():
        for target in re.findall(r"(?:^|\s)make ([a-z]+)", line):
            assert target in targets
        for name, given in re.findall(r"(?:^|[\s/])ramjet ([a-z]+)\b([^#]*)", line):
            assert set(re.findall(r"(?<!\S)--[a-z-]+", given)) <= options(commanded(name, given)) | {"--help"}
        for given in re.findall(r'make run ARGS="([^"]*)"', line):
            assert set(re.findall(r"--[a-z-]+", given)) <= options(demo_command)


def test_every_option_is_explained() -> None:
    """
    The options of both commands are all in the configuration's page.
    """
    rows = table(CONFIGURATION, "Option of `ramjet serve`")

    assert {name.split(maxsplit=1)[0].strip("`") for name in rows} == options(serve_command)
    assert [name for name in sorted(options(demo_command)) if f"`{name}`" not in CONFIGURATION] == []


def test_readme_shows_the_two_commands_a_newcomer_needs() -> None:
    """
    `make run` and `make test` are shown, and every page of the documentation is linked.
    """
    assert {"make run", "make test"} <= {line.split("  ")[0] for line in blocks(README, "sh")[0].splitlines()}
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name})" not in README] == []


# -- links ------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_relative_links_resolve(path: Path) -> None:
    """
    Every link to a file or to a heading leads somewhere.
    """
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


# -- the design's claims ----------------------------------------------------------------------------------------------


def test_house_is_the_code() -> None:
    """
    The table of the house names every module and package there is, and no other.
    """
    rows = table(DESIGN, "Place")
    named = {
        place
        for row in rows.values()
        for place in (f"ramjet/{name.removeprefix('ramjet/')}" for name in re.findall(r"`([\w/]+)`", row[0]))
    }
    source = ROOT / "ramjet"
    modules = {f"ramjet/{path.stem}" for path in source.glob("*.py")} | {
        f"ramjet/core/{path.stem}" for path in (source / "core").glob("*.py")
    }
    packages = {f"ramjet/{path.parent.relative_to(source)}" for path in source.glob("**/__init__.py")}
    packages = {each for each in packages if each.count("/") == 1 or each.startswith("ramjet/core/")}
    packages -= {"ramjet/core", "ramjet/."}

    assert named == {each for each in modules | packages if not each.endswith(("__init__", "__main__"))}


@pytest.mark.parametrize(
    ("tokens", "divided_by", "says"),
    [
        (20_000, 1, "3.3 s for 20,000 tokens"),
        (100_000, 1, "17 s for 100,000"),
        (313_000, 1, "57 s for 313,000"),
        (17_000, 1, "17,000 tokens, 2.8 s of reading"),
        (17_000, 20, "20 living conversations it is charged at 0.14 s"),
        (300, 1, "300 tokens are read in 0.05 s"),
    ],
)
def test_readings_in_the_design_are_the_defaults(tokens: int, divided_by: int, says: str) -> None:
    """
    What the page says of reading times is what the shipped defaults give.
    """
    number = re.search(r"([\d.]+) s\b", says)
    assert number
    digits = len(number[1].partition(".")[2])

    assert says in DESIGN
    assert round(Reading().seconds(0, tokens) / divided_by, digits) == float(number[1])


def test_every_hint_is_named_in_its_order() -> None:
    """
    Whoever wonders what of a request counts finds each header and field, the first to be asked first.
    """
    named = re.findall(r"`([^`]+)`", " ".join(row[0] for row in table(DESIGN, "Hint").values()))

    headers = [name for names in AGENT_HEADERS for name in names]
    assert named == ["routing.identity.header", *headers, *SESSION_FIELDS, "user", "metadata.user_id"]


def test_bodies_that_are_not_decoded() -> None:
    """
    The bounds in the design are those of the code: so many objects or commas are read, and one more is not.
    """
    assert f"Bodies over {_THREAD_BYTES >> 10} KiB that are not built so" in DESIGN
    assert f"each conversation of more than {LEAST_BYTES >> 10} KiB" in DESIGN
    assert f"a bound of its own, {MOST_BYTES >> 20} MiB" in DESIGN
    assert f"more than {SMALL_BYTES >> 20} MiB with more than 100,000 objects or 4,000,000 commas" in DESIGN
    for piece, most in ((b'{"a":0}', 100_000), (b"0", 4_000_001)):
        for more, told in ((0, "object"), (1, "more parts")):
            body = b"[" + b",".join([piece] * (most + more)) + b"]" + b" " * SMALL_BYTES

            with pytest.raises(Unreadable, match=told):
                read(body, "chat")


def test_coin_toss() -> None:
    """
    Thrown at random, 50 conversations give one of 4 replicas more than 1.3 times its share 38 % of the time.

    Exact: the ways to throw them with at most 16 anywhere are counted by multiplying out the sum of x^n/n! up to there.
    """
    conversations, replicas = 50, 4
    most = int(1.3 * conversations / replicas)
    ways = [Fraction(1)]
    for _ in range(replicas):
        longer = [Fraction(0)] * (conversations + 1)
        for before, count in enumerate(ways):
            for more in range(min(most, conversations - before) + 1):
                longer[before + more] += count / factorial(more)
        ways = longer
    even = float(ways[conversations] * factorial(conversations) / replicas**conversations)

    assert f"{conversations} conversations thrown at random on {replicas} replicas" in DESIGN
    assert f"more than 1.3 times its share {1 - even:.0%}".replace("%", " %") in DESIGN


def test_share_with_slack() -> None:
    """
    The share of 50 conversations on four replicas is 14: the fourteenth is free anywhere, the fifteenth costs 0.1 s.
    """
    assert "14 of 50 conversations on four replicas" in DESIGN
    ask, cost = Ask(body_bytes=1, prompt_tokens=1), BalanceCost()
    for living, expected in ((13, 0.0), (14, 0.1)):
        crowded = Candidate(replica="a", identity="a", living=living)
        others = [Candidate(replica=name, identity=name, living=(49 - living) // 3) for name in "bcd"]
        others[0] = Candidate(replica="b", identity="b", living=49 - living - 2 * ((49 - living) // 3))

        assert cost.seconds(ask, [crowded, *others])[0] == pytest.approx(expected)


# -- dependencies -----------------------------------------------------------------------------------------------------


def test_every_dependency_is_justified() -> None:
    """
    Each declared dependency is named on the page in a heading or in bold, and no other is.
    """
    project = tomllib.loads(page("pyproject.toml"))
    declared = {*project["project"]["dependencies"], *project["build-system"]["requires"]}
    declared |= {each for extra in project["project"]["optional-dependencies"].values() for each in extra}
    declared |= {line for line in page("requirements/build.in").splitlines() if line.strip()}
    names = {re.split(r"[^\w-]", each, maxsplit=1)[0] for each in declared}
    named = re.findall(r"^### (\S+)$|\*\*([\w-]+)\*\*", page("docs/dependencies.md"), flags=re.MULTILINE)

    assert sorted(heading or bold for heading, bold in named) == sorted(names)
