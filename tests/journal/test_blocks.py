"""Prompts in few bytes come back as they were, but for their hashes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramjet.core.fingerprint import Chain
from ramjet.journal.blocks import EMPTY, kept, pack, salter, unpack
from tests.journal.support import SALT, chain, salted

HASHES = st.lists(st.integers(0, (1 << 64) - 1), max_size=40, unique=True)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    hashes = draw(HASHES)
    ends, at = array("Q"), 0
    for size in draw(st.lists(st.integers(0, 1 << 20), min_size=len(hashes), max_size=len(hashes))):
        at += size
        ends.append(at)
    preamble = draw(st.none() | st.integers(0, (1 << 64) - 1))
    return Chain(array("Q", hashes), ends, draw(st.integers(0, 40)), at + draw(st.integers(0, 1 << 20)), preamble)


def as_read(one: Chain) -> Chain:
    """A chain with its hashes as they are in the file."""
    preamble = None if one.preamble is None else SALT(one.preamble)
    return Chain(array("Q", salted(one.hashes)), one.ends, one.head, one.size_bytes, preamble)


def parts(one: Chain) -> tuple[object, ...]:
    return one.hashes, one.ends, one.head, one.size_bytes, one.preamble


@given(chains(), st.integers(0, 40), chains(), st.binary(max_size=3))
def test_what_is_packed_comes_back(base: Chain, keep: int, more: Chain, rest: bytes) -> None:
    """
    Whatever a prompt keeps of the one before, and whatever stands behind it.
    """
    assume(not set(base.hashes) & set(more.hashes))  # a hash names all that lies before it, and so where it ends
    keep = min(keep, len(base))
    at = base.ends[keep - 1] if keep else 0
    ends = base.ends[:keep] + array("Q", [at + end for end in more.ends])
    grown = Chain(base.hashes[:keep] + more.hashes, ends, more.head, at + more.size_bytes, more.preamble)

    packed = pack(grown, base, SALT)
    found, behind = unpack(packed + rest, as_read(base))

    assert parts(found) == parts(as_read(grown))
    assert behind == rest


@given(st.lists(st.integers(0, 1 << 60), unique=True, max_size=50), st.integers(0, 50))
def test_common_blocks_are_counted(hashes: list[int], at: int) -> None:
    """
    Up to the first that differs, or the end of the shorter.
    """
    changed = [*hashes[:at], *(each + (1 << 61) for each in hashes[at:])]

    assert kept(chain(hashes), chain(changed)) == min(at, len(hashes))
    assert kept(chain(hashes), chain(hashes[:at])) == min(at, len(hashes))


def test_what_is_kept_costs_little() -> None:
    base = chain(range(600))
    grown = chain(range(603))

    assert len(pack(base, EMPTY, SALT)) > 600 * 8
    assert len(pack(grown, base, SALT)) < 3 * 8 + 20


def test_the_secret_decides_what_is_stored() -> None:
    """
    Hashes are not those of the fingerprint, the same with the same secret, and others with another.
    """
    assert SALT(1) == SALT(1) != 1
    assert salter("another secret")(1) != SALT(1)


@pytest.mark.parametrize("cut", range(1, 30))
def test_what_was_cut_is_refused(cut: int) -> None:
    packed = pack(chain([1, 2, 3], preamble=4), EMPTY, SALT)

    with pytest.raises(ValueError, match="ends in the middle"):
        unpack(packed[:-cut], EMPTY)


def test_keeping_more_than_there_was_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps 2 blocks of a prompt that has 0"):
        unpack(pack(chain([1, 2, 3]), chain([1, 2]), SALT), EMPTY)
