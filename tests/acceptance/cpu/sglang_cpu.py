"""Starts SGLang's server on a CPU without AMX: python sglang_cpu.py --model-path ... (its own arguments).

Puts stubs in place of packages that are not published for the CPU, and that a small text model does not need. Scheduler,
radix tree, pool of snapshots and HTTP server are SGLang's own. Its child processes import this file too.
"""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "stubs"))
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import torch
from sglang.srt.arg_groups import mamba_hook

# SGLang refuses --mamba-radix-cache-strategy extra_buffer on the CPU, since its own CPU kernel returns no states of the
# chunks. Ours does.
mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor  # fails without an accelerator

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
