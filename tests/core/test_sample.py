"""What the replicas were at a moment, and what any of them held of a prompt."""

from __future__ import annotations

from ramjet.core.fleet import Replica
from ramjet.core.pools import Pools
from ramjet.core.record import Record
from ramjet.core.sample import Sample, samples
from ramjet.core.usage import Usage
from tests.core.test_router import Talk, end, router, serve, start

SEED_POOLS = Pools(tokens=499_968, slots=28, per_path=2, chunk_tokens=6_144, host=True)


def test_a_sample_says_what_a_replica_is_said_to_be_and_what_it_is_believed_to_hold() -> None:
    """
    The seed's replica while it reads a prompt of 20,000 tokens, and one of which nothing is known.
    """
    to = router("b")
    to.add(Replica("a", "http://a:30000", configured=SEED_POOLS))
    to.fleet["b"].draining = True
    visit = start(to, Talk("agent", 20_000).arrival())
    tokens = visit.prompt_tokens

    one, other = {each.replica: each for each in samples(to, 1.0)}["a"], samples(to, 1.0)[0]

    queue_s = visit.lease.reading_s - 1.0 if visit.lease is not None else None
    assert one == Sample(
        replica="a", state="up", pool_tokens=499_968, usable_tokens=499_968, pool_slots=28, per_path=2, private_slots=3,
        chunk_tokens=6_144, grid_tokens=256, host=True, resident_tokens=tokens, resident_slots=2 + 3, living=1,
        in_flight=1, held=0, queue_s=round(queue_s or 0, 3), pace=1.0,
    )  # fmt: skip
    assert other == Sample(replica="b", state="draining", private_slots=3, grid_tokens=256)


def test_the_best_match_is_that_of_any_replica() -> None:
    """
    Home drains, so the turn goes where nothing of it is: what other replicas that can serve hold counts, and what the
    one that drains holds does not.
    """
    to, talk = router("a", "b", "c"), Talk("agent", 20_000)
    first = serve(to, talk.arrival(), usage=Usage(prompt_tokens=20_000, cached_tokens=0))
    home = first.replica
    assert home is not None
    talk.grow()
    to.fleet[home].draining = True
    second = serve(to, talk.arrival(), now=10.0)
    other = second.replica
    assert other is not None
    to.fleet[home].draining = False
    # Its second home is so busy that the third replica, which holds nothing, is better than to wait.
    blocking = [start(to, Talk(f"long {number}", 400_000).arrival(), now=20.0) for number in range(3)]
    talk.grow()
    third = serve(to, talk.arrival(), now=20.0)
    for each in blocking:
        end(to, each, 21.0)

    assert (first.matched_tokens, first.best_matched_tokens) == (0, 0)
    assert (second.matched_tokens, second.best_matched_tokens) == (0, 0)
    assert (third.best_matched_tokens or 0) >= 20_000 > (third.matched_tokens or 0) - 1_000
    assert (third.best_matched_tokens or 0) >= (third.matched_tokens or 0)


def test_who_goes_home_unseen_has_what_its_home_holds() -> None:
    """
    No other replica is looked at where even an ideal one would be no cheaper.
    """
    to, talk = router("a", "b"), Talk("agent", 20_000)
    serve(to, talk.arrival())
    talk.grow()

    visit = start(to, talk.arrival(), now=5.0)
    record: Record = end(to, visit, 6.0)

    assert visit.decision is not None
    assert visit.decision.elsewhere_s is not None
    assert record.best_matched_tokens == record.matched_tokens
    assert (record.matched_tokens or 0) > 19_000
    assert record.log_fields()["best_matched_tokens"] == record.matched_tokens


def test_who_was_sent_nowhere_has_no_best_match() -> None:
    """
    None, for nobody looked; 0 would say that nothing was there.
    """
    to = router("a")
    to.fleet["a"].draining = True
    visit = to.arrive(Talk("agent", 20_000).arrival(), 0.0)
    assert to.place(visit, 0.0) is None

    record = to.finish(visit, 0.0, outcome="no_replica", status=503)

    assert (record.matched_tokens, record.best_matched_tokens) == (None, None)
