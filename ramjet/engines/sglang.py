"""SGLang's `/server_info` and `/v1/loads`, read for the sizes of its cache.

Names are those of 0.5.20 to 0.5.23, where the page has some 550 keys; the older `/get_server_info` is the same. What is
missing, null or no sensible number stays unknown: a replica is never refused for what it says about itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from ramjet.core.pools import Pools

_MOST = 1 << 40


def pools(info: object) -> Pools:
    """The sizes that a page of server info names.

    `max_mamba_cache_size` is null where SGLang derived the number of slots itself; only its log knows them then.
    `mamba_max_states_per_path` is -1 for no cap.
    """
    if not isinstance(info, Mapping):
        return Pools()
    return Pools(
        tokens=_size(info.get("max_total_num_tokens")),
        slots=_size(info.get("max_mamba_cache_size")),
        per_path=_size(info.get("mamba_max_states_per_path")),
        chunk_tokens=_size(info.get("chunked_prefill_size")),
        host=host if type(host := info.get("enable_hierarchical_cache")) is bool else None,
    )


def pools_of_loads(loads: object) -> Pools:
    """The token pool that a page of `/v1/loads` names, all data-parallel ranks together."""
    ranks = loads.get("loads") if isinstance(loads, Mapping) else None
    sizes = (
        [_size(rank.get("max_total_num_tokens")) for rank in ranks or () if isinstance(rank, Mapping)]
        if isinstance(ranks, list)
        else []
    )
    known = [size for size in sizes if size is not None]
    return Pools(tokens=sum(known) if known and len(known) == len(sizes) else None)


def _size(value: object) -> int | None:
    return value if type(value) is int and 0 < value < _MOST else None
