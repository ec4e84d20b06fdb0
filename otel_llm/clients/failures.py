"""What an exception of a client library says of the request that it ended."""

from __future__ import annotations

import asyncio

from otel_llm import semconv
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.values import as_count
from otel_llm.timeline import Outcome


def note_failure(live: LiveRequest, error: BaseException) -> None:
    """Note that *error* ended the request; an HTTP status tells a refusal from a failure."""
    if not note_status(live, _status_of(error)):
        live.fail(error)


def _status_of(error: BaseException) -> object:
    """The HTTP status that libraries keep on an exception, or on the response in it, or None."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (response, "status_code"), (error, "status")):
        status = getattr(holder, name, None)
        if as_count(status) is not None:
            return status
    return None


def leaving() -> BaseException:
    """Why the reader of an asynchronous stream leaves it now: cancelled, or of its own will."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    return asyncio.CancelledError() if task is not None and task.cancelling() else GeneratorExit()


def note_status(live: LiveRequest, raw: object) -> bool:
    """Note the HTTP status *raw*; True if it is an error's, which is then noted, too."""
    status = as_count(raw)
    if status is None or status < 400:
        return False
    live.recorder.ending(status=status)
    live.annotate({semconv.HTTP_STATUS: status})
    refused = status < 500 or status == 503
    live.recorder.fail(Outcome.REJECTED if refused else Outcome.ERROR, str(status))
    return True
