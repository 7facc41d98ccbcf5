"""An agent's side of a conversation, made up: tools, a shared system prompt, a task, tool results.

Pure and seeded: the same numbers give the same requests, if the same answers come back.
"""

from __future__ import annotations

import json
import random
from typing import Any

from ramjet.sim.tokens import TOKEN_CHARACTERS

_VOCABULARY = """
    add branch build cache check class client commit config count default deploy error event file fix float from
    handler import index key limit line list lock log loop main match merge method module name node none object open
    parse patch path pool print queue read record request return router run server session size slot stack state
    stream string table test thread time token trace turn type update user value version warm write yield
"""
_WORDS = _VOCABULARY.split()

_TOOLS = (
    ("read_file", "Read a file of the repository.", ("path",)),
    ("search", "Find a pattern in the repository.", ("pattern", "path")),
    ("run_tests", "Run the tests that match a name.", ("name",)),
    ("edit_file", "Replace a text in a file.", ("path", "old", "new")),
)


class Agent:
    """One conversation of OpenAI chat messages that grows by an answer and a tool result each turn."""

    def __init__(self, number: int, *, seed: int, shared_system_tokens: int, growth_tokens: int) -> None:
        """
        Args:
            number: which conversation this is; others with the same seed share tools and system prompt, nothing else.
            seed: decides every word.
            shared_system_tokens: length of the system prompt.
            growth_tokens: length of the task and of each tool result.
        """
        # Text seeds: the same in every process, and no two of them alike.
        self._chance = random.Random(f"{seed} agent {number}")
        self._growth_tokens = growth_tokens
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": write(random.Random(f"{seed} system"), shared_system_tokens)},
            {"role": "user", "content": write(self._chance, growth_tokens)},
        ]

    def request(self, model: str, max_tokens: int) -> dict[str, Any]:
        """The body of the next turn: a stream that ends with its usage."""
        return {
            "model": model,
            "messages": self.messages,
            "tools": tools(),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def take(self, answer: str) -> None:
        """The answer came: call a tool with it, and add what the tool returned."""
        name, _, parameters = self._chance.choice(_TOOLS)
        identity = f"call_{len(self.messages)}"
        arguments = json.dumps({parameter: self._chance.choice(_WORDS) for parameter in parameters})
        call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages += [
            {"role": "assistant", "content": answer, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identity, "content": write(self._chance, self._growth_tokens)},
        ]


def tools() -> list[dict[str, Any]]:
    """The tools every agent has."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {parameter: {"type": "string"} for parameter in parameters},
                    "required": list(parameters),
                },
            },
        }
        for name, description, parameters in _TOOLS
    ]


def write(chance: random.Random, tokens: int) -> str:
    """Words, as long as so many tokens are."""
    length = tokens * TOKEN_CHARACTERS
    # No word is shorter than three characters and the blank after it.
    return " ".join(chance.choices(_WORDS, k=length // 4 + 1))[:length]
