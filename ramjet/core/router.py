"""The one owner of what Ramjet believes: it decides, leases, and takes the events in. No method awaits.

A request is a `Visit`: it arrives, is placed (again on another replica if the first fails before a byte has reached the
client), and ends in exactly one Record. Choosing and booking happen in one call, so a burst never sees a replica as
idle that it has just filled.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from statistics import median

from msgspec.structs import replace

from ramjet.core.admission import Admission
from ramjet.core.beliefs import Belief
from ramjet.core.cache import Blocks, Match, PrefixCache
from ramjet.core.causes import Evictions
from ramjet.core.chains import Cut, Event, Ran
from ramjet.core.choice import Choice
from ramjet.core.clues import clues_of, mark_of
from ramjet.core.conversations import Conversation, Conversations, Sighting
from ramjet.core.feed import Feed, Source
from ramjet.core.fleet import Fleet, Replica, State
from ramjet.core.lengths import TokenRatios, in_tokens, scale
from ramjet.core.news import News
from ramjet.core.offers import Offers
from ramjet.core.others import NOBODY, Load, Share
from ramjet.core.policies import LONG_PROMPT, Policy
from ramjet.core.pools import Pools
from ramjet.core.record import WARM_RATIO, Record, short
from ramjet.core.returns import Returns
from ramjet.core.route import Candidate, Decision, Scored
from ramjet.core.slices import starts
from ramjet.core.usage import Usage
from ramjet.core.visit import Arrival, Lease, Visit

_REPORTED_ON = frozenset(("chat", "completions"))
"""Endpoints of which an engine's switch for reporting cached tokens speaks; others have shapes of their own, or say nothing."""


_TIDIED_AT_ONCE = 64
"""Beliefs that may be looked through for each request: those of a larger fleet are tidied the less often."""
_MOST_HOLDERS = 8
"""So many runs of what a prompt shares are looked through for who has them."""


class Router:
    """Beliefs, conversations, ledger and policy in one hand."""

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        self.fleet = fleet
        self.policy = policy
        self.conversations = Conversations(policy.living_s)
        self.evictions = Evictions()
        self.beliefs = {each.name: Belief(each.pools, self.evictions, each.name) for each in fleet}
        self.ratios = TokenRatios()
        self.returns = Returns()
        self.offers = Offers(fleet, policy, self.beliefs, self.conversations, self.returns)
        self.admission: Admission[Visit] = Admission(policy.terms)
        self.choice = Choice(self.offers, self.admission)
        self.on_placed: Callable[[Visit, float], None] | None = None
        """Told of every request that has just been booked at a replica, and when."""
        self.news: News | None = None
        """What is to be told to peers; None where there are none."""
        self.feeds: dict[str, Feed] = {}
        """What replicas say of their blocks, for those that are listened to."""
        self._freed: set[str] = set()
        """Replicas where a place may have become free since the held were last looked at."""
        self._used_since = -math.inf
        """No replica is believed to hold anything that was last used before."""
        self._untidied = 0
        """Requests that have come since beliefs were last tidied."""
        self._reports_cached: set[tuple[str, str]] = set()

    # -- a request --------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival, now: float) -> Visit:
        """Recognise the conversation and take the request in as its next turn."""
        self._tidy(now)
        visit, sighting = self._recognise(arrival, now)
        self._take_in(visit, sighting, now)
        return visit

    def _take_in(self, visit: Visit, sighting: Sighting | None, now: float) -> None:
        """Make it its conversation's next turn."""
        known_prompt = visit.arrival.fingerprint
        if sighting is None or visit.identity is None or known_prompt is None:
            return
        back = sighting.returning
        if back is not None and not back.running:
            idle_s = now - back.seen_at
            self.returns.came_back(idle_s, given_up=idle_s > self.policy.living_s)
        visit.turn = turn = self.conversations.admit(visit.identity, known_prompt.identity.head, sighting, now)
        turn.conversation.mark = (
            None if visit.usable is None or visit.usable is visit.identity else mark_of(visit.usable)
        )
        self.conversations.measure(turn.conversation, visit.prompt_tokens)
        visit.number = turn.conversation.turn

    def preview(self, arrival: Arrival, now: float) -> Visit:
        """What `arrive` and `place` would make of a request now: a visit with its decision, in nobody's books.

        Changes nothing: whoever comes next is placed as if nobody had asked. The decision is before admission, which
        `Admission.choose` asks for; it is None where no replica could serve the request.
        """
        with self.offers.unchanged():
            visit, sighting = self._recognise(arrival, now)
            if sighting is None or visit.identity is None or arrival.fingerprint is None:
                visit.decision = self.choice.rank(visit, now)
                return visit
            turn = self.conversations.imagine(visit.identity, arrival.fingerprint.identity.head, sighting)
            visit.turn, visit.number = turn, turn.before.turn + 1
            with self.conversations.as_if_admitted(turn, sighting):
                visit.decision = self.choice.rank(visit, now)
        return visit

    def place(self, visit: Visit, now: float) -> Lease | None:
        """Choose a replica and book the request there.

        Returns None when there is none left to try, or, with `visit.held_since` set, when the request is to wait until
        `admit` lets it in.
        """
        terms = self.policy.terms
        asks_to_enter = visit.turn is not None and not visit.tried and terms.mode != "off"
        decision = self.choice.stay(visit, now)
        free = None if decision is None else decision.chosen
        if decision is None:
            found = self.choice.look_around(visit, now, asks_to_enter=asks_to_enter)
            if found is None:
                return None
            decision, free = found
        if asks_to_enter and free is None and terms.mode == "enforce":
            self._hold(visit, now)
            return None
        assert decision is not None
        visit.would_hold = asks_to_enter and free is None
        enters = free if asks_to_enter and terms.mode == "enforce" else None
        return self._book(visit, decision, enters or decision.chosen, now)

    def admit(self, now: float, *, quick: bool = False) -> list[Visit]:
        """Let in those of the held that may enter now; their leases are booked.

        To be asked once a second, and, `quick`, whenever a place may have become free: then only those are looked at
        that the replica in question could take.
        """
        freed, self._freed = self._freed, set()
        if quick and not freed:
            return []
        entered: list[Visit] = []

        def rank(visit: Visit) -> Sequence[Scored]:
            decision = self.choice.rank(visit, now, everywhere=True)
            return () if decision is None else decision.ranked

        def enter(visit: Visit, chosen: Scored, paid_s: float) -> None:
            decision = self.choice.rank(visit, now, everywhere=True)
            assert decision is not None
            assert visit.held_since is not None
            visit.held_s, visit.held_since = now - visit.held_since, None
            self._book(visit, decision, chosen, now, paid_s=paid_s)
            entered.append(visit)

        def glance(visit: Visit) -> Iterator[Candidate]:
            # What a replica would lose is looked at where there is a place, and, once a second, by who is ranked.
            able = [each for each in self.offers.able(visit) if not quick or each.name in freed]
            for candidate in self.offers.candidates(visit, able, {}, now, harm=False):
                if self.admission.has_place(candidate, visit):
                    replica = self.fleet[candidate.replica]
                    yield next(self.offers.candidates(visit, [replica], {}, now)) if quick else candidate

        self.admission.poll(now, self.fleet.replicas, rank, enter, glance=glance, quick=quick)
        return entered

    def held(self, now: float, most: int) -> list[tuple[Visit, Decision | None]]:
        """Those of the held who have waited longest, and how the replicas rank for each now. Changes nothing."""
        with self.offers.unchanged():
            return [(visit, self.choice.rank(visit, now, everywhere=True)) for visit in islice(self.admission, most)]

    def give_up(self, visit: Visit, now: float) -> bool:
        """A held request waits no longer, and has cost nothing; False if it was not held."""
        if visit.held_since is None:
            return False
        self.admission.leave(visit)
        visit.held_s, visit.held_since = now - visit.held_since, None
        return True

    def start_read(self, visit: Visit, now: float, usage: Usage | None) -> None:
        """A start of the prompt has been read, and the next is sent: another start, or the prompt itself."""
        lease = visit.lease
        assert lease is not None
        lease.read_tokens = lease.starts.popleft().tokens
        lease.slices += 1
        _found(lease, usage)
        self._go_on(visit, lease, now)

    def send_whole(self, visit: Visit, now: float) -> None:
        """The engine did not take a start of the prompt: what is left of it is sent in one."""
        lease = visit.lease
        assert lease is not None
        lease.starts.clear()
        _found(lease, None)  # it may have been read all the same
        self._go_on(visit, lease, now)

    def first_token(self, visit: Visit, now: float) -> None:
        """The engine has read the prompt and generates."""
        if visit.first_token_at is None and visit.lease is not None:
            visit.first_token_at = now
            lease = visit.lease
            if lease.is_reading:
                self._learn_pace(visit, lease, now - lease.placed_at)
            lease.read(now)
            self._freed.add(lease.replica.name)
            if self.news is not None:
                self.news.read(lease, now)

    def failed(self, visit: Visit, now: float, *, all_ranks: bool = True) -> None:
        """The replica did not serve the request; it may be placed again.

        Args:
            visit: the request.
            now: the time.
            all_ranks: it would have been the same with another rank at that URL, so none of them is tried.
        """
        lease = visit.lease
        if lease is not None:
            if all_ranks:
                visit.shunned.add(lease.replica.url)
            lease.release(now)
            self._freed.add(lease.replica.name)
            self._unread(visit, lease)
            if self.news is not None:
                self.news.ended(lease, now, was_read=False)

    def carried(self, visit: Visit, replica: str, now: float) -> Lease | None:
        """Who carries the request has taken it to another replica than it was placed at: it is booked there.

        None where that is not one that it could have gone to; then nobody knows where it is.
        """
        self.failed(visit, now, all_ranks=False)
        decision = self.choice.rank(visit, now, everywhere=True)
        ranked = () if decision is None else decision.ranked
        chosen = next((each for each in ranked if each.candidate.replica == replica), None)
        return None if decision is None or chosen is None else self._book(visit, decision, chosen, now)

    def finish(
        self, visit: Visit, now: float, *, outcome: str, status: int | None, usage: Usage | None = None
    ) -> Record:
        """The request has ended, whichever way: give everything back, learn, and say what happened.

        Args:
            visit: the request.
            now: the time of its end.
            outcome: one of `record.OUTCOMES`.
            status: what the client was answered; None when it left before.
            usage: the engine's report; None when it gave none.
        """
        lease = visit.lease
        self.give_up(visit, now)
        usage = self._complete(visit, usage)
        if lease is not None and lease.found is not None and not _all_there(lease.found):
            # What its starts have read was not there when it came.
            usage = replace(usage, cached_tokens=self._complete(visit, lease.found).cached_tokens)
        record = self._record(visit, now, outcome, status, usage)
        was_read = visit.first_token_at is not None or outcome == "ok" or usage.prompt_tokens is not None
        self._give_back(visit, now, was_read=was_read, is_ok=outcome == "ok", usage=usage)
        if lease is not None and self.news is not None:
            self.news.ended(lease, now, was_read=was_read, is_ok=outcome == "ok", usage=usage)
        return record

    def _give_back(self, visit: Visit, now: float, *, was_read: bool, is_ok: bool, usage: Usage) -> None:
        """Free its place, and learn from what the engine reported; of a place that it has left, nobody has."""
        lease, turn = visit.lease, visit.turn
        if lease is not None and lease.open:
            lease.release(now)
            self._freed.add(lease.replica.name)
            if was_read:
                if visit.first_token_at is None and is_ok:
                    # Nobody saw when it had been read; it was not before so long.
                    self._learn_pace(visit, lease, now - lease.placed_at, at_most=True)
                self._learn(visit, lease, usage, now)
            else:
                self._unread(visit, lease)
        if turn is not None:
            if not was_read:
                self.conversations.withdraw(turn)
            self.conversations.finish(turn, now)

    # -- a peer's request ---------------------------------------------------------------------------------------------

    def follow(
        self, arrival: Arrival, replica: str, now: float, *, conversation: int = 0, turn: int = 0, paid_s: float = 0.0
    ) -> Visit:
        """A peer has placed a request: it is taken in, and booked where it went. `first_token` and `conclude` as they come.

        One that comes later than the next turn of its conversation counts as load, and for nothing else.

        Args:
            arrival: the request.
            replica: where it went, by name.
            now: when.
            conversation: whose turn it is, by the peer's word...
            turn: ...and which.
            paid_s: what its entry cost of the allowance.
        """
        self._tidy(now)
        visit, sighting = self._recognise(arrival, now)
        if (
            sighting is not None
            and visit.identity is not None
            and _is_past(sighting, visit.identity, conversation, turn)
        ):
            visit.usable = visit.identity = None
        else:
            self._take_in(visit, sighting, now)
        self.admission.charge(replica, paid_s)
        candidate = next(self.offers.candidates(visit, [self.fleet[replica]], {}, now, harm=False))
        chosen = Scored(candidate, 0.0)
        self._book(visit, Decision((chosen,), "affinity"), chosen, now, of_peer=True, paid_s=paid_s)
        return visit

    def conclude(self, visit: Visit, now: float, *, was_read: bool, is_ok: bool, usage: Usage) -> None:
        """A peer's request has ended, and this is what its engine reported."""
        self._give_back(visit, now, was_read=was_read, is_ok=is_ok, usage=self._complete(visit, usage))

    # -- replicas ---------------------------------------------------------------------------------------------------

    def add(self, replica: Replica) -> None:
        """Take a replica into the fleet."""
        self.fleet.add(replica)
        self.beliefs[replica.name] = Belief(replica.pools, self.evictions, replica.name)

    def remove(self, name: str) -> None:
        """Let a replica go, with all that was believed of it."""
        self.fleet.remove(name)
        self._forget(name)
        del self.beliefs[name]
        self.feeds.pop(name, None)

    def resize(self, name: str, *, configured: Pools | None = None, reported: Pools | None = None) -> bool:
        """A replica's cache is said to be of another size, by the configuration or by itself; True if that is news."""
        replica = self.fleet[name]
        before = replica.pools
        replica.configured = replica.configured if configured is None else configured
        replica.reported = replica.reported if reported is None else reported
        if replica.pools == before:
            return False
        self.beliefs[name].resize(replica.pools)
        return True

    def loaded(self, name: str, load: Load, now: float) -> None:
        """A replica's engine has said what runs and waits there, whoever sent it."""
        replica, belief = self.fleet[name], self.beliefs[name]
        # Many short prompts or a long one: nobody says which, so what grows with a prompt's length is not counted.
        wait_s = belief.pace.factor * self.policy.reading.linear_s * (load.waiting_tokens or 0)
        replica.others.told(load, self._ours(replica, belief), wait_s, now)

    def change_policy(self, policy: Policy) -> None:
        """Decide by other rules and costs from now on; all that is known and under way stays."""
        self.policy = self.offers.policy = policy
        self.admission.terms = policy.terms
        self.conversations.living_s = policy.living_s
        for belief in self.beliefs.values():
            belief.version += 1  # what things cost may have changed

    def probed(self, url: str, now: float, *, error: str | None, refused: bool = False) -> list[Replica]:
        """Take in what was found out at a URL by a probe, or by a request that failed to connect.

        Returns those that are there whose state changed. Where nobody listens, all of them have lost their caches.
        """
        for each in self.fleet.at(url) if refused else ():
            self._forget(each.name)
        return self.fleet.probed(url, now, error=error, refused=refused)

    def restarted(self, replica: str) -> None:
        """A replica has lost its cache, and so have all ranks at its URL: they are one engine."""
        if replica in self.fleet.replicas:  # it may have been removed meanwhile
            for each in self.fleet.at(self.fleet[replica].url):
                self._forget(each.name)

    def heard(
        self, replica: str, number: int | None, events: Sequence[Event] | None, now: float, *, source: Source = "live"
    ) -> None:
        """A replica's feed has a message; see `Feed.take`."""
        feed = self.feeds.get(replica)
        if feed is None:
            return  # it has been removed meanwhile
        for effect in feed.take(number, events, now, source=source):
            if isinstance(effect, Cut):
                if feed.chains.has_copies or not self.fleet[replica].pools.host:
                    feed.cut_tokens += self.beliefs[replica].evicted(
                        effect.blocks, effect.left_tokens, is_first=effect.is_first
                    )
            elif effect == "cleared":
                self.beliefs[replica].restarted()
            else:
                self.restarted(replica)

    def resident_tokens(self, replica: str) -> int:
        """Tokens that a replica is believed to hold."""
        return self.beliefs[replica].cache.tokens

    @property
    def memory_bytes(self) -> int:
        """What beliefs and conversations take, estimated."""
        return self.conversations.cost_bytes + sum([belief.cache.cost_bytes for belief in self.beliefs.values()])

    # -- inside -----------------------------------------------------------------------------------------------------

    def _forget(self, replica: str) -> None:
        """What a replica held is gone."""
        self.beliefs[replica].restarted()
        if replica in self.fleet.replicas:
            self.fleet[replica].others.forget()
        # It may have come back with other flags: whether it reports what it reuses has to be seen anew.
        self._reports_cached = {reporter for reporter in self._reports_cached if reporter[0] != replica}

    def _is_here(self, replica: Replica) -> bool:
        """Whether a replica is still in the fleet, and not another under its name."""
        return self.fleet.replicas.get(replica.name) is replica

    def _recognise(self, arrival: Arrival, now: float) -> tuple[Visit, Sighting | None]:
        """A request as it will be, but for its turn, and what is known of its prompt; None without one. Changes nothing."""
        known_prompt = arrival.fingerprint
        if known_prompt is None or not known_prompt.usable.hashes:
            return Visit(arrival, now, int(arrival.body_bytes / TokenRatios.DEFAULT)), None
        chain = known_prompt.identity
        ratio = self.ratios.bytes_per_token(arrival.model)
        # Recognising needs no lengths in tokens, and the conversation is what tells them best.
        sighting = self.conversations.recognise(
            Blocks(chain.hashes, chain.ends), chain.head, preamble=chain.preamble, hint=arrival.hint
        )
        known = sighting.conversation
        tokens = scale(known or sighting.parent, ratio)
        usable = in_tokens(known_prompt.usable, tokens)
        identity = usable if chain is known_prompt.usable else in_tokens(chain, tokens)
        shared = self.conversations.sharing(identity, sighting)
        ended_before = known is not None and 0 < known.depth <= sighting.match.depth
        visit = Visit(
            arrival,
            now,
            max(1, *tokens([known_prompt.usable.size_bytes])),
            usable=usable,
            identity=identity,
            left_inside=_ends_inside(sighting.match) and not ended_before,
            in_parallel=(sighting.returning is None and sighting.parent is not None)
            or (known is not None and known.running > 0),
            holders=_holders(sighting.match),
            cuts=tokens(arrival.cuts),
            shared=shared,
            shared_tokens=max([0, *(end for end, conversations in shared if conversations > 1)]) if shared else 0,
        )
        return visit, sighting

    def _hold(self, visit: Visit, now: float) -> None:
        visit.held_since = now
        self.admission.hold(visit, self.choice.home(visit), now)

    def _book(
        self,
        visit: Visit,
        decision: Decision,
        chosen: Scored,
        now: float,
        *,
        of_peer: bool = False,
        paid_s: float = 0.0,
    ) -> Lease:
        if chosen.candidate.replica != decision.chosen.candidate.replica:
            others = [each for each in decision.ranked if each.candidate.replica != chosen.candidate.replica]
            decision = replace(decision, ranked=(chosen, *others), reason="room")
        candidate = chosen.candidate
        replica, belief = self.fleet[candidate.replica], self.beliefs[candidate.replica]
        reason = "retry" if visit.tried else "fail_open" if replica.state is State.DOWN else decision.reason
        ahead_s = replica.ahead_s(now)
        lease = Lease(
            replica,
            belief,
            chosen,
            reason,
            candidate.read_s,
            placed_at=now,
            read_at=now + ahead_s + candidate.read_s,
            is_cold=candidate.read_s > self.policy.terms.cold_s,
            alone=not replica.all_in_flight and not replica.others.at(now).requests,
            shows_first=visit.arrival.stream,
            read_tokens=candidate.matched_tokens,
            of_peer=of_peer,
            paid_s=paid_s,
        )
        if lease.is_cold and not of_peer and self.policy.slice_s is not None:
            read_s = partial(self.offers.read_s, belief)
            lease.starts.extend(starts(visit.cuts, lease.read_tokens, visit.prompt_tokens, read_s, self.policy.slice_s))
        before = self._ours(replica, belief) if of_peer else NOBODY
        replica.sent(now, by_peer=of_peer)
        # Whoever comes meanwhile waits for the start that is being read, and no longer.
        replica.line_up(lease, lease.starts[0].read_s if lease.starts else candidate.read_s, now)
        visit.decision, visit.lease = decision, lease
        visit.tried.append(replica.name)
        if visit.usable is not None and visit.turn is not None:
            here = belief.outlook(visit.usable, visit.prompt_tokens)
            lease.believed_depth = here.found.depth
            lease.clues = clues_of(visit, replica.name, here, self.beliefs)
            lease.sought = belief.sought(here)
            # Booked before it is read: whoever comes next with the same prefix will find it there.
            lease.cache = belief.cache
            lease.seat = belief.book(visit.usable, visit.prompt_tokens, visit.turn.conversation, now, here)
            self.conversations.settle(visit.turn.conversation, replica.name)
            visit.turn.conversation.life = belief.life
        ours = self._ours(replica, belief)
        replica.others.booked(ours)
        if of_peer:
            replica.others.recognised(ours.beyond(before), now)
            return lease
        if self.on_placed is not None:
            self.on_placed(visit, now)
        if self.news is not None:
            self.news.placed(visit)
        return lease

    def _go_on(self, visit: Visit, lease: Lease, now: float) -> None:
        """What comes next of a prompt is sent, to the end of the queue: the engine takes up first who came meanwhile."""
        replica, left_s = lease.replica, self.offers.read_s(lease.belief, lease.read_tokens, visit.prompt_tokens)
        lease.read(now)
        lease.read_at = now + replica.ahead_s(now) + left_s
        replica.line_up(lease, lease.starts[0].read_s if lease.starts else left_s, now)
        replica.others.booked(self._ours(replica, lease.belief))
        self.offers.changed(replica.name)

    def _ours(self, replica: Replica, belief: Belief) -> Share:
        """What we have at a replica, we and our peers."""
        cache = belief.cache
        return Share(replica.all_in_flight, replica.queue_s, cache.held_tokens + cache.private_tokens)

    def _unread(self, visit: Visit, lease: Lease) -> None:
        """The replica never read the prompt to its end.

        It holds no more of it than it did, than the starts that it has read, or than others have sent it since.
        """
        if visit.usable is not None:
            cache = lease.belief.cache
            lease.belief.version += 1
            read = bisect_right(visit.usable.ends, lease.read_tokens)
            used = cache.used_depth(visit.usable, lease.placed_at)
            cache.prune(visit.usable, max(lease.believed_depth, read, used))

    def _complete(self, visit: Visit, usage: Usage | None) -> Usage:
        """Fill in what an engine leaves out on purpose.

        SGLang drops `cached_tokens` where a prompt missed completely. Where a replica says of itself that it reports them,
        or has reported the field on an endpoint, its absence from a usage object that has prompt tokens is therefore 0;
        else it is unknown.
        """
        if usage is None or visit.lease is None or not visit.lease.open:
            return usage or Usage()
        reporter = (visit.lease.replica.name, visit.arrival.endpoint)
        if usage.cached_tokens is not None:
            if self._is_here(visit.lease.replica):
                self._reports_cached.add(reporter)
        elif usage.prompt_tokens is not None and (
            reporter in self._reports_cached
            or (visit.lease.replica.pools.reports_cached and visit.arrival.endpoint in _REPORTED_ON)
        ):
            return usage.merged(Usage(cached_tokens=0))
        return usage

    def _learn_pace(self, visit: Visit, lease: Lease, took_s: float, *, at_most: bool = False) -> None:
        """A prompt that was sent whole has been read in so long, or, with others before it, in no longer than that."""
        if lease.found is not None or (visit.usable is None and visit.arrival.fingerprint is not None):
            return
        expected_s = self.policy.reading.seconds(lease.scored.candidate.matched_tokens, visit.prompt_tokens)
        if lease.belief.pace.learn(expected_s, took_s, at_most=at_most or not lease.alone):
            # Replicas of one fleet are mostly of one kind: what nothing is known of is taken for one of them.
            paces = [belief.pace for belief in self.beliefs.values()]
            known = [pace.factor for pace in paces if pace.is_known]
            if known:
                usual = median(known)
                for pace in paces:
                    pace.expect(usual)

    def _learn(self, visit: Visit, lease: Lease, usage: Usage, now: float) -> None:
        if visit.usable is None or visit.turn is None or visit.arrival.fingerprint is None:
            return
        conversation = visit.turn.conversation
        if usage.prompt_tokens:
            size_bytes = visit.arrival.fingerprint.usable.size_bytes
            self.ratios.learn(visit.arrival.model, size_bytes, usage.prompt_tokens)
            conversation.prompt_bytes = size_bytes
            conversation.prompt_tokens = usage.prompt_tokens
            self.conversations.measure(conversation, usage.prompt_tokens)
        feed = self.feeds.get(lease.replica.name)
        if feed is not None and usage.prompt_tokens and self._is_here(lease.replica):
            # Whether nothing was cached, where that was not reported, its blocks will show.
            feed.ran(Ran(visit.usable, usage.prompt_tokens, usage.cached_tokens or 0, lease.placed_at), now)
        if usage.cached_tokens is not None and lease.sought is not None:
            cause = None if lease.clues is None else lease.clues.cause(usage.cached_tokens)
            lease.belief.report(
                visit.usable,
                visit.prompt_tokens,
                sought=lease.sought,
                cached_tokens=usage.cached_tokens,
                owner=conversation,
                now=now,
                lost_to="token_pool"
                if cause == "token_pool"
                else "snapshot_pool"
                if cause == "snapshot_pool"
                else None,
                answer_tokens=usage.completion_tokens or 0,
            )

    def _record(self, visit: Visit, now: float, outcome: str, status: int | None, usage: Usage) -> Record:
        arrival, lease, turn = visit.arrival, visit.lease, visit.turn
        reusable = None if turn is None else turn.blocks.tokens(turn.known_depth)
        return Record(
            request_id=arrival.request_id,
            endpoint=arrival.endpoint,
            conversation=None if turn is None else short(turn.conversation.id),
            turn=visit.number,
            model=arrival.model,
            stream=arrival.stream,
            replica=None if lease is None else lease.replica.name,
            reason=None if lease is None else lease.reason,
            costs={} if lease is None else lease.scored.costs,
            prompt_bytes=arrival.body_bytes,
            estimated_tokens=visit.prompt_tokens,
            matched_tokens=None if lease is None or visit.usable is None else lease.scored.candidate.matched_tokens,
            best_matched_tokens=None
            if lease is None or visit.usable is None or visit.decision is None
            else visit.decision.best_matched_tokens,
            reusable_tokens=reusable,
            usage=usage,
            held_s=visit.held_s,
            would_hold=visit.would_hold,
            moved=lease is not None and turn is not None and turn.home_before not in {None, lease.replica.name},
            clues=None if lease is None else lease.clues,
            confined_tokens=_confined_tokens(visit),
            ttft_s=None if visit.first_token_at is None else visit.first_token_at - visit.arrived_at,
            duration_s=now - visit.arrived_at,
            slices=0 if lease is None else lease.slices,
            attempts=len(visit.tried),
            outcome=outcome,
            status=status,
            probe=arrival.probe,
        )

    def _tidy(self, now: float) -> None:
        """Let go of what is old, and of what is least used when memory is short."""
        for _ in self.conversations.expire(now):
            self.returns.gave_up()
        self._untidied += 1
        if self._untidied * _TIDIED_AT_ONCE < len(self.beliefs):
            return
        self._untidied = 0
        if self._used_since < now - self.policy.horizon_s:
            for belief in self.beliefs.values():
                belief.expire(now - self.policy.horizon_s)
            self._used_since = min([now, *(_oldest_at(belief.cache) for belief in self.beliefs.values())])
        while self.memory_bytes > self.policy.memory_bytes and self._forget_something():
            pass

    def _forget_something(self) -> bool:
        """Forget the run of blocks that was used least recently, whether the history or a belief has it."""
        history = self.conversations.history
        belief = min(self.beliefs.values(), key=lambda belief: _oldest_at(belief.cache), default=None)
        if belief is not None and _oldest_at(belief.cache) >= _oldest_at(history):
            belief = None
        if (history if belief is None else belief.cache).oldest_is_held:
            self.conversations.forget_oldest()
        return history.evict_one() if belief is None else belief.forget_least_used()


def _oldest_at(cache: PrefixCache) -> float:
    return math.inf if cache.oldest_at is None else cache.oldest_at


def _found(lease: Lease, usage: Usage | None) -> None:
    """A start has been read, or may have been: what the next one finds was there before only if this one was whole."""
    if lease.found is None or _all_there(lease.found):
        lease.found = usage or Usage()


def _all_there(usage: Usage) -> bool:
    """Whether an engine held all of a prompt, but for what no engine reuses."""
    return bool(usage.prompt_tokens) and (usage.cached_tokens or 0) >= WARM_RATIO * (usage.prompt_tokens or 0)


def _ends_inside(match: Match) -> bool:
    """Whether a prompt leaves what was sent before inside of an earlier prompt."""
    node = match.node
    return node is not None and (match.depth - match.above < len(node.hashes) or bool(node.children))


def _holders(match: Match) -> list[str]:
    """Homes of the conversations that a prompt has a beginning in common with, of the longest first."""
    path = () if match.node is None else islice(match.node.path(), _MOST_HOLDERS)
    owners = [node.owner for node in path]
    return list(
        dict.fromkeys([each.home for each in owners if isinstance(each, Conversation) and each.home is not None])
    )


def _is_past(sighting: Sighting, blocks: Blocks, conversation: int, turn: int) -> bool:
    """Whether this turn of that conversation is known to have had a later one, which went on from it."""
    owner = None if sighting.match.node is None else sighting.match.node.owner
    if not isinstance(owner, Conversation) or owner.id != conversation or owner.turn < turn:
        return False
    return sighting.match.depth == len(blocks) < owner.depth


def _confined_tokens(visit: Visit) -> int:
    """Tokens of other living long conversations beside which `long_prompt` put this one, where they do not all fit."""
    if visit.decision is None or LONG_PROMPT not in visit.decision.rules:
        return 0
    candidate = visit.decision.chosen.candidate
    fits = candidate.pool_tokens is not None and candidate.long_tokens + visit.prompt_tokens <= candidate.pool_tokens
    return 0 if fits else candidate.long_tokens
