"""From a span to a plan: what held then and changes of it, each played as often as it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from ramjet.plan.replay import Replay, middle, replay_all
from ramjet.plan.report import AS_IT_WAS, Plan, plan_of
from ramjet.plan.setup import Maker, parse, usual
from ramjet.plan.span import Span

PLAYS, FEW_REQUESTS = 3, 2_000
"""So many plays, for spans so short that chance does not even out in them."""


def plan(
    span: Span,
    maker: Maker,
    changes: Mapping[str, Mapping[str, Any]],
    *,
    plays: int | None = None,
    processes: int = 1,
    configured: bool = False,
    on_play: Callable[[str, int], object] = lambda _name, _total: None,
) -> Plan:
    """Play a span under what held then and under changes of it.

    Args:
        span: what was asked.
        maker: makes the settings.
        changes: to what held then, by name; none: the usual ones.
        plays: of each; None: three, and one of long spans.
        processes: at a time.
        configured: whether somebody said how Ramjet was configured.
        on_play: told when one has been played: the name of its settings, and how many plays there are in all.

    Raises:
        SettingsError: there are no such settings.
    """
    setup = maker.make(AS_IT_WAS)
    changes = changes or {text: parse(text) for text in usual(setup)}
    setups = [setup, *(maker.make(name, change) for name, change in changes.items())]
    plays = plays or (PLAYS if len(span.requests) < FEW_REQUESTS else 1)
    done: defaultdict[int, list[Replay]] = defaultdict(list)
    failed: dict[int, str] = {}
    on_play(setup.name, len(setups) * plays)
    for place, each in replay_all(span, setups, plays=plays, processes=processes):
        if isinstance(each, str):
            failed[place] = each
        else:
            done[place].append(each)
        on_play(setups[place].name, len(setups) * plays)
    found = [(each.name, failed[at] if at in failed else middle(done[at])) for at, each in enumerate(setups)]
    return plan_of(span, setup, found, configured=configured)
