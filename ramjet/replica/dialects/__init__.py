"""The APIs a simulated replica speaks, one module each: pure translation between bodies and facts."""

from ramjet.replica.dialects.base import Ask, Dialect, Reply
from ramjet.replica.dialects.chat import Chat
from ramjet.replica.dialects.completions import Completions
from ramjet.replica.dialects.generate import Generate
from ramjet.replica.dialects.messages import Messages
from ramjet.replica.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (Chat(), Completions(), Messages(), Responses(), Generate())

__all__ = ["DIALECTS", "Ask", "Dialect", "Reply"]
