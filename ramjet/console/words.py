"""Numbers as people read them; unknown is "-"."""

from __future__ import annotations

import colorsys

from rich.text import Text


def count(value: float | None) -> str:
    """A number of things."""
    return "-" if value is None else f"{value:,.0f}"


def tokens(value: float | None) -> str:
    """A number of tokens, short."""
    if value is None or value < 10_000:
        return count(value)
    return f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.2f}M"


def seconds(value: float | None) -> str:
    """A time."""
    return "-" if value is None else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def share(value: float | None) -> str:
    """A part of a whole."""
    return "-" if value is None else f"{value:.0%}"


def colour(conversation: str) -> str:
    """A conversation's colour, the same wherever it is shown."""
    hue = (int(conversation[:6], 16) * 137.508) % 360 / 360
    red, green, blue = (int(255 * part) for part in colorsys.hls_to_rgb(hue, 0.6, 0.55))
    return f"#{red:02x}{green:02x}{blue:02x}"


def swatch(conversation: str | None) -> Text:
    """A square in that colour."""
    return Text("  ") if conversation is None else Text("■ ", colour(conversation))
