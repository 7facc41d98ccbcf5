"""The live page: one answer with its styles and scripts inside, so that it works wherever the port can be reached.

Nothing of what it shows is in it; that it asks for, with the token where there is one. The browser is told to run and
to fetch nothing else, and to show it in no other page: there are buttons on it.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from aiohttp import web

SCRIPTS = ("parts.js", "charts.js", "page.js")


@cache
def _document() -> tuple[bytes, dict[str, str]]:
    """The page and its headers."""
    folder = files("ramjet.admin") / "static"
    style = (folder / "page.css").read_text(encoding="utf-8")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    page = (folder / "page.html").read_text(encoding="utf-8")
    page = page.replace("/* page.css */", style).replace("/* page.js */", script)
    allowed = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    head = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": allowed,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "cross-origin-opener-policy": "same-origin",
    }
    return page.encode(), head


async def show(_request: web.Request) -> web.Response:
    """The page."""
    body, head = _document()
    return web.Response(body=body, headers=head)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
