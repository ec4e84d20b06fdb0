"""Short ways from recorded bytes to the facts and the timeline of a reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from otel_llm.replies import Reply, dialect_of
from otel_llm.replies.wire import DONE, MALFORMED, Records, parsed, records_for
from otel_llm.testing import ManualClock
from otel_llm.timeline import Mark, RequestRecorder, Side, Timeline, resolve

DATA = Path(__file__).parents[1] / "cases/data"
RECORDINGS = Path(__file__).parents[1] / "services/recordings/vllm-0.32.0"
KINDS = {
    "sse": "text/event-stream",
    "ndjson": "application/x-ndjson",
    "json": "application/json",
    "body": None,
}


def case(name: str) -> Any:
    """The JSON document of a case."""
    return json.loads((DATA / name).read_text())


def parsed_file(path: Path) -> list[Any]:
    """Every item of a file, terminators among them."""
    records = records_for(KINDS[path.suffix.removeprefix(".")])
    return _parsed(records, path.read_bytes()) + [parsed(each) for each in records.end()]


def items(name: str) -> list[Any]:
    """Every item of a case's file."""
    return parsed_file(DATA / name)


def recorded(name: str) -> list[Any]:
    """Every item of a reply that a real vLLM gave."""
    path = RECORDINGS / name
    streamed = "event-stream" in path.with_suffix(".json").read_text()
    records = records_for("text/event-stream" if streamed else "application/json")
    return _parsed(records, path.read_bytes()) + [parsed(each) for each in records.end()]


def _parsed(records: Records, data: bytes) -> list[Any]:
    return [parsed(each) for each in records.feed(data)]


def take(reply: Reply, item: Any) -> bool:
    """Add one item to *reply*; True if it carries a token."""
    if item is DONE:
        reply.terminator = True
        return False
    if item is None:
        return False
    dialect = None if item is MALFORMED else dialect_of(item)
    if dialect is None:
        reply.malformed += 1
        return False
    dialect.read(reply, item)
    return dialect.token(item)


def reply_of(found: Iterable[Any], **options: Any) -> Reply:
    """The facts of all the items, the answer's text among them."""
    reply = Reply(**{"capture": True, **options})
    for item in found:
        take(reply, item)
    return reply


def read(item: Any, **options: Any) -> Reply:
    """The facts of one item."""
    return reply_of([item], **options)


def token(item: Any) -> bool:
    """Whether an item carries a token, as its dialect sees it."""
    dialect = dialect_of(item)
    assert dialect is not None
    return dialect.token(item)


def text_of(reply: Reply, choice: int = 0) -> tuple[str, str]:
    """Text and reasoning of one choice."""
    assert reply.captured is not None
    return reply.captured.answer(choice)


def client(clock: ManualClock, *, streaming: bool = True) -> RequestRecorder:
    """The recorder of a client's request that is sent now."""
    recorder = RequestRecorder(Side.CLIENT, clock=clock)
    recorder.streaming = streaming
    return recorder


def resolved(found: Iterable[Any], *, streaming: bool = True, status: int = 200) -> Timeline:
    """The timeline of a request whose items came 10 ms apart."""
    timed = [(10.0 * (position + 1), item) for position, item in enumerate(found)]
    return played(timed, 10.0 * (len(timed) + 1), streaming=streaming, status=status)


def replayed(name: str) -> Timeline:
    """The timeline of a case whose reads have times."""
    document = case(name)
    records = records_for(KINDS[document["protocol"]])
    timed = [
        (each["at_ms"], item)
        for each in document["reads"]
        for item in _parsed(records, each["text"].encode())
    ]
    return played(timed, document["closed_ms"])


def played(
    timed: Iterable[tuple[float, Any]],
    closed_ms: float,
    *,
    streaming: bool = True,
    status: int = 200,
) -> Timeline:
    """The timeline of items that came at their times, milliseconds after the request was sent."""
    clock = ManualClock()
    recorder = client(clock, streaming=streaming)
    recorder.ending(status=status)
    reply, now = Reply(), 0.0
    for at_ms, item in timed:
        clock.advance((at_ms - now) / 1000)
        now = at_ms
        if take(reply, item) and streaming:
            if not recorder.has(Mark.FIRST_TOKEN):
                recorder.mark(Mark.FIRST_TOKEN)
            recorder.mark(Mark.LAST_TOKEN)
    clock.advance((closed_ms - now) / 1000)
    recorder.mark(Mark.FINISHED)
    reply.into(recorder, lambda _: None)
    return resolve(recorder.evidence())


def annotated(reply: Reply) -> dict[str, Any]:
    """The attributes that a reply adds beside evidence."""
    found: dict[str, Any] = {}

    def annotate(attributes: Mapping[str, object]) -> None:
        found.update(attributes)

    reply.into(client(ManualClock()), annotate)
    return found
