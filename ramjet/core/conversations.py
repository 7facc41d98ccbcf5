"""Which conversation a request belongs to, found by its prefix, and by what the client says of it where that decides.

The history is a cache without a pool: what it remembers of a prompt is the most that any replica could have reused.
Memory bounds it, nothing else. Conversations live in it as the owners of the runs that their last prompts ended in.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ramjet.core.cache import Blocks, Match, Node, PrefixCache
from ramjet.core.hints import Hint

CONVERSATION_BYTES = 500
"""What a conversation takes in memory beside its blocks, measured by tests/test_memory.py and rounded up."""
HINT_BYTES = 400
"""What each of the two keys takes by which a living conversation with a hint is found; measured with 50,000 of them."""


class Conversation(Struct, eq=False):
    """A row of turns, each of which extends the one before, or was made from it by compaction."""

    id: int
    """Hash of the prompt up to the first user message's end, of the whole first prompt where that was taken; and of the
    hint, for two with the same opening are two."""
    head: int
    """What routers agree on: the hash up to the end of the first user message, and of the hint."""
    turn: int = 0
    home: str | None = None
    """The replica that got its last turn."""
    life: int = 0
    """Which life of that replica it was: one that restarts begins another."""
    mark: tuple[int, int] | None = None
    """Of its last prompt as engines see it, where that differs: a depth in blocks about the middle, and the hash there."""
    tail: Node | None = None
    holding: bool = False
    """Whether it holds the path to its tail in the history."""
    depth: int = 0
    """Blocks of its last prompt."""
    depth_before: int = 0
    """Blocks of the prompt before that."""
    opening: int = 0
    """Blocks of its first prompt, the last compaction's, up to the end of the first user message."""
    preamble: int | None = None
    """Names what comes before that message; None where nothing does."""
    hint: Hint | None = None
    """The last that came with it."""
    hint_stays: bool = False
    """Whether more than one of its turns had that hint: some clients make one up for each request."""
    replaces: Conversation | None = None
    """In whose place it is, as long as no replica has read a turn of it."""
    successor: Conversation | None = None
    """Who is in its place, until it comes back after all."""
    read: int = 0
    """Its turns that a replica has read or may still read; a branch has none of its parent's."""
    running: int = 0
    latest: Turn | None = None
    """Its last turn, while it may still be undone."""
    seen_at: float = 0.0
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    """What its last prompt of `prompt_bytes` took in tokens, by the engine's word; 0 when it has not said."""
    tokens: int = 0
    """Tokens of its last prompt, estimated where the engine has not said."""


class Turn(Struct, frozen=True, eq=False):
    """One turn of a conversation, with what it takes to undo it."""

    conversation: Conversation
    blocks: Blocks
    known_depth: int
    """Blocks that were known before it."""
    owner_before: object
    before: Conversation
    """A copy of the conversation as it was."""

    @property
    def home_before(self) -> str | None:
        """Where the turn before it was."""
        return self.before.home


class Sighting(Struct, frozen=True):
    """What the history knows of a prompt, before anything is changed."""

    match: Match
    conversation: Conversation | None
    """The conversation it continues; None when it starts one."""
    parent: Conversation | None = None
    """The conversation it branches off, where it continues none."""
    replaces: bool = False
    """Whether it takes its parent's place, for it is the same conversation after compaction."""
    preamble: int | None = None
    hint: Hint | None = None

    @property
    def returning(self) -> Conversation | None:
        """The conversation that goes on with this prompt."""
        return self.parent if self.replaces else self.conversation


class Conversations:
    """All conversations that memory has room for, and which of them are alive."""

    def __init__(self, living_s: float = 300.0) -> None:
        """
        Args:
            living_s: a conversation is alive while a turn of it runs and for this long after (98 % of an agent's turns
                come back within five minutes: the original's 13.6 days of production).
        """
        self.history = PrefixCache()
        self.living_s = living_s
        # Least recently seen first.
        self._living: OrderedDict[Conversation, None] = OrderedDict()
        # The same by the binary digits of their tokens: there are many short ones, and it is the long that are asked for.
        self._by_size: defaultdict[int, dict[Conversation, None]] = defaultdict(dict)
        self.living_at: Counter[str] = Counter()
        """Living conversations by home."""
        # Of the long ones, from some length on: home and tokens of each as they are counted, and the sum for each home.
        self._long_from = 0
        self._long: dict[Conversation, tuple[str, int]] = {}
        self._long_at: Counter[str] = Counter()
        # The living that have a hint, each twice: by it and where the last prompt ended, and by it and the preamble.
        self._hinted: dict[tuple[Hint, Node | int | None], dict[Conversation, None]] = {}

    @property
    def living(self) -> int:
        """How many conversations are alive."""
        return len(self._living)

    def __iter__(self) -> Iterator[Conversation]:
        """The living ones."""
        return iter(self._living)

    @property
    def cost_bytes(self) -> int:
        """Memory taken, estimated."""
        conversations = self.history.nodes * CONVERSATION_BYTES + len(self._hinted) * HINT_BYTES
        return self.history.cost_bytes + conversations

    def recognise(
        self, blocks: Blocks, head: int, *, preamble: int | None = None, hint: Hint | None = None
    ) -> Sighting:
        """Find the conversation that a prompt continues. Changes nothing.

        Args:
            blocks: the prompt by its identity, volatile lines left out.
            head: how many of the blocks reach to the end of the first user message.
            preamble: names what comes before that message.
            hint: what the client says of whose it is.
        """
        match = self.history.match(blocks)
        if match.node is None and hint is None:
            return Sighting(match, None, preamble=preamble)  # the first of its kind
        sighting = partial(Sighting, match, preamble=preamble, hint=hint)
        owner, parent = match.node.owner if match.node is not None else None, None
        if isinstance(owner, Conversation):
            mine = self._mine(match, hint) if hint != owner.hint else None
            if mine is not None and _is_next(mine, match, head):
                return sighting(mine)
            is_next, is_anothers = _is_next(owner, match, head), self._is_anothers(owner, blocks, preamble, hint)
            if is_next and not is_anothers:
                return sighting(owner)
            # What a stranger had in full and this prompt goes on from was taken over: forked, or resumed under a new
            # name. Less is only the same beginning, and no reason to go where the stranger is.
            is_parent = is_next and len(blocks) > owner.depth if is_anothers else match.depth >= head
            parent = owner if is_parent else None
        compacted = self._compacted(blocks, preamble, hint)
        if compacted is not None and parent in {None, compacted}:
            return sighting(None, compacted, replaces=True)
        return sighting(None, parent)

    def _is_anothers(self, owner: Conversation, blocks: Blocks, preamble: int | None, hint: Hint | None) -> bool:
        """Whether hints say that a prompt is not of the conversation that its prefix leads to.

        One that is made up for each request differs each time and says nothing. So either the conversation had its
        hint twice, or the other is that of somebody alive, or the prompt has nothing that the conversation had not.
        """
        if hint is None or owner.hint is None or hint.kind != owner.hint.kind or hint == owner.hint:
            return False
        return owner.hint_stays or (hint, preamble) in self._hinted or len(blocks) <= owner.depth

    def _mine(self, match: Match, hint: Hint | None) -> Conversation | None:
        """The living conversation with this hint whose last prompt ends deepest in what is matched."""
        if match.node is None or hint is None:
            return None
        return next(
            (next(reversed(mine)) for node in match.node.path() if (mine := self._hinted.get((hint, node)))), None
        )

    def _compacted(self, blocks: Blocks, preamble: int | None, hint: Hint | None) -> Conversation | None:
        """The conversation that a prompt looks like after compaction.

        It is the only one alive with this hint, tools and system prompt; it is quiet; it had more than its opening, and
        more than twice as much as the prompt. All else has another explanation: a child, a side call, another chat.
        """
        if hint is None or preamble is None or not hint.names_session:
            return None
        alike = self._hinted.get((hint, preamble), {})
        if len(alike) != 1:
            return None
        (only,) = alike
        return only if not only.running and only.depth > max(only.opening, 2 * len(blocks)) else None

    def sharing(self, blocks: Blocks, sighting: Sighting) -> list[tuple[int, int]]:
        """Where the number of living conversations that share the prompt changes: (end in tokens, conversations).

        The asking conversation counts among them.
        """
        depth, shared = 0, []
        if sighting.match.node is None:
            return []
        myself = 0 if sighting.returning in self._living else 1
        for node in reversed(list(sighting.match.node.path())):
            depth = min(depth + len(node.hashes), sighting.match.depth)
            shared.append((blocks.tokens(depth), node.holders + myself))
        return shared

    def measure(self, conversation: Conversation, tokens: int) -> None:
        """A living conversation's last prompt takes so many tokens."""
        before, after = conversation.tokens.bit_length(), tokens.bit_length()
        conversation.tokens = tokens
        if after != before:
            self._by_size[before].pop(conversation, None)
        self._by_size[after][conversation] = None
        self._count_long(conversation)

    def long_tokens(self, least_tokens: int, but: Conversation | None) -> Mapping[str, int]:
        """Tokens of the living conversations of at least `least_tokens`, by home, one conversation left out.

        They are counted as they change. The length from which they are long changes little, and seldom.
        """
        if least_tokens != self._long_from:
            lengths = sorted((least_tokens, self._long_from))
            self._long_from = least_tokens
            for size, those in self._by_size.items():
                if lengths[0].bit_length() <= size <= lengths[1].bit_length():
                    for conversation in those:
                        self._count_long(conversation)
        counted = self._long.get(but) if but is not None else None
        if counted is None:
            return self._long_at
        home, tokens = counted
        return {**self._long_at, home: self._long_at[home] - tokens}

    def _count_long(self, conversation: Conversation) -> None:
        """Count one that has become longer or shorter, has come or gone, or has moved."""
        tokens, home = conversation.tokens, conversation.home
        is_long = tokens >= self._long_from and home is not None
        now = (home, tokens) if is_long and conversation in self._by_size[tokens.bit_length()] else None
        before = self._long.get(conversation)
        if before == now:
            return
        if before is not None:
            del self._long[conversation]
            self._long_at[before[0]] -= before[1]
            if not self._long_at[before[0]]:
                del self._long_at[before[0]]
        if home is not None and now is not None:
            self._long[conversation] = home, tokens
            self._long_at[home] += tokens

    def long(self, least_tokens: int) -> Iterator[Conversation]:
        """The living conversations of at least `least_tokens`."""
        for size, those in self._by_size.items():
            if size >= least_tokens.bit_length():
                yield from (each for each in those if each.tokens >= least_tokens)

    def admit(self, blocks: Blocks, head: int, sighting: Sighting, now: float) -> Turn:
        """Take a prompt in as its conversation's next turn, which runs from now on."""
        conversation = sighting.conversation or _begin(blocks, head, sighting)
        if sighting.replaces and sighting.parent is not None:
            conversation.replaces, sighting.parent.successor = sighting.parent, conversation
            self._forget(sighting.parent)
        self._come_back(conversation)
        turn = Turn(
            conversation,
            blocks,
            known_depth=sighting.match.depth,
            owner_before=None if sighting.match.node is None else sighting.match.node.owner,
            before=replace(conversation, latest=None),
        )
        self._unlist(conversation)
        self._count(conversation)
        self._hold(conversation, None)
        self._hold(conversation, self.history.insert(blocks, now, sighting.match))
        if conversation.tail is not None:
            conversation.tail.owner = conversation
        conversation.depth_before, conversation.depth = conversation.depth, len(blocks)
        if sighting.hint is not None:
            conversation.hint_stays = conversation.hint == sighting.hint
            conversation.hint = sighting.hint
        conversation.turn += 1
        conversation.read += 1
        conversation.running += 1
        conversation.latest = turn
        self._seen(conversation, now)
        return turn

    def imagine(self, blocks: Blocks, head: int, sighting: Sighting) -> Turn:
        """The turn that `admit` would begin. Changes nothing: a new conversation is known to nobody."""
        conversation = sighting.conversation or _begin(blocks, head, sighting)
        owner_before = None if sighting.match.node is None else sighting.match.node.owner
        return Turn(conversation, blocks, sighting.match.depth, owner_before, replace(conversation, latest=None))

    @contextmanager
    def as_if_admitted(self, turn: Turn, sighting: Sighting) -> Iterator[None]:
        """The living are counted inside as they will be once an imagined turn has been taken in."""
        changes: Counter[str] = Counter()
        gone = sighting.parent if sighting.replaces else None
        if gone is not None and gone in self._living and gone.home is not None:
            changes[gone.home] -= 1
        come = turn.conversation
        if come not in self._living and come.home is not None:
            changes[come.home] += 1
        self.living_at.update(changes)
        try:
            yield
        finally:
            self.living_at.subtract(changes)

    def settle(self, conversation: Conversation, replica: str | None) -> None:
        """Make a replica the home of a living conversation."""
        if conversation.home is not None:
            self.living_at[conversation.home] -= 1
        conversation.home = replica
        if replica is not None:
            self.living_at[replica] += 1
        self._count_long(conversation)

    def finish(self, turn: Turn, now: float) -> None:
        """A turn has ended. A conversation of which no replica has read any turn is not alive."""
        conversation = turn.conversation
        conversation.running -= 1
        if conversation.latest is turn:
            conversation.latest = None
        replaced = conversation.replaces
        if conversation.read > conversation.running:
            conversation.replaces = None
        if conversation.read or conversation.running:
            self._seen(conversation, now)
            return
        self._forget(conversation)
        if replaced is not None:
            replaced.successor = None
            self._count(replaced)
            self._hold(replaced, replaced.tail)
            self._seen(replaced, now)

    def withdraw(self, turn: Turn) -> None:
        """Take back a turn that no replica ever read: everything is as before, but for what came since."""
        conversation, before = turn.conversation, turn.before
        conversation.turn -= 1
        conversation.read -= 1
        if conversation.latest is not turn:
            return
        self._unlist(conversation)
        tail = conversation.tail
        self._hold(conversation, None)
        self.history.prune(turn.blocks, turn.known_depth)
        if tail is not None and tail.owner is conversation:
            tail.owner = turn.owner_before
        self._hold(conversation, before.tail)
        self.settle(conversation, before.home)
        conversation.depth, conversation.depth_before = before.depth, before.depth_before
        conversation.hint, conversation.hint_stays = before.hint, before.hint_stays
        conversation.life, conversation.mark = before.life, before.mark
        conversation.latest = None
        self._list(conversation)

    def expire(self, now: float) -> list[Conversation]:
        """Let go of the conversations that have not been seen for long; returns them."""
        oldest = next(iter(self._living), None)
        if oldest is None or oldest.seen_at >= now - self.living_s:
            return []  # as nearly always
        expired = list(self._quiet(now - self.living_s))
        for conversation in expired:
            self._forget(conversation)
        return expired

    def forget_oldest(self) -> bool:
        """Let go of the living conversation that was seen least recently; False if there is none that may go."""
        oldest = next((each for each in self._living if not each.running), None)
        if oldest is None:
            return False
        self._forget(oldest)
        return True

    def _quiet(self, before: float) -> Iterator[Conversation]:
        for conversation in self._living:
            if conversation.seen_at >= before:
                return
            if not conversation.running:
                yield conversation

    def _forget(self, conversation: Conversation) -> None:
        self._hold(conversation, None, keep_tail=True)
        self._unlist(conversation)
        del self._living[conversation]
        self._by_size[conversation.tokens.bit_length()].pop(conversation, None)
        self._count_long(conversation)
        if conversation.home is not None:
            self.living_at[conversation.home] -= 1

    def _seen(self, conversation: Conversation, now: float) -> None:
        conversation.seen_at = now
        self._living[conversation] = None
        self._living.move_to_end(conversation)
        self._by_size[conversation.tokens.bit_length()][conversation] = None
        self._count_long(conversation)
        self._list(conversation)

    def _count(self, conversation: Conversation) -> None:
        """Count one that is about to live at its home."""
        if conversation not in self._living and conversation.home is not None:
            self.living_at[conversation.home] += 1

    def _come_back(self, conversation: Conversation) -> None:
        """One in whose place another was is here after all: that other was a branch, and gets a name of its own."""
        if conversation.successor is None:
            return
        last, conversation.successor.replaces = conversation.successor, None
        while last.successor is not None:
            last = last.successor
        if last.tail is not None:
            last.id = last.tail.hashes[-1]
        conversation.successor = None

    def _list(self, conversation: Conversation) -> None:
        """Make a living conversation known by its hint, as it is now."""
        for key in _keys(conversation) if conversation.hint is not None else ():
            self._hinted.setdefault(key, {})[conversation] = None

    def _unlist(self, conversation: Conversation) -> None:
        """Undo `_list`, before the conversation changes or dies."""
        for key in _keys(conversation) if conversation.hint is not None else ():
            alike = self._hinted.get(key, {})
            alike.pop(conversation, None)
            if not alike:
                self._hinted.pop(key, None)

    def _hold(self, conversation: Conversation, tail: Node | None, *, keep_tail: bool = False) -> None:
        """Hold the path to `tail` in the history instead of the one that was held, if any."""
        if conversation.holding and conversation.tail is not None:
            self.history.release(conversation.tail)
        if tail is not None:
            self.history.hold(tail)
        conversation.holding = tail is not None
        if not keep_tail:
            conversation.tail = tail


def _keys(conversation: Conversation) -> Iterator[tuple[Hint, Node | int | None]]:
    """What a conversation with a hint is found by."""
    if conversation.hint is not None and conversation.tail is not None:
        yield conversation.hint, conversation.tail
        yield conversation.hint, conversation.preamble


def _is_next(conversation: Conversation, match: Match, head: int) -> bool:
    """Whether a prompt is a conversation's next turn by its prefix."""
    if match.node is None or conversation.tail is None:
        return False
    if match.node not in conversation.tail.path():
        # Another's prompt may have gone on from here; but not its own, which it has then left.
        return match.node.owner is not conversation and conversation.tail in match.node.path()
    extends = match.depth >= conversation.depth
    # The last turn sent again, or with another ending, unless that turn is still running.
    edits = match.depth >= max(head, conversation.depth_before) and not conversation.running
    return extends or edits


def _begin(blocks: Blocks, head: int, sighting: Sighting) -> Conversation:
    """A new conversation; one that leaves another after its first turn starts from what that one had."""
    parent, salt = sighting.parent, 0 if sighting.hint is None else sighting.hint.value
    if parent is None:
        first = (blocks.hashes[head - 1] if head else 0) ^ salt
        return Conversation(id=first, head=first, opening=head, preamble=sighting.preamble)
    if sighting.replaces:
        return replace(parent, opening=head, tail=None, holding=False, depth=0, depth_before=0, read=0)
    # The opening alone, sent again after the conversation went on, opens it anew.
    return Conversation(
        id=blocks.hashes[-1] ^ salt,
        head=parent.head,
        turn=parent.turn if len(blocks) > head else 0,
        home=parent.home,
        life=parent.life,
        mark=parent.mark,
        opening=head,
        preamble=sighting.preamble,
    )
