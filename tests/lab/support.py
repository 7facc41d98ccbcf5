"""Small workloads and requests, made by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import xxhash

from ramjet.core.cache import Blocks
from ramjet.lab.loop import facts_of
from ramjet.lab.policies import Baseline, ReplicaFacts, Request
from ramjet.lab.turns import BLOCK_TOKENS, Conversation, Turn, Workload
from ramjet.lab.workloads import TOKENS


def facts(replicas: int) -> list[ReplicaFacts]:
    return [facts_of(TOKENS)] * replicas


def prompt(*parts: tuple[str, int]) -> Blocks:
    """Named parts and their blocks of 256 tokens; equal beginnings give equal hashes."""
    hashes, chain = array("Q"), 0
    for name, blocks in parts:
        for at in range(blocks):
            # Not `hash`, which gives every process other numbers.
            chain = xxhash.xxh3_64_intdigest(f"{chain} {name} {at}".encode())
            hashes.append(chain)
    return Blocks(hashes, array("I", range(BLOCK_TOKENS, BLOCK_TOKENS * len(hashes) + 1, BLOCK_TOKENS)))


class Sender:
    """Sends requests to a policy as the loop does."""

    def __init__(self, policy: Baseline) -> None:
        self.policy = policy
        self.sent = 0

    def send(self, *parts: tuple[str, int], conversation: int = 0, now: float = 0.0) -> Request:
        blocks = prompt(*parts)
        request = Request(
            number=self.sent,
            conversation=conversation,
            turn=1,
            blocks=blocks,
            prompt_tokens=len(blocks) * BLOCK_TOKENS + 1,
            arrived_at=now,
        )
        self.sent += 1
        request.replica = self.policy.arrive(request, now)
        return request

    def read(self, request: Request, now: float = 1.0) -> None:
        self.policy.first_token(request, now)

    def end(self, request: Request, now: float = 2.0) -> None:
        self.policy.finish(request, now, prompt_tokens=request.prompt_tokens, cached_tokens=0)

    def serve(self, *parts: tuple[str, int], conversation: int = 0, now: float = 0.0) -> int:
        """A request from its arrival to its end; its replica."""
        request = self.send(*parts, conversation=conversation, now=now)
        self.read(request, now)
        self.end(request, now)
        assert request.replica is not None
        return request.replica


def workload(*conversations: Conversation) -> Workload:
    """Hand-made conversations; block n is hashed as n + 1."""
    most = max(first + blocks for each in conversations for turn in each.turns for first, blocks in _runs(turn))
    return Workload("hand-made", conversations, array("Q", range(1, most + 1)))


def growing(first: int, *, turns: int, think_s: float = 1.0, start_blocks: int = 80) -> list[Turn]:
    """Turns of a conversation that begins with so many blocks and gets two longer with each: its answer and a question.

    Its blocks are numbered from `first` on.
    """
    made = []
    for number in range(turns):
        end = start_blocks + 2 * number
        keep, begin = (end - 2, end - 2) if number else (0, 0)
        answer = ((first + end, 1),)
        turn = Turn(think_s if number else 0.0, end * BLOCK_TOKENS, 256, keep, ((first + begin, end - begin),), answer)
        made.append(turn)
    return made


def _runs(turn: Turn) -> Sequence[tuple[int, int]]:
    return (*turn.added, *turn.answer)
