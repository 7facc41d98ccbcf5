"""The first of a ranking, and the first that is free, are those that counting everything would give."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ramjet.core.policies import BalanceCost, CrowdingCost, LeaveCost, PrefillCost, QueueCost
from ramjet.core.ranking import Ranking
from ramjet.core.route import Ask, Candidate, Cost, decide
from tests.effort import examples

COSTS: Sequence[Cost] = (PrefillCost(), QueueCost(), CrowdingCost(), BalanceCost(), LeaveCost())
TOKENS = 60_000
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        replica=st.just(""),
        identity=st.just(""),
        matched_tokens=st.sampled_from((0, 17_000, 40_000)),
        own_tokens=st.sampled_from((0, 0, 23_000)),
        in_flight=st.integers(0, 3),
        queue_s=st.sampled_from((0.0, 0.0, 0.04, 3.0)),
        living=st.integers(0, 9),
        pool_tokens=st.sampled_from((None, 500_000)),
        harm_s=st.sampled_from((0.0, 0.02, 0.3, 0.69, 0.8, 2.0, 30.0)),
        fits=st.sampled_from((True, True, True, False)),
    ),
    min_size=1,
    max_size=9,
).map(lambda found: [replace(each, replica=f"r{at}", identity=f"http://r{at}") for at, each in enumerate(found)])


@given(candidates=CANDIDATES, home=st.sampled_from((None, "r0", "r1")), conversation=st.integers(0, 99))
@settings(max_examples=examples(400), deadline=None)
def test_it_is_the_ranking_that_counts_everything(
    candidates: list[Candidate], home: str | None, conversation: int
) -> None:
    """
    To the last digit, in the first, in the first that is free, and in any that is asked for; and nobody is left out.
    """
    ask = Ask(body_bytes=4 * TOKENS, prompt_tokens=TOKENS, conversation=conversation, home=home)
    harm_s = {each.replica: each.harm_s for each in candidates}
    everything = decide(ask, candidates, costs=COSTS).ranked
    unknown = decide(ask, [replace(each, harm_s=0.0) for each in candidates], costs=COSTS).ranked
    steps_s = (0.0, 0.02, 0.3, 0.69, 0.8, 2.0, 30.0)

    def count(candidate: Candidate, upto_s: float | None = None) -> tuple[float, bool]:
        most_s, all_s = 0.7 if upto_s is None else upto_s, harm_s[candidate.replica]
        # It is counted run by run, and stops with the first that makes it too much.
        seen_s = next(step for step in steps_s if step >= all_s or step > most_s)
        return seen_s, seen_s <= most_s

    def ranking() -> Ranking:
        return Ranking(ask, unknown, COSTS, count)

    free = next((each for each in everything if each.candidate.fits and each.candidate.harm_s <= 0.7), None)
    one, other = ranking(), ranking()
    assert one.first() == everything[0]
    assert one.first_free(lambda each: each.fits, lambda _: 0.7) == free
    assert other.first_free(lambda each: each.fits, lambda _: 0.7) == free
    assert other.first() == everything[0]
    assert other.of(home) == next((each for each in everything if each.candidate.replica == home), None)
    others = other.others(other.first())
    assert sorted(each.candidate.replica for each in others) == sorted(
        each.candidate.replica for each in everything[1:]
    )
