"""KV events as engines write them: both spellings, all versions, and whatever else may come over a wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.chains import Cleared, Event, Removed, Stored
from ramjet.engines.kv_events import decode
from tests.effort import examples

encode = msgspec.msgpack.encode

STORED = Stored(hashes=[11, 12], parent=10, block_tokens=16)
MAP = {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": 10, "token_ids": [0] * 32, "block_size": 16,
       "lora_id": None}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        # vLLM 0.9 and SGLang of its time: arrays, and nothing behind the adapter.
        (["BlockStored", [11, 12], 10, [0] * 32, 16, None], STORED),
        (["BlockRemoved", [11]], Removed(hashes=[11])),
        (["AllBlocksCleared"], Cleared()),
        # With a medium, an adapter's name, extra keys, a group.
        (["BlockStored", [11, 12], 10, [0] * 32, 16, 3, "GPU", "name", [None, ["salt"]], 0], STORED),
        (["BlockRemoved", [11], "CPU_PINNED"], Removed(hashes=[11], medium="CPU_PINNED")),
        # vLLM 0.32 and SGLang 0.5.23: maps.
        (MAP, STORED),
        (MAP | {"medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "full_attention", "cache_salt": "x"}, STORED),
        (MAP | {"medium": "CPU"}, Stored(hashes=[11, 12], parent=10, block_tokens=16, medium="CPU")),
        # The beginning of a prompt; hashes with a sign, of 64 bits, and of 32 bytes.
        (MAP | {"parent_block_hash": None}, Stored(hashes=[11, 12], parent=None, block_tokens=16)),
        (
            MAP | {"block_hashes": [-1, 2**64 - 1, b"h" * 32]},
            Stored(hashes=[-1, 2**64 - 1, b"h" * 32], parent=10, block_tokens=16),
        ),
        # EAGLE's tokens are pairs; nobody looks.
        (MAP | {"token_ids": [(1, 2)] * 32}, STORED),
        ({"type": "BlockRemoved", "block_hashes": [11], "medium": None}, Removed(hashes=[11])),
        ({"type": "AllBlocksCleared"}, Cleared()),
    ],
)
@pytest.mark.parametrize("batch", ["array", "with rank", "map"])
def test_every_spelling_is_read(said: Any, heard: Event, batch: str) -> None:
    """
    Array or map, with all fields or the first ones only, in a batch that is either.
    """
    events = [said, {"type": "SomethingNew", "of": 1}, ["Another", 2]]
    batches = {"array": [1.0, events], "with rank": [1.0, events, 0], "map": {"ts": 1.0, "events": events}}

    assert decode(encode(batches[batch])) == [heard]


@pytest.mark.parametrize(
    "more",
    [
        {"group_idx": 1}, {"kv_cache_spec_kind": "mamba"}, {"kv_cache_spec_kind": "sliding_window"},
        {"component_type": "MAMBA"},
    ],
)  # fmt: skip
def test_blocks_that_alone_are_not_enough_are_told_apart(more: dict[str, Any]) -> None:
    """
    A hybrid model's groups, states and windows: that a block is there does not say that it can be used.
    """
    (event,) = decode(encode([1.0, [MAP | more]])) or [Cleared()]

    assert isinstance(event, Stored)
    assert event.special is not None
    assert "only of plain attention models" in event.special


@pytest.mark.parametrize(
    "said",
    [
        None, 1, "x", [], [1.0], {}, {"ts": 1.0}, [1.0, 2], [1.0, [1]], [1.0, [[]]], [1.0, [{}]], [1.0, [["BlockStored"]]],
        [1.0, [["BlockStored", "x", None, [], 16]]], [1.0, [["BlockRemoved", None]]], [1.0, [{"type": 1}]],
        [1.0, [MAP | {"block_size": None}]], [1.0, [MAP | {"block_hashes": [1.5]}]], [1.0, [MAP | {"medium": 5}]],
    ],
)  # fmt: skip
def test_what_is_no_batch_is_none(said: Any) -> None:
    """
    One event that cannot be read makes the batch unreadable: it may have said that something is gone.
    """
    assert decode(encode(said)) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=5), each, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from([*MAP, "medium", "group_idx", "kv_cache_spec_kind"])
KINDS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])


@given(
    st.binary(max_size=200)
    | st.builds(encode, VALUES)
    | st.builds(
        lambda kind, fields: encode([1.0, [{"type": kind} | fields]]), KINDS, st.dictionaries(NAMES, VALUES, max_size=6)
    )
    | st.builds(lambda kind, fields: encode([1.0, [[kind, *fields]]]), KINDS, st.lists(VALUES, max_size=8))
    | st.builds(lambda keep: encode([1.0, [MAP, ["BlockRemoved", [1]]], 0])[:keep], st.integers(0, 120))
)
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_read_without_raising(message: bytes) -> None:
    """
    They are events or they are not.
    """
    events = decode(message)

    assert events is None or all(isinstance(each, Stored | Removed | Cleared) for each in events)


def test_a_deep_nest_is_no_batch() -> None:
    """
    However deep: it costs neither the stack nor the process.
    """
    assert decode(b"\x91" * 1_000_000) is None
    assert decode(b"\x92\x01" + b"\x91" * 1_000_000) is None
    assert decode(encode([1.0, []])[:-1] + b"\x91" * 100_000) is None


def test_token_ids_are_not_kept() -> None:
    """
    They are the prompt, and no part of what comes out holds them.
    """
    secret = 77_777
    events = decode(encode([1.0, [MAP | {"token_ids": [secret] * 32}]]))

    assert events == [STORED]
    assert str(secret) not in repr(events)
