"""What a scrape shows: every series from the start, none that clients can add, and each request counted once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ramjet.core.fleet import Fleet, Replica, State
from ramjet.core.policies import Policy
from ramjet.core.prompt import ENDPOINTS
from ramjet.core.record import OUTCOMES, SIZE_CLASSES, TEMPERATURES, Record
from ramjet.core.route import REASONS
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival
from ramjet.metrics import ENDPOINT_NAMES, Metrics

REPLICAS = ("glm-1", "glm-2")
USAGE = Usage(prompt_tokens=19_845, cached_tokens=19_712, completion_tokens=7)


def samples(metrics: Metrics) -> dict[str, float]:
    """Every series of a scrape, as it is written."""
    lines = metrics.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def changed(metrics: Metrics, *records: Record) -> dict[str, float]:
    """What records add, without the buckets."""
    before = samples(metrics)
    for record in records:
        metrics.observe(record)
    after = samples(metrics)
    return {name: after[name] - before[name] for name in after if after[name] != before[name] and "_bucket" not in name}


def answered(**given: object) -> Record:
    fields = {
        "request_id": "r", "endpoint": "chat", "conversation": "0123456789ab", "turn": 2, "replica": "glm-1",
        "reason": "affinity", "matched_tokens": 19_800, "reusable_tokens": 19_800, "usage": USAGE, "ttft_s": 1.2,
        "duration_s": 9.5, "attempts": 1, "status": 200,
    }  # fmt: skip
    return Record(**{**fields, **given})  # type: ignore[arg-type]


# -- what is there ----------------------------------------------------------------------------------------------------


def test_every_series_is_there_before_the_first_request() -> None:
    """
    Zero is told from not exported: a rate over a new series would miss its first event.
    """
    shown = samples(Metrics(REPLICAS))

    for replica in REPLICAS:
        for family in ("prompt_tokens_total", "cached_tokens_total", "matched_tokens_total", "completion_tokens_total",
                       "usage_unknown_total", "in_flight", "replica_up", "resident_tokens", "slices_total"):  # fmt: skip
            assert shown[f'ramjet_{family}{{replica="{replica}"}}'] == 0
        for reason in REASONS:
            assert shown[f'ramjet_decisions_total{{reason="{reason}",replica="{replica}"}}'] == 0
        for endpoint in ENDPOINT_NAMES:
            assert shown[f'ramjet_duration_seconds_count{{endpoint="{endpoint}",replica="{replica}"}}'] == 0
        for size in SIZE_CLASSES:
            for temperature in TEMPERATURES:
                labels = f'replica="{replica}",size_class="{size}",temperature="{temperature}"'
                assert shown[f"ramjet_ttft_seconds_count{{{labels}}}"] == 0
    for replica in (*REPLICAS, "none"):
        for endpoint in (*ENDPOINTS.values(), "other"):
            for outcome in OUTCOMES:
                labels = f'endpoint="{endpoint}",outcome="{outcome}",replica="{replica}"'
                assert shown[f"ramjet_requests_total{{{labels}}}"] == 0
    for size in SIZE_CLASSES:
        for temperature in TEMPERATURES:
            assert shown[f'ramjet_turns_total{{size_class="{size}",temperature="{temperature}"}}'] == 0
    assert shown["ramjet_held"] == 0
    assert shown["ramjet_prompt_tokens_count"] == 0


def test_prompt_tokens_are_a_counter_and_a_histogram() -> None:
    """
    Two families that the text format tells apart by their suffixes, each described once, and a parser reads them.
    """
    metrics = Metrics(REPLICAS)
    metrics.observe(answered())
    text = metrics.render().decode()

    assert text.count("# TYPE ramjet_prompt_tokens_total counter") == 1
    assert text.count("# TYPE ramjet_prompt_tokens histogram") == 1
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert families["ramjet_prompt_tokens"] in {"counter", "histogram"}
    shown = samples(metrics)
    assert shown['ramjet_prompt_tokens_total{replica="glm-1"}'] == 19_845
    assert (shown["ramjet_prompt_tokens_sum"], shown["ramjet_prompt_tokens_count"]) == (19_845, 1)


def test_no_series_is_written_twice() -> None:
    """
    Prometheus refuses a scrape with duplicates as a whole.
    """
    lines = [line.rpartition(" ")[0] for line in Metrics(REPLICAS).render().decode().splitlines() if line[0] != "#"]

    assert len(lines) == len(set(lines))


def test_every_family_is_described() -> None:
    """
    Each has a help text that is a sentence.
    """
    text = Metrics(REPLICAS).render().decode()
    helps = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# HELP ")]

    assert len(helps) == text.count("# TYPE ")
    assert all(help_[2].startswith("ramjet_") and help_[3].endswith(".") for help_ in helps)


@pytest.mark.parametrize(
    ("family", "edge", "below"),
    [
        ("ramjet_ttft_seconds", "300.0", "180.0"),
        ("ramjet_prompt_tokens", "1e+06", "500000.0"),
        ("ramjet_duration_seconds", "1800.0", "600.0"),
    ],
)
def test_buckets_reach_as_far_as_requests_do(family: str, edge: str, below: str) -> None:
    """
    A held cold turn takes minutes, and a prompt has up to a million tokens: neither falls beyond the last edge.
    """
    metrics = Metrics(REPLICAS)
    metrics.observe(answered(ttft_s=299.0, duration_s=1_799.0, usage=Usage(prompt_tokens=999_999, cached_tokens=0)))

    counts = [
        (name, value)
        for name, value in samples(metrics).items()
        if name.startswith(f"{family}_bucket{{") and "glm-2" not in name
    ]
    assert sum(value for name, value in counts if f'le="{edge}"' in name) == 1
    assert sum(value for name, value in counts if f'le="{below}"' in name) == 0


@pytest.mark.parametrize("seconds", [1.18, 3.35, 57.0])
def test_the_seeds_first_tokens_fall_into_different_buckets(seconds: float) -> None:
    """
    A warm turn, a cold one of 20,000 tokens and one of 313,000 can be told apart to within a third.
    """
    metrics = Metrics(REPLICAS)
    metrics.observe(answered(ttft_s=seconds))

    edges = [
        float(name.partition('le="')[2].partition('"')[0])
        for name, value in samples(metrics).items()
        if name.startswith("ramjet_ttft_seconds_bucket{") and value == 1
    ]
    assert seconds < min(edges) <= 1.5 * seconds


# -- what records add -------------------------------------------------------------------------------------------------


def test_an_answered_turn_is_counted_everywhere_once() -> None:
    """
    Each number under its name, with the engine's counts where they belong.
    """
    assert changed(Metrics(REPLICAS), answered()) == pytest.approx({
        'ramjet_requests_total{endpoint="chat",outcome="ok",replica="glm-1"}': 1,
        'ramjet_decisions_total{reason="affinity",replica="glm-1"}': 1,
        'ramjet_duration_seconds_count{endpoint="chat",replica="glm-1"}': 1,
        'ramjet_duration_seconds_sum{endpoint="chat",replica="glm-1"}': 9.5,
        'ramjet_turns_total{size_class="8k-150k",temperature="warm"}': 1,
        'ramjet_ttft_seconds_count{replica="glm-1",size_class="8k-150k",temperature="warm"}': 1,
        'ramjet_ttft_seconds_sum{replica="glm-1",size_class="8k-150k",temperature="warm"}': 1.2,
        'ramjet_prompt_tokens_total{replica="glm-1"}': 19_845,
        "ramjet_prompt_tokens_count": 1,
        "ramjet_prompt_tokens_sum": 19_845,
        'ramjet_cached_tokens_total{replica="glm-1"}': 19_712,
        'ramjet_matched_tokens_total{replica="glm-1"}': 19_800,
        'ramjet_completion_tokens_total{replica="glm-1"}': 7,
    })  # fmt: skip


def test_slices_are_counted_where_they_were_read() -> None:
    """
    Whatever became of the request: the engine has read them.
    """
    metrics = Metrics(REPLICAS)

    changes = changed(metrics, answered(slices=5), answered(slices=2, outcome="client_disconnect"), answered())

    assert changes['ramjet_slices_total{replica="glm-1"}'] == 7


def test_probes_count_as_requests_and_as_nothing_else() -> None:
    """
    Our own test traffic is left out of what operators look at.
    """
    assert changed(Metrics(REPLICAS), answered(probe=True)) == {
        'ramjet_requests_total{endpoint="chat",outcome="ok",replica="glm-1"}': 1
    }


@pytest.mark.parametrize("outcome", ["no_replica", "refused", "client_disconnect"])
def test_a_request_that_no_replica_got_is_counted_as_such(outcome: str) -> None:
    """
    Under the replica `none`, and in no decision, turn or duration.
    """
    gone = answered(replica=None, reason=None, outcome=outcome, usage=Usage())

    assert changed(Metrics(REPLICAS), gone) == {
        f'ramjet_requests_total{{endpoint="chat",outcome="{outcome}",replica="none"}}': 1
    }


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "ok"])
def test_a_turn_that_failed_says_nothing_about_caches(outcome: str) -> None:
    """
    It is a request, a decision and a duration; its usage and its first token count nowhere.
    """
    names = changed(Metrics(REPLICAS), answered(outcome=outcome))

    assert {name.partition("{")[0] for name in names} == {
        "ramjet_requests_total", "ramjet_decisions_total", "ramjet_duration_seconds_count",
        "ramjet_duration_seconds_sum",
    }  # fmt: skip


def test_cached_tokens_that_nobody_reported_are_counted_as_unknown() -> None:
    """
    They are not 0: a dashboard that divides cached by prompt tokens must know how much it does not know.
    """
    unknown = changed(Metrics(REPLICAS), answered(usage=Usage(prompt_tokens=19_845)))
    nothing = changed(Metrics(REPLICAS), answered(usage=Usage(prompt_tokens=19_845, cached_tokens=0)))

    assert unknown['ramjet_usage_unknown_total{replica="glm-1"}'] == 1
    assert unknown['ramjet_turns_total{size_class="8k-150k",temperature="unknown"}'] == 1
    assert 'ramjet_usage_unknown_total{replica="glm-1"}' not in nothing
    assert nothing['ramjet_turns_total{size_class="8k-150k",temperature="cold"}'] == 1


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    """
    Time to first token is of streams only.
    """
    assert not [name for name in changed(Metrics(REPLICAS), answered(ttft_s=None)) if "ttft" in name]


ODD = st.builds(
    answered,
    request_id=st.text(max_size=30),
    conversation=st.none() | st.text(max_size=12),
    model=st.none() | st.text(max_size=30),
    endpoint=st.sampled_from(ENDPOINT_NAMES),
    outcome=st.sampled_from(OUTCOMES),
    replica=st.sampled_from((None, *REPLICAS)),
    reason=st.sampled_from(REASONS),
    turn=st.none() | st.integers(1, 10**6),
    ttft_s=st.none() | st.floats(0, 1e6),
    duration_s=st.floats(0, 1e6),
    matched_tokens=st.none() | st.integers(0, 10**9),
    reusable_tokens=st.none() | st.integers(0, 10**9),
    usage=st.builds(
        Usage,
        prompt_tokens=st.none() | st.integers(0, 10**12),
        cached_tokens=st.none() | st.integers(0, 10**12),
        completion_tokens=st.none() | st.integers(0, 10**12),
    ),
    status=st.none() | st.integers(100, 599),
    probe=st.booleans(),
)


@given(st.lists(ODD, min_size=20, max_size=20))
@settings(max_examples=20, deadline=None)
def test_no_record_adds_a_series(records: list[Record]) -> None:
    """
    Whatever clients send and engines answer.
    """
    metrics = Metrics(REPLICAS)
    before = set(samples(metrics))

    for record in records:
        metrics.observe(record)

    assert set(samples(metrics)) == before


def test_ten_thousand_clients_add_no_series() -> None:
    """
    Each with a model, an id and a conversation of its own.
    """
    metrics = Metrics(REPLICAS)
    before = len(samples(metrics))

    for number in range(10_000):
        metrics.observe(answered(
            request_id=f"r{number}", model=f"model {number}", conversation=f"{number:012x}", turn=1 + number % 400,
            endpoint=ENDPOINT_NAMES[number % len(ENDPOINT_NAMES)], outcome=OUTCOMES[number % len(OUTCOMES)],
            replica=(*REPLICAS, None)[number % 3], reason=REASONS[number % len(REASONS)], status=number,
        ))  # fmt: skip

    assert len(samples(metrics)) == before < 2_000


# -- what the router knows --------------------------------------------------------------------------------------------


def test_gauges_are_read_from_the_router_when_they_are_scraped() -> None:
    """
    Nothing is counted twice or reset: in flight, up, and what is believed to be held.
    """
    fleet = Fleet()
    for name in REPLICAS:
        fleet.add(Replica(name, f"http://{name}:30000"))
    router = Router(fleet, Policy())
    metrics = Metrics()
    for replica in fleet:
        metrics.add(replica, router)
    visit = router.arrive(Arrival(request_id="r", endpoint="other", body_bytes=9), 0)
    lease = router.place(visit, 0)
    assert lease is not None
    name = lease.replica.name
    fleet["glm-2"].state = State.DOWN

    shown = samples(metrics)
    assert shown[f'ramjet_in_flight{{replica="{name}"}}'] == 1
    assert [shown[f'ramjet_replica_up{{replica="{each}"}}'] for each in REPLICAS] == [1, 0]
    router.finish(visit, 1, outcome="ok", status=200)

    assert samples(metrics)[f'ramjet_in_flight{{replica="{name}"}}'] == 0


def test_two_processes_in_one_test_do_not_share_metrics() -> None:
    """
    The registry is the instance's own.
    """
    one, other = Metrics(REPLICAS), Metrics(REPLICAS)

    one.observe(answered())

    assert samples(other)['ramjet_prompt_tokens_total{replica="glm-1"}'] == 0
