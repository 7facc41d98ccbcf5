"""What a simulated replica says of itself, in the words of the engine that it stands for."""

from ramjet.replica.report.base import Report, metrics
from ramjet.replica.report.llamacpp import LlamaCpp
from ramjet.replica.report.sglang import SGLang
from ramjet.replica.report.vllm import Vllm
from ramjet.sim.profile import EngineName

REPORTS: dict[EngineName, type[Report]] = {"sglang": SGLang, "vllm": Vllm, "llama.cpp": LlamaCpp}
"""By the profile's `engine`."""

__all__ = ["REPORTS", "Report", "metrics"]
