"""What is sent: the same shapes of traffic to each proxy, with bodies that are new in every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from benchmarks.proxy.load import Bodies, Body

_WORDS = b"the of and to in is that it for was on are as with they be at one have this from or had by not but some what"
_LONG_TURN_BYTES = 10_000
_END = b"]}"

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One shape of traffic."""

    about: str
    workers: int
    bodies: Bodies
    pause_s: float = 0.0
    """Between an answer and a worker's next request."""


class Corpus:
    """Text without end, cut out of a megabyte of words."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        words = _WORDS.split()
        self._text = b" ".join(self.random.choices(words, k=500_000))

    def text(self, size: int) -> bytes:
        """So many bytes that were nowhere before."""
        start = self.random.randrange(len(self._text) - 100_000)
        pieces = [b"%x " % self.random.getrandbits(64)]
        while size > 0:
            pieces.append(self._text[start : start + min(size, 100_000)])
            size -= 100_000
            start = self.random.randrange(len(self._text) - 100_000)
        return b"".join(pieces)


class Conversation:
    """A prompt that grows turn by turn."""

    def __init__(
        self, corpus: Corpus, *, chunks: int, gap_us: int = 0, stream: bool = False, system: bytes = b""
    ) -> None:
        options = b'"stream":true,"stream_options":{"include_usage":true}' if stream else b'"stream":false'
        self._corpus = corpus
        self.body = bytearray(
            b'{"model":"mock","max_tokens":%d,"seed":%d,"top_k":%d,%b,"messages":['
            % (chunks, gap_us, next(_numbers), options)
        )
        if system:
            self.body += b'{"role":"system","content":"%b"},' % system
        self.body += b'{"role":"user","content":"%b"}' % corpus.text(100)

    def grow(self, size: int) -> None:
        """An answer, and what the user says to it."""
        for role, part in ((b"assistant", size // 5), (b"user", size * 4 // 5)):
            self.body += b',{"role":"%b","content":"%b"}' % (role, self._corpus.text(part))

    @property
    def pieces(self) -> Body:
        """As a request's body."""
        return [bytes(self.body), _END]


def scenario(name: str, corpus: Corpus) -> Scenario:
    """A scenario by its name; `longN` has bodies of N KB.

    Raises:
        KeyError: there is none of that name.
    """
    if name.startswith("long") and name[4:].isdigit():
        return Scenario(f"a conversation of {name[4:]} KB and more", 4, _long(corpus, int(name[4:]) * 1_000))
    one = ones(corpus, chunks=16)
    return {
        "lone": Scenario("one small request at a time", 1, one),
        "small": Scenario("small requests", 16, one),
        "stream0": Scenario("200 chunks in bursts", 16, ones(corpus, chunks=200, stream=True)),
        "stream10": Scenario("chunks 10 ms apart", 64, ones(corpus, chunks=100, gap_us=10_000, stream=True)),
        "agent": Scenario("agents of four apps", 12, _agents(corpus)),
        "stall": Scenario("streams while 1.2 MB prompts come", 36, _stall(corpus)),
    }[name]


def ones(corpus: Corpus, *, chunks: int, gap_us: int = 0, stream: bool = False) -> Bodies:
    """Conversations of one small turn."""

    def bodies(_: int) -> Iterator[Body]:
        while True:
            one = Conversation(corpus, chunks=chunks, gap_us=gap_us, stream=stream)
            one.grow(600)
            yield one.pieces

    return bodies


def _long(corpus: Corpus, size: int) -> Bodies:
    def bodies(_: int) -> Iterator[Body]:
        while True:
            one = Conversation(corpus, chunks=16)
            while len(one.body) < size:
                one.grow(_LONG_TURN_BYTES)
            for _ in range(8):
                yield one.pieces
                one.grow(_LONG_TURN_BYTES)

    return bodies


def _agents(corpus: Corpus) -> Bodies:
    """Two conversations a worker, of apps that have a system prompt of 68 KB each; a fifth of the calls are small."""
    systems = [corpus.text(68_000) for _ in range(4)]
    small = ones(corpus, chunks=16)

    def bodies(worker: int) -> Iterator[Body]:
        talks: list[Conversation | None] = [None, None]
        for others in small(worker):
            if corpus.random.random() < 0.2:
                yield others
                continue
            which = corpus.random.randrange(2)
            talk = talks[which]
            is_large = worker < 2 and which == 0
            if talk is None or len(talk.body) > (1_200_000 if is_large else 400_000):
                talk = talks[which] = Conversation(
                    corpus, chunks=40, gap_us=2_000, stream=True, system=systems[worker % 4]
                )
                start = 1_000_000 if is_large else corpus.random.randrange(70_000, 270_000)
                while len(talk.body) < start:
                    talk.grow(8_000)
            else:
                talk.grow(corpus.random.randrange(4_000, 12_000))
            yield talk.pieces

    return bodies


def _stall(corpus: Corpus) -> Bodies:
    streams = ones(corpus, chunks=100, gap_us=10_000, stream=True)
    longs = _long(corpus, 1_200_000)
    return lambda worker: streams(worker) if worker < 32 else longs(worker)
