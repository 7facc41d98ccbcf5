"""What peers tell, played into a router: it believes what they believe, and nothing is left of it at the end."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramjet.core.fingerprint import Chain, Fingerprint
from ramjet.core.fleet import Fleet, Replica
from ramjet.core.hints import Hint
from ramjet.core.news import Ended, Fact, News, Open, Placed, Prompt, Read, naming
from ramjet.core.others import Load
from ramjet.core.peers import MOST_UNPLAYED, Peers
from ramjet.core.pools import Pools
from ramjet.core.router import Router
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Visit
from ramjet.lab.production import SHIPPED
from ramjet.peers.wire import Batch, Seal

NAMED = naming(7)
POOL_TOKENS = 60_000


def router_of(replicas: int = 3, pool_tokens: int | None = POOL_TOKENS) -> Router:
    fleet = Fleet()
    for number in range(replicas):
        pools = Pools(tokens=pool_tokens)
        fleet.add(Replica(f"r{number}", f"http://10.0.0.{number}:30000", configured=pools, models=frozenset(("m",))))
    return Router(fleet, SHIPPED)


def telling() -> Router:
    router = router_of()
    router.news = News(NAMED)
    return router


def chain(conversation: int, blocks: int) -> Chain:
    """A prompt that begins with what all have, and goes on with what its conversation alone has."""
    draw = Random(conversation)
    hashes = array("Q", [*range(1, 5), *(draw.getrandbits(64) for _ in range(blocks))])
    ends = array("I", range(1_024, 1_024 * len(hashes) + 1, 1_024))
    return Chain(hashes, ends, 5, ends[-1])


def arrival(conversation: int, turn: int) -> Arrival:
    prompt = chain(conversation, 4 * turn)
    return Arrival(
        request_id=f"{conversation} {turn}",
        endpoint="chat",
        body_bytes=prompt.size_bytes,
        stream=True,
        model="m",
        fingerprint=Fingerprint(prompt, prompt),
        hint=Hint("x-session-id", conversation),
    )


def told(router: Router) -> list[Fact]:
    """What it has to tell."""
    assert router.news is not None
    facts: list[Fact] = []
    while router.news:
        facts += router.news.take(1)
    return facts


def play(router: Router, steps: list[int], *, end: bool = True) -> list[Fact]:
    """A row of events at one router, drawn from numbers; what it tells of them."""
    running: list[Visit] = []
    turns: dict[int, int] = {}
    now = 0.0
    for step in steps:
        now += 0.1 + step % 7
        kind, which = step % 4, step // 4
        if kind < 2 or not running:
            conversation = which % 6
            turns[conversation] = turns.get(conversation, 0) + 1
            visit = router.arrive(arrival(conversation, turns[conversation]), now)
            if router.place(visit, now) is not None:
                running.append(visit)
        elif kind == 2:
            router.first_token(running[which % len(running)], now)
        else:
            finish(router, running.pop(which % len(running)), now, cached=which)
        running += router.admit(now)
    for visit in running if end else ():
        finish(router, visit, now + 1, cached=0)
    for visit in list(router.admission) if end else ():
        router.finish(visit, now + 1, outcome="client_disconnect", status=None)
    return told(router)


def finish(router: Router, visit: Visit, now: float, cached: int) -> None:
    tokens = visit.prompt_tokens
    usage = Usage(prompt_tokens=tokens, cached_tokens=min(tokens, 256 * cached), completion_tokens=20)
    router.finish(visit, now, outcome="ok" if cached % 5 else "upstream_reset", status=200, usage=usage)


def is_idle(router: Router) -> bool:
    busy = [(each.in_flight, each.peers_in_flight, each.queue) for each in router.fleet]
    caches = [(belief.cache.running, belief.cache.held_tokens) for belief in router.beliefs.values()]
    running = [each.running for each in router.conversations]
    return set(map(str, busy)) == {"(0, 0, {})"} and set(caches) == {(0, 0)} and not any(running)


steps = st.lists(st.integers(0, 1_000), max_size=60)


@settings(deadline=None)
@given(steps=steps)
def test_who_hears_all_believes_all(steps: list[int]) -> None:
    """
    Beliefs, homes, pools as learned, paces and lengths are those of the router that served.
    """
    one, other = telling(), router_of()
    facts = play(one, steps)

    Peers(other, NAMED).take(1, facts, 0.0, 1e9)

    assert is_idle(one)
    assert is_idle(other)
    for name, belief in one.beliefs.items():
        heard = other.beliefs[name]
        assert heard.cache.tokens == belief.cache.tokens
        assert [node.hashes for node in heard.cache.least_used()] == [node.hashes for node in belief.cache.least_used()]
        assert heard.pool_tokens == belief.pool_tokens
        assert heard.pace.factor == pytest.approx(belief.pace.factor)
    assert other.ratios.bytes_per_token("m") == one.ratios.bytes_per_token("m")
    homes = [{each.id: (each.home, each.turn) for each in router.conversations} for router in (one, other)]
    assert homes[0] == homes[1]


@settings(deadline=None)
@given(steps=steps, data=st.data())
def test_whatever_is_lost_or_comes_twice_nothing_is_left(steps: list[int], data: st.DataObject) -> None:
    """
    Facts that never came, came twice or in another order leave no place taken, once the router is gone or says what is open.
    """
    facts = play(telling(), steps, end=data.draw(st.booleans()))
    kept = data.draw(st.lists(st.sampled_from(facts), max_size=80)) if facts else []
    other = router_of()
    peers = Peers(other, NAMED)

    peers.take(1, kept, -3.0, 100.0)
    assert sum(each.peers_in_flight for each in other.fleet) == peers.open
    if data.draw(st.booleans()):
        peers.only((2,), 200.0)
    else:
        peers.take(1, [Open(())], 0.0, 200.0)

    assert peers.open == 0
    assert is_idle(other)


@settings(deadline=None)
@given(steps=steps, cut=st.integers(0, 200))
def test_who_comes_late_is_told_what_is_open(steps: list[int], cut: int) -> None:
    """
    After a gap all that is under way is told again; who had heard of it takes it once.
    """
    one = telling()
    facts = play(one, steps, end=False)
    other = router_of()
    peers = Peers(other, NAMED)
    peers.take(1, facts[cut:], 0.0, 1e6)
    assert one.news is not None
    one.news.again()
    peers.take(1, told(one), 0.0, 1e6)

    assert peers.open == sum(each.in_flight for each in one.fleet)
    assert [each.peers_in_flight for each in other.fleet] == [each.in_flight for each in one.fleet]


def test_the_next_turn_goes_where_a_peer_put_the_one_before() -> None:
    """
    A router that has never seen a conversation sends its later turn to the replica that has it, for affinity.
    """
    one, other = telling(), router_of()
    for conversation in range(12):
        visit = one.arrive(arrival(conversation, 1), conversation)
        assert one.place(visit, conversation) is not None
        one.finish(visit, conversation + 0.5, outcome="ok", status=200)
        home = visit.tried[0]
        Peers(other, NAMED).take(1, told(one), 0.0, 100.0)

        lease = other.place(later := other.arrive(arrival(conversation, 2), 100.0), 100.0)

        assert lease is not None
        assert (lease.replica.name, lease.reason) == (home, "affinity")
        assert later.number == 2
        other.finish(later, 101.0, outcome="ok", status=200)


@settings(deadline=None)
@given(steps=steps, known=st.integers(0, 3), heard=st.integers(0, 200))
def test_what_was_told_of_a_replica_that_is_found_later_is_not_lost(steps: list[int], known: int, heard: int) -> None:
    """
    Whoever starts hears of the last hour before it has found the replicas, or their ranks: once it has, it knows all that.
    """
    one, fleet = telling(), list(router_of().fleet)
    facts = play(one, steps, end=False)
    other = Router(Fleet(), SHIPPED)
    for replica in fleet[:known]:
        other.add(replica)
    peers = Peers(other, NAMED)
    peers.take(1, facts[:heard], 0.0, 1e6)
    assert not peers.met()
    for replica in fleet[known:]:
        other.add(replica)
    peers.look_again()
    for peer, fact, ahead_s in peers.met():
        peers.take(peer, [fact], ahead_s, 1e6)
    peers.take(1, facts[heard:], 0.0, 1e6)

    assert not peers.met()
    assert peers.open == sum(each.in_flight for each in one.fleet)
    assert [each.peers_in_flight for each in other.fleet] == [each.in_flight for each in one.fleet]
    if not known:
        heard_all = router_of()
        Peers(heard_all, NAMED).take(1, facts, 0.0, 1e6)
        assert {each.id: each.home for each in other.conversations} == {
            each.id: each.home for each in heard_all.conversations
        }
        assert [belief.cache.held_tokens for belief in other.beliefs.values()] == [
            belief.cache.held_tokens for belief in heard_all.beliefs.values()
        ]


def test_what_is_kept_of_replicas_that_are_not_known_is_bounded() -> None:
    """
    Where lists of replicas differ, nobody remembers the others' traffic for ever; the last of it is what is kept.
    """
    router, there = Router(Fleet(), SHIPPED), router_of().fleet["r0"]
    peers = Peers(router, NAMED)
    for number in range(MOST_UNPLAYED):
        peers.take(1, [Placed(number, 0.0, NAMED(there.identity), "chat", 100), Ended(number, 1.0)], 0.0, 2.0)
    router.add(there)
    peers.look_again()

    kept = peers.met()

    assert len(kept) == MOST_UNPLAYED
    assert kept[-1][1] == Ended(MOST_UNPLAYED - 1, 1.0)
    for peer, fact, ahead_s in kept:
        peers.take(peer, [fact], ahead_s, 2.0)
    assert peers.open == 0
    assert is_idle(router)


def test_one_cold_read_is_on_its_way_whoever_sent_it() -> None:
    """
    A replica that reads a long prompt for a peer gets no second one from here.
    """
    one, other = telling(), router_of(replicas=1, pool_tokens=1_000_000)
    long = Prompt(chain(1, 200).hashes.tobytes(), chain(1, 200).ends.tobytes(), 5, 1_024 * 204)
    there = NAMED(one.fleet["r0"].identity)
    Peers(other, NAMED).take(1, [Placed(1, 0.0, there, "chat", 1_024 * 204, stream=True, usable=long)], 0.0, 0.0)

    visit = other.arrive(arrival(2, 60), 0.1)

    assert other.place(visit, 0.1) is None
    assert visit.held_since == 0.1
    assert other.admission.entry(next(other.offers.candidates(visit, other.fleet, {}, 0.1))).obstacle == "reading"


def test_what_a_peer_has_paid_is_gone_here_too() -> None:
    """
    Allowances are of all Ramjets together; while peers are not heard each fills its part, and their work is the engine's.
    """
    router = router_of()
    peers = Peers(router, NAMED)
    there = NAMED(router.fleet["r1"].identity)
    router.admit(0.0)
    peers.only((1, 2, 3), 0.0)
    peers.take(1, [Placed(1, 0.0, there, "chat", 100, paid_s=9.0)], 0.0, 0.0)
    assert [router.admission.allowance_s(name) for name in ("r0", "r1")] == [15.0, 6.0]

    peers.lost(0.0)
    router.admit(10.0)
    assert router.admission.allowance_s("r1") == pytest.approx(6.0 + 10 * 0.18 / 4)
    assert router.fleet["r1"].peers_in_flight == 0

    peers.found()
    router.admit(20.0)
    assert router.admission.allowance_s("r1") == pytest.approx(6.0 + 10 * 0.18 / 4 + 10 * 0.18)


def test_what_peers_have_is_not_counted_twice() -> None:
    """
    An engine's page shows a peer's request before the peer has told of it: it was others' until then, and is ours after.
    """
    router = router_of()
    peers, replica = Peers(router, NAMED), router.fleet["r0"]
    router.loaded("r0", Load(requests=3, used_tokens=30_000), 1.0)
    assert replica.others.at(1.0).requests == 3
    placed = Placed(1, 0.8, NAMED(replica.identity), "chat", 100)

    peers.take(1, [placed], 0.0, 1.2)

    assert replica.all_in_flight == 1
    assert replica.others.at(1.2).requests == 2
    router.loaded("r0", Load(requests=3, used_tokens=30_000), 2.0)
    assert replica.others.at(2.0).requests == 2
    peers.take(1, [Ended(1, 2.1)], 0.0, 2.2)
    router.loaded("r0", Load(requests=2, used_tokens=30_000), 3.0)
    router.loaded("r0", Load(requests=2, used_tokens=30_000), 4.0)
    router.loaded("r0", Load(requests=2, used_tokens=30_000), 5.0)
    assert replica.others.at(5.0).requests == 2


def test_a_peers_silence_is_not_the_replicas() -> None:
    """
    A replica owes nothing here to a request that came through a peer: it is neither wedged nor on trial for it.
    """
    router = router_of()
    replica = router.fleet["r0"]
    Peers(router, NAMED).take(1, [Placed(1, 0.0, NAMED(replica.identity), "chat", 100)], 0.0, 0.0)

    assert not replica.is_wedged(10_000.0)
    assert replica.serving


def test_who_has_come_under_anothers_name_gets_nothing_of_it() -> None:
    """
    Until the fleet has been looked at again, what a peer tells of the one that has gone is told of nobody.
    """
    router = router_of()
    peers = Peers(router, NAMED)
    gone = router.fleet["r0"].identity
    router.remove("r0")
    router.add(Replica("r0", "http://10.0.9.9:30000"))

    peers.take(1, [Placed(1, 0.0, NAMED(gone), "chat", 100)], 0.0, 0.0)

    assert peers.open == 0
    assert is_idle(router)


def test_what_waits_to_be_told_is_bounded() -> None:
    """
    A store that is away for long costs what would have been told, and no memory.
    """
    news = News(NAMED, most_bytes=10_000)
    router = router_of()
    router.news = news
    for number in range(200):
        visit = router.arrive(arrival(number, 3), number)
        if router.place(visit, number) is not None:
            router.finish(visit, number + 0.1, outcome="ok", status=200)

    assert news.dropped > 100
    assert sum(1 for _ in told(router)) < 100
    news.again()
    assert told(router) == [Open(())]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.integers(0, 40), st.none() | st.integers(0, 9))
def test_a_chain_is_read_as_it_was_written(hashes: list[int], head: int, preamble: int | None) -> None:
    """
    Through MessagePack and the seal, to the last bit.
    """
    head = min(head, len(hashes))
    ends = array("I", range(100, 100 * len(hashes) + 1, 100))
    packed = Prompt(array("Q", hashes).tobytes(), ends.tobytes(), head, 4_321, preamble)
    facts: list[Fact] = [
        Placed(1, 0.5, 99, "chat", 10, hint=("user", 2**64 - 1), usable=packed, conversation=2**64 - 1, turn=3),
        Read(1, 0.75),
        Ended(1, 1.5, was_read=True, is_ok=True, prompt_tokens=10, cached_tokens=None, completion_tokens=0),
        Open((4, 5)),
    ]
    seal = Seal("secret")

    opened = seal.open(seal.seal(Batch(2**63, 3, 2.5, facts)))

    assert opened is not None
    assert (opened.router, opened.number, opened.at) == (2**63, 3, 2.5)
    assert [*opened.facts][1:3] == facts[1:3]
    first = opened.facts[0]
    assert isinstance(first, Placed)
    assert first.usable is not None
    read = first.usable.chain
    assert (read.hashes, read.ends, read.head, read.size_bytes, read.preamble) == (
        array("Q", hashes), ends, head, 4_321, preamble,
    )  # fmt: skip


@given(st.binary(max_size=80), st.integers(0, 7), st.integers(0, 60))
def test_what_is_not_sealed_with_the_secret_is_not_read(noise: bytes, bit: int, at: int) -> None:
    """
    Noise, a changed bit, a batch of another deployment's.
    """
    seal = Seal("secret")
    sealed = bytearray(seal.seal(Batch(1, 1, 0.0, [Read(1, 0.75), Open((1, 2))])))
    assert seal.open(bytes(sealed)) is not None

    assert seal.open(noise) is None
    assert Seal("another").open(bytes(sealed)) is None
    sealed[at % len(sealed)] ^= 1 << bit
    assert seal.open(bytes(sealed)) is None


def test_what_is_no_chain_is_passed_over() -> None:
    """
    A peer with a fault of its own: neither hashes without ends, nor ends that fall, nor half a number, nor a head beyond.
    """
    router = router_of()
    peers = Peers(router, NAMED)
    there = NAMED(router.fleet["r0"].identity)
    broken = [
        Prompt(b"", b"", 0, 0),
        Prompt(b"x" * 16, b"x" * 4, 0, 0),
        Prompt(b"x" * 15, b"x" * 8, 0, 0),
        Prompt(b"x" * 16, array("I", [9, 8]).tobytes(), 0, 0),
        Prompt(b"x" * 16, array("I", [8, 9]).tobytes(), 3, 9),
        Prompt(b"x" * 16, array("I", [8, 9]).tobytes(), -1, 9),
    ]

    peers.take(1, [Placed(n, 0.0, there, "chat", 100, usable=each) for n, each in enumerate(broken)], 0.0, 0.0)

    assert peers.open == 0
    assert is_idle(router)
