"""What Ollama's server answers on its own routes, for `openai_server.serving`: bytes as it writes.

Names and their order are those of version 0.34; `tests/services/recordings` holds what a real one
has answered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakes.openai_server import Answer, OpenAIServer

RECORDINGS = Path(__file__).parents[1] / "services/recordings/ollama-0.34.0"
NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"
MS = 1_000_000
TIMES = {
    "total_duration": 100 * MS,
    "load_duration": 10 * MS,
    "prompt_eval_count": 7,
    "prompt_eval_cached_count": 2,
    "prompt_eval_duration": 30 * MS,
    "eval_count": 5,
    "eval_duration": 40 * MS,
}
"""What an end says of itself, durations in nanoseconds; 20 ms of the total are nobody's."""
EMBEDDED = {"total_duration": 50 * MS, "load_duration": 10 * MS, "prompt_eval_count": 4}


def base(server: OpenAIServer) -> str:
    """The address for a client of Ollama's."""
    return server.url.removesuffix("/v1")


def item(**fields: Any) -> dict[str, Any]:
    """One line or whole answer."""
    return {"model": "tiny", "created_at": "2026-05-04T08:15:37.123456789Z", **fields}


def line(**fields: Any) -> bytes:
    """One line of a stream."""
    return f"{json.dumps(item(**fields), separators=(',', ':'))}\n".encode()


def message(content: str = "", **more: Any) -> dict[str, Any]:
    """A message of the model."""
    return {"role": "assistant", "content": content, **more}


def said(content: str = " token", **more: Any) -> bytes:
    """A line of a chat."""
    return line(message=message(content, **more), done=False)


def end(**more: Any) -> bytes:
    """The last line of a chat."""
    return line(message=message(), done=True, **{"done_reason": "stop", **TIMES, **more})


def chat(words: int = 5, *, first: float = 0.0, gap: float = 0.0, **options: Any) -> Answer:
    """A streamed chat: its first word after *first* seconds, and its end."""
    paced = [piece for _ in range(words - 1) for piece in (gap, said())]
    return lines(first, said(), *paced, end(), **options)


def generated(*texts: str, **more: Any) -> Answer:
    """A streamed answer to a prompt."""
    last = line(response="", done=True, **{"done_reason": "stop", **TIMES, **more})
    return lines(*[line(response=each, done=False) for each in texts], last)


def lines(*pieces: bytes | float, **options: Any) -> Answer:
    """A stream of lines; a number among them is a pause in seconds."""
    return Answer(pieces, content_type=NDJSON, **options)


def hanging(words: int = 3) -> Answer:
    """A streamed chat that says a few words and then nothing for long."""
    return lines(*[said()] * words, 30.0, end())


def whole(body: dict[str, Any] | None = None, *, after: float = 0.0, **options: Any) -> Answer:
    """An answer in one piece, by default that of a chat, *after* seconds."""
    if body is None:
        body = item(message=message("a token"), done=True, done_reason="stop", **TIMES)
    text = json.dumps(body, separators=(",", ":")).encode()
    return Answer((text,), content_type=JSON, headers_after=after, **options)


def failing(status: int, text: str = "not today") -> Answer:
    """An error before any stream."""
    return whole({"error": text}, status=status)


def recorded(name: str, folder: Path = RECORDINGS) -> Answer:
    """What a real server has answered, in the reads in which it came."""
    about = json.loads((folder / f"{name}.json").read_text())
    body, pieces = (folder / f"{name}.body").read_bytes(), []
    for size in about["reads"]:
        pieces.append(body[:size])
        body = body[size:]
    return Answer(pieces, about["status"], about["headers"]["content-type"])
