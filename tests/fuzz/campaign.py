"""Send cases by the thousand to a real `ramjet serve`, and check what must hold after each and after all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ramjet.core.prompt import Unreadable, endpoint_of, read
from ramjet.core.splice import ask_for_usage
from tests.fuzz import cases, http1, wire
from tests.fuzz.wire import Engine, Line, Reply
from tests.soak.process import Served, served

CASE_S = 10.0
"""A case that takes longer hangs: each of Ramjet's limits here is 1 s, and the longest way has three of them."""
LINGER_S = 0.01
"""How long a client waits for what may follow an answer, where the frame could be read in two ways."""
MOST_MIB = 160.0
"""Of the process at the end; beliefs are 8 MiB of it."""
MOST_BUSY_BYTES = 64 << 10
"""Of a replica's "busy" Ramjet keeps so much, while it tries another replica."""
_MOST_EXAMPLES = 8
_ON_ONE_LINE = 40
SETTINGS: dict[str, Any] = {
    "beliefs": {"memory_mb": 8},
    "health": {"interval_s": 2.0, "wedged_s": 3600, "delivering_s": 60},
    "limits": {
        "client_idle_s": 1.0,
        "body_gap_s": 1.0,
        "first_byte_s": 1.0,
        "gap_s": 1.0,
        "connect_s": 2.0,
        "drain_s": 1.0,
    },
}
_OWN_CODES = (b"invalid_request_error", b"authentication_error", b"rate_limit_error", b"permission_error", b"api_error")


@dataclass(slots=True)
class Tally:
    """What a campaign found."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    numbers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By kind of fault, what `--only` replays it."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How cases ended."""
    slowest_s: float = 0.0
    slowest: int = 0
    most_mib: float = 0.0
    batches: int = 0
    interrupted: bool = False

    def blame(self, kind: str, only: str, example: object) -> None:
        """Something is wrong."""
        self.wrong[kind] += 1
        if len(self.examples[kind]) < _MOST_EXAMPLES:
            self.examples[kind].append(str(example)[:2_000])
            self.numbers[kind].append(only)

    @property
    def rate(self) -> float:
        """Cases a second."""
        return self.cases / self.seconds if self.seconds else 0.0


class Player(Protocol):
    """Plays one case on a connection."""

    async def __call__(self, line: Line, number: int, tally: Tally) -> bool:
        """True if the connection can carry another case."""


# -- requests ---------------------------------------------------------------------------------------------------------


_KNOWN_METHODS = frozenset(b"GET HEAD POST PUT PATCH DELETE OPTIONS".split())
"""aiohttp's parser refuses any other with words of its own, before Ramjet sees the request."""


class Requests:
    """Mutated requests to an engine that answers everything."""

    name = "requests"

    def __init__(self, seed: int, engine: Engine) -> None:
        self._seed = seed
        self._engine = engine
        engine.reply = wire.good_reply

    async def __call__(self, line: Line, number: int, tally: Tally) -> bool:
        """Send the case, read what comes, and check it."""
        case = cases.request(self._seed, number)
        blame = partial(tally.blame, only=",".join(map(str, line.cases)))
        await line.write(case.pieces)
        if case.leaves:
            await asyncio.sleep(number % 3 * 0.003)
            tally.kinds["client left"] += 1
            return False
        to_head = case.raw[:5] == b"HEAD " if case.valid is None else case.valid.head.first[0] == b"HEAD"
        try:
            answer = await _read(line, to_head=to_head)
        except http1.Malformed as reason:
            if case.valid is None and case.raw.lstrip(b"\r\n")[:4] in {b"HEAD", b"CONN"}:
                tally.kinds["answer without a body"] += 1
            else:
                blame("an answer that is no HTTP", example=(reason, bytes(line.got.data[:400]), case.raw[:400]))
            return False
        if answer is None:
            kind = "closed without an answer" if line.got.closed else "hang"
            tally.kinds[kind] += 1
            if kind == "hang" or case.valid is not None:
                blame(kind, example=(bytes(line.got.data[:300]), case.raw[:1_000]))
            return False
        ours = b"x-ramjet-replica" in dict(answer.head.fields)
        tally.kinds[f"{answer.head.status} {'from the engine' if ours else 'from Ramjet'}"] += 1
        if answer.head.status == 500:
            blame("status 500", example=(answer, case.raw[:1_000]))
        if case.valid is None:
            await line.more(LINGER_S)
            return False
        self._check(case, case.valid, answer, engine=ours, blame=blame)
        return goes_on(line, answer)

    def _check(
        self,
        case: cases.RequestCase,
        sent: http1.Message,
        answer: http1.Message,
        *,
        engine: bool,
        blame: Callable[..., None],
    ) -> None:
        """What holds for a request that everybody must read alike."""
        key = b"%d" % case.number
        is_named = sent.head.all(b"x-case") == [key]
        if is_named and self._engine.by_case[key, b"fuzz-" + key] > 1:
            blame("one request came to the engine twice", example=case.raw[:1_000])
        if engine and is_named and answer.head.status == 200 and sent.head.first[0] != b"HEAD":
            bodies = {sent.body, _spliced(sent)}
            expected = {wire.good_reply(sent.head, body).pieces[0].partition(b"\r\n\r\n")[2] for body in bodies}
            if answer.body not in expected:
                blame(
                    "the engine got another body, or the client another answer",
                    example=(answer.body, expected, case.raw[:1_000]),
                )
        elif not engine and not _is_own(answer) and sent.head.first[0] in _KNOWN_METHODS:
            blame("a valid request refused without an error of Ramjet's", example=(answer, case.raw[:1_000]))


def _spliced(sent: http1.Message) -> bytes:
    """The body with a request for usage in it, where Ramjet makes one; that this changes nothing else is for `pure`."""
    endpoint = endpoint_of(sent.head.first[1].decode())
    try:
        return b"".join(ask_for_usage(sent.body, read(sent.body, endpoint), endpoint) or (sent.body,))
    except Unreadable:
        return sent.body


def goes_on(line: Line, answer: http1.Message) -> bool:
    """Whether the connection can carry another request; aiohttp closes after what it could not parse, and does not say so."""
    return not (
        line.got.closed
        or b"close" in answer.head.get(b"connection")
        or answer.head.get(b"content-type")[:10] == b"text/plain"
    )


def _is_own(answer: http1.Message) -> bool:
    """Whether it is an answer that Ramjet gives in its own name, and not its HTTP library's."""
    if answer.head.status == 200:
        return True  # health and models
    return not answer.body or any(code in answer.body for code in _OWN_CODES) or b'"status"' in answer.body


async def _read(line: Line, *, to_head: bool) -> http1.Message | None:
    """The next whole answer, taken out of what came; None when it does not come, or not to its end."""
    ends_at = asyncio.get_running_loop().time() + CASE_S
    while True:
        got = line.got
        answer = http1.answer(bytes(got.data), closed=got.closed, to_head=to_head)
        if answer is not None:
            del got.data[: answer.size]
            return answer
        left_s = ends_at - asyncio.get_running_loop().time()
        if got.closed or left_s <= 0 or not await line.more(left_s):
            return None


# -- answers ----------------------------------------------------------------------------------------------------------


class Answers:
    """Good requests to an engine whose answers are mutated."""

    name = "answers"

    def __init__(self, seed: int, engine: Engine) -> None:
        self._seed = seed
        self._engine = engine
        self._cases: dict[bytes, cases.AnswerCase] = {}
        engine.reply = self._reply

    def _reply(self, head: http1.Head, body: bytes) -> Reply:
        case = self._cases.get(head.get(b"x-case"))
        return wire.good_reply(head, body) if case is None else Reply(case.pieces, case.ending)

    async def __call__(self, line: Line, number: int, tally: Tally) -> bool:
        """Ask, read what comes, and check it against what the engine said."""
        case = cases.answer(self._seed, number)
        key = b"%d" % number
        self._cases[key] = case
        try:
            await line.write((case.request,))
            blame = partial(tally.blame, only=",".join(self._engine.before(key)) or str(number))
            try:
                answer = await _read(line, to_head=False)
            except http1.Malformed as reason:
                blame("an answer that is no HTTP", example=(reason, bytes(line.got.data[:600]), case.raw[:600]))
                return False
            blame = partial(tally.blame, only=",".join(self._engine.before(key)) or str(number))
            self._check(case, answer, line, tally, blame)
        finally:
            del self._cases[key]
        return answer is not None and goes_on(line, answer)

    def _check(
        self, case: cases.AnswerCase, answer: http1.Message | None, line: Line, tally: Tally, blame: Callable[..., None]
    ) -> None:
        if answer is None:
            kind = "cut" if line.got.closed else "hang"
            tally.kinds[kind] += 1
            if kind == "hang":
                blame("hang", example=(bytes(line.got.data[:300]), case.raw[:600]))
            elif case.valid is not None:
                blame("a valid answer was cut", example=(bytes(line.got.data[:600]), case.ending, case.pieces))
            return
        engine = b"x-ramjet-replica" in dict(answer.head.fields)
        tally.kinds[f"{answer.head.status // 100}xx {'from the engine' if engine else 'from Ramjet'}"] += 1
        if not engine and answer.head.status == 500:
            blame("status 500", example=(answer, case.raw[:600]))
        if case.valid is None:
            return
        key = b"%d" % case.number
        if not engine and answer.head.status == 502 and not self._engine.by_case[key, b"fuzz-" + key]:
            # What an earlier engine's answer had too much arrived after the connection was given to this request. Nobody
            # can tell that in time; but nobody may take it for this request's answer either.
            tally.kinds["502 for stray bytes of an earlier answer"] += 1
        elif not engine and answer.head.status == 504 and self._spoiled(key):
            # The same, and what came too much was the beginning of a head, of which the answer became a part.
            tally.kinds["504 for stray bytes of an earlier answer"] += 1
        elif not engine or answer.head.status != case.valid.head.status:
            blame("a valid answer was not passed on", example=(answer, case.pieces))
        elif answer.body not in _as_passed_on(case, case.valid):
            blame("another body than the engine's", example=(answer.body[:900], case.pieces))

    def _spoiled(self, key: bytes) -> bool:
        """Whether the answer before this one on its connection was not exactly one answer."""
        before = self._engine.before(key)[:-1]
        return bool(before) and cases.answer(self._seed, int(before[-1])).valid is None


def _as_passed_on(case: cases.AnswerCase, said: http1.Message) -> list[bytes]:
    """What the client may get of a body: all of it, a stream without its usage, the beginning of a long "busy"."""
    bodies = [said.body]
    if case.stream:
        bodies.append(cases.without_usage(said.body))
    if said.head.status in {429, 503}:
        bodies.append(said.body[:MOST_BUSY_BYTES])
    return bodies


# -- both -------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def fuzzed(directory: Path) -> AsyncIterator[tuple[Served, Engine]]:
    """A Ramjet with one engine behind it."""
    async with wire.running(Engine()) as engine:
        settings = SETTINGS | {"replicas": [{"name": "a", "url": engine.url}]}
        async with served(settings, directory) as ramjet:
            yield ramjet, engine


async def run(
    ramjet: Served,
    engine: Engine,
    player: Requests | Answers,
    numbers: range,
    *,
    batch: int,
    lines: int,
    stop: Callable[[], bool] = lambda: False,
    on_case: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Play cases over many connections at once, batch by batch; between two batches all must be well.

    Args:
        ramjet: what is tested.
        engine: behind it.
        player: of the cases.
        numbers: of the cases.
        batch: cases between two looks at the whole.
        lines: connections at once.
        stop: whether to end early; asked between cases.
        on_case: called after each case.
    """
    tally = Tally(player.name)
    began = time.monotonic()
    for start in range(numbers.start, numbers.stop, batch):
        if stop():
            tally.interrupted = True
            break
        waiting = iter(range(start, min(numbers.stop, start + batch)))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(lines, batch)):
                tasks.create_task(_worker(ramjet, player, waiting, tally, stop=stop, on_case=on_case))
        await _between(ramjet, engine, tally, start)
        tally.seconds = time.monotonic() - began
    return tally


async def _worker(
    ramjet: Served,
    player: Player,
    numbers: Iterator[int],
    tally: Tally,
    *,
    stop: Callable[[], bool],
    on_case: Callable[[Tally], None],
) -> None:
    line: Line | None = None
    for number in numbers:
        if stop():
            break
        if line is None:
            try:
                line = await wire.connect(ramjet.address)
            except OSError as error:
                tally.blame("no connection", str(number), repr(error))
                return
        line.cases.append(number)
        sent_at = time.monotonic()
        again = await player(line, number, tally)
        took = time.monotonic() - sent_at
        if took > tally.slowest_s:
            tally.slowest_s, tally.slowest = took, number
        tally.cases += 1
        on_case(tally)
        if not again or line.got.data or len(line.cases) >= _ON_ONE_LINE:
            if again and line.got.data:
                tally.blame(
                    "bytes that belong to no answer", ",".join(map(str, line.cases)), bytes(line.got.data[:300])
                )
            line.close()
            line = None
    if line is not None:
        line.close()


async def _between(ramjet: Served, engine: Engine, tally: Tally, start: int) -> None:
    """After a batch: nothing in flight, a good request served, the engine content, the log without a fault."""
    tally.batches += 1
    where = f"batch from {start}"
    if left := await ramjet.in_flight():
        tally.blame("requests in flight after a batch", where, left)
    line = await wire.connect(ramjet.address)
    said = b'{"model":"m","messages":[{"role":"user","content":"are you well?"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-case: good\r\nx-request-id: good-%d\r\ncontent-length: %d\r\n\r\n"
    await line.write((head % (start, len(said)) + said,))
    with contextlib.suppress(http1.Malformed):
        answer = await _read(line, to_head=False)
        if answer is None or wire.digest(said) not in answer.body:
            tally.blame("a good request was not served", where, answer)
    line.close()
    for fault in engine.faults:
        tally.blame("what came to the engine", where, fault)
    engine.faults.clear()
    tally.most_mib = max(tally.most_mib, ramjet.rss_mib())
    if ramjet.process.returncode is not None:
        tally.blame("the process ended", where, ramjet.process.returncode)


async def check_log(ramjet: Served, engine: Engine, last: Tally) -> None:
    """Of the whole log: no fault in it, and every request that came to the engine is in it."""
    # A client may have its answer before the line is written.
    await ramjet.in_flight()
    attempts: Counter[bytes] = Counter()
    for line in ramjet.lines():
        if line["event"] == "request":
            attempts[line["request_id"].encode()] += line["attempts"]
            if line["outcome"] == "internal_error":
                last.blame("internal_error", line["request_id"].removeprefix("fuzz-"), line)
        elif line.get("level") in {"error", "critical"} or "Traceback" in str(line):
            last.blame("an error in the log", str(line.get("request_id", "")).removeprefix("fuzz-"), line)
    for request_id, times in engine.seen.items():
        # A connection that the engine had closed is tried again on a fresh one, which is one attempt and may be two requests.
        if times > 2 * attempts[request_id]:
            only = request_id.decode("latin-1").removeprefix("fuzz-")
            last.blame(
                "a request at the engine that the log does not know", only, (request_id, times, attempts[request_id])
            )
    if last.most_mib > MOST_MIB:
        last.blame(f"memory beyond {MOST_MIB:g} MiB", "", last.most_mib)
