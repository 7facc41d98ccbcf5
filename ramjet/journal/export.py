"""The journal in forms that other tools read: JSON lines, Parquet, and the Mooncake trace format.

The names of JSON lines and of Parquet's columns are a contract; docs/journal.md says what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, get_type_hints

import msgspec
from xxhash import xxh3_64_intdigest

from ramjet.core.lengths import TokenRatios
from ramjet.core.record import Record
from ramjet.journal.read import Row
from ramjet.journal.schema import OF_COLD, RECORD

MOONCAKE_BLOCK_TOKENS = 512
_JSON = msgspec.json.Encoder()
_PARQUET_ROWS = 10_000
_TEXT = frozenset(("arrived_at", "cold_cause", "size_class", "temperature"))


class NoParquet(Exception):
    """The library that Parquet wants is not installed."""


def flat(row: Row) -> dict[str, Any]:
    """A row as an export shows it: the log line's fields, then what else the journal keeps."""
    record = row.record
    shown = {"arrived_at": stamp(row.arrived_at), **record.log_fields()}
    shown |= {"size_class": record.size_class, "temperature": record.temperature}
    shown |= {name: getattr(record, name) for name in RECORD if name not in shown and name not in OF_COLD}
    return shown | {"rendered_bytes": row.rendered_bytes}


def names() -> tuple[str, ...]:
    """The names in an export, in their order."""
    return tuple(flat(Row(0, 0.0, Record(request_id="", endpoint=""), None)))


def stamp(at: float) -> str:
    """Seconds since 1970 in ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def jsonl(rows: Iterable[Row], out: IO[bytes], *, blocks: bool = False) -> None:
    """One object a line; with `blocks`, the prompt's as [hash in hex, end in bytes of the rendered prompt]."""
    for row in rows:
        shown = flat(row)
        if blocks:
            shown["blocks"] = None if row.fingerprint is None else _blocks(row)
        out.write(_JSON.encode(shown) + b"\n")


def parquet(rows: Iterable[Row], path: Path) -> None:
    """One column for each name of the JSON lines, with its type; what is nested is JSON in a text.

    Raises:
        NoParquet: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and 50 MB that nothing else wants
        from pyarrow import parquet as pq  # noqa: PLC0415
    except ImportError:
        raise NoParquet("Parquet wants pyarrow: pip install 'ramjet-lb[parquet]', or export --format jsonl") from None
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in types().items()])
    shown, count = (_texts(flat(row)) for row in rows), _PARQUET_ROWS
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while part := list(islice(shown, count)):
            writer.write_table(pa.Table.from_pylist(part, schema=schema))


def types() -> dict[str, type]:
    """What the values of each exported name are, where they are not unknown; what is nested is a text."""
    hints = get_type_hints(Record)
    known: dict[str, type] = dict.fromkeys(_TEXT, str) | {"cold": bool, "rendered_bytes": int}
    known |= dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), int)
    plain = {str, int, float, bool}
    for name, hint in hints.items():
        alone = [kind for kind in plain if hint in {kind, kind | None}]
        known.setdefault(name, alone[0] if alone else str)
    return {name: known.get(name, str) for name in names()}


def mooncake(rows: Iterable[Row], out: IO[bytes], bytes_per_token: Mapping[str | None, float]) -> None:
    """The format of the Mooncake traces: one request a line with `timestamp` in ms, lengths in tokens, and `hash_ids`.

    Equal ids are equal blocks of 512 tokens behind equal prefixes. Ours are cut in bytes, and one rate for each model
    turns them into tokens, so that what two prompts share they share there too, rounded down to one of our blocks.
    Requests without blocks are left out.

    Args:
        rows: with their blocks.
        out: where to.
        bytes_per_token: by model, for all rows the same.
    """
    began: float | None = None
    for row in rows:
        if row.fingerprint is None:
            continue
        began = row.arrived_at if began is None else began
        usage, model = row.record.usage, row.record.model
        tokens = row.record.estimated_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        line = {
            "timestamp": round(1e3 * (row.arrived_at - began)),
            "input_length": tokens,
            "output_length": usage.completion_tokens or 0,
            "hash_ids": _hash_ids(row, tokens, bytes_per_token.get(model, TokenRatios.DEFAULT)),
        }
        out.write(_JSON.encode(line) + b"\n")


def _hash_ids(row: Row, tokens: int, bytes_per_token: float) -> list[int]:
    """Numbers for the blocks of 512 tokens. They come from the hashes alone, so that nothing has to be remembered."""
    assert row.fingerprint is not None
    chain = row.fingerprint.usable
    wanted = math.ceil(tokens / MOONCAKE_BLOCK_TOKENS)
    ids: list[int] = []
    for block, end in zip(chain.hashes, chain.ends, strict=True):
        upto = min(wanted, int(end / bytes_per_token) // MOONCAKE_BLOCK_TOKENS)
        ids.extend(_id(b"%d %d" % (block, part)) for part in range(upto - len(ids)))
    # What lies behind the last of our blocks is told from everything else.
    ids.extend(_id(b"row %d %d" % (row.id, part)) for part in range(wanted - len(ids)))
    return ids


def _id(name: bytes) -> int:
    """53 bits, which is what a reader of JSON can be sure to tell apart."""
    return xxh3_64_intdigest(name) >> 11


def _blocks(row: Row) -> list[tuple[str, int]]:
    assert row.fingerprint is not None
    chain = row.fingerprint.usable
    return [(f"{block:016x}", end) for block, end in zip(chain.hashes, chain.ends, strict=True)]


def _texts(shown: dict[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, type(None))
    return {name: value if isinstance(value, plain) else _JSON.encode(value).decode() for name, value in shown.items()}
