"""A server on loopback that speaks OpenAI's API as it is told, answer by answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parents[1] / "services/recordings/vllm-0.32.0"
SSE = "text/event-stream"
JSON = "application/json"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Answer:
    """How one request is answered.

    `pieces` are sent as they are, one HTTP chunk each; a number among them is a pause in seconds.
    `headers_after` passes before the headers are sent. With `cut` the connection is closed in the
    middle of the body.
    """

    pieces: Sequence[bytes | float] = ()
    status: int = 200
    content_type: str = SSE
    headers: dict[str, str] = field(default_factory=dict)
    headers_after: float = 0.0
    cut: bool = False


@dataclass(frozen=True)
class Asked:
    """One request as it came: names of headers in lower case, each with all its values."""

    path: str
    headers: dict[str, list[str]]
    body: Any


class OpenAIServer(ThreadingHTTPServer):
    """Gives one of `answers` after another; the last one is given again and again."""

    daemon_threads = True

    def __init__(self, answers: Iterable[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        """The base URL for a client of OpenAI's."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def last(self) -> Asked:
        """The last request that came."""
        return self.asked[-1]

    def next(self) -> Answer:
        """The answer that is due."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are what is tested."""


@contextmanager
def serving(*answers: Answer) -> Iterator[OpenAIServer]:
    """A running server."""
    with OpenAIServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: OpenAIServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): self.headers.get_all(name) or [] for name in self.headers}
        self.server.asked.append(Asked(self.path, headers, json.loads(body)))
        answer = self.server.next()
        time.sleep(answer.headers_after)
        with suppress(ConnectionError):
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {"content-type": answer.content_type, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        due = time.perf_counter()
        for piece in answer.pieces:
            if isinstance(piece, bytes):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                due += piece
                time.sleep(max(0.0, due - time.perf_counter()))
        if answer.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""


def event(item: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(item)}\n\n".encode()


def chunk(
    delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, **more: Any
) -> bytes:
    """One chunk of a chat completion; without a *delta* it has no choice."""
    choices = [{"index": index, "delta": delta, "finish_reason": finish}]
    item = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1764460800,
        "model": "tiny",
        "choices": [] if delta is None else choices,
        **more,
    }
    return event(item)


ROLE = chunk({"role": "assistant", "content": ""})
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
END = (chunk({}, "stop"), chunk(None, usage=USAGE), DONE)


def word(text: str = " token") -> bytes:
    """A chunk with a piece of the answer."""
    return chunk({"content": text})


def stream(words: int = 5, *, first: float = 0.0, gap: float = 0.0, **options: Any) -> Answer:
    """A streamed chat: the role at once, its first word after *first* seconds, and its end."""
    paced = [piece for _ in range(words - 1) for piece in (gap, word())]
    return Answer((ROLE, first, word(), *paced, *END), **options)


def hanging(words: int = 3) -> Answer:
    """A streamed chat that says a few words and then nothing for long."""
    return Answer((ROLE, *[word()] * words, 30.0, *END))


def whole(item: object | None = None, **options: Any) -> Answer:
    """A reply in one piece, by default that of a chat."""
    body = json.dumps(completion() if item is None else item).encode()
    return Answer((body,), content_type=JSON, **options)


def failing(status: int, **options: Any) -> Answer:
    """A reply with an error."""
    return whole({"error": {"message": "not today", "type": "x"}}, status=status, **options)


def recorded(name: str) -> Answer:
    """What a real vLLM has answered."""
    about = json.loads((RECORDINGS / f"{name}.json").read_text())
    body = (RECORDINGS / f"{name}.body").read_bytes()
    kind = about["headers"]["content-type"]
    pieces = body.splitlines(keepends=True) if SSE in kind else [body]
    return Answer(pieces, about["status"], kind)


def completion(**message: Any) -> dict[str, Any]:
    """A chat completion as one object."""
    said = {"role": "assistant", "content": "a token or two", **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764460800,
        "model": "tiny",
        "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
        "usage": USAGE,
    }
