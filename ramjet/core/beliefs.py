"""What we believe each replica holds, corrected by every report.

A belief is a cache of the same kind as the replica's own (`core.cache`), as large as the replica is said to be and as
reports have taught. It is never trusted further than the next `cached_tokens`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, takewhile

import xxhash
from msgspec import Struct

from ramjet.core.cache import NO_HIT, NOTHING, Blocks, EngineCache, Hit, Lost, Match, Node, Seat
from ramjet.core.capacity import Capacities
from ramjet.core.causes import FULL_RATIO, Evictions, Loss, Pressure
from ramjet.core.conversations import Conversation
from ramjet.core.losses import Losses, Prices
from ramjet.core.pace import Pace
from ramjet.core.pools import Pools

KNOWN_S = 5.0
"""How long the chances of a return, which change slowly, are taken for what they were."""

TRUSTED_TOKENS = 1_024
"""A belief about fewer tokens than this teaches nothing when it fails: engines reuse whole pages, blocks and chunks."""

_FAR = 128
"""What has more runs before it than this is not about to be pushed out."""


class Outlook(Struct, frozen=True):
    """What a prompt would find at a replica."""

    hit: Hit
    path: Sequence[Node]
    """The runs it shares, deepest first, reusable or not."""
    slots: int
    """Snapshots on that path."""
    found: Match
    """Where that path ends."""


_NOTHING_THERE = Outlook(NO_HIT, (), 0, NOTHING)


class _Priced(Struct, eq=False):
    """For which version of what it holds, at which pace, when and at what prices a loss is worked out."""

    version: int
    pace: float
    at: float
    prices: Prices
    losses: Losses | None = None
    """What would go first; None as long as nothing has had to."""


class Sought(Struct, frozen=True):
    """What a prompt was believed to find when it was sent."""

    tokens: int
    """What could be reused."""
    known_tokens: int
    """What was there, reusable or not."""
    used_at: float | None
    """When that was last used; None where there was nothing."""
    in_use: bool
    """Whether somebody was using it, so that it was perhaps still to be read."""


_NOTHING_SOUGHT = Sought(0, 0, None, in_use=False)


class Belief:
    """What one replica holds."""

    def __init__(self, pools: Pools, evictions: Evictions | None = None, replica: str = "") -> None:
        """
        Args:
            pools: how large its cache is said to be.
            evictions: where to note what it lets go.
            replica: its name, for that.
        """
        self.pools = pools
        """What is believed of its pools: what was said, and as many slots as reports have taught."""
        self._said = pools
        self._learned = Capacities(pools)
        self._made_of = pools, self._learned.slots.size, self._learned.has_states
        """What `pools` and the cache's kind were worked out from."""
        self.most_running = pools.most_running
        """Requests that may run there beside each other; None for no limit. Of what was said and what was learned of its
        slots, whatever is more: to run too few costs more than too many."""
        self.life = 0
        """Rises with every restart of the replica."""
        self._evictions = Evictions() if evictions is None else evictions
        self._replica = replica
        self._booking: object = None
        """Whose prompt is being booked: what is let go meanwhile is let go for it."""
        self._is_told = False
        """Whether what is let go is let go by the engine's own word."""
        self.cache = self._new_cache()
        self.version = 0
        """Rises with every change of what it holds, so that what was worked out can be used again."""
        self.pace = Pace()
        """How fast it reads: kept here, so that a request knows it as long as it knows its replica."""
        # What prompts found that go on from there, by their first block, and how many blocks of it can be reused. And for
        # which version that is true.
        self._outlooks: dict[int, tuple[int, Outlook]] = {}
        self._outlooks_of = 0
        self._priced: _Priced | None = None

    @property
    def pool_tokens(self) -> int | None:
        """The part of the pool that conversations were seen to get; None where the pool is not known."""
        return self.cache.pool_tokens

    def resize(self, pools: Pools) -> None:
        """The pools are said to be of another size; what was learned of the part that conversations get stays."""
        self._said = pools
        self._learned.resize(pools)
        self.version += 1
        self._apply()

    def outlook(self, blocks: Blocks, prompt_tokens: int) -> Outlook:
        """What a prompt would find there. Changes nothing."""
        if not self.cache.begins(blocks):
            return _NOTHING_THERE
        if self._outlooks_of != self.version:
            self._outlooks, self._outlooks_of = {}, self.version
        # Most prompts that begin alike leave what is there at the same place: where a common system prompt ends.
        known = self._outlooks.get(blocks.hashes[0])
        if known is None or not self.cache.matches(blocks, known[1].found):
            found = self.cache.match(blocks)
            assert found.node is not None
            path = list(found.node.path())
            hit = self.cache.hit(blocks, blocks.tokens(found.depth) + 1, found)
            known = hit.depth, Outlook(hit, path, sum([node.snapshot for node in path]), found)
            self._outlooks[blocks.hashes[0]] = known
        depth, outlook = known
        hit, known_tokens = outlook.hit, blocks.ends[outlook.found.depth - 1]
        if known_tokens >= prompt_tokens:
            hit = self.cache.hit(blocks, prompt_tokens, outlook.found)
        elif hit.known_tokens != known_tokens or hit.tokens != blocks.tokens(depth):
            # The same blocks, which another estimate has made shorter or longer.
            hit = Hit(depth, blocks.tokens(depth), known_tokens)
        else:
            return outlook
        return Outlook(hit, outlook.path, outlook.slots, outlook.found)

    def fits(self, outlook: Outlook, prompt_tokens: int, others_tokens: int = 0) -> bool:
        """Whether the pool has room for a prompt beside what runs there; with a little to spare, for it is a belief.

        Args:
            outlook: what the prompt finds there.
            prompt_tokens: its length.
            others_tokens: what those keep there who do not come through here.
        """
        pool_tokens = self.cache.pool_tokens
        if pool_tokens is None:
            return True
        if others_tokens and self._said.tokens is not None:
            # What conversations were seen to get is after what others usually take: that is not taken off twice.
            pool_tokens = min(pool_tokens, self._said.tokens - others_tokens)
        held, most = self.cache.held_tokens, 0.97 * pool_tokens
        if held + prompt_tokens <= most:
            return True
        shared = sum(node.tokens for node in outlook.path if node.holders)
        return held + prompt_tokens - min(shared, outlook.hit.tokens) <= most

    def book(
        self, blocks: Blocks, prompt_tokens: int, owner: object, now: float, outlook: Outlook | None = None
    ) -> Seat:
        """A prompt has been sent there: it is as good as read, and whoever comes next with the same prefix finds it.

        `outlook` is what it finds there, where that is known. The seat is to be given back to the cache that it is in,
        which a restart replaces.
        """
        self.version += 1
        self._booking = owner
        found = None if outlook is None else outlook.found
        seat = self.cache.enter(blocks, prompt_tokens, 0, now, anyway=True, found=found)
        assert seat is not None
        self.cache.read(seat, now)
        self._booking = None
        _own(seat.tail, owner)
        return seat

    def sought(self, found: Outlook) -> Sought:
        """What a prompt that is about to be booked is believed to find."""
        hit = found.hit
        if not found.path:
            return _NOTHING_SOUGHT
        states = self.cache.snapshots
        node = next((node for node in found.path if node.snapshot or self.cache.spec.snapshots is None), None)
        if node is None:
            return Sought(hit.tokens, hit.known_tokens, None, in_use=False)
        return Sought(hit.tokens, hit.known_tokens, states.get(node, node.touched_at), in_use=node.holders > 0)

    def report(
        self,
        blocks: Blocks,
        prompt_tokens: int,
        *,
        sought: Sought,
        cached_tokens: int,
        owner: object,
        now: float,
        lost_to: Lost | None = None,
        answer_tokens: int = 0,
    ) -> None:
        """Take in what the engine said it reused of a prompt that it has now read to the end.

        Args:
            blocks: the prompt.
            prompt_tokens: its length.
            sought: what was believed to be there when it was sent.
            cached_tokens: what the engine reused.
            owner: whose it is.
            now: the time of the report.
            lost_to: what it was lost to, as far as that was found out.
            answer_tokens: length of its answer.
        """
        depth, learned = bisect_right(blocks.ends, cached_tokens), self._learned
        learned.reported(cached_tokens)
        # Engines count whole pages, and a block of vLLM's may have a thousand tokens: what is less than one was not lost.
        at_most = cached_tokens + self._said.page - 1
        if sought.tokens >= TRUSTED_TOKENS and at_most < sought.tokens / 2:
            pool = None
            if sought.used_at is not None and not sought.in_use:
                distances = self._distances(blocks, sought, running=self.cache.running)
                pool = learned.lost(*distances)
            if pool is None and self._said.states_in_pool:
                pass  # Where its states lie, only the engine knows: it may find none although all is there.
            elif learned.has_states and pool != "token_pool":
                # Snapshots go one by one: those of other conversations may still be there.
                self.cache.trim_snapshots(blocks, depth, lost_to)
            else:
                # It was gone, and so was all that grew from there, also in other conversations. This prompt is back.
                self.cache.trim(blocks, depth, lost_to)
        elif sought.tokens >= TRUSTED_TOKENS and at_most >= 0.9 * sought.tokens:
            if learned.asks_for_finds and sought.used_at is not None and not sought.in_use:
                learned.found(*self._distances(blocks, sought))
            learned.kept()
        if cached_tokens >= 1.25 * sought.tokens + 4 * TRUSTED_TOKENS:
            # It kept more than was believed of it: was that for want of room, there is more room.
            beyond = bisect_right(blocks.ends, sought.tokens)
            loss = self._evictions.deepest(self._replica, blocks.hashes[:depth], beyond=beyond)
            if loss is not None:
                learned.outlived(loss.pool)
        self._apply()
        if (tail := self.cache.use_again(blocks, prompt_tokens, now)) is not None:
            self.version += 1
            _own(tail, owner)
            return
        seat = self.book(blocks, prompt_tokens, owner, now)
        answered = self._answered(blocks, prompt_tokens, answer_tokens)
        if answered is not None:
            self.cache.write(seat, answer_tokens)
        self.cache.leave(seat, now, answered)

    def _answered(self, blocks: Blocks, prompt_tokens: int, answer_tokens: int) -> Blocks | None:
        """A prompt with its answer, where that has left a snapshot of its own; None: it has not, as far as is known.

        Nobody has read the answer here, so its block has a name that no prompt has, and one token: its own come with the
        next turn. Under a cap a conversation has no more snapshots for it.
        """
        states = self.cache.spec.snapshots
        if states is None or states.per_path is not None or not blocks.hashes:
            return None
        # The last token of an answer has not been read.
        end = (prompt_tokens + answer_tokens - 1) // states.grid_tokens * states.grid_tokens
        if end <= prompt_tokens:
            return None
        named = xxhash.xxh3_64_intdigest(b"answer", seed=blocks.hashes[-1])
        return Blocks(blocks.hashes + array("Q", [named]), blocks.ends + array("I", [blocks.ends[-1] + 1]))

    def _distances(self, blocks: Blocks, sought: Sought, *, running: int = 0) -> tuple[int, int]:
        """Tokens and slots that have been used since what was sought was, itself and so many running requests included."""
        cache, used_at = self.cache, sought.used_at
        assert used_at is not None
        tail = cache.match(blocks).node
        mine = set() if tail is None else set(tail.path())
        newer = takewhile(lambda node: node.touched_at > used_at, cache.most_used())
        tokens = sum(node.tokens for node in newer if node not in mine)
        states = sum(at > used_at and node not in mine for node, at in cache.snapshots.items())
        return tokens + sought.tokens, states + 1 + self.pools.private_slots * (running + 1)

    def evicted(self, blocks: Blocks, left_tokens: int, *, is_first: bool) -> int:
        """The engine says that it holds only so much of a prompt any more; returns the tokens that it was believed to.

        Args:
            blocks: the prompt.
            left_tokens: what is left of it.
            is_first: whether all of it was there until now: then it has just become too much for the token pool.
        """
        if self.cache.spec.snapshots is not None:
            # Where reuse ends at snapshots, an engine's blocks say too little.
            return 0
        sought = self.sought(self.outlook(blocks, blocks.ends[-1]))
        if sought.tokens <= left_tokens:
            return 0
        if is_first and sought.tokens >= TRUSTED_TOKENS and sought.used_at is not None and not sought.in_use:
            self._learned.evicted(self._distances(blocks, sought)[0])
            self._apply()
        self.version += 1
        self._is_told = True
        self.cache.trim(blocks, bisect_right(blocks.ends, left_tokens), "token_pool")
        self._is_told = False
        return sought.tokens - self.cache.hit(blocks, blocks.ends[-1], self.cache.match(blocks)).tokens

    def expire(self, before: float) -> None:
        """Forget what was last used before `before` and nobody holds."""
        oldest_at = self.cache.oldest_at
        if oldest_at is not None and oldest_at < before:
            self.version += 1
            self.cache.expire(before)

    def forget_least_used(self) -> bool:
        """Forget the run that was used least recently; False if all are in use."""
        self.version += 1
        return self.cache.evict_one()

    def restarted(self) -> None:
        """The replica has lost everything; who runs there keeps a seat that leads nowhere."""
        self.version += 1
        self.life += 1
        self._learned.restarted()
        fresh = self._new_cache()
        fresh.pool_tokens = self.cache.pool_tokens
        self.cache = fresh

    @property
    def has_snapshots(self) -> bool | None:
        """Whether reuse ends at snapshots alone; None where that is not known."""
        return self._learned.has_snapshots

    def loss(self, blocks: Blocks, found: Outlook, upto_tokens: int) -> Loss | None:
        """What it let go of a prompt up to a length; None where it did not, or that has been forgotten, or where it did so for
        a size that was never told: that one is good enough to place by, and no evidence."""
        last, enough = bisect_right(blocks.ends, upto_tokens), bisect_left(blocks.ends, upto_tokens // 2)
        known = bisect_right(blocks.ends, found.hit.known_tokens)
        loss = self._evictions.latest(self._replica, blocks.hashes[:last], known=known, enough=enough)
        if loss is None:
            return None
        guessed = {"token_pool": self._said.tokens, "snapshot_pool": self._said.slots}.get(loss.pool, 0) is None
        return None if guessed and not loss.was_told else loss

    def pressure(self, found: Outlook) -> Pressure:
        """How short of room it is, and how near to being pushed out what a prompt finds there is."""
        cache, pools, slots = self.cache, self.pools, self._said.slots
        tokens = None if self._said.tokens is None else cache.pool_tokens
        tokens_ratio = None if not tokens else cache.used_tokens / tokens
        slots_ratio = None if not slots else (cache.used_slots + pools.private_slots + 1) / slots
        newer_tokens = newer_slots = 0.0
        is_full = min(tokens_ratio or 0.0, slots_ratio or 0.0) >= FULL_RATIO
        if tokens and slots and is_full and found.path:
            # One that is about to go stands near the beginning, where the walk is short.
            before = takewhile(lambda node: node is not found.path[0], islice(cache.least_used(), _FAR))
            newer_tokens = 1 - sum([node.ends[-1] - node.start for node in before]) / tokens
            mine = next((node for node in found.path if node.snapshot), None)
            if mine is not None:
                older = sum([1 for _ in takewhile(lambda node: node is not mine, islice(cache.snapshots, _FAR))])
                newer_slots = (pools.private_slots + len(cache.snapshots) - 1 - older) / slots
        return Pressure(
            tokens_ratio=tokens_ratio,
            slots_ratio=slots_ratio,
            newer_tokens_ratio=newer_tokens,
            newer_slots_ratio=newer_slots,
            has_snapshots=self.has_snapshots,
            has_host=bool(pools.host),
        )

    def _new_cache(self) -> EngineCache:
        cache = EngineCache(self.pools.spec(has_snapshots=self._learned.has_states))
        cache.on_lost = self._lost
        return cache

    def _lost(self, hashes: Sequence[int], pool: Lost) -> None:
        by = self._booking.id if isinstance(self._booking, Conversation) else None
        of_state = self.cache.spec.snapshots is not None
        self._evictions.note(self._replica, hashes[0], pool, by, of_state=of_state, was_told=self._is_told)

    def has_room(self, outlook: Outlook, prompt_tokens: int) -> bool:
        """Whether nothing has to go for a prompt of this length, with what it finds there itself."""
        return self.cache.has_room(*self._need(outlook, prompt_tokens))

    def harm_s(
        self, outlook: Outlook, prompt_tokens: int, owner: object, prices: Prices, now: float, *, most_s: float
    ) -> float:
        """Seconds of reading that others will need again for what a prompt would push out.

        Args:
            outlook: what it finds there itself, which stays.
            prompt_tokens: its length.
            owner: whose it is; what it pushes out of its own harms nobody else.
            prices: what others lose is worth; asked again when something has changed here, or time has passed.
            now: the time.
            most_s: when to stop counting.
        """
        pace, priced = self.pace.factor, self._priced
        if priced is None or priced.version != self.version or priced.pace != pace or now - priced.at >= KNOWN_S:
            priced = self._priced = _Priced(self.version, pace, now, prices)
        tokens, slots = self._need(outlook, prompt_tokens)
        losses = priced.losses
        if losses is None:
            losses = priced.losses = Losses(self.cache, priced.prices, pace)
        harm_s = losses.harm_s(tokens, slots, most_s)
        if losses.concern(owner, outlook.path):
            path, inside = outlook.path, outlook.found.depth - outlook.found.above
            own = Losses(self.cache, prices, pace, owner=owner, path=path, inside=inside)
            return own.harm_s(tokens, slots, most_s)
        return harm_s

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What others would lose is worked out anew inside, as things stand, and is not used again."""
        kept, self._priced = self._priced, None
        try:
            yield
        finally:
            self._priced = kept

    def _need(self, outlook: Outlook, prompt_tokens: int) -> tuple[int, int]:
        """Tokens and slots that a prompt takes beyond what it finds."""
        tokens = prompt_tokens - outlook.hit.tokens
        return tokens, 0 if self.pools.slots is None else self._new_slots(outlook, tokens)

    def _new_slots(self, outlook: Outlook, unread_tokens: int) -> int:
        """Slots that a prompt takes beyond those that its conversation has: while it runs, and for its snapshots."""
        pools, most = self.pools, self.pools.per_path
        saved = pools.snapshots_of(unread_tokens)
        if most is not None and outlook.slots + saved > most:
            saved = max(0, most - outlook.slots)
        return pools.private_slots + saved

    def _apply(self) -> None:
        """Make the cache as large as its pools are believed to be."""
        learned = self._learned
        self.cache.pool_tokens = learned.tokens.size
        made_of = self._said, learned.slots.size, learned.has_states
        if made_of == self._made_of:
            return  # as after most reports
        self._made_of = made_of
        self.pools = replace(self._said, slots=learned.slots.size)
        most = (self._said.most_running, self.pools.most_running)
        self.most_running = max((each for each in most if each is not None), default=None)
        self.cache.become(self.pools.spec(has_snapshots=learned.has_states))


def _own(tail: Node | None, owner: object) -> None:
    """A path is somebody's from now on."""
    while tail is not None:
        tail.owner = owner
        tail = tail.parent
