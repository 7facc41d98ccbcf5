"""Faults that people met in other load balancers and streaming proxies, each played against this one.

The list of bug cases numbers them; the numbers that are missing were left out on purpose. Its kinds count as much as
its cases, so `test_behaviours` plays everything an engine may do at every endpoint.
"""

from __future__ import annotations

import pytest

CASES = {
    1: "Load is counted on some endpoints only, and one replica gets everything (vllm-project/router issue 179)",
    2: "Load is counted when the answer begins, and a burst sees every replica idle (sglang PR 27547)",
    3: "A client that leaves early stays in the count for ever (vllm-project/router PR 215)",
    4: "A replica that joins with nothing to do gets all new traffic (vllm-project/router PR 215)",
    6: "A system prompt that everybody shares makes one replica serve everybody (production-stack issue 957)",
    7: "A placement that affinity did not choose is not remembered, so affinity never starts (production-stack PR 990)",
    8: "What is remembered of a replica is taken for its load (sglang PR 14532)",
    9: "One overloaded replica switches affinity off for the whole fleet (vllm-project/router PR 238)",
    11: "Two long conversations on one replica evict each other (sglang PR 38000, and the seed)",
    12: "Requests are counted where their sizes differ a hundredfold (llm-d-router issue 517)",
    14: "A session header that names the client holds all its conversations together (teamclaude PR 438)",
    15: "Stickiness is set up and silently does nothing on some endpoint (olla issue 139)",
    16: "Two proxies in front of one fleet place the same conversation differently (dynamo issue 11035)",
    18: "A replica that goes fails its conversations or shuffles all others (production-stack issue 15)",
    19: "What is remembered of prompts grows without end (production-stack issue 687)",
    20: "A nonce in the first line makes every turn a new conversation (vllm-mlx PR 277)",
    22: "The body is written anew, and the engine's cache no longer matches (agentgateway issue 3371)",
    23: "Images and other parts are left out of the key (llm-d-router PR 781)",
    24: "Model and adapter are left out of the key (llm-d-kv-cache PR 243)",
    25: "Characters and events that are cut by the network are lost (plano issue 980)",
    27: "A line of a stream longer than a reader's limit breaks it (TensorRT-LLM PR 13952)",
    28: "A stream is collected and arrives in one piece (run402 issue 510)",
    29: "A long prefill without a byte is cut by somebody's timer (litellm issue 34819)",
    30: "A limit on the total time cuts long answers (litellm PR 25654)",
    31: "A replica that goes silent holds its clients, or everybody's, for ever (gpustack issue 6012)",
    32: "An answer that broke off looks complete to the client (talon PR 254)",
    33: "Errors become 200, or errors inside a 200 count as success (clawrouter issue 101)",
    34: "A role, a ping or an empty text is taken for the first token (sglang PR 29251)",
    36: "Usage that the proxy asked for reaches a client that did not (headroom PR 2026)",
    37: "Unknown is taken for zero (litellm issue 36882)",
    38: "Anthropic's numbers stand elsewhere and are missed or miscounted (sglang PR 29703)",
    41: "Metrics grow with what clients send; keys and prompts are logged (litellm PR 39136)",
    42: "A connection that the engine has closed fails the next request (bifrost issue 1305)",
    44: "Retries go to the same dead replica, or multiply the load (NeMo RL PR 3613)",
    45: "The client has left and the engine works on (sglang PR 39461)",
    46: "Requests that clients got wrong take a replica out (sglang issue 25811)",
    47: "Busy is taken for dead, and Retry-After is lost (sglang PR 39464)",
    48: "A busy engine answers its health late and is taken out (rllm issue 926)",
    49: "Health says yes, and no request is answered (Fastllm-proxy issue 19)",
    50: "A large body blocks everything else (VansRouter issue 132)",
    51: "A hundred connections are all there are (production-stack PR 767)",
    52: "The upstream session is closed before its stream was read (production-stack issue 952)",
    53: "A restart cuts running streams (gateway-api-inference-extension issue 549)",
    55: "The configuration from before a reload still acts (production-stack issue 680)",
    56: "Real prompts exceed a body limit, and the refusal is a reset (claude-tap PR 2)",
    57: "Compressed requests are half decoded (new-api issue 4913)",
    58: "Compressed answers are decoded and still called compressed (CubeSandbox PR 1139)",
    59: "Length and transfer headers are copied from one connection to the other (powerproxy-aoai issue 53)",
    62: "Endpoints that the proxy does not know are refused (aibrix issue 2110)",
    63: "A browser's preflight is refused (9router PR 3025)",
}
"""The numbers of the list and, in our own words, what goes wrong; with one of the places where it did."""

NOTES = {
    29: "An optional ping to the client during prefill is not built; times are scaled down.",
    30: "Time is scaled down: there is no total limit to be reached.",
    45: "A client that closes its sending half and still reads is treated as gone: a FIN is all that tells a client that "
    "left, and a long prefill for nobody must end.",
    46: "An engine that answers 500 to a prompt that is too long: neutral as well, for no answer counts against a replica.",
    53: "The drain's ends (a second signal, cut and logged, the last lines) are in `tests/test_serve.py`.",
    56: "A chunked body that is malformed after its head was taken waits for `limits.body_gap_s`; nothing is forwarded.",
}
"""What a test of a case leaves out, and why."""


def case(*numbers: int) -> pytest.MarkDecorator:
    """Mark a test with the cases of the list that it plays."""
    assert set(numbers) <= set(CASES)
    return pytest.mark.case(*numbers)
