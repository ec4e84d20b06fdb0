"""A TGI server on loopback: its routes, headers and bytes, as the last release sends them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.openai_server import DONE, JSON, SSE, Answer, OpenAIServer

CASES = Path(__file__).parents[1] / "cases/data"
WORDS = ("Blue", " sky", "</s>")
TIMES = {
    "x-compute-type": "gpu",
    "x-compute-time": "0.204518",
    "x-compute-characters": "11",
    "x-total-time": "204",
    "x-validation-time": "1",
    "x-queue-time": "40",
    "x-inference-time": "160",
    "x-time-per-token": "53",
    "x-prompt-tokens": "9",
    "x-generated-tokens": "3",
}
"""Of a plain reply. A streamed one has the first and the third, and `STREAM_HEADERS`."""
STREAM_HEADERS = {"x-compute-type": "gpu", "x-compute-characters": "11", "x-accel-buffering": "no"}
KEEP_ALIVE = b":\n\n"
CHAT = {
    "id": "",
    "created": 1764460800,
    "model": "acme/tiny",
    "system_fingerprint": "3.3.7-sha-bd1bdebb",
}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


class TgiServer(OpenAIServer):
    """Answers as TGI does, save where it has been given other answers."""

    @property
    def root(self) -> str:
        """The server's address, which is also its route for everything."""
        return self.url.removesuffix("/v1")

    def next(self) -> Answer:
        """The answer that is due to the last request."""
        return super().next() if self.answers else answer_to(self.last.path, self.last.body)


@contextmanager
def serving(*answers: Answer) -> Iterator[TgiServer]:
    """A running server."""
    with TgiServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def answer_to(path: str, body: dict[str, Any]) -> Answer:
    """What TGI answers."""
    streams = body.get("stream") or path == "/generate_stream"
    if "messages" in body:
        return chat_stream() if streams else plain(completion())
    if path == "/embed":
        return plain([[0.1, 0.2], [0.3, 0.4]], headers={"x-tokenization-time": "1"})
    details = bool((body.get("parameters") or {}).get("details"))
    if streams:
        return streamed(*events(details=details))
    item = generated(details=details)
    return plain([item] if path == "/" else item)


def plain(item: object, status: int = 200, headers: dict[str, str] = TIMES) -> Answer:
    """A reply in one piece; an error has no times."""
    sent = headers if status == 200 else {}
    return Answer((json.dumps(item).encode(),), status, JSON, sent)


def streamed(*pieces: bytes | float, **options: Any) -> Answer:
    """A reply in pieces."""
    return Answer(pieces, content_type=SSE, headers=STREAM_HEADERS, **options)


def failing(status: int, kind: str) -> Answer:
    """A refusal, or a failure, before anything was sent."""
    return plain(error(kind), status)


def error(kind: str) -> dict[str, str]:
    """What an error says of itself, in a reply of its own or in a stream."""
    return {"error": "the prompt was: secret", "error_type": kind}


def event(item: object) -> bytes:
    """One server-sent event, without the space."""
    return b"data:%b\n\n" % json.dumps(item, separators=(",", ":")).encode()


def generated(*, details: bool) -> dict[str, Any]:
    """The whole answer of `/generate`."""
    tokens = [_token(index, text) for index, text in enumerate(WORDS)]
    about = {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None}
    item: dict[str, Any] = {"generated_text": "Blue sky"}
    return item | {"details": {**about, "prefill": [], "tokens": tokens}} if details else item


def events(words: Sequence[str] = WORDS, *, details: bool = True) -> list[bytes]:
    """The events of `/generate_stream`."""
    about = {"finish_reason": "eos_token", "generated_tokens": len(words), "seed": None}
    about |= {"input_length": 9}
    found = []
    for index, text in enumerate(words):
        last = index == len(words) - 1
        item = {
            "index": index + 1,
            "token": _token(index, text),
            "generated_text": "".join(words[:-1]) if last else None,
            "details": about if last and details else None,
        }
        found.append(event(item))
    return found


def chat_stream(words: Sequence[str] = WORDS, *, gap: float = 0.0) -> Answer:
    """A streamed chat, its words *gap* seconds apart."""
    said = [chunk({"role": "assistant", "content": each}) for each in words]
    paced = [piece for each in said for piece in (gap, each)]
    end = chunk({"role": "assistant", "content": ""}, "stop")
    usage = event({"object": "chat.completion.chunk", **CHAT, "choices": [], "usage": USAGE})
    return streamed(KEEP_ALIVE, *paced, end, usage, DONE)


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """One event of a streamed chat."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    item = {"object": "chat.completion.chunk", **CHAT, "choices": [choice], "usage": None}
    return event(item)


def completion() -> dict[str, Any]:
    """A chat in one piece."""
    message = {"role": "assistant", "content": "Blue sky"}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return {"object": "chat.completion", **CHAT, "choices": [choice], "usage": USAGE}


def case(name: str) -> Answer:
    """The bytes of a field case."""
    return streamed((CASES / name).read_bytes())


def exchange(name: str) -> Answer:
    """A reply of the case of the timing headers."""
    cases = json.loads((CASES / "D-TIM-05.json").read_text())["exchanges"]
    (found,) = [each for each in cases if each["name"] == name]
    headers = {key: value for key, value in found["headers"].items() if "type" not in key.lower()}
    return plain(found["body"], headers={**headers, "x-compute-type": "gpu"})


def _token(index: int, text: str) -> dict[str, Any]:
    return {"id": 300 + index, "text": text, "logprob": -0.2, "special": text == "</s>"}
