"""Request bodies of the engines' APIs as one rendered text, in an engine's order: tools, system, messages.

Whatever changes the prompt changes the text from there on, and nothing before it. Ids of tool calls and Anthropic's
`cache_control` marks do not reach a model, so they are left out. A rendered prompt ends where the answer begins: prompt
plus answer is the beginning of the next turn. All functions raise ValueError for a body that cannot be rendered.
"""

from __future__ import annotations

import json
from typing import Any

from ramjet.sim.tokens import text_of_ids, text_of_media

Body = dict[str, Any]

_ANSWER = "<|assistant|>\n"
# Tuples and not sets: what a client calls a type may be a list, and that has no hash.
_TEXT = ("text", "input_text", "output_text")
_MEDIA = (
    "audio_url",
    "document",
    "file",
    "image",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
    "video_url",
)


def render_chat(body: Body) -> str:
    """A body of `/v1/chat/completions`."""
    return _tools(body) + "".join(map(_message, _objects(body, "messages"))) + _ANSWER


def render_messages(body: Body) -> str:
    """A body of `/v1/messages`."""
    messages = "".join(map(_message, _objects(body, "messages")))
    return _tools(body) + _system(body.get("system")) + messages + _ANSWER


def render_responses(body: Body) -> str:
    """A body of `/v1/responses`."""
    asked = body.get("input")
    said = _turn("user", asked) if isinstance(asked, str) else "".join(map(_item, _objects(body, "input")))
    return _tools(body) + _system(body.get("instructions")) + said + _ANSWER


def render_raw(prompt: object) -> str:
    """The prompt of `/v1/completions` or `/generate`: a text, a list of token ids, or a list of one of these."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return text_of_ids(prompt)
    raise ValueError("the prompt must be one text or one list of token ids, and not empty")


def _objects(body: Body, name: str) -> list[Body]:
    value = body.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{name} must be a list of objects, and not empty")
    return value


def _turn(role: object, text: str) -> str:
    return f"<|{role}|>\n{text}\n"


def _tools(body: Body) -> str:
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        return ""
    return _turn("tools", "\n".join(map(_plain, tools)))


def _system(system: object) -> str:
    return _turn("system", _content(system)) if system else ""


def _message(message: Body) -> str:
    calls = message.get("tool_calls")
    said = [_content(message.get("content"))]
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        said.append(_call(function) if isinstance(function, dict) else _plain(call))
    return _turn(message.get("role"), "".join(said))


def _item(item: Body) -> str:
    """One item of a Responses input: a message, a call, what a call returned, or what else there may be."""
    if "role" in item:
        return _message(item)
    match item.get("type"):
        case "function_call":
            return _turn("assistant", _call(item))
        case "function_call_output":
            return _turn("tool", _content(item.get("output")))
        case kind:
            return _turn(kind, _plain(item))


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(map(_part, content))
    return content if isinstance(content, str) else _plain(content)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        return _content(part)
    kind = part.get("type")
    if kind in _TEXT:
        return _content(part.get("text"))
    if kind in _MEDIA:
        return text_of_media(_plain(part))
    if kind == "tool_use":
        return _call({"name": part.get("name"), "arguments": _plain(part.get("input"))})
    if kind == "tool_result":
        return _turn("tool", _content(part.get("content")))
    return _plain(part)


def _call(function: Body) -> str:
    return f"<|call|>{function.get('name')}\n{_content(function.get('arguments'))}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if name != "cache_control"}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
