"""All that there is to say of a fleet, the worst first. A function of what was seen: it asks nobody and looks at no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ramjet.check.findings.answers import answers
from ramjet.check.findings.connections import connections
from ramjet.check.findings.differences import differences, share
from ramjet.check.findings.facts import facts
from ramjet.check.findings.pools import pools
from ramjet.check.findings.values import SEVERITIES, Finding, Found, Ours, busy

IDS = (
    "unreachable", "health_failing", "key_refused", "health_slow", "health_generates", "idle_short", "models_unlisted",
    "models_differ", "replicas_differ", "cache_off", "cache_report_off", "cache_report_unknown", "nothing_reused", "metrics_off",
    "facts_unknown", "configured_otherwise", "long_prompt_snapshots", "snapshot_room", "pool_too_small",
    "long_conversations", "long_from", "busy", "one_replica",
)  # fmt: skip
"""Every finding's name; they are a contract."""


def find(fleet: Sequence[Found], ours: Ours) -> list[Finding]:
    """What is wrong with these replicas, and what is good to know of them.

    What is said of several replicas in the same words is said once.

    Args:
        fleet: the replicas as they were found, in the order of the configuration.
        ours: Ramjet's own settings.
    """
    said: dict[tuple[str, str, str, str | None], Finding] = {}
    for finding in (*_of_each(fleet, ours), *differences(fleet, ours), *_of_all(fleet)):
        key = (finding.id, finding.severity, finding.text, finding.remedy)
        before = said.get(key)
        said[key] = finding if before is None else replace(before, replicas=before.replicas + finding.replicas)
    return sorted(said.values(), key=lambda finding: SEVERITIES.index(finding.severity))


def _of_each(fleet: Sequence[Found], ours: Ours) -> Iterator[Finding]:
    for seen in fleet:
        peers = sum(share(seen, other) for other in fleet if other is not seen)
        found = (
            *answers(seen, ours),
            *connections(seen, ours),
            *facts(seen, ours),
            *pools(seen, ours, peers=peers),
            *_busy(seen),
        )
        yield from (replace(finding, replicas=(seen.name,)) for finding in found)


def _busy(seen: Found) -> Iterator[Finding]:
    if busy(seen.loads):
        running, waiting = sum(each.running or 0 for each in seen.loads), sum(each.waiting or 0 for each in seen.loads)
        yield Finding(
            id="busy",
            severity="note",
            text=f"It has {running} running and {waiting} waiting, so that it was not tried what a health probe costs it.",
            figures={"running": running, "waiting": waiting},
            remedy="check it again when it is idle",
        )


def _of_all(fleet: Sequence[Found]) -> Iterator[Finding]:
    if len(fleet) == 1:
        yield Finding(
            id="one_replica",
            severity="note",
            replicas=(fleet[0].name,),
            text="There is one replica: Ramjet has nothing to choose from, and only admission can help.",
            remedy="add another with --replica NAME=URL or in the configuration",
        )
