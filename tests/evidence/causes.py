"""Traffic that makes turns cold for every cause there is, and simulated engines that know which it was.

The production router decides in virtual time; the engines' own caches say why what a turn could have reused is not there.
Ramjet's prompts are coarser than the engines' pages, and their tokens are guessed from bytes, as in life.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import xxhash

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, HostTier, Lost, PrefixCache
from ramjet.core.causes import CAUSES
from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.pools import Pools
from ramjet.core.record import Record, short
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival
from ramjet.lab.loop import facts_of
from ramjet.lab.production import SHIPPED, pools_of
from ramjet.sim.engine import Engine, Job
from ramjet.sim.profile import ATTENTION, GLM, Profile

PAGE = 64
COARSE = 4
"""Pages of one of the router's blocks."""
UNSEEN = "restart, unseen"
"""The truth where an engine forgot everything and nothing told Ramjet."""


class Witness(EngineCache):
    """An engine's cache that remembers what it let go, and for want of what."""

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        self.on_lost = self._lost
        self._numbers = count()
        self.serving: str | None = None
        """Whose request it serves, by Ramjet's name for it."""
        self._gone: dict[int, tuple[int, Lost, str | None]] = {}
        """By block: when it was lost last, with the state after it where it takes one, and for whom."""

    def why(self, blocks: Blocks, prompt_tokens: int, upto_tokens: int) -> tuple[str, str | None]:
        """What the part of a prompt up to a length was lost to, that cannot be reused now, and for whom."""
        hit = self.find(blocks, prompt_tokens)
        # Any state in the second half would have been enough, and so would any run beyond what is there.
        first = bisect_right(blocks.ends, hit.known_tokens)
        if self.spec.snapshots is not None:
            first = bisect_left(blocks.ends, upto_tokens // 2)
        hashes = blocks.hashes[first : bisect_right(blocks.ends, upto_tokens)]
        lost = [each for each in map(self._gone.get, hashes) if each is not None]
        _, pool, by = max(lost) if lost else (0, "per_path", None)
        return ("branch", None) if pool == "per_path" else (pool, by)

    def _lost(self, hashes: Sequence[int], pool: Lost) -> None:
        for block in hashes:
            self._gone[block] = next(self._numbers), pool, self.serving


@dataclass(slots=True, eq=False)
class Talk:
    """A conversation, as its client has it."""

    pages: list[int]
    head: int
    """Pages of its first prompt."""
    bytes_per_token: float
    nonce: int | None = None
    """Page of its system prompt that holds something volatile; None where there is nothing."""
    at: int | None = None
    """The engine of its last turn."""
    life: int = 0
    """Which life of that engine it was."""
    sent: int = 0


@dataclass(slots=True)
class Verdict:
    """A cold turn: what it was, and what Ramjet took it for."""

    truth: str
    said: str
    by: str | None
    """Who pushed it out."""
    record: Record


@dataclass(slots=True)
class World:
    """Engines with the production router in front of them."""

    profile: Profile
    replicas: int
    chance: random.Random
    told: Callable[[Profile], Pools]
    now: float = 0.0
    turns: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    engines: list[Engine] = field(init=False)
    router: Router = field(init=False)
    _lives: list[int] = field(init=False)
    _unseen: set[int] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _salt: int = field(init=False)
    _history: PrefixCache = field(default_factory=PrefixCache)
    """Every prompt that was ever sent, with its answer: a state is saved after that, too."""

    def __post_init__(self) -> None:
        self._salt = self.chance.getrandbits(63)
        self.engines = [Engine(self.profile, whole_runs=True) for _ in range(self.replicas)]
        for engine in self.engines:
            assert isinstance(self.profile.cache, CacheSpec)
            engine.cache = Witness(self.profile.cache)
        fleet = Fleet()
        for number in range(self.replicas):
            fleet.add(Replica(str(number), f"http://{self._salt}.{number}", configured=self.told(self.profile)))
        self.router = Router(fleet, SHIPPED)
        self._lives = [0] * self.replicas

    # -- clients ----------------------------------------------------------------------------------------------------

    def talk(self, tokens: int, *, shared: Sequence[int] = (), nonce: int | None = None) -> Talk:
        """A new conversation whose first prompt is about so long."""
        pages = [*shared, *self._fresh(max(COARSE, tokens // PAGE - len(shared)))]
        return Talk(pages, len(pages), self.chance.uniform(3.4, 4.8), nonce)

    def fork(self, talk: Talk, share: float, tokens: int) -> Talk:
        """One that leaves another after a part of its prompt."""
        keep = max(talk.head, int(share * len(talk.pages)))
        return replace(talk, pages=[*talk.pages[:keep], *self._fresh(tokens // PAGE)])

    def grow(self, talk: Talk, tokens: int) -> None:
        """A client adds something to a prompt."""
        talk.pages += self._fresh(max(1, tokens // PAGE))

    def send(self, talk: Talk, *, think_s: float | None = None) -> Record:
        """A turn from its arrival to its end; its record."""
        chance, router = self.chance, self.router
        self.now += chance.uniform(0.5, 8.0) if think_s is None else think_s
        tokens = len(talk.pages) * PAGE + chance.randrange(PAGE)
        talk.sent += 1
        blocks, fingerprint = self._prompt(talk, tokens)
        arrival = Arrival(
            request_id=str(next(self._numbers)),
            endpoint="chat",
            body_bytes=fingerprint.usable.size_bytes,
            stream=True,
            fingerprint=fingerprint,
        )
        visit = router.arrive(arrival, self.now)
        lease = router.place(visit, self.now)
        while lease is None:
            self.now += 1.0
            lease = visit.lease if visit in router.admit(self.now) else None
        index = int(lease.replica.name)
        engine = self.engines[index]
        engine.advance(self.now)
        plain = self._plain(talk)
        reusable = plain.tokens(self._history.match(plain).depth)
        truth, by = self._truth(talk, index, blocks, tokens, reusable)
        answer = self._fresh(chance.randint(1, 12))
        job = Job(blocks, tokens, len(answer) * PAGE, with_answer=lambda _: self._chained([*talk.pages, *answer]))
        assert visit.turn is not None
        self._cache(index).serving = short(visit.turn.conversation.id)
        engine.submit(job, self.now)
        while job.ended_at is None:
            assert engine.next_at is not None or not engine.running
            events = engine.advance(self.now if engine.next_at is None else max(self.now, engine.next_at))
            self.now = engine.now
            for event in events:
                if event.job is job and event.kind == "first":
                    router.first_token(visit, self.now)
        usage = Usage(prompt_tokens=tokens, cached_tokens=job.cached_tokens)
        record = router.finish(visit, self.now, outcome="ok", status=200, usage=usage)
        self.turns += 1
        if record.cold:
            self.verdicts.append(Verdict(truth, str(record.cold_cause), by, record))
        talk.at, talk.life = index, self._lives[index]
        talk.pages += answer
        self._history.insert(self._plain(talk), self.now)
        return record

    # -- what happens to engines ------------------------------------------------------------------------------------

    def restart(self, index: int, *, seen: bool = True) -> None:
        """An engine loses everything; `seen`: a request or a probe finds it gone meanwhile."""
        assert self.engines[index].flush()
        self._lives[index] += 1
        if not seen:
            self._unseen.add(index)
            return
        self._unseen.discard(index)
        replica = self.router.fleet[str(index)]
        self.router.probed(replica.url, self.now, error="connection refused", refused=True)
        for _ in range(2):
            replica.probed(self.now, error=None)
        replica.delivered(self.now)

    def drain(self, index: int | None) -> None:
        """Only this one gets no new requests; None: all do."""
        for number in range(self.replicas):
            self.router.fleet[str(number)].draining = number == index

    # -- inside -----------------------------------------------------------------------------------------------------

    def _truth(self, talk: Talk, index: int, blocks: Blocks, tokens: int, reusable: int) -> tuple[str, str | None]:
        if talk.nonce is not None and talk.sent > 1 and talk.nonce * PAGE < reusable / 2:
            return "prefix_changed", None
        if talk.at is not None and talk.life != self._lives[talk.at]:
            return UNSEEN if talk.at in self._unseen else "restart", None
        home, here = self._cache(index if talk.at is None else talk.at), self._cache(index)
        if home is not here and home.find(blocks, tokens).tokens >= reusable / 2:
            return "moved", None
        hit = here.find(blocks, tokens)
        if home is here and (hit.host_tokens or hit.host_state):
            return "host_tier", None
        return home.why(blocks, tokens, reusable)

    def _cache(self, index: int) -> Witness:
        cache = self.engines[index].cache
        assert isinstance(cache, Witness)
        return cache

    def _fresh(self, pages: int) -> list[int]:
        return [next(self._numbers) for _ in range(pages)]

    def _chained(self, pages: Sequence[int]) -> Blocks:
        hashes, chain = array("Q"), self._salt
        for page in pages:
            chain = xxhash.xxh3_64_intdigest(page.to_bytes(8, "little"), seed=chain)
            hashes.append(chain)
        return Blocks(hashes, array("I", range(PAGE, PAGE * len(hashes) + 1, PAGE)))

    def _prompt(self, talk: Talk, tokens: int) -> tuple[Blocks, Fingerprint]:
        """What the engine sees, and what the router does."""
        if talk.nonce is not None:
            talk.pages[talk.nonce] = next(self._numbers)
        engine = self._chained(talk.pages)
        usable = self._coarse(talk, engine, tokens)
        if talk.nonce is None:
            return engine, Fingerprint(usable, usable)
        return engine, Fingerprint(usable, self._coarse(talk, self._plain(talk), tokens))

    def _plain(self, talk: Talk) -> Blocks:
        """A prompt without what is volatile."""
        if talk.nonce is None:
            return self._chained(talk.pages)
        return self._chained([*talk.pages[: talk.nonce], 0, *talk.pages[talk.nonce + 1 :]])

    def _coarse(self, talk: Talk, blocks: Blocks, tokens: int) -> Chain:
        hashes = blocks.hashes[COARSE - 1 :: COARSE]
        each = talk.bytes_per_token * PAGE * COARSE
        ends = array("Q", (int(each * (at + 1)) for at in range(len(hashes))))
        return Chain(hashes, ends, min(len(hashes), talk.head // COARSE), int(talk.bytes_per_token * tokens))


# -- what Ramjet is told of the replicas ----------------------------------------------------------------------------


def everything(profile: Profile) -> Pools:
    """All sizes, as a configuration or SGLang's own page would have them."""
    assert isinstance(profile.cache, CacheSpec)
    return replace(pools_of(facts_of(profile)), host=profile.cache.host is not None)


def tokens_only(profile: Profile) -> Pools:
    """What SGLang says where it derived its snapshots itself."""
    return replace(everything(profile), slots=None, per_path=None)


def nothing(profile: Profile) -> Pools:
    """Nobody says anything."""
    return Pools()


# -- what makes turns cold ------------------------------------------------------------------------------------------


def short_tokens(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """More tokens than fit, with attention layers alone or with snapshots to spare."""
    pool = chance.randint(100_000, 300_000)
    profile, system_tokens = chance.choice(
        [
            (ATTENTION.with_flags(pool_tokens=pool), chance.choice([0, 1_000, 6_000])),
            (GLM.with_flags(pool_tokens=pool, slots=chance.randint(150, 250), states_per_path=2), 0),
        ]
    )
    world = World(profile, chance.choice([1, 1, 2]), chance, told)
    system = world.talk(system_tokens).pages
    each = chance.randint(12_000, 40_000)
    talks = [
        world.talk(int(each * chance.uniform(0.6, 1.4)), shared=system)
        for _ in range(1 + int(1.3 * world.replicas * pool / each))
    ]
    _rounds(world, talks, 2)
    return world


def short_slots(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """The seed's: a long prompt, or too many conversations, take all snapshots, and tokens are left."""
    per_path = chance.choice([None, None, 4, 2])
    world = World(GLM.with_flags(states_per_path=per_path), chance.choice([1, 1, 2]), chance, told)
    system = world.talk(chance.choice([0, 1_000, 6_000])).pages
    sessions = chance.randint(4, 7) if per_path is None else chance.randint(8, 16)
    talks = [world.talk(chance.randint(10_000, 24_000), shared=system) for _ in range(sessions * world.replicas)]
    _rounds(world, talks, 1)
    for _ in range(2):
        if per_path is None:
            world.send(world.talk(chance.randint(150_000, 250_000)))
        _rounds(world, talks, 1)
    return world


def branches(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """Prompts that leave a conversation in its middle, where the cap has left no snapshot."""
    world = World(GLM.with_flags(states_per_path=2), 1, chance, told)
    for _ in range(3):
        talk = world.talk(chance.randint(3_000, 9_000))
        for _ in range(chance.randint(3, 5)):
            world.send(talk)
            world.grow(talk, chance.randint(6_000, 12_000))
        world.send(talk)
        world.send(world.fork(talk, chance.uniform(0.3, 0.7), chance.randint(500, 3_000)))
        world.grow(talk, 1_000)
        world.send(talk)
    return world


def volatile_heads(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """A clock near the beginning of the system prompt; for comparison some without."""
    world = World(chance.choice([GLM, ATTENTION]), 2, chance, told)
    talks = [world.talk(chance.randint(8_000, 20_000), nonce=chance.choice([None, 2, 9])) for _ in range(3)]
    _rounds(world, talks, 4)
    return world


def restarts(chance: random.Random, told: Callable[[Profile], Pools], *, seen: bool = True) -> World:
    """Engines that lose everything between turns."""
    world = World(chance.choice([GLM.with_flags(states_per_path=2), ATTENTION]), 2, chance, told)
    talks = [world.talk(chance.randint(8_000, 20_000)) for _ in range(5)]
    _rounds(world, talks, 2)
    for _ in range(2):
        world.restart(chance.randrange(2), seen=seen)
        _rounds(world, talks, 2)
    return world


def shared_heads(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """More tokens than fit, behind one long system prompt whose own snapshot the cap has dropped.

    The belief takes a missing head for the loss of all that grew from it, and then it does not know much any more.
    """
    pool = chance.randint(100_000, 300_000)
    profile = GLM.with_flags(pool_tokens=pool, slots=chance.randint(150, 250), states_per_path=2)
    world = World(profile, chance.choice([1, 2]), chance, told)
    system = world.talk(6_000).pages
    talks = [world.talk(chance.randint(12_000, 30_000), shared=system) for _ in range(world.replicas * pool // 15_000)]
    _rounds(world, talks, 3)
    return world


def silent_restarts(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """The same, and nothing tells Ramjet of it."""
    return restarts(chance, told, seen=False)


def moves(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """Conversations whose home is drained."""
    world = World(chance.choice([GLM.with_flags(states_per_path=2), ATTENTION]), chance.choice([2, 3]), chance, told)
    talks = [world.talk(chance.randint(8_000, 20_000)) for _ in range(4)]
    _rounds(world, talks, 2)
    for _ in range(2):
        world.drain(chance.randrange(world.replicas))
        _rounds(world, talks, 1)
        world.drain(None)
        _rounds(world, talks, 1)
    return world


def half_in_the_host(chance: random.Random, told: Callable[[Profile], Pools]) -> World:
    """Conversations whose end even the host has dropped."""
    pool = chance.randint(80_000, 120_000)
    host = HostTier(tokens=pool + chance.randint(25_000, 60_000))
    base = ATTENTION.with_flags(pool_tokens=pool)
    assert isinstance(base.cache, CacheSpec)
    world = World(replace(base, cache=replace(base.cache, host=host)), 1, chance, told)
    for _ in range(4):
        # A long one in many runs, and then others until the host has room for a part of it.
        talk = world.talk(4_000)
        for _ in range(9):
            world.grow(talk, 4_000)
            world.send(talk)
        others = host.tokens - chance.randint(3_000, 18_000)
        while others > 0:
            world.send(world.talk(min(others, 10_000)))
            others -= 10_500
        world.send(talk)
    return world


SCENARIOS = (short_tokens, short_slots, branches, volatile_heads, restarts, moves, half_in_the_host)
"""One for each cause, in which it happens most; others happen too."""


def _rounds(world: World, talks: Sequence[Talk], rounds: int) -> None:
    for _ in range(rounds):
        for talk in world.chance.sample(list(talks), len(talks)):
            world.send(talk)
            world.grow(talk, world.chance.randint(100, 1_200))


# -- what came out --------------------------------------------------------------------------------------------------


def play(
    rounds: int, seed: int, told: Callable[[Profile], Pools], scenarios: Sequence[Callable[..., World]] = SCENARIOS
) -> list[Verdict]:
    """Every scenario so many times with other chances; the cold turns."""
    chance = random.Random(seed)
    return [
        verdict
        for _ in range(rounds)
        for scenario in scenarios
        for verdict in scenario(random.Random(chance.getrandbits(32)), told).verdicts
    ]


def matrix(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """A row for each truth, a column for each cause that was said."""
    seen = Counter((each.truth, each.said) for each in verdicts)
    truths = [truth for truth in (*CAUSES, UNSEEN) if any(truth == each.truth for each in verdicts)]
    return [
        {
            "truth": truth,
            **{said: seen[truth, said] for said in CAUSES},
            "right": f"{seen[truth, truth] / sum(seen[truth, said] for said in CAUSES):.1%}",
        }
        for truth in truths
    ]


def right_ratio(verdicts: Sequence[Verdict]) -> float:
    """The part of the cold turns that got the right cause."""
    return sum(each.said == each.truth for each in verdicts) / len(verdicts)


def show(title: str, verdicts: Sequence[Verdict]) -> str:
    """The confusion matrix, to be printed."""
    rows = matrix(verdicts)
    lines = [f"{title}: {len(verdicts)} cold turns, {right_ratio(verdicts):.1%} right"]
    lines.append(f"{'truth':>16}" + "".join(f"{name:>15}" for name in list(rows[0])[1:]))
    lines += [f"{row['truth']:>16}" + "".join(f"{row[name]:>15}" for name in list(row)[1:]) for row in rows]
    return "\n".join(lines)
