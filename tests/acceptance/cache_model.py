"""Ramjet's cache model beside a real SGLang: the same requests to both, and what each says of what was reused.

`Traffic` makes the requests, `Settings` says how an engine is started and what model stands for it, `Model` predicts.
A character is a token here; the chat template's marks are single characters too, which no message contains.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import xxhash

from ramjet.core.cache import Blocks, CacheSpec, EngineCache, Snapshots
from ramjet.sim.engine import Engine as SimulatedEngine
from ramjet.sim.engine import Job
from ramjet.sim.profile import Profile, Timing

START, END = "\x01", "\x02"
"""The chat template's marks, a token each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an engine is started, and the cache that it should have then."""

    name: str
    about: str
    model: str
    flags: tuple[str, ...]
    cache: CacheSpec
    max_running: int = 8
    long_tokens: tuple[int, int] = (4_000, 9_000)
    """The shortest and the longest of the long prompts."""


def _states(**facts: Any) -> Snapshots:
    """The habits of 0.5.23."""
    return Snapshots(**({"cap_first": False, "chain_with_kv": False, "hands_over": True} | facts))


def _no_buffer(*, slots: int, per_path: int | None = None) -> Snapshots:
    """One slot for the live state, which is copied at every forward's end; there are no others to write into."""
    return _states(slots=slots, per_path=per_path, grid_tokens=1, private=1)


_HYBRID_POOL, _SMALL_POOL = 131_072, 12_000

_EXTRA_BUFFER = Settings(
    name="extra_buffer",
    about="hybrid, `extra_buffer`, track interval 64, 40 slots, chunks of 512",
    model="qwen3_next",
    flags=(
        *("--max-mamba-cache-size", "40", "--max-running-requests", "4", "--chunked-prefill-size", "512"),
        *("--mamba-radix-cache-strategy", "extra_buffer", "--mamba-track-interval", "64"),
    ),
    cache=CacheSpec(
        pool_tokens=_HYBRID_POOL,
        page_tokens=1,
        chunk_tokens=512,
        cut_is_use=True,
        snapshots=_states(slots=40, grid_tokens=64, private=2),
    ),
    max_running=4,
)

SETTINGS = {
    each.name: each
    for each in (
        Settings(
            name="attention",
            about="attention layers alone, a token pool of 12,000, chunks of 512",
            model="llama",
            flags=("--max-total-tokens", str(_SMALL_POOL), "--chunked-prefill-size", "512"),
            cache=CacheSpec(pool_tokens=_SMALL_POOL, page_tokens=1, chunk_tokens=512, cut_is_use=True),
        ),
        Settings(
            name="no_buffer",
            about="hybrid, `no_buffer`, 28 slots, chunks of 256",
            model="qwen3_next",
            flags=("--max-mamba-cache-size", "28", "--max-running-requests", "4", "--chunked-prefill-size", "256"),
            cache=CacheSpec(
                pool_tokens=_HYBRID_POOL,
                page_tokens=1,
                chunk_tokens=256,
                cut_is_use=True,
                snapshots=_no_buffer(slots=28),
            ),
            max_running=4,
        ),
        Settings(
            name="no_buffer_cap",
            about="hybrid, `no_buffer`, 28 slots, at most 4 snapshots per path, chunks of 256",
            model="qwen3_next",
            flags=(
                *("--max-mamba-cache-size", "28", "--max-running-requests", "4", "--chunked-prefill-size", "256"),
                *("--mamba-max-states-per-path", "4"),
            ),
            cache=CacheSpec(
                pool_tokens=_HYBRID_POOL,
                page_tokens=1,
                chunk_tokens=256,
                cut_is_use=True,
                snapshots=_no_buffer(slots=28, per_path=4),
            ),
            max_running=4,
        ),
        _EXTRA_BUFFER,
        replace(
            _EXTRA_BUFFER,
            name="both_short",
            about="hybrid, `extra_buffer`, track interval 64, 40 slots, a token pool of 12,000, chunks of 512",
            flags=(*_EXTRA_BUFFER.flags, "--max-total-tokens", str(_SMALL_POOL)),
            cache=replace(_EXTRA_BUFFER.cache, pool_tokens=_SMALL_POOL),
        ),
    )
}


# -- the traffic -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Talk:
    """A conversation: what it has said so far, and how it is sent."""

    is_chat: bool
    messages: list[tuple[str, str]] = field(default_factory=list)
    """Role and text, of a chat."""
    text: str = ""
    """The whole of it, where it is no chat."""

    def copy(self) -> Talk:
        """One that can go another way."""
        return Talk(self.is_chat, list(self.messages), self.text)

    def says(self, text: str) -> None:
        """Its next message."""
        if self.is_chat:
            self.messages.append(("user", text))
        else:
            self.text += text

    def hears(self, reply: str) -> None:
        """The answer, which is a part of it from now on."""
        if self.is_chat:
            self.messages.append(("assistant", reply))
        else:
            self.text += reply

    def rendered(self) -> str:
        """Its prompt, a character a token."""
        if not self.is_chat:
            return self.text
        said = "".join(f"{START}{role}\n{text}{END}\n" for role, text in self.messages)
        return f"{said}{START}assistant\n"

    def body(self) -> tuple[str, dict[str, Any]]:
        """Where it is sent, and how."""
        if not self.is_chat:
            return "/v1/completions", {"prompt": self.text}
        return "/v1/chat/completions", {"messages": [{"role": role, "content": text} for role, text in self.messages]}


@dataclass(slots=True)
class Ask:
    """A request."""

    kind: str
    talk: Talk
    prompt: str
    max_tokens: int
    reply: str = ""

    @property
    def path(self) -> str:
        """Where it is sent."""
        return self.talk.body()[0]


class Traffic:
    """Agents' requests in small: the same for equal seeds and equal answers."""

    SYSTEM_TOKENS = (180, 700, 1_900)
    TALKS = 14
    """Conversations that may go on; the others are over."""

    def __init__(self, seed: int, long_tokens: tuple[int, int]) -> None:
        self._chance = Random(seed)
        self._long_tokens = long_tokens
        self._systems = [self._words(tokens) for tokens in self.SYSTEM_TOKENS]
        self._talks: list[Talk] = []
        """Who spoke last stands last."""

    def next(self, at_once: int = 1) -> list[Ask]:
        """The next requests, of different conversations; to be sent together."""
        asks: list[Ask] = []
        while len(asks) < at_once:
            ask = self._ask()
            if all(ask.talk is not other.talk for other in asks):
                asks.append(ask)
        return asks

    def heard(self, ask: Ask, reply: str) -> None:
        """What was answered."""
        ask.reply = reply
        ask.talk.hears(reply)
        if ask.talk in self._talks:
            self._talks.remove(ask.talk)
        self._talks = [*self._talks[-self.TALKS + 1 :], ask.talk]

    def _ask(self) -> Ask:
        chance = self._chance
        kinds = {"open": 14, "turn": 52, "branch": 10, "again": 8, "edit": 5, "old": 6, "long": 5}
        kind = chance.choices(list(kinds), list(kinds.values()))[0] if self._talks else "open"
        talk = getattr(self, f"_{kind}")()
        return Ask(kind, talk, talk.rendered(), self._answer_tokens())

    def _answer_tokens(self) -> int:
        return self._chance.choice((1, 1, 2, 5, 12, 12, 20, 33, 48, 80))

    def _open(self) -> Talk:
        """A new conversation, most with one of a few system prompts."""
        talk = Talk(is_chat=self._chance.random() < 0.4)
        system = self._chance.choice([*self._systems, ""])
        if talk.is_chat and system:
            talk.messages.append(("system", system))
        elif system:
            talk.text = system
        talk.says(self._words(self._chance.choice((40, 130, 300, 513, 900, 1_500))))
        return talk

    def _recent(self) -> Talk:
        """A conversation; the last ones more likely."""
        weights = [1.3**place for place in range(len(self._talks))]
        return self._chance.choices(self._talks, weights)[0]

    def _turn(self) -> Talk:
        talk = self._recent().copy()
        talk.says(self._words(self._chance.choice((8, 25, 64, 120, 250, 420))))
        return talk

    def _old(self) -> Talk:
        """One comes back after a pause."""
        talk = self._talks[0].copy()
        talk.says(self._words(self._chance.choice((20, 200))))
        return talk

    def _branch(self) -> Talk:
        """A conversation goes another way from somewhere in it, in the middle of a message as well."""
        talk = self._recent().copy()
        if talk.is_chat:
            del talk.messages[self._chance.randrange(len(talk.messages)) + 1 :]
            if talk.messages[-1][0] == "user":
                role, text = talk.messages.pop()
                talk.messages.append((role, text[: self._chance.randint(1, len(text))] + self._words(60)))
            else:
                talk.says(self._words(60))
        else:
            talk.text = talk.text[: self._chance.randint(1, len(talk.text))]
            talk.says(self._words(self._chance.choice((30, 300, 700))))
        return talk

    def _again(self) -> Talk:
        """A prompt is sent again, as after an error, or without its last answer."""
        talk = self._recent().copy()
        if talk.is_chat:
            talk.messages.pop()
        else:
            talk.text = talk.text[: -self._chance.randint(1, 40)] or "a"
        return talk

    def _edit(self) -> Talk:
        """Something near the head changes from one turn to the next."""
        talk = self._recent().copy()
        at = self._chance.randint(0, 60)
        if talk.is_chat:
            role, text = talk.messages[0]
            talk.messages[0] = (role, text[:at] + "#" + text[at + 1 :])
            talk.says(self._words(30))
        else:
            talk.text = talk.text[:at] + "#" + talk.text[at + 1 :] + self._words(30)
        return talk

    def _long(self) -> Talk:
        """One that takes the room of several others."""
        talk = Talk(is_chat=False)
        talk.text = self._words(self._chance.randint(*self._long_tokens))
        return talk

    def _words(self, tokens: int) -> str:
        letters = self._chance.choices("abcdefghijklmnopqrstuvwxyz ", k=tokens)
        return "".join(letters)


# -- the model -------------------------------------------------------------------------------------------------------


class Tokens:
    """A prompt's tokens as blocks of one each; what was hashed of a prompt before is not hashed again."""

    def __init__(self) -> None:
        self._text, self._hashes = "", array("Q")

    def blocks(self, text: str) -> Blocks:
        """Equal hashes are equal beginnings."""
        known, hashes = self._text, self._hashes
        shared = next((at for at, (one, two) in enumerate(zip(known, text, strict=False)) if one != two), None)
        shared = min(len(known), len(text)) if shared is None else shared
        hashes = hashes[:shared]
        before = hashes[-1] if hashes else 0
        for character in text[shared:]:
            before = xxhash.xxh3_64_intdigest(character.encode(), before)
            hashes.append(before)
        self._text, self._hashes = text, hashes
        return Blocks(hashes[:], array("I", range(1, len(hashes) + 1)))


class Model:
    """A simulated replica that gets the same requests."""

    def __init__(self, settings: Settings) -> None:
        self.engine = SimulatedEngine(
            Profile(
                name=settings.name,
                about=settings.about,
                cache=settings.cache,
                # SGLang reads whatever waits before it writes on.
                timing=Timing(overhead_s=0.0, decode_share=0.0),
                max_running=settings.max_running,
            )
        )
        self._tokens = Tokens()

    @property
    def cache(self) -> EngineCache:
        """What it believes to be cached."""
        assert isinstance(self.engine.cache, EngineCache)
        return self.engine.cache

    def predict(self, prompt: str) -> int:
        """What will be reused of a prompt that is sent now."""
        return self.cache.find(self._tokens.blocks(prompt), len(prompt)).tokens

    def known(self, everything: EngineCache, prompt: str) -> int:
        """What another cache has of a prompt."""
        return everything.find(self._tokens.blocks(prompt), len(prompt)).tokens

    def serve_at_once(self, everything: EngineCache, ask: Ask) -> None:
        """A whole request, in another cache."""
        text = ask.prompt + ask.reply
        everything.serve(self._tokens.blocks(text), len(text), self.engine.now)

    def serve(self, asks: Sequence[Ask]) -> list[int]:
        """Serve requests that came together, to their end; what was reused of each."""
        jobs = [self._job(ask) for ask in asks]
        for job in jobs:
            self.engine.submit(job, self.engine.now)
        while any(job.ended_at is None for job in jobs):
            at = self.engine.next_at
            self.engine.advance(self.engine.now if at is None else at)
        return [job.cached_tokens or 0 for job in jobs]

    def _job(self, ask: Ask) -> Job:
        blocks = self._tokens.blocks(ask.prompt)
        return Job(
            blocks,
            len(ask.prompt),
            len(ask.reply),
            lambda written: self._tokens.blocks(ask.prompt + ask.reply[:written]),
        )


# -- both ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request, what the engine said of it, and what the model had said before."""

    kind: str
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    known_tokens: int
    """What a cache without end would have had of it, at any token."""
    reply: str

    @property
    def off_tokens(self) -> int:
        """How far the prediction was from the truth."""
        return abs(self.cached_tokens - self.predicted_tokens)


Send = Callable[[Ask], tuple[int, int, str]]
"""Sends a request to the engine: its tokens, those that were reused, and the answer."""


def compare(settings: Settings, send: Send, *, turns: int, seed: int, at_once: int = 1) -> Iterator[Turn]:
    """Send both the same requests, so many at a time, and tell what came of each."""
    traffic, model = Traffic(seed, settings.long_tokens), Model(settings)
    everything = EngineCache(CacheSpec(pool_tokens=None, page_tokens=1))
    done = 0
    with ThreadPoolExecutor(at_once) as pool:
        while done < turns:
            asks = traffic.next(at_once)
            before = [model.predict(ask.prompt) for ask in asks]
            known = [model.known(everything, ask.prompt) for ask in asks]
            said = list(pool.map(send, asks))
            for ask, (tokens, _, reply) in zip(asks, said, strict=True):
                assert tokens == len(ask.prompt), f"{ask.kind}: {len(ask.prompt)} characters are {tokens} tokens"
                traffic.heard(ask, reply)
                model.serve_at_once(everything, ask)
            predicted = model.serve(asks)
            # Of several, the first may push out what the others would have found.
            assert at_once > 1 or predicted == before, "looking tells the truth"
            for ask, (tokens, cached, reply), tells, knew in zip(asks, said, predicted, known, strict=True):
                yield Turn(
                    kind=ask.kind,
                    prompt_tokens=tokens,
                    cached_tokens=cached,
                    predicted_tokens=tells,
                    known_tokens=knew,
                    reply=reply,
                )
            done += len(asks)


@dataclass(frozen=True, slots=True)
class Summary:
    """How well a run was predicted."""

    turns: int
    exact_ratio: float
    near_ratio: float
    """Within one chunk."""
    lost: int
    """Turns of which the engine had let something go that it once knew, beyond a chunk."""
    missed: Counter[str]
    """Of each kind of request, those that were not predicted exactly."""


def summarize(turns: Sequence[Turn], settings: Settings) -> Summary:
    """Count what was predicted."""
    chunk = settings.cache.chunk_tokens
    return Summary(
        len(turns),
        sum(not turn.off_tokens for turn in turns) / len(turns),
        sum(turn.off_tokens <= chunk for turn in turns) / len(turns),
        sum(turn.cached_tokens < turn.known_tokens - chunk for turn in turns),
        Counter(turn.kind for turn in turns if turn.off_tokens),
    )


# -- what an engine said once ----------------------------------------------------------------------------------------

RECORDED = Path(__file__).parent / "recorded"
TURNS, SEED = 330, 23


def keep(settings: Settings, turns: Sequence[Turn]) -> None:
    """Write down what the engine said, so that the model can be held against it where there is no engine."""
    said = [[turn.cached_tokens, turn.reply] for turn in turns]
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{settings.name}.json").write_text(json.dumps(said) + "\n", encoding="utf-8")


def recorded(settings: Settings) -> Send:
    """An engine that says what the real one said to the same requests."""
    said = iter(json.loads((RECORDED / f"{settings.name}.json").read_text(encoding="utf-8")))

    def send(ask: Ask) -> tuple[int, int, str]:
        cached, reply = next(said)
        return len(ask.prompt), cached, reply

    return send
