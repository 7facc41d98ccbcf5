"""What the tests of an engine's cache share: small prompts, and a count of everything that trusts no counter."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from ramjet.core.cache import Blocks, EngineCache, Node, Seat, SlotCache

PAGE = 4
"""Tokens of a block in these tests: small, so that small pools are soon full."""


def blocks(words: Sequence[int | str], page: int = PAGE) -> Blocks:
    """A prompt of one block a word; equal beginnings give equal hashes, in every run of the tests."""
    hashes, chain = array("Q"), 0
    for word in words:
        chain = hash((chain, word if isinstance(word, int) else tuple(word.encode()))) & (2**64 - 1)
        hashes.append(chain)
    return Blocks(hashes, array("I", range(page, page * len(words) + 1, page)))


def nodes(cache: EngineCache) -> list[Node]:
    """Every run of the tree."""
    return list(cache._index.values())


def check(cache: EngineCache, seats: Iterable[Seat]) -> None:
    """Count anew what the tree holds and who uses it, and compare with the counters and the pools."""
    seats = list(seats)
    everything = nodes(cache)
    _check_tree(cache, everything)
    _check_users(cache, everything, seats)
    _check_host(cache, everything)
    assert cache.running == len(seats)
    assert cache.private_tokens == sum(seat.read_tokens - seat.kept_tokens for seat in seats)
    states = cache.spec.snapshots
    if states is None:
        assert not cache.snapshots
        assert cache.used_slots == cache.busy_slots == 0
    else:
        assert cache.used_slots == len(cache.snapshots) + states.private * len(seats)
        assert cache.busy_slots == cache.locked_snapshots + states.private * len(seats)
        # A belief seats also those that do not fit, and holds nothing else then.
        assert states.slots is None or cache.used_slots <= max(states.slots, cache.busy_slots)
    if cache.pool_tokens is not None:
        busy = cache.held_tokens + cache.private_tokens + cache._snapshot_tokens(cache.busy_slots)
        assert cache.used_tokens <= max(cache.pool_tokens, busy)


def check_promises(cache: EngineCache) -> None:
    """Those that were not refused have room for all that they may still want."""
    states = cache.spec.snapshots
    if states is not None and states.slots is not None:
        assert cache.busy_slots <= states.slots
    if cache.pool_tokens is not None:
        busy = cache._snapshot_tokens(cache.busy_slots)
        assert cache.held_tokens + cache._reserved_tokens + busy <= cache.pool_tokens


def _check_tree(cache: EngineCache, everything: list[Node]) -> None:
    assert cache.tokens == sum(node.tokens for node in everything if node.on_device)
    assert cache.blocks == sum(len(node.hashes) for node in everything)
    assert set(cache.snapshots) == {node for node in everything if node.snapshot}
    assert set(cache._order) == {node for node in everything if node.on_device}
    for first, node in cache._index.items():
        assert node.hashes[0] == first
        assert len(node.hashes) == len(node.ends)
        assert node.start == (node.parent.ends[-1] if node.parent is not None else 0)
        if node.parent is not None:
            assert cache._index[node.parent.hashes[0]] is node.parent
            assert node in (node.parent.children or ())
            assert node.parent.on_device or not node.on_device, "the chain above is where its end is"
        for child in node.children or ():
            assert cache._index[child.hashes[0]] is child
            assert child.parent is node
    place = {node: at for at, node in enumerate(cache._order)}
    for node in cache._order:
        assert node.parent is None or place[node] < place[node.parent], "leaves come first in the order of eviction"


def _check_users(cache: EngineCache, everything: list[Node], seats: list[Seat]) -> None:
    holders = Counter(node for seat in seats if seat.tail is not None for node in seat.tail.path())
    locks = Counter(seat.snapshot for seat in seats if seat.snapshot is not None)
    assert {node: node.holders for node in everything if node.holders} == holders
    assert {node: node.locks for node in everything if node.locks} == locks
    assert cache.held_tokens == sum(node.tokens for node in holders)
    assert cache.locked_snapshots == len(locks)
    assert all(node.on_device for node in holders), "what is held stays on the device"
    assert all(node.snapshot for node in locks), "what is locked stays"
    assert cache._reserved_tokens == sum(seat.reserved_tokens for seat in seats)
    for seat in seats:
        assert seat.tail is None or seat.tail.ends[-1] == seat.kept_tokens
        assert (seat.tail is None) == (seat.kept_tokens == 0)
        assert 0 <= seat.kept_tokens <= seat.read_tokens


def _check_host(cache: EngineCache, everything: list[Node]) -> None:
    assert cache.host_tokens == sum(node.tokens for node in everything if node.host)
    assert cache.host_snapshots == sum(node.host_snapshot for node in everything)
    assert set(cache._host_only) == {node for node in everything if not node.on_device}
    assert set(cache._host_states) == {node for node in everything if node.host_snapshot and not node.snapshot}
    assert all(node.host for node in cache._host_only), "a run is somewhere"
    host = cache.spec.host
    assert cache.host_tokens <= (0 if host is None else int(host.tokens * host.usable))
    assert cache.host_snapshots <= (0 if host is None or host.slots is None else int(host.slots * host.usable))


def check_slots(cache: SlotCache, seats: Iterable[Seat]) -> None:
    """The same for an engine of few sequences."""
    seats = list(seats)
    spec = cache.spec
    assert len(cache.sequences) == spec.slots
    taken = [each.seat for each in cache.sequences if each.seat is not None]
    assert len(taken) == len(seats)
    assert set(map(id, taken)) == set(map(id, seats))
    assert cache.running == len(seats)
    for each in (*cache.sequences, *cache._idle_on_host):
        assert each.blocks.tokens(len(each.blocks)) <= each.tokens <= spec.slot_tokens
        assert each.checkpoints == sorted(set(each.checkpoints))
        assert not each.checkpoints or 0 < each.checkpoints[-1] <= each.tokens
        assert len(each.checkpoints) <= (spec.checkpoints or 0)
    assert sum(each.tokens for each in cache._idle_on_host) <= spec.host_tokens
    assert cache.used_tokens == sum(each.tokens for each in cache.sequences)
