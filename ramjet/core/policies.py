"""The rules and costs that ship, and the policy that they make up. Each is a small value that remembers nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from ramjet.core.admission import Terms
from ramjet.core.fleet import whole_name
from ramjet.core.route import Ask, Candidate, Cost, Rule


@dataclass(frozen=True, slots=True)
class Reading:
    """How long a replica takes to read tokens m to n of a prompt: a(n - m) + b(n² - m²).

    The defaults fit the seed's hardware: 3.3 s for 20,000 tokens, 17 s for 100,000, 57 s for 313,000.
    """

    linear_s: float = 0.1655e-3
    """a, seconds a token."""
    quadratic_s: float = 5.3e-11
    """b, seconds a token squared: attention looks back at everything before."""

    def seconds(self, start: int, end: int) -> float:
        """Seconds to read tokens `start` to `end` when those before `start` are there."""
        return (end - start) * (self.linear_s + self.quadratic_s * (end + start)) if end > start else 0.0


# -- costs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds to read the part of the prompt that the replica does not hold.

    What k living conversations share is charged at 1/k: read once, it serves them all. Without that, a system prompt
    that everybody has would keep everybody on the replica that read it first.
    """

    reading: Reading = Reading()
    name: str = "prefill"
    breaks_ties: bool = False
    harm_weight: float = 0.0

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> list[float]:
        """Seconds of reading, by what is believed to match."""
        charged: dict[int, float] = {}
        seconds = []
        for each in candidates:
            # Most hold the same, nothing or what everybody shares.
            charged_s = charged.get(each.matched_tokens)
            if charged_s is None:
                charged_s = charged[each.matched_tokens] = self._charged_s(ask, each.matched_tokens)
            seconds.append(each.pace * charged_s)
        return seconds

    def _charged_s(self, ask: Ask, matched_tokens: int) -> float:
        total, start = 0.0, matched_tokens
        for end, conversations in (*ask.shared, (ask.prompt_tokens, 1)):
            if end > start:
                total += self.reading.seconds(start, end) / conversations
                start = end
        return total


@dataclass(frozen=True, slots=True)
class QueueCost:
    """Seconds until the replica gets to this request: the reading sent there before, and a little for each request.

    The little keeps fleets apart whose reading takes no measurable time: a new conversation goes where fewer are.
    """

    request_s: float = 0.1
    name: str = "queue"
    breaks_ties: bool = False
    harm_weight: float = 0.0

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Seconds ahead of it there."""
        return [each.queue_s + self.request_s * each.in_flight for each in candidates]


@dataclass(frozen=True, slots=True)
class CrowdingCost:
    """Seconds of reading that others will need again, as likely as they come back, for what this would push out there.

    Zero where the pools are not known, or have room.
    """

    harm_weight: float = 1.0
    name: str = "crowding"
    breaks_ties: bool = False

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Seconds of others."""
        return [self.harm_weight * each.harm_s for each in candidates]


@dataclass(frozen=True, slots=True)
class BalanceCost:
    """Seconds that placing a new conversation here will cost later, where conversations are unevenly spread.

    For what no pool's size says: a replica with more than its share of the living conversations is charged what a
    request in flight is charged, for each that it has too many. Within the share, rendezvous decides.
    """

    conversation_s: float = 0.1
    slack: float = 1.05
    """A share may be exceeded by this ratio before it counts; rounding up allows one more in small fleets."""
    name: str = "balance"
    breaks_ties: bool = True
    """Where reading alone takes a minute, 5 % of it would hide a whole crowd."""
    harm_weight: float = 0.0

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> list[float]:
        """Seconds; 0 for a conversation that already has a home, wherever that is, and where all pools are known."""
        if ask.home is not None or not ask.has_prompt or None not in [each.pool_tokens for each in candidates]:
            return [0.0] * len(candidates)
        living = 1 + sum([each.living for each in candidates])
        most = ceil(self.slack * living / len(candidates)) - 1
        return [self.conversation_s * (each.living - most) if each.living > most else 0.0 for each in candidates]


@dataclass(frozen=True, slots=True)
class LeaveCost:
    """Seconds that leaving a home costs beside reading anew: the copy there is lost, and takes room.

    Without it, the chance that some more requests are in flight at home would move conversations whose own part is
    short, turn by turn, for no gain that anyone could notice. So what they cost at home, they cost elsewhere too: only
    reading moves a conversation. Calls in parallel may spread.
    """

    leave_s: float = 2.0
    request_s: float = 0.1
    """What `QueueCost` charges for a request in flight."""
    name: str = "leave"
    breaks_ties: bool = False
    harm_weight: float = 0.0

    def seconds(self, ask: Ask, candidates: Sequence[Candidate]) -> list[float]:
        """Seconds, where the home still holds a part that is the conversation's own and this is another replica."""
        homes = [each for each in candidates if each.replica == ask.home and each.own_tokens] if ask.home else ()
        if not homes:
            return [0.0] * len(candidates)
        (home,) = homes
        return [0.0 if each is home else self._leaving_s(ask, home, each) for each in candidates]

    def _leaving_s(self, ask: Ask, home: Candidate, to: Candidate) -> float:
        if ask.in_parallel:
            # The copy at home is not lost: the calls that stay use it.
            return self.leave_s / 2
        return self.leave_s + self.request_s * max(0, home.in_flight - to.in_flight)


# -- rules ----------------------------------------------------------------------------------------------------------


LONG_PROMPT = "long_prompt"

LONG_SHARE = 0.3
"""Of a pool: three conversations as long fill it. The seed's 150,000 tokens are this part of its 499,968."""


def long_from(least_tokens: int, pools: Iterable[int | None]) -> int:
    """The length in tokens from which a conversation is long: a smaller pool makes shorter ones long."""
    known = [pool for pool in pools if pool is not None]
    return min(least_tokens, int(LONG_SHARE * min(known))) if known else least_tokens


@dataclass(frozen=True, slots=True)
class LongPromptRule:
    """Requests of at least this size go only to these replicas, as long as one of them can serve.

    Off by default: the seed measured that confining two long conversations to one replica makes them evict each other.
    """

    least_bytes: int
    replicas: frozenset[str]
    name: str = LONG_PROMPT

    def names(self, replica: str) -> bool:
        """Whether a replica is named, or is a rank of one that is."""
        return replica in self.replicas or whole_name(replica) in self.replicas

    def refuses(self, ask: Ask, candidates: Sequence[Candidate]) -> dict[str, str]:
        """The replicas that are not named, nor ranks of one that is."""
        if ask.body_bytes < self.least_bytes:
            return {}
        why = f"request of {ask.body_bytes:,} bytes is kept to {', '.join(sorted(self.replicas))}"
        return {each.replica: why for each in candidates if not self.names(each.replica)}


@dataclass(frozen=True, slots=True)
class SpreadLongRule:
    """Concurrent long conversations go to different replicas while there are replicas to spread over.

    A first version: by the tokens of the other living long conversations at each replica. Where a replica's token pool
    is known and has room for all of them, nothing needs spreading.
    """

    least_tokens: int = 150_000
    name: str = "spread_long"

    def refuses(self, ask: Ask, candidates: Sequence[Candidate]) -> dict[str, str]:
        """The replicas with more long neighbours than another has."""
        if ask.prompt_tokens < long_from(self.least_tokens, [each.pool_tokens for each in candidates]):
            return {}
        least = min(each.long_tokens for each in candidates)
        return {
            each.replica: f"{each.long_tokens:,} tokens of other long conversations live there"
            for each in candidates
            # Moving costs a whole reading: only a free replica, or half the crowd elsewhere, is worth it.
            if each.long_tokens > (2 * least if each.replica == ask.home else least) and not _fits(ask, each)
        }


def _fits(ask: Ask, candidate: Candidate) -> bool:
    """Whether a replica's pool is known to hold all of its long conversations, and this one too."""
    return candidate.pool_tokens is not None and candidate.long_tokens + ask.prompt_tokens <= candidate.pool_tokens


# -- the policy -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules and costs in force, and the numbers behind what they are told."""

    rules: Sequence[Rule] = ()
    costs: Sequence[Cost] = ()
    affinity: bool = True
    """Off: nothing is believed to match, which is load balancing for comparison."""
    reading: Reading = Reading()
    terms: Terms = Terms()
    slice_s: float | None = None
    """Seconds of reading to which long cold reads are cut; None: they are sent whole."""
    return_s: float = 300.0
    """How far ahead a conversation's return counts as harm."""
    long_tokens: int = 150_000
    """From this length on a conversation is long."""
    living_s: float = 300.0
    horizon_s: float = 3_600.0
    """What a replica was not asked for in this time is believed gone."""
    memory_bytes: int = 256 << 20
    """For all beliefs and conversations together."""
