"""Which conversation a request belongs to, found by its prefix alone.

The history is a cache without a pool: what it remembers of a prompt is the most that any replica could have reused.
Memory bounds it, nothing else. Conversations live in it as the owners of the runs that their last prompts ended in.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ramjet.core.cache import Blocks, Match, Node, PrefixCache

CONVERSATION_BYTES = 500
"""What a conversation takes in memory beside its blocks, measured by tests/test_memory.py and rounded up."""


@dataclass(slots=True, eq=False)
class Conversation:
    """A row of turns, each of which extends the one before."""

    id: int
    """Hash of the prompt up to the first user message's end; of the whole first prompt where that was taken."""
    head: int
    """What routers agree on: the hash up to the end of the first user message."""
    turn: int = 0
    home: str | None = None
    """The replica that got its last turn."""
    tail: Node | None = None
    holding: bool = False
    """Whether it holds the path to its tail in the history."""
    depth: int = 0
    """Blocks of its last prompt."""
    depth_before: int = 0
    """Blocks of the prompt before that."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of a conversation, with what it takes to undo it."""

    conversation: Conversation
    blocks: Blocks
    known_depth: int
    """Blocks that were known before it."""
    owner_before: object
    home_before: str | None
    tail_before: Node | None
    depth_before: int
    depth_before_that: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the history knows of a prompt, before anything is changed."""

    match: Match
    conversation: Conversation | None
    """The conversation it continues; None when it starts one."""
    parent: Conversation | None = None
    """The conversation it branches off, where it continues none."""


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
        return self.history.cost_bytes + self.history.nodes * CONVERSATION_BYTES

    def recognise(self, blocks: Blocks, head: int) -> Sighting:
        """Find the conversation that a prompt continues. Changes nothing.

        Args:
            blocks: the prompt by its identity, volatile lines left out.
            head: how many of the blocks reach to the end of the first user message.
        """
        match = self.history.match(blocks)
        owner = match.node.owner if match.node is not None else None
        if not isinstance(owner, Conversation):
            return Sighting(match, None)
        opens_alike = match.depth >= head
        if match.node is not None and owner.tail is not None and match.node in owner.tail.path():
            extends = match.depth >= owner.depth
            # The last turn sent again, or with another ending, unless that turn is still running.
            edits = opens_alike and match.depth >= owner.depth_before and not owner.running
            if extends or edits:
                return Sighting(match, owner)
        return Sighting(match, None, owner if opens_alike else None)

    def sharing(self, blocks: Blocks, sighting: Sighting) -> list[tuple[int, int]]:
        """Where the number of living conversations that share the prompt changes: (end in tokens, conversations).

        The asking conversation counts among them.
        """
        depth, shared = 0, []
        known = sighting.conversation
        myself = 0 if known is not None and known in self._living else 1
        for node in reversed(list(sighting.match.node.path()) if sighting.match.node is not None else ()):
            depth = min(depth + len(node.hashes), sighting.match.depth)
            shared.append((blocks.tokens(depth), node.holders + myself))
        return shared

    def measure(self, conversation: Conversation, tokens: int) -> None:
        """A living conversation's last prompt takes so many tokens."""
        self._by_size[conversation.tokens.bit_length()].pop(conversation, None)
        conversation.tokens = tokens
        self._by_size[tokens.bit_length()][conversation] = None

    def long_tokens(self, least_tokens: int, but: Conversation | None) -> Counter[str]:
        """Tokens of the living conversations of at least `least_tokens`, by home, one conversation left out."""
        tokens: Counter[str] = Counter()
        for size, those in self._by_size.items():
            for conversation in those if size >= least_tokens.bit_length() else ():
                if conversation.tokens >= least_tokens and conversation.home is not None and conversation is not but:
                    tokens[conversation.home] += conversation.tokens
        return tokens

    def admit(self, blocks: Blocks, head: int, sighting: Sighting, now: float) -> Turn:
        """Take a prompt in as its conversation's next turn, which runs from now on."""
        conversation = sighting.conversation or _branch(blocks, head, sighting.parent)
        turn = Turn(
            conversation,
            blocks,
            known_depth=sighting.match.depth,
            owner_before=None if sighting.match.node is None else sighting.match.node.owner,
            home_before=conversation.home,
            tail_before=conversation.tail,
            depth_before=conversation.depth,
            depth_before_that=conversation.depth_before,
        )
        if conversation not in self._living and conversation.home is not None:
            self.living_at[conversation.home] += 1
        self._hold(conversation, None)
        self._hold(conversation, self.history.insert(blocks, now))
        if conversation.tail is not None:
            conversation.tail.owner = conversation
        conversation.depth_before, conversation.depth = conversation.depth, len(blocks)
        conversation.turn += 1
        conversation.read += 1
        conversation.running += 1
        conversation.latest = turn
        self._seen(conversation, now)
        return turn

    def settle(self, conversation: Conversation, replica: str | None) -> None:
        """Make a replica the home of a living conversation."""
        if conversation.home is not None:
            self.living_at[conversation.home] -= 1
        conversation.home = replica
        if replica is not None:
            self.living_at[replica] += 1

    def finish(self, turn: Turn, now: float) -> None:
        """A turn has ended. A conversation of which no replica has read any turn is not alive."""
        conversation = turn.conversation
        conversation.running -= 1
        if conversation.latest is turn:
            conversation.latest = None
        if conversation.read or conversation.running:
            self._seen(conversation, now)
        else:
            self._forget(conversation)

    def withdraw(self, turn: Turn) -> None:
        """Take back a turn that no replica ever read: everything is as before, but for what came since."""
        conversation = turn.conversation
        conversation.turn -= 1
        conversation.read -= 1
        if conversation.latest is not turn:
            return
        tail = conversation.tail
        self._hold(conversation, None)
        self.history.prune(turn.blocks, turn.known_depth)
        if tail is not None and tail.owner is conversation:
            tail.owner = turn.owner_before
        self._hold(conversation, turn.tail_before)
        self.settle(conversation, turn.home_before)
        conversation.depth, conversation.depth_before = turn.depth_before, turn.depth_before_that
        conversation.latest = None

    def expire(self, now: float) -> list[Conversation]:
        """Let go of the conversations that have not been seen for long; returns them."""
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
        del self._living[conversation]
        self._by_size[conversation.tokens.bit_length()].pop(conversation, None)
        if conversation.home is not None:
            self.living_at[conversation.home] -= 1

    def _seen(self, conversation: Conversation, now: float) -> None:
        conversation.seen_at = now
        self._living[conversation] = None
        self._living.move_to_end(conversation)
        self._by_size[conversation.tokens.bit_length()][conversation] = None

    def _hold(self, conversation: Conversation, tail: Node | None, *, keep_tail: bool = False) -> None:
        """Hold the path to `tail` in the history instead of the one that was held, if any."""
        if conversation.holding and conversation.tail is not None:
            self.history.release(conversation.tail)
        if tail is not None:
            self.history.hold(tail)
        conversation.holding = tail is not None
        if not keep_tail:
            conversation.tail = tail


def _branch(blocks: Blocks, head: int, parent: Conversation | None) -> Conversation:
    """A new conversation; one that leaves another after its first turn starts from what that one had."""
    first = blocks.hashes[head - 1] if head else 0
    if parent is None:
        return Conversation(id=first, head=first)
    # The opening alone, sent again after the conversation went on, opens it anew.
    turn = parent.turn if len(blocks) > head else 0
    return Conversation(id=blocks.hashes[-1], head=parent.head, turn=turn, home=parent.home)
