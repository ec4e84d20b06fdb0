"""What the body of a reply says by itself: whether it holds anything, whether it is an error."""

from __future__ import annotations

import json
from contextlib import suppress

from otel_llm.emit.live import LiveRequest
from otel_llm.replies.failure import failure_in
from otel_llm.timeline import Outcome

LONGEST_REST = 64
"""More of a line that is not complete yet tells nothing new."""
_SSE_FIELDS = frozenset({b"event", b"id", b"retry"})
_NOTHING = frozenset({b"", b"[DONE]"})


class StreamedBody:
    """Looks at the chunks of a stream until one says something; chunks may cut lines anywhere."""

    __slots__ = ("_rest", "silent")

    def __init__(self) -> None:
        self._rest = b""
        self.silent = True
        """True while there was nothing but comments, terminators and empty lines."""

    def look(self, chunk: bytes) -> None:
        """Look at the next chunk."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:LONGEST_REST]
        self.silent = not any(map(_says_something, lines))

    def end(self) -> bool:
        """Whether the stream was empty, now that no chunk comes any more."""
        return self.silent and not _says_something(self._rest)


def _says_something(line: bytes) -> bool:
    """Whether a line is data: not a comment, not another field of an event, not `[DONE]`."""
    line = line.strip()
    if not line or line.startswith(b":"):
        return False
    name, _, value = line.partition(b":")
    if name == b"data":
        return value.strip() not in _NOTHING
    return name not in _SSE_FIELDS and line not in _NOTHING


def has_data(body: bytes | memoryview) -> bool:
    """True when a chunk of an event stream holds a line that is not a comment."""
    lines = bytes(body).split(b"\n")
    return any(line.strip() and not line.startswith(b":") for line in lines)


def error_event(live: LiveRequest, body: bytes) -> None:
    """Note an error that is told inside a stream; an engine that we watch tells its own."""
    for line in () if live.recorder.calls else body.splitlines():
        with suppress(ValueError):
            failure = failure_in(json.loads(line.removeprefix(b"data:")))
            if failure is not None:
                outcome = Outcome.REJECTED if failure.refused else Outcome.ERROR
                live.recorder.fail(outcome, failure.type)
