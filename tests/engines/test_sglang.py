"""What SGLang says about its cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.core.pools import Pools
from ramjet.engines import sglang

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("max_total_num_tokens", "max_mamba_cache_size", "mamba_max_states_per_path", "chunked_prefill_size")


@pytest.mark.parametrize(
    ("info", "pools"),
    [
        (
            {"max_total_num_tokens": 499_968, "max_mamba_cache_size": 28, "mamba_max_states_per_path": 2, "chunked_prefill_size": 6_144},
            Pools(tokens=499_968, slots=28, per_path=2, chunk_tokens=6_144),
        ),
        (
            # As it answers by default: slots derived, no cap, chunked prefill off.
            {"max_total_num_tokens": 131_072, "max_mamba_cache_size": None, "mamba_max_states_per_path": -1, "chunked_prefill_size": -1},
            Pools(tokens=131_072),
        ),
        ({}, Pools()),
        ([1], Pools()),
    ],
)  # fmt: skip
def test_sizes_are_read_and_what_is_not_said_stays_unknown(info: object, pools: Pools) -> None:
    """
    -1 is no cap, null was derived, and a page of another engine says nothing.
    """
    assert sglang.pools(info) == pools


@pytest.mark.parametrize(
    ("loads", "tokens"),
    [
        ({"loads": [{"dp_rank": 0, "max_total_num_tokens": 499_968}]}, 499_968),
        ({"loads": [{"max_total_num_tokens": 1_000}, {"max_total_num_tokens": 1_000}]}, 2_000),
        ({"loads": [{"max_total_num_tokens": 1_000}, {}]}, None),
        ({"loads": "none"}, None),
        (None, None),
    ],
)
def test_loads_name_the_token_pool_too(loads: object, tokens: int | None) -> None:
    """
    All data-parallel ranks together; unknown if one of them does not say.
    """
    assert sglang.pools_of_loads(loads) == Pools(tokens=tokens)


@given(info=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_whatever_it_says_sizes_are_sizes(info: dict[str, object]) -> None:
    """
    Positive whole numbers, or unknown.
    """
    pools = sglang.pools(info)

    for size in (pools.tokens, pools.slots, pools.per_path, pools.chunk_tokens):
        assert size is None or (type(size) is int and size > 0)


def test_the_configuration_goes_before_what_the_engine_says() -> None:
    """
    Given is given; only what is left open is filled in.
    """
    given_, said = Pools(tokens=400_000, slots=30), Pools(tokens=499_968, per_path=2, chunk_tokens=8_192)

    assert given_.over(said) == Pools(tokens=400_000, slots=30, per_path=2, chunk_tokens=8_192)
