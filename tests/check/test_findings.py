"""What is said of replicas, and when it is not said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.check.findings import IDS, find
from ramjet.check.findings.differences import alike
from ramjet.check.findings.values import SEVERITIES, Found, Idle, Ours, Reuse
from ramjet.core.pools import Pools
from ramjet.engines.facts import Answer, Facts, Loads
from tests.check.support import FACTS, HEALTH, LISTING, OURS, found, only, pair, seen, unreached


def test_two_good_replicas_are_told_only_what_is_good_to_know() -> None:
    """
    Nothing is wrong with the seed's replicas after its fix; that slots are few is worth a note.
    """
    findings = find([seen("a"), seen("b")], OURS)

    assert {finding.severity for finding in findings} == {"note"}
    assert {finding.id for finding in findings} == {"snapshot_room"}


# -- answers ------------------------------------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    """
    A fault that names the address, and the only one of that replica: nothing else is known of it.
    """
    fleet = [seen("a"), unreached("b", "connection refused")]
    finding = only(fleet, "unreachable")

    assert (finding.severity, finding.replicas) == ("fault", ("b",))
    assert "connection refused" in finding.text
    assert "http://b:30000" in (finding.remedy or "")
    assert [each.id for each in find(fleet, OURS) if "b" in each.replicas] == ["unreachable"]


@pytest.mark.parametrize(("error", "says"), [("cannot be reached", "firewall"), ("ReadTimeout", "log")])
def test_the_remedy_fits_the_way_in_which_it_is_not_reached(error: str, says: str) -> None:
    """
    An address that leads nowhere is another matter than an engine that says nothing.
    """
    assert says in (only([unreached("b", error)], "unreachable").remedy or "")


@pytest.mark.parametrize(
    ("status", "says"), [(503, "loading"), (404, "no such page"), (500, "500"), (307, "redirects are not followed")]
)
def test_health_that_is_not_good(status: int, says: str) -> None:
    """
    Whatever is no 2xx is a fault, and the words depend on what it is.
    """
    finding = only([seen(health=replace(HEALTH, status=status))], "health_failing")

    assert finding.severity == "fault"
    assert says in f"{finding.text} {finding.remedy}"
    assert finding.figures["status"] == status


def test_health_that_gives_no_answer_while_the_rest_does() -> None:
    """
    A page that hangs is a fault too.
    """
    finding = only([seen(health=Answer(path="/health", error="ReadTimeout"))], "health_failing")

    assert "no answer" in finding.text


def test_a_key_that_is_not_taken() -> None:
    """
    It is said once, and not also that health fails and no models are listed.
    """
    fleet = [seen(health=replace(HEALTH, status=401), listing=replace(LISTING, status=401), models=None)]

    assert only(fleet, "key_refused").severity == "fault"
    assert "replicas.api_key" in (only(fleet, "key_refused").remedy or "")
    assert not found(fleet, "health_failing")
    assert not found(fleet, "models_unlisted")
    assert not found([seen()], "key_refused")


def test_a_health_page_that_takes_half_of_its_time() -> None:
    """
    2.6 of 5 s when idle are too many; 2.4 are not.
    """
    assert only([seen(health=replace(HEALTH, took_s=2.6))], "health_slow").severity == "warning"
    assert not found([seen(health=replace(HEALTH, took_s=2.4))], "health_slow")


@pytest.mark.parametrize(
    "listing", [LISTING, replace(LISTING, status=404), Answer(path="/v1/models", error="ReadTimeout")]
)
def test_no_list_of_models(listing: Answer) -> None:
    """
    Ramjet then takes it to serve any, which is a note.
    """
    assert only([seen(models=None, listing=listing)], "models_unlisted").severity == "note"
    assert not found([seen()], "models_unlisted")


# -- connections --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("closed_after_s", "is_said"), [(0.0, True), (2.0, True), (4.2, True), (4.6, False), (None, False)]
)
def test_an_engine_that_closes_before_we_do(closed_after_s: float | None, is_said: bool) -> None:
    """
    Within half a second of our own limit is too early as well.
    """
    fleet = [seen(idle=Idle(waited_s=closed_after_s or 6.0, closed_after_s=closed_after_s))]

    assert [finding.severity for finding in found(fleet, "idle_short")] == ["warning"] * is_said


def test_what_to_set_for_an_engine_that_closes_early() -> None:
    """
    Both sides can be changed, and the engine's is named for the engines that have one.
    """
    closing = Idle(waited_s=2.0, closed_after_s=2.0)

    assert "limits.idle_s to 1.5" in (remedy := only([seen(idle=closing)], "idle_short").remedy or "")
    assert "SGLANG_TIMEOUT_KEEP_ALIVE" in remedy
    assert "raise" not in (only([seen(idle=closing, facts={"engine": "openai"})], "idle_short").remedy or "")
    assert "less than that" in (only([seen(idle=Idle(waited_s=0.2, closed_after_s=0.2))], "idle_short").remedy or "")


def test_a_health_page_that_makes_the_model_work() -> None:
    """
    It is known by what was counted while it was asked for.
    """
    finding = only([seen(health_tokens=2)], "health_generates")

    assert finding.severity == "note"
    assert "2 tokens in 2 probes" in finding.text
    assert "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" in (finding.remedy or "")
    assert "SGLANG" not in (only([seen(health_tokens=2, facts={"engine": "openai"})], "health_generates").remedy or "")
    assert not found([seen(health_tokens=0)], "health_generates")
    assert not found([seen(health_tokens=None)], "health_generates")


@pytest.mark.parametrize(
    ("took_s", "listed_s", "told", "is_said"),
    [
        (1.02, 0.01, {}, True),
        (0.9, 0.01, {}, False),
        (1.02, 0.6, {}, False),
        (1.02, 0.01, {"health_tokens": 0}, False),
        (1.02, 0.01, {"loads": (Loads(running=1),)}, False),
        (1.02, 0.01, {"facts": {"engine": "vllm"}}, False),
    ],
)
def test_sglangs_page_takes_a_second_where_nothing_is_counted(
    took_s: float, listed_s: float, told: dict[str, Any], is_said: bool
) -> None:
    """
    A second for its health and next to nothing for another page is a sign, unless it is slow in all, busy, or counted.
    """
    slow: dict[str, Any] = {
        "health": replace(HEALTH, took_s=took_s),
        "listing": replace(LISTING, took_s=listed_s),
        "health_tokens": None,
    }

    assert len(found([seen(**slow | told)], "health_generates")) == is_said


# -- facts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("sglang", "--enable-cache-report"), ("vllm", "--enable-prompt-tokens-details"), ("openai", "usage")],
)
def test_a_report_that_is_off(engine: str, flag: str) -> None:
    """
    The engine's own flag is named; of an engine that nobody knows, all that it might be.
    """
    finding = only([seen(facts={"engine": engine, "reports_cached": False})], "cache_report_off")

    assert finding.severity == "warning"
    assert flag in (finding.remedy or "") or engine == "openai"
    assert not found([seen()], "cache_report_off")


def test_a_report_that_was_tried() -> None:
    """
    Where the engine does not say, the answer to a prompt sent twice does: a count, no count, or no answer.
    """
    silent: dict[str, Any] = {"engine": "vllm", "reports_cached": None}
    counted = seen(facts=silent, reuse=Reuse(prompt_tokens=2_100, cached_tokens=2_048))
    uncounted = seen(facts=silent, reuse=Reuse(prompt_tokens=2_100))
    failed = seen(facts=silent, reuse=Reuse(prompt_tokens=0, error="status 500"))

    assert not {"cache_report_off", "cache_report_unknown"} & {finding.id for finding in find([counted], OURS)}
    assert found([uncounted], "cache_report_off")
    assert "status 500" in only([failed], "cache_report_unknown").text
    assert only([seen(facts=silent)], "cache_report_unknown").severity == "note"


def test_an_engine_that_reuses_nothing() -> None:
    """
    A count of 0 for a prompt that was sent twice in a row is worth more than a note; some tokens are none.
    """
    silent: dict[str, Any] = {"engine": "vllm", "reports_cached": None, "page_tokens": 16}
    nothing = seen(facts=silent, reuse=Reuse(prompt_tokens=2_100, cached_tokens=0))

    assert only([nothing], "nothing_reused").severity == "warning"
    assert "--enable-prefix-caching" in (only([nothing], "nothing_reused").remedy or "")
    assert not found([seen(facts=silent, reuse=Reuse(prompt_tokens=2_100, cached_tokens=16))], "nothing_reused")
    # Long blocks: a hybrid model's state may lie beyond a prompt of this length.
    long = silent | {"page_tokens": 528}
    assert not found([seen(facts=long, reuse=Reuse(prompt_tokens=2_100, cached_tokens=0))], "nothing_reused")


def test_metrics_that_are_off() -> None:
    """
    A warning where nothing else says what runs there; the flag is named.
    """
    assert only([seen(metrics=False)], "metrics_off").severity == "note"
    assert only([seen(metrics=False, loads=())], "metrics_off").severity == "warning"
    assert "--enable-metrics" in (only([seen(metrics=False)], "metrics_off").remedy or "")
    assert not found([seen()], "metrics_off")
    assert not found([seen(metrics=False, loads=(), facts={"engine": "openai"})], "metrics_off")


@pytest.mark.parametrize(
    ("missing", "configured", "severity", "keys"),
    [
        ({"pool_tokens": None}, Pools(), "warning", ["replicas.pool_tokens"]),
        ({"pool_tokens": None}, Pools(tokens=499_968), None, []),
        ({"snapshot_slots": None}, Pools(), "warning", ["replicas.snapshot_slots"]),
        ({"snapshot_slots": None}, Pools(slots=28), None, []),
        ({"chunk_tokens": None}, Pools(), "note", ["replicas.chunk_tokens"]),
        ({"max_prompt_tokens": None}, Pools(), "note", []),
        ({"has_snapshots": False, "snapshot_slots": None, "chunk_tokens": None}, Pools(), None, []),
        ({"has_snapshots": None, "snapshot_slots": None}, Pools(), "note", []),
        (
            {"engine": "llamacpp", "has_snapshots": False, "snapshot_slots": None, "pool_tokens": None},
            Pools(),
            None,
            [],
        ),
    ],
)
def test_facts_that_nobody_has_said(
    missing: dict[str, Any], configured: Pools, severity: str | None, keys: list[str]
) -> None:
    """
    Each is named with the key that would tell it, and none that the configuration tells, or that the engine has not.
    """
    findings = found([seen(facts=missing, configured=configured)], "facts_unknown")

    assert [finding.severity for finding in findings] == ([] if severity is None else [severity])
    for finding in findings:
        assert finding.figures["keys"] == keys
        assert all(key in (finding.remedy or "") for key in keys)


@pytest.mark.parametrize(
    ("configured", "fact"),
    [
        (Pools(tokens=400_000), "pool_tokens"),
        (Pools(slots=40), "snapshot_slots"),
        (Pools(per_path=4), "snapshots_per_path"),
        (Pools(chunk_tokens=8_192), "chunk_tokens"),
        (Pools(private=2), "slots_per_request"),
        (Pools(page_tokens=1), "page_tokens"),
        (Pools(grid_tokens=64), "grid_tokens"),
        (Pools(host=True), "host_tier"),
        (Pools(reports_cached=False), "reports_cached"),
        (Pools(tokens=490_000, slots=28, per_path=2, chunk_tokens=6_144), None),
    ],
)
def test_a_configuration_that_says_otherwise(configured: Pools, fact: str | None) -> None:
    """
    A twentieth of a size is no contradiction; any other cap or chunk is.
    """
    findings = found([seen(configured=configured)], "configured_otherwise")

    assert [finding.figures["fact"] for finding in findings] == ([] if fact is None else [fact])


def test_a_configuration_that_names_what_the_replica_does_not_have() -> None:
    """
    A cap where there is none, and slots of a model that needs none.
    """
    capped = only([seen(facts={"snapshots_per_path": None}, configured=Pools(per_path=2))], "configured_otherwise")
    plain = {"has_snapshots": False, "snapshot_slots": None, "snapshots_per_path": None}
    slots = only([seen(facts=plain, configured=Pools(slots=28))], "configured_otherwise")

    assert "Cap per path: 2 by the configuration, and by the replica's own word none" in capped.text
    assert "no pool of snapshots" in slots.text


def test_a_key_has_its_name_in_the_configuration() -> None:
    """
    The grid of snapshots has another there.
    """
    finding = only([seen(configured=Pools(grid_tokens=64))], "configured_otherwise")

    assert "replicas.snapshot_grid_tokens" in (finding.remedy or "")


def test_a_cache_that_is_off() -> None:
    """
    Nothing that Ramjet does helps there; the flag is named.
    """
    assert only([seen(facts={"caches": False})], "cache_off").severity == "warning"
    assert "--disable-radix-cache" in (only([seen(facts={"caches": False})], "cache_off").remedy or "")
    vllm = seen(facts={"caches": False, "engine": "vllm"})
    assert "--enable-prefix-caching" in (only([vllm], "cache_off").remedy or "")
    assert not found([seen()], "cache_off")
    assert not found([seen(facts={"caches": None})], "cache_off")


# -- differences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "fact", "shown"),
    [
        ({"version": "0.5.19"}, "version", "0.5.20 on a; 0.5.19 on b"),
        ({"model": "/models/glm-5.2"}, "model", "/models/glm-5.3-flash on a; /models/glm-5.2 on b"),
        ({"pool_tokens": 308_288}, "pool_tokens", "499,968 on a; 308,288 on b"),
        ({"page_tokens": 1}, "page_tokens", "64 on a; 1 on b"),
        ({"chunk_tokens": 8_192}, "chunk_tokens", "6,144 on a; 8,192 on b"),
        ({"snapshot_slots": 40}, "snapshot_slots", "28 on a; 40 on b"),
        ({"snapshots_per_path": None}, "snapshots_per_path", "2 on a; none on b"),
        ({"slots_per_request": 2}, "slots_per_request", "3 on a; 2 on b"),
        ({"host_tier": True}, "host_tier", "no on a; yes on b"),
        ({"max_running": 8}, "max_running", "4 on a; 8 on b"),
        ({"max_prompt_tokens": 131_072}, "max_prompt_tokens", "200,000 on a; 131,072 on b"),
        ({"ranks": 2}, "ranks", "1 on a; 2 on b"),
        ({"caches": False}, "caches", "yes on a; no on b"),
    ],
)
def test_replicas_that_differ(facts: dict[str, Any], fact: str, shown: str) -> None:
    """
    The fact, the values, and who has which.
    """
    finding = next(each for each in found(pair(facts=facts), "replicas_differ") if each.figures["fact"] == fact)

    assert shown in finding.text
    assert finding.severity == "warning"
    assert finding.replicas == ("a", "b")
    assert not found(pair(), "replicas_differ")


def test_sizes_that_nearly_agree_are_a_note() -> None:
    """
    Engines find a little more or less memory.
    """
    assert only(pair(facts={"pool_tokens": 490_000}), "replicas_differ").severity == "note"


def test_longest_prompts_that_follow_from_the_pools_are_not_said_again() -> None:
    """
    SGLang takes what its pool has room for.
    """
    fleet = [
        seen("a", facts={"max_prompt_tokens": 499_962}),
        seen("b", facts={"pool_tokens": 308_288, "max_prompt_tokens": 308_282}),
    ]

    assert [finding.figures["fact"] for finding in found(fleet, "replicas_differ")] == ["pool_tokens"]


def test_what_one_of_them_does_not_say_is_no_difference() -> None:
    """
    Unknown differs from nothing.
    """
    assert not found(pair(facts={"version": None, "pool_tokens": None, "chunk_tokens": None}), "replicas_differ")


def test_replicas_of_other_models_are_compared_with_their_own_kind() -> None:
    """
    That there are two kinds is said; that their pools differ is not, for they never get one another's requests.
    """
    fleet = [seen("a"), seen("b", models=("qwen",), facts={"pool_tokens": 100_000})]

    assert "glm on a; qwen on b" in only(fleet, "models_differ").text
    assert not found(fleet, "replicas_differ")


def test_an_adapter_that_only_one_has() -> None:
    """
    They are one group, and their lists differ.
    """
    fleet = pair(models=("glm", "glm-lora"))

    assert "glm, glm-lora on b" in only(fleet, "models_differ").text
    assert not found(pair(), "models_differ")


NAMES = st.one_of(st.none(), st.frozensets(st.sampled_from("xyz"), min_size=1).map(lambda names: tuple(sorted(names))))


@given(lists=st.lists(NAMES, max_size=6))
def test_groups_are_a_partition(lists: list[tuple[str, ...] | None]) -> None:
    """
    Everybody is in exactly one group, and those that share a name are in the same.
    """
    fleet = [seen(str(number), models=names) for number, names in enumerate(lists)]
    groups = alike(fleet)
    where = {each.name: number for number, group in enumerate(groups) for each in group}

    assert sorted(each.name for group in groups for each in group) == sorted(each.name for each in fleet)
    for one in fleet:
        for other in fleet:
            if one.models and other.models and set(one.models) & set(other.models):
                assert where[one.name] == where[other.name]


# -- pools --------------------------------------------------------------------------------------------------------------


def test_the_seed_before_its_fix() -> None:
    """
    28 slots, no cap: one prompt of 313,000 tokens writes 51 snapshots, and clears the pool.
    """
    finding = only([seen(facts={"snapshots_per_path": None, "max_prompt_tokens": 313_000})], "long_prompt_snapshots")

    assert finding.severity == "warning"
    assert "28 snapshot slots, 4 per running request (3 of its own" in finding.text
    assert "no cap per path" in finding.text
    assert "313,000 tokens" in finding.text
    assert "51 snapshots and clears the pool" in finding.text
    assert "--mamba-max-states-per-path 2" in (finding.remedy or "")
    assert not found([seen(facts={"max_prompt_tokens": 313_000})], "long_prompt_snapshots")


def test_a_pool_that_one_prompt_fills_by_half() -> None:
    """
    It is not cleared, and still mostly one conversation's.
    """
    half = seen(facts={"snapshots_per_path": None, "max_prompt_tokens": 80_000})
    little = seen(facts={"snapshots_per_path": None, "max_prompt_tokens": 60_000})

    assert "takes 14 of the 24 left" in only([half], "long_prompt_snapshots").text
    assert not found([little], "long_prompt_snapshots")


@pytest.mark.parametrize(("per_path", "fit"), [(None, 3), (4, 3), (2, 6)])
def test_how_many_conversations_stay_beside_running_requests(per_path: int | None, fit: int) -> None:
    """
    The seed: with four at work 12 slots are left, and a session of 20,000 tokens takes four of them, or two.
    """
    finding = only([seen(facts={"snapshots_per_path": per_path, "max_running": 4})], "snapshot_room")

    assert finding.figures == {
        "running": 4,
        "left": 12,
        "snapshots_each": 4 if per_path is None else per_path,
        "conversations": fit,
    }
    assert not found([seen(facts={"has_snapshots": False, "snapshot_slots": None})], "snapshot_room")


def test_a_pool_that_is_smaller_than_a_prompt_may_be() -> None:
    """
    What the engine says that it takes and what it has room for.
    """
    finding = only([seen(facts={"max_prompt_tokens": 1_048_576})], "pool_too_small")

    assert finding.severity == "warning"
    assert "1,048,576" in finding.text
    assert "499,968" in finding.text
    assert not found([seen(facts={"max_prompt_tokens": 499_968})], "pool_too_small")


def test_a_conversation_has_one_ranks_pool() -> None:
    """
    Two data-parallel ranks with as many tokens each: a prompt fits one of them or none.
    """
    finding = only([seen(facts={"ranks": 2, "max_prompt_tokens": 800_000})], "pool_too_small")

    assert finding.figures["pool_tokens"] == 499_968


LONG = {"max_prompt_tokens": 290_000}


def test_two_long_conversations_that_fit_only_apart() -> None:
    """
    With others to spread over it is a note; with the rule off, or with nobody else, a warning.
    """
    spread = only([seen("a", facts=LONG), seen("b", facts=LONG)], "long_conversations")
    off = only([seen("a", facts=LONG), seen("b", facts=LONG)], "long_conversations", Ours(spread_long=False))
    alone = only([seen("a", facts=LONG)], "long_conversations")

    assert (spread.severity, off.severity, alone.severity) == ("note", "warning", "warning")
    assert spread.replicas == ("a", "b")
    assert "580,000" in spread.text
    assert "499,968" in spread.text
    assert "spread_long sees to that" in spread.text
    assert "spread_long on" in (off.remedy or "")
    assert "one replica" in alone.text
    assert not found([seen(facts={"max_prompt_tokens": 240_000})], "long_conversations")


def test_a_replica_of_another_model_is_nobody_to_spread_over() -> None:
    """
    Only replicas that may get the conversation count.
    """
    fleet = [seen("a", facts=LONG), seen("b", models=("qwen",))]

    assert only(fleet, "long_conversations").severity == "warning"


def test_conversations_that_count_as_ordinary_and_do_not_fit_together() -> None:
    """
    A pool of 200,000 tokens: from 100,000 on two of them are too many, and they are spread from 150,000 on.
    """
    small = {"pool_tokens": 200_000, "max_prompt_tokens": 190_000}
    fleet = [seen("a", facts=small), seen("b", facts=small)]

    assert "routing.spread_long.tokens to 100,000" in (only(fleet, "long_from").remedy or "")
    assert not found(fleet, "long_from", Ours(long_tokens=100_000))
    assert not found([seen("a", facts=LONG), seen("b", facts=LONG)], "long_from")


def test_long_conversations_that_no_rule_takes_for_long() -> None:
    """
    Two of 65,530 tokens do not fit a pool of 65,536, and are spread from 150,000 on: never.
    """
    small = {"pool_tokens": 65_536, "max_prompt_tokens": 65_530}
    fleet = [seen("a", facts=small), seen("b", facts=small)]

    assert "only conversations from 150,000 tokens on" in only(fleet, "long_conversations").text
    assert "routing.spread_long.tokens to 32,000" in (only(fleet, "long_conversations").remedy or "")
    assert not found(fleet, "long_from")


def test_slots_are_those_of_one_rank() -> None:
    """
    Two data-parallel ranks with as many slots and requests each: what runs at the other takes none of one's.
    """
    alone, ranks = (only([seen(facts={"ranks": each, "max_running": 6})], "snapshot_room") for each in (1, 2))

    assert ranks.figures == alone.figures


def test_one_replica_and_a_busy_one() -> None:
    """
    Good to know, both.
    """
    assert only([seen()], "one_replica").severity == "note"
    assert not found(pair(), "one_replica")
    assert "2 running and 1 waiting" in only([seen(loads=(Loads(running=2, waiting=1),))], "busy").text
    assert not found([seen()], "busy")


# -- of all of them -----------------------------------------------------------------------------------------------------

COUNT = st.one_of(st.none(), st.integers(1, 1_000_000))
FLAG = st.one_of(st.none(), st.booleans())
SOME_FACTS = st.builds(
    Facts,
    engine=st.sampled_from(["sglang", "vllm", "llamacpp", "openai"]),
    version=st.one_of(st.none(), st.sampled_from(["1", "2"])),
    model=st.one_of(st.none(), st.sampled_from(["m", "n"])),
    pool_tokens=COUNT,
    page_tokens=COUNT,
    chunk_tokens=COUNT,
    has_snapshots=FLAG,
    snapshot_slots=COUNT,
    snapshots_per_path=COUNT,
    slots_per_request=st.one_of(st.none(), st.integers(1, 5)),
    grid_tokens=COUNT,
    host_tier=FLAG,
    max_running=COUNT,
    max_prompt_tokens=COUNT,
    reports_cached=FLAG,
    states_in_pool=FLAG,
    caches=FLAG,
    ranks=st.integers(1, 4),
)
ANSWERS = st.one_of(
    st.builds(
        Answer,
        path=st.sampled_from(["/health", "/v1/models"]),
        status=st.sampled_from([200, 204, 301, 401, 403, 404, 500, 503]),
        took_s=st.floats(0, 10),
    ),
    st.builds(
        Answer,
        path=st.just("/health"),
        error=st.sampled_from(["connection refused", "cannot be reached", "ReadTimeout"]),
    ),
)
POOLS = st.builds(
    Pools, tokens=COUNT, slots=COUNT, per_path=COUNT, chunk_tokens=COUNT, private=COUNT, host=FLAG, reports_cached=FLAG
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Found]:
    """Any replicas at all."""
    return [
        Found(
            name=f"r{number}",
            url="http://r",
            configured=draw(POOLS),
            health=draw(ANSWERS),
            listing=draw(ANSWERS),
            models=draw(NAMES),
            metrics=draw(st.booleans()),
            facts=draw(st.one_of(st.none(), SOME_FACTS)),
            loads=draw(st.sampled_from([(), (Loads(),), (Loads(running=1, waiting=2), Loads(rank=1))])),
            health_tokens=draw(st.one_of(st.none(), st.integers(0, 9))),
            health_asked=2,
            reuse=draw(st.one_of(st.none(), st.builds(Reuse, prompt_tokens=COUNT.map(bool), cached_tokens=COUNT))),
            idle=draw(st.one_of(st.none(), st.builds(Idle, waited_s=st.just(6.0), closed_after_s=st.floats(0, 9)))),
        )
        for number in range(draw(st.integers(0, 4)))
    ]


@given(fleet=fleets(), spread=st.booleans())
def test_whatever_was_seen_is_said_in_words(fleet: list[Found], spread: bool) -> None:
    """
    Nothing raises; names and severities are known ones, the worst come first, and every replica named is one of them.
    """
    findings = find(fleet, Ours(spread_long=spread))

    assert {finding.id for finding in findings} <= set(IDS)
    order = [SEVERITIES.index(finding.severity) for finding in findings]
    assert order == sorted(order)
    for finding in findings:
        assert finding.replicas
        assert set(finding.replicas) <= {each.name for each in fleet}
        assert len(set(finding.replicas)) == len(finding.replicas)
        assert finding.text.endswith(".")
        assert "None" not in f"{finding.text} {finding.remedy or ''}"
    assert len({(finding.id, finding.text, finding.remedy) for finding in findings}) == len(findings)


@given(fleet=fleets(), data=st.data())
def test_the_order_of_the_fleet_never_matters(fleet: list[Found], data: st.DataObject) -> None:
    """
    The same things are said of the same replicas.
    """
    other = data.draw(st.permutations(fleet))
    said = [
        sorted((finding.id, finding.severity, tuple(sorted(finding.replicas))) for finding in find(each, OURS))
        for each in (fleet, other)
    ]

    assert said[0] == said[1]


@given(fleet=fleets())
def test_a_replica_that_takes_no_request_is_a_fault(fleet: list[Found]) -> None:
    """
    Whoever's health is no 2xx has one, and nobody else: that is what the exit code stands for.
    """
    faulty = {name for finding in find(fleet, OURS) if finding.severity == "fault" for name in finding.replicas}

    for each in fleet:
        refused = each.health.status in {401, 403} or each.listing.status in {401, 403}
        assert (each.name in faulty) == (not each.health.good or refused)


@given(tokens=st.integers(0, 1_000_000), more=st.integers(0, 100_000), pools=POOLS)
def test_longer_prompts_write_no_fewer_snapshots(tokens: int, more: int, pools: Pools) -> None:
    """
    And a conversation never keeps more than it wrote, nor than its cap.
    """
    assert pools.snapshots_of(tokens) <= pools.snapshots_of(tokens + more)
    assert pools.kept_of(tokens) <= pools.snapshots_of(tokens)
    assert pools.per_path is None or pools.kept_of(tokens) <= pools.per_path


def test_the_seeds_prompts_write_the_seeds_snapshots() -> None:
    """
    Three chunk ends and the tail of 20,000 tokens; 51 of 313,000.
    """
    assert FACTS.pools.snapshots_of(20_000) == 4
    assert FACTS.pools.snapshots_of(19_845) == 4
    assert FACTS.pools.snapshots_of(313_000) == 51
