"""The APIs a simulated replica speaks, one module each: pure translation between bodies and facts."""

from ramjet.demo.dialects.base import Ask, Dialect, Reply
from ramjet.demo.dialects.chat import Chat
from ramjet.demo.dialects.completions import Completions
from ramjet.demo.dialects.generate import Generate
from ramjet.demo.dialects.messages import Messages
from ramjet.demo.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (Chat(), Completions(), Messages(), Responses(), Generate())

__all__ = ["DIALECTS", "Ask", "Dialect", "Reply"]
