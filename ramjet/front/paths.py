"""Which paths are the engines' administration, that clients are kept from."""

from __future__ import annotations

import re
from urllib.parse import unquote

# What changes an engine for everybody: caches, weights, adapters, profilers, sleep. SGLang, vLLM and llama.cpp.
_ADMIN = re.compile(
    r"""(?x) / (?:v1/)? (?:
        flush_cache | abort_requests? | reset_\w+ | clear_\w+ | hicache/.* | dumper/.*
      | (?:update|init|destroy|send|get|check|prepare)_weights?\w* | weights_\w+ | update_\w+
      | (?:un)?load_lora_adapter\w*
      | (?:start|stop)_profile | (?:start|stop)_expert\w+ | dump_expert\w+ | configure_logging | set_\w+ | freeze_gc
      | (?:release|resume)_memory_occupation | pause\w* | resume\w* | continue_generation | slow_down
      | sleep | wake_up | collective_rpc | scale_elastic_ep | shutdown | kill | open_session | close_session
      | (?:attach|detach)_\w+ | server_info_internal | models/(?:load|unload) | lora-adapters
    ) /? \Z | / slots / \d+ /? \Z"""
)

# A client that takes Ramjet for a proxy names scheme and host too.
_BEFORE_PATH = re.compile(r"\A[a-zA-Z][a-zA-Z0-9+.\-]*://[^/?#]*")
_AFTER_PATH = re.compile(r"[?#]")


def is_engine_admin(raw_path: str) -> bool:
    """Whether a path, as it came over the wire, is an engine's administration, however it is spelled."""
    path = unquote(_AFTER_PATH.split(_BEFORE_PATH.sub("", raw_path), maxsplit=1)[0])
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in {"", "."}:
            steps.append(step)
    return _ADMIN.match("/" + "/".join(steps).lower()) is not None
