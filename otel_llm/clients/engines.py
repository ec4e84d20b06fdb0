"""Which engine answers at a base URL: recognised by a reply once, and remembered.

Until a reply has shown it, the provider is what the client library or the host's name says.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_URLS = 1_000
_known: OrderedDict[str, str] = OrderedDict()


def remember(base_url: str, engine: str) -> None:
    """Note that *engine* answers at *base_url*; the oldest of too many is forgotten."""
    _known[base_url] = engine
    if len(_known) > MOST_URLS:
        _known.popitem(last=False)


def known_at(base_url: str) -> str | None:
    """The engine that was recognised at *base_url*, or None."""
    return _known.get(base_url)


def forget() -> None:
    """Forget all of them."""
    _known.clear()
