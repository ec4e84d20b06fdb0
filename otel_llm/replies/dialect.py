"""One wire format in which replies come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from otel_llm.replies.reply import Reply


class Dialect(NamedTuple):
    """How the items of one wire format are read. Items are JSON values or clients' objects.

    `fits` tells whether an item is of this format; `token` whether it carries a generated token
    in any channel, which is asked for each item up to the first; `read` adds the facts of one
    item to a reply, at most once for each item. None of them raises.
    """

    name: str
    fits: Callable[[object], bool]
    token: Callable[[object], bool]
    read: Callable[[Reply, object], None]
