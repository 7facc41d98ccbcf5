"""SGLang's and vLLM's KV events: messages in MessagePack in, `core.chains`' events out. Any bytes are read without raising.

Both engines have the same events and two spellings of them, and change from one to the other with their versions: a batch
or an event is an array, whose places mean what they do by their order, or a map with names. Fields were added over time,
at the end. What is not known is passed over; token ids, which are the prompt, are not even decoded.

Read in vLLM 0.32.0 (`vllm/distributed/kv_events.py`) and SGLang 0.5.23 (`sglang/srt/disaggregation/kv_events.py`), and in
older versions of both back to vLLM 0.9.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ramjet.core.chains import DEVICE, Cleared, Event, Removed, Stored

_BATCH = ("ts", "events", "data_parallel_rank")
_FIELDS = {
    "BlockStored": (
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
        "extra_keys", "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("type", "block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": ("type",),
}  # fmt: skip
"""Names of the places in an array."""

_PLAIN = {None, "full_attention", "mla_attention", "sink_full_attention", "full"}
"""Kinds of cache whose every block is of use to whoever has all before it."""

_Raw = msgspec.Raw
_Parts = list[_Raw] | dict[str, _Raw]
_read_parts = msgspec.msgpack.Decoder(_Parts).decode
_read_events = msgspec.msgpack.Decoder(list[_Raw]).decode
_read_hashes = msgspec.msgpack.Decoder(list[int | bytes]).decode
_read_hash = msgspec.msgpack.Decoder(int | bytes | None).decode
_read_number = msgspec.msgpack.Decoder(int | None).decode
_read_text = msgspec.msgpack.Decoder(str | None).decode


def of_rank(endpoint: str, rank: int) -> str:
    """Where a data-parallel rank publishes: as many ports behind the first one's, with SGLang and with vLLM."""
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}" if rank else endpoint


def decode(message: bytes) -> list[Event] | None:
    """The events of a batch; None where it is none. Events of other kinds than Ramjet knows are left out."""
    try:
        batch = _named(_read_parts(message), _BATCH)
        found = [_event(each) for each in _read_events(batch["events"])]
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError):
        return None
    return [each for each in found if each is not None]


def _event(raw: _Raw) -> Event | None:
    parts = _read_parts(raw)
    kind = _read_text(parts["type"] if isinstance(parts, dict) else parts[0])
    if kind not in _FIELDS:
        return None
    fields = _named(parts, _FIELDS[kind])
    if kind == "AllBlocksCleared":
        return Cleared()
    medium = _get(fields, "medium", _read_text) or DEVICE
    hashes = _read_hashes(fields["block_hashes"])
    if kind == "BlockRemoved":
        return Removed(hashes=hashes, medium=medium)
    size = _get(fields, "block_size", _read_number)
    if size is None:
        raise ValueError("a block without a size")
    parent = _get(fields, "parent_block_hash", _read_hash)
    return Stored(hashes=hashes, parent=parent, block_tokens=size, medium=medium, special=_special(fields))


def _special(fields: dict[str, _Raw]) -> str | None:
    """Why blocks are not all that it takes to reuse a prompt; None: they are."""
    kind = _get(fields, "kv_cache_spec_kind", _read_text) or _get(fields, "component_type", _read_text)
    if kind is not None and kind.lower() not in _PLAIN:
        return f"its cache is of kind {kind}: events say all only of plain attention models"
    group = _get(fields, "group_idx", _read_number)
    return f"its cache has groups, {group} is one: events say all only of plain attention models" if group else None


def _named(parts: _Parts, names: tuple[str, ...]) -> dict[str, _Raw]:
    return parts if isinstance(parts, dict) else dict(zip(names, parts, strict=False))


def _get(fields: dict[str, _Raw], name: str, read: Any) -> Any:
    raw = fields.get(name)
    return None if raw is None else read(raw)
