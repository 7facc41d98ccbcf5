"""Stands for SGLang's CPU kernels, which are not published as a package.

Without AMX, SGLang falls back to PyTorch for nearly everything. Its models with Gated DeltaNet layers do need kernels:
those are in mamba.py. The other names serve speculative decoding, which stays off.
"""

from sgl_kernel import mamba as mamba


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU version here")

    return missing
