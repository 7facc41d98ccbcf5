"""`ramjet probe` against a real server on loopback: what it prints, what it sends, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ramjet.probes import run
from ramjet.probes.cli import probe
from tests.probes.replica import MODEL, Cache, Replica, serving
from tests.scripted import dead_url

SMALL = ("--sessions", "3", "--tokens", "2500", "--long", "30000")
"""An eviction in small: three chunks a session and thirty in between."""


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    """A hybrid replica with eight snapshots, which leaves out counts of 0 as SGLang does."""
    cache = Cache(page=64, grid=256, chunk=1_024, slots=8)
    async with serving(Replica(cache=cache, drops_zero=True)) as running:
        yield running


async def invoke(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    """Run the command in a thread of its own, for the server has the loop."""
    clean = {"OPENAI_API_KEY": None, **(env or {})}
    return await asyncio.to_thread(CliRunner().invoke, probe, arguments, env=clean)


def document(result: Result) -> dict[str, Any]:
    """What was printed, which must be one JSON object and nothing else."""
    told: dict[str, Any] = json.loads(result.stdout)
    return told


async def test_one_json_object_and_the_rest_on_stderr(replica: Replica) -> None:
    """
    With what every probe has, and this one's own figures.
    """
    result = await invoke("eviction", "--url", replica.url, *SMALL, "--json")

    told = document(result)
    assert result.exit_code == 0, result.stderr
    assert {"probe", "verdict", "limit", "flags", "steps"} <= set(told)
    assert (told["probe"], told["limit"], told["sessions"], told["survived"]) == ("eviction", "snapshots", 3, 0)
    assert "snapshot pool" in told["verdict"]
    assert "--mamba-max-states-per-path 2" in told["flags"]
    assert {"name", "prompt_tokens", "cached_tokens", "ttft_s"} <= set.intersection(*map(set, told["steps"]))
    assert "session 1: 0 of 2,500 cached" in result.stderr


async def test_every_request_is_marked_and_counted(replica: Replica) -> None:
    """
    Whatever is asked of the engine carries the probe's name, and the cost that is told is the cost there was.
    """
    told = document(await invoke("eviction", "--url", replica.url, *SMALL, "--json"))

    assert {mark for _, mark in replica.asked} == {"eviction"}
    assert told["requests"] == len(replica.bodies) == len(told["steps"]) + 3
    assert all(body["max_tokens"] == 8 and body["temperature"] == 0 for body in replica.bodies)
    assert {body["model"] for body in replica.bodies} == {MODEL}


async def test_prompts_have_the_length_that_was_asked_for(replica: Replica) -> None:
    """
    After three short requests the engine's tokens are known so well that every prompt is exact.
    """
    told = document(await invoke("eviction", "--url", replica.url, *SMALL, "--json"))

    lengths = [step["prompt_tokens"] for step in told["steps"] if step["role"] in ("first", "long", "again")]
    assert lengths == [2_500] * 3 + [30_000] + [2_500] * 3


async def test_no_run_finds_the_prompts_of_the_one_before(replica: Replica) -> None:
    """
    Two runs in a row see the same, though the replica keeps everything.
    """
    replica.cache = Cache(page=64)
    first, second = [document(await invoke("prefix", "--url", replica.url, "--json")) for _ in range(2)]

    counts = [[step["cached_tokens"] for step in told["steps"]] for told in (first, second)]
    assert counts[0] == counts[1]


async def test_the_seeds_figures_come_out_of_the_wire(replica: Replica) -> None:
    """
    19,845 tokens, chunks of 6,144: 19,712, 19,712, 12,288 and 14,848, and from them the chunk and the grid.
    """
    replica.cache = Cache(page=64, grid=256, chunk=6_144)
    told = document(await invoke("prefix", "--url", replica.url, "--json"))

    assert [step["cached_tokens"] for step in told["steps"][:5]] == [0, 19_712, 19_712, 12_288, 14_848]
    assert (told["grid_tokens"], told["chunk_tokens"], told["snapshot_limited"]) == (256, 6_144, True)
    assert told["reports_cached_tokens"] is True


async def test_a_count_that_was_never_there_is_unknown(replica: Replica) -> None:
    """
    An engine that leaves out zeros, and one that reports nothing, send the same at first; only the first says more later.
    """
    replica.reports = False
    told = document(await invoke("prefix", "--url", replica.url, "--json"))

    assert {step["cached_tokens"] for step in told["steps"]} == {None}
    assert told["reports_cached_tokens"] is None
    assert told["limit"] == "unknown"
    assert "--enable-cache-report" in told["flags"]


async def test_an_engine_that_says_it_reports_means_zero_from_the_start(replica: Replica) -> None:
    """
    SGLang's `/server_info` says whether the report is on; then no count is 0, even before there was one.
    """
    replica.pages["/server_info"] = {"enable_cache_report": True, "max_total_num_tokens": 499_968}
    replica.cache = Cache(page=4_096)
    told = document(await invoke("prefix", "--url", replica.url, "--tokens", "9000", "--json"))

    assert told["steps"][0]["cached_tokens"] == 0
    assert told["engine"] == "sglang"


async def test_for_people_there_is_a_table(replica: Replica) -> None:
    """
    Every request with its counts, then the verdict and the flags, with no line broken.
    """
    result = await invoke("eviction", "--url", replica.url, *SMALL)

    assert result.exit_code == 0
    assert re.search(r"the long prompt +│ +30,000 │ +0 │ +0\.0%", result.stdout)
    assert "\nNone of 3 sessions survived a prompt of 30,000 tokens: " in result.stdout
    assert "\nflags to try: --mamba-max-states-per-path 2  " in result.stdout


async def test_an_endpoint_without_streamed_usage_is_measured_too(replica: Replica) -> None:
    """
    Answers then come whole, which is said.
    """
    replica.streams = False
    result = await invoke("eviction", "--url", replica.url, *SMALL, "--json")

    told = document(result)
    assert told["survived"] == 0
    assert [body["stream"] for body in replica.bodies[:3]] == [True, False, False]
    assert any("does not stream usage" in note for note in told["notes"])


async def test_capacity_counts_and_names(replica: Replica) -> None:
    """
    Eight snapshots, and three chunk ends and a tail a session: two of them stay.
    """
    replica.cache = Cache(page=64, grid=256, chunk=1_024, slots=8, pool_tokens=400_000)
    replica.pages["/server_info"] = {"max_total_num_tokens": 400_000}
    told = document(await invoke("capacity", "--url", replica.url, "--tokens", "3500", "--json"))

    assert told["sessions_that_fit"] == 2
    assert told["limit"] == "snapshots"


async def test_host_tier_finds_none(replica: Replica) -> None:
    """
    A replica without copies elsewhere reads anew whatever is beyond its device.
    """
    told = document(await invoke("host-tier", "--url", replica.url, "--tokens", "3500", "--json"))

    assert told["sessions_on_device"] == 2
    assert told["beyond"][0]["came_back"] == 0


async def test_pair_shows_the_replica(replica: Replica) -> None:
    """
    From the load balancer's header, for every turn.
    """
    replica.name = "glm-1"
    replica.cache = Cache(page=64, pool_tokens=1 << 30)
    arguments = ("--long", "6000", "--growth", "500", "--ordinary", "1", "--tokens", "2048", "--turns", "2")
    told = document(await invoke("pair", "--via", replica.url, *arguments, "--json"))

    assert {step["replica"] for step in told["steps"]} == {"glm-1"}
    assert told["apart"] is False
    assert told["limit"] == "none"
    assert [step["prompt_tokens"] for step in told["steps"] if step["session"] == 1] == [
        pytest.approx(6_000, rel=0.01),
        pytest.approx(6_500, rel=0.01),
    ]


@pytest.mark.parametrize(
    "busy",
    [
        {
            "/server_info": {"chunked_prefill_size": 1_024},
            "/v1/loads": {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]},
        },
        {"/props": {"total_slots": 1}, "/slots": [{"id": 0, "is_processing": True}]},
        {"/metrics": "vllm:num_requests_running 1.0\nvllm:num_requests_waiting 0.0\n"},
        {"/metrics": 'sglang:num_running_reqs{tp_rank="0"} 1.0\n'},
        {"/metrics": "llamacpp:requests_processing 0\nllamacpp:requests_deferred 4\n"},
    ],
)
async def test_a_busy_replica_is_left_alone(
    replica: Replica, busy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whichever page says so; with --busy-ok the probe goes on and says what that does.
    """
    monkeypatch.setattr(run, "_BUSY_LOOK_S", 0.01)
    replica.pages.update(busy)
    refused = await invoke("eviction", "--url", replica.url, *SMALL, "--json")
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert "--busy-ok" in refused.stderr
    assert not replica.bodies

    told = document(await invoke("eviction", "--url", replica.url, *SMALL, "--json", "--busy-ok"))
    assert told["survived"] == 0
    assert any("blur" in note for note in told["notes"])


async def test_whether_it_is_busy_may_be_unknown(replica: Replica) -> None:
    """
    Then that is said, and the probe goes on.
    """
    result = await invoke("eviction", "--url", replica.url, *SMALL, "--json")

    assert result.exit_code == 0
    assert "does not say whether others use it" in result.stderr


async def test_the_key_is_sent_and_never_shown(replica: Replica, tmp_path: Path) -> None:
    """
    By option or variable; without it the error says how to give it.
    """
    replica.key = "sk-very-secret"
    page = tmp_path / "page.html"

    without = await invoke("eviction", "--url", replica.url, *SMALL)
    assert without.exit_code == 1
    assert "answers 401: give its key with --api-key, or in the variable OPENAI_API_KEY" in without.stderr

    by_option = await invoke("eviction", "--url", replica.url, *SMALL, "--json", "--api-key", replica.key)
    by_variable = await invoke(
        "eviction", "--url", replica.url, *SMALL, "--html", str(page), env={"OPENAI_API_KEY": replica.key}
    )
    assert by_option.exit_code == by_variable.exit_code == 0
    shown = [by_option.output, by_variable.output, page.read_text(encoding="utf-8")]
    assert not [text for text in shown if replica.key in text]


async def test_a_key_that_cannot_be_sent_is_not_shown_either(replica: Replica) -> None:
    """
    A blank or a line's end around it, as files have, does no harm; what no header can hold is refused without naming it.
    """
    replica.key = "sk-very-secret"
    around = await invoke("eviction", "--url", replica.url, *SMALL, env={"OPENAI_API_KEY": f" {replica.key}\n"})
    within = await invoke("eviction", "--url", replica.url, *SMALL, "--api-key", "sk-very\nsecret")

    assert around.exit_code == 0
    assert within.exit_code == 2
    assert "sk-very" not in within.output


async def test_a_url_with_a_password_is_shown_without(replica: Replica) -> None:
    """
    And one that ends in /v1 is the same as one that does not.
    """
    url = replica.url.replace("http://", "http://me:hush@") + "/v1/"
    result = await invoke("eviction", "--url", url, *SMALL, "--json")

    assert document(result)["url"] == replica.url
    assert "hush" not in result.output


async def test_nobody_listens() -> None:
    """
    The error names the address and asks the two questions.
    """
    url = dead_url()
    result = await invoke("prefix", "--url", url)

    assert result.exit_code == 1
    assert f"cannot reach {url}" in result.stderr
    assert "does the engine run, and is this its address?" in result.stderr


async def test_a_model_that_is_not_served(replica: Replica) -> None:
    """
    The error names it and those that are.
    """
    result = await invoke("prefix", "--url", replica.url, "--model", "gpt-9")

    assert result.exit_code == 1
    assert f"does not serve the model gpt-9; it lists {MODEL}" in result.stderr


async def test_a_server_that_lists_no_models(replica: Replica) -> None:
    """
    It needs the model's name, and then works.
    """
    replica.pages["/v1/models"] = {"data": []}
    without = await invoke("eviction", "--url", replica.url, *SMALL)
    assert without.exit_code == 1
    assert "--model" in without.stderr

    told = document(await invoke("eviction", "--url", replica.url, *SMALL, "--json", "--model", "mine"))
    assert told["model"] == "mine"


async def test_a_prompt_that_the_engine_does_not_take(replica: Replica) -> None:
    """
    The error names both lengths and what to do.
    """
    replica.most_tokens = 8_192
    result = await invoke("prefix", "--url", replica.url)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "refuses a prompt of about 19,845 tokens" in result.stderr
    assert "8192 tokens" in result.stderr
    assert "give a shorter length" in result.stderr


async def test_a_long_prompt_that_the_engine_does_not_take(replica: Replica) -> None:
    """
    Is made shorter, and that is told.
    """
    replica.most_tokens = 20_000
    told = document(await invoke("eviction", "--url", replica.url, *SMALL, "--json"))

    assert told["long_tokens"] == pytest.approx(20_000 - 64, abs=2)
    assert told["survived"] == 0
    assert [step["most_tokens"] for step in told["steps"] if step["role"] == "refused"] == [20_000]


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (("--max-requests", "7"), "7 requests are sent, which is the limit; --max-requests raises it"),
        (("--max-prompt-tokens", "20000"), "--max-prompt-tokens raises that"),
        (("--max-seconds", "1"), "1 s are over, which is the limit; --max-seconds raises it"),
    ],
)
async def test_a_limit_ends_it_with_what_there_is(replica: Replica, limit: tuple[str, str], says: str) -> None:
    """
    The limit is named, nothing is concluded, and what was measured is printed.
    """
    replica.token_s = 5e-5 if "seconds" in limit[0] else 0.0
    result = await invoke("eviction", "--url", replica.url, *SMALL, "--json", *limit)

    told = document(result)
    assert result.exit_code == 1
    assert says in told["verdict"]
    assert told["limit"] == "unknown"
    assert told["survived"] is None
    assert told["flags"] == []
    assert told["steps"]
    if limit[0] == "--max-requests":
        assert len(replica.bodies) == 7


async def test_an_engine_that_is_gone_leaves_what_was_measured(replica: Replica) -> None:
    """
    Its steps are printed, the verdict says what happened, and the exit code is 1.
    """
    replica.gone_after = 8
    result = await invoke("eviction", "--url", replica.url, *SMALL, "--json")

    told = document(result)
    assert result.exit_code == 1
    assert "Stopped before the end: lost" in told["verdict"]
    assert told["limit"] == "unknown"
    assert len(told["steps"]) == 5


async def test_ctrl_c_leaves_what_was_measured(replica: Replica) -> None:
    """
    A real signal to a real process: exit code 130, and one JSON object with the steps so far.

    It comes while the probe waits for its third step, after three requests that only learn how the engine counts.
    """
    replica.silent_after = 5
    command = "from ramjet.probes.cli import probe; probe()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, "eviction", "--url", replica.url, *SMALL, "--json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"},
    )  # fmt: skip
    async with asyncio.timeout(100):
        await replica.silent.wait()
        process.send_signal(signal.SIGINT)
        stdout, stderr = await process.communicate()

    told = json.loads(stdout)
    assert process.returncode == 130, stderr
    assert "interrupted" in told["verdict"]
    assert told["limit"] == "unknown"
    assert [step["name"] for step in told["steps"]] == ["session 1", "session 1 at once again"]


async def test_pictures(replica: Replica, tmp_path: Path) -> None:
    """
    One page that needs nothing else, with the verdict, the table and the plot; and the plot alone.
    """
    page, picture = tmp_path / "probe.html", tmp_path / "probe.png"
    result = await invoke("eviction", "--url", replica.url, *SMALL, "--html", str(page), "--png", str(picture))

    text = page.read_text(encoding="utf-8")
    assert result.exit_code == 0, result.output
    assert text.count("<svg") == 1
    assert "None of 3 sessions survived" in text
    assert not re.findall(r"(?:src|href)=\"(?!#)", text.replace("xlink:href=", "href="))
    assert picture.read_bytes().startswith(b"\x89PNG")


async def test_pictures_need_their_library(replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without it the error names what to install, before anything is sent.
    """
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = await invoke("prefix", "--url", replica.url, "--html", str(tmp_path / "page.html"))

    assert result.exit_code == 1
    assert "pip install 'ramjet-lb[plots]'" in result.stderr
    assert not replica.asked


async def test_a_page_that_cannot_be_written_is_found_out_first(replica: Replica, tmp_path: Path) -> None:
    """
    No probe of an hour ends with nowhere to write.
    """
    result = await invoke("prefix", "--url", replica.url, "--html", str(tmp_path / "missing" / "page.html"))

    assert result.exit_code == 1
    assert "there is no folder" in result.stderr
    assert not replica.asked


@pytest.mark.parametrize("url", ["10.0.0.7:30000", "ftp://host", "http://", "http://host:x", "host"])
async def test_what_is_no_url(url: str) -> None:
    """
    The error shows how one looks.
    """
    result = await invoke("prefix", "--url", url)

    assert result.exit_code == 2
    assert "http://HOST:PORT" in result.stderr


async def test_a_branch_must_lie_within(replica: Replica) -> None:
    """
    The error names the option and both lengths.
    """
    result = await invoke("prefix", "--url", replica.url, "--tokens", "8000", "--branch", "7900")

    assert result.exit_code == 2
    assert "7,900 is not well within the prompt of 8,000 tokens" in result.stderr


@pytest.mark.parametrize("name", [None, *probe.commands])
async def test_help_has_examples(name: str | None) -> None:
    """
    Each command shows how it is called.
    """
    result = await invoke(*filter(None, (name, "--help")))

    assert result.exit_code == 0
    assert "Examples:\n" in result.output
    assert f"ramjet probe {name or 'prefix'} " in result.output


def test_limits_are_options_of_every_probe() -> None:
    """
    None is without bounds, and each bound can be changed.
    """
    for command in probe.commands.values():
        options = {option for each in command.params for option in each.opts}
        assert {"--max-requests", "--max-prompt-tokens", "--max-seconds", "--busy-ok", "--json", "--html"} <= options
        assert isinstance(command, click.Command)
