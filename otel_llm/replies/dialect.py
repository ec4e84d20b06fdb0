"""One wire format in which replies come."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from otel_llm.replies.reply import Reply


class Telling(Enum):
    """Which of a stream's items after its first token say more than that they came.

    Those must be kept until the end of the stream shows which are its last; so the fewer, the
    better.
    """

    NOTHING = "nothing"
    """None of them."""
    DONE = "done"
    """Objects whose `done` is set, or missing."""
    FINISHING = "finishing"
    """The last one, and objects whose `choices[0].finish_reason` is set, or missing."""
    LAST_FEW = "last_few"


class Dialect(NamedTuple):
    """How the items of one wire format are read. Items are JSON values or clients' objects.

    `fits` tells whether an item is of this format; `token` whether it carries a generated token
    in any channel, which is asked for each item up to the first; `read` adds the facts of one
    item to a reply, at most once for each item. None of them raises. `telling` says which items
    `read` is called with after the first token.
    """

    name: str
    fits: Callable[[object], bool]
    token: Callable[[object], bool]
    read: Callable[[Reply, object], None]
    telling: Telling = Telling.LAST_FEW
