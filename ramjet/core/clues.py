"""What is known of a turn when it is placed, kept in case that less of it is there than could be."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from ramjet.core.beliefs import Belief, Outlook
from ramjet.core.cache import Blocks
from ramjet.core.causes import Clues
from ramjet.core.conversations import Turn
from ramjet.core.visit import Visit


def clues_of(visit: Visit, replica: str, here: Outlook, beliefs: Mapping[str, Belief]) -> Clues | None:
    """What is known of a turn that is about to be booked at a replica; None for one of which nothing could be there.

    Args:
        visit: the request.
        replica: its name.
        here: what it finds there.
        beliefs: of all replicas, by name.
    """
    usable, turn = visit.usable, visit.turn
    if usable is None or turn is None:
        return None
    reusable = turn.blocks.tokens(turn.known_depth)
    if not reusable:
        return None
    belief, home, home_tokens, found = beliefs[replica], turn.home_before, None, here
    if home is not None and home != replica:
        # Who moves a conversation that its home had lost has not made it cold.
        belief = beliefs.get(home, belief)
        found = belief.outlook(usable, visit.prompt_tokens)
        home_tokens = found.hit.tokens if home in beliefs else reusable
    head_changed = usable is not visit.identity and _head_changed(usable, turn, found.hit.tokens)
    return Clues(
        expected_tokens=here.hit.tokens,
        reusable_tokens=reusable,
        diverged_at_tokens=_split_tokens(usable, turn.blocks) if head_changed else reusable,
        head_changed=head_changed,
        left_inside=visit.left_inside,
        home_tokens=home_tokens,
        restarted=home in beliefs and belief.life != turn.before.life,
        known_tokens=found.hit.known_tokens,
        shared_tokens=visit.shared_tokens,
        loss=belief.loss(usable, found, reusable) if found.hit.tokens < reusable / 2 else None,
        pressure=belief.pressure(found),
    )


def mark_of(usable: Blocks) -> tuple[int, int] | None:
    """A block about the middle of a prompt, by which the next one shows whether its head is still the same."""
    at = len(usable) // 2
    return (at, usable.hashes[at]) if len(usable) else None


def _head_changed(usable: Blocks, turn: Turn, found_tokens: int) -> bool:
    """Whether a prompt with volatile lines differs from the last one before what both have in common otherwise ends."""
    reusable, mark = turn.blocks.tokens(turn.known_depth), turn.before.mark
    if mark is None or mark[0] >= len(usable) or usable.ends[mark[0]] > reusable:
        return found_tokens < reusable / 2
    return usable.hashes[mark[0]] != mark[1]


def _split_tokens(usable: Blocks, identity: Blocks) -> int:
    """Tokens before the first volatile line: up to there an engine sees what the conversation is known by."""
    pairs = zip(usable.hashes, identity.hashes, strict=False)
    return usable.tokens(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
