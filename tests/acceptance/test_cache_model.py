"""The cache model and a real SGLang get the same requests, and say the same of what was reused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cache_model import (
    END,
    SEED,
    SETTINGS,
    START,
    TURNS,
    Ask,
    Settings,
    Talk,
    Turn,
    compare,
    keep,
    summarize,
)
from tests.acceptance.engines import SGLANG, Engine, Engines, Start
from tests.evidence import report

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3_600)]

TITLE = "The cache model beside a real SGLang"
SAYS = """
A real SGLang 0.5.23, on the CPU with tiny random models, and the cache model (`ramjet.core.cache`, in the scheduler of
`ramjet.sim`) get the same requests: conversations open, some with a shared system prompt, go on, branch off anywhere, come
back after a pause, are sent again or changed near their head; long prompts take the room of others. Some are chats, some
completions. A character is a token, so that both count alike. Before each request the model says how many tokens will be
reused; afterwards it is told the answer's text, and of the engine's counts nothing. A turn has lost something where the engine
had let go of more than a chunk that it had once read.

`make acceptance ARGS='-k cache_model'` runs it again. What the engine answered is kept in `tests/acceptance/recorded`, and
every `make test` holds the model against it.

With these settings the model was exact in 98.8, 100, 99.4, 96.1 and 98.2 % of the turns of the first five runs before anything
was changed, by the same recordings. Differences that were found, and what was changed; the share is that of exact turns where the
model goes without this one rule:

* **Strategies.** What the model took for SGLang's habits are those of `extra_buffer` on the seed's replicas. `no_buffer` saves
  the state at the end of each forward and of each answer, at any token, has one slot for a request, and saves no forks; without
  overlap `extra_buffer` has two, on a grid of 64. These were settings already, and are named in docs/simulator.md: with the seed's
  instead, 30 to 47 %. A grid of 1 now means that there are no forks.
* **What goes with a last snapshot.** A leaf that loses its snapshot goes with its KV, and the runs before it keep theirs until
  the token pool is short; the model let go of the whole chain. Forks are saved where KV ends, so it is seen in hits:
  `chain_with_kv`, 96.1 % with `extra_buffer`.
* **Requests for one token.** They end with their prompt and hand over the slot that they had; the model took one more for
  the snapshot at the prompt's end: `hands_over`, 99.4 % with `no_buffer` and a cap.
* **Cuts.** A run is cut where a prompt leaves it, also where it cannot resume there, and what is behind the cut counts as used
  just now: `cut_is_use`, 98.8 % with attention alone, 98.2 % where both pools are short. It breaks the rule that a larger pool never turns a hit into a miss.
* **The cap.** A new snapshot takes its slot first, and while the cap looks the request still stands on the one before, which is
  spared (`cap_first` off). No turn of these runs depends on it; a rule's test does.
* **Ends.** States of answers lie on a grid of their own (`track_tokens`). The last token of an answer is never in the cache, and
  took room. A prompt of which all is known had its fork at its last token, which is always read, and not before.

Several at a time: which of them the engine begins with is chance, so the ends of its chunks and the order of use are, too.
""".strip()

_PAGE = Path(report.__file__).parents[2] / "docs" / "evidence" / "cache_model.json"
_AT_ONCE, _TOGETHER = 3, 90


def started(engines: Engines, settings: Settings) -> Engine:
    """An engine with these settings and nothing in its cache."""
    [engine] = engines.take(Start(SGLANG, settings.model, settings.flags))
    engine.flush()
    return engine


def send(engine: Engine, ask: Ask) -> tuple[int, int, str]:
    """Ask it, and read its own count of what it reused."""
    path, body = ask.talk.body()
    answer = engine.ask(body | {"max_tokens": ask.max_tokens, "ignore_eos": True}, path)
    [choice], usage = answer["choices"], answer["usage"]
    reply = choice["text"] if "text" in choice else choice["message"]["content"]
    assert len(reply) == usage["completion_tokens"] == ask.max_tokens, "a character is a token"
    # SGLang leaves the count out where it is 0, in some versions.
    return usage["prompt_tokens"], (usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"], reply


def note(settings: Settings, turns: list[Turn], at_once: int) -> None:
    """Write the row of a run anew; rows of others stay what they were."""
    seen = summarize(turns, settings)
    row: dict[str, Any] = {
        "engine": settings.about,
        "at a time": at_once,
        "turns": seen.turns,
        "prompt tokens": sum(turn.prompt_tokens for turn in turns),
        "reused": sum(turn.cached_tokens for turn in turns),
        "turns that had lost something": seen.lost,
        "exact %": 100 * seen.exact_ratio,
        "within one chunk %": 100 * seen.near_ratio,
        "not exact": ", ".join(f"{count} {kind}" for kind, count in seen.missed.most_common()) or "none",
    }
    rows = json.loads(_PAGE.read_text(encoding="utf-8")) if _PAGE.exists() else []
    order = [(each.about, count) for count in (1, _AT_ONCE) for each in SETTINGS.values()]
    found = {(each["engine"], each["at a time"]): each for each in [*rows, row]}
    report.write("cache_model", TITLE, SAYS, [found[key] for key in order if key in found])


@pytest.mark.parametrize("name", SETTINGS)
def test_the_model_says_what_the_engine_says(engines: Engines, name: str) -> None:
    """
    Exactly in 95 % of turns, and within one chunk in 99 %, whether conversations go on, branch, come back or are pushed out.
    """
    settings = SETTINGS[name]
    engine = started(engines, settings)

    turns = list(compare(settings, partial(send, engine), turns=TURNS, seed=SEED))

    note(settings, turns, 1)
    keep(settings, turns)
    seen = summarize(turns, settings)
    assert seen.turns >= 300
    assert seen.lost >= 20, "pools were short"
    assert seen.exact_ratio >= 0.95
    assert seen.near_ratio >= 0.99


@pytest.mark.parametrize("name", ["attention", "no_buffer", "extra_buffer"])
def test_of_requests_that_come_together_the_model_says_nearly_the_same(engines: Engines, name: str) -> None:
    """
    Three conversations at a time. Which of them the engine begins with is chance, and so are the ends of its chunks.
    """
    settings = SETTINGS[name]
    engine = started(engines, settings)

    turns = list(compare(settings, partial(send, engine), turns=_TOGETHER, seed=SEED + 1, at_once=_AT_ONCE))

    note(settings, turns, _AT_ONCE)
    seen = summarize(turns, settings)
    assert seen.near_ratio >= 0.9


def test_however_a_prompt_is_sent_the_engine_finds_the_same(engines: Engines) -> None:
    """
    As a completion, as a chat and as SGLang's own request: one cache, and a character is a token.
    """
    engine = started(engines, SETTINGS["attention"])
    talk = Talk(is_chat=True, messages=[("system", "be brief"), ("user", "x" * 400)])
    marks = {START: "<|im_start|>", END: "<|im_end|>"}
    text = "".join(marks.get(character, character) for character in talk.rendered())

    first = engine.ask({"messages": talk.body()[1]["messages"], "max_tokens": 4})["usage"]
    second = engine.ask({"prompt": text, "max_tokens": 4}, "/v1/completions")["usage"]
    own = engine.ask({"text": text, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}, "/generate")[
        "meta_info"
    ]

    tokens = len(talk.rendered())
    assert first["prompt_tokens"] == second["prompt_tokens"] == own["prompt_tokens"] == tokens
    assert second["prompt_tokens_details"]["cached_tokens"] == own["cached_tokens"] == tokens - 1
