"""Record answers of a real vLLM server, for fakes: `python -m tests.services.record`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.services import web
from tests.services.vllm import MODEL_NAME, VERSION, Vllm

FOLDER = Path(__file__).with_name("recordings") / f"vllm-{VERSION}"
PER_REQUEST_METRICS = "--enable-per-request-metrics"

_LENGTH = {"model": MODEL_NAME, "max_tokens": 5, "temperature": 0}
_CHAT = _LENGTH | {"messages": [{"role": "user", "content": "hi"}]}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_CHAT_PATH = "/v1/chat/completions"

PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_stream": (_CHAT_PATH, _CHAT | _STREAM),
    "chat_invalid": (_CHAT_PATH, _CHAT | {"max_tokens": -1}),
    "completions_n3": (
        "/v1/completions",
        _LENGTH | {"prompt": "The quick", "n": 3, "temperature": 1, "seed": 3},
    ),
    "responses_stream": (
        "/v1/responses",
        {
            "model": MODEL_NAME,
            "input": "hi",
            "max_output_tokens": 5,
            "temperature": 0,
            "stream": True,
        },
    ),
}
"""Requests to a server with default settings."""

WITH_METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_metrics": (_CHAT_PATH, _CHAT),
    "chat_stream_metrics": (_CHAT_PATH, _CHAT | _STREAM),
}
"""Requests to a server that reports metrics with each answer."""


def load(name: str) -> web.Response:
    """Return a recorded answer."""
    meta = json.loads((FOLDER / f"{name}.json").read_text())
    return web.Response(meta["status"], meta["headers"], (FOLDER / f"{name}.body").read_bytes())


def record(requests: dict[str, tuple[str, dict[str, Any]]], args: Sequence[str] = ()) -> None:
    """Start a server, send the requests, and save each answer's bytes beside a description."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as workdir, Vllm.start(Path(workdir), args=args) as server:
        for name, (path, body) in requests.items():
            answer = web.request(server.url + path, body)
            (FOLDER / f"{name}.body").write_bytes(answer.body)
            (FOLDER / f"{name}.json").write_text(_describe(path, body, answer))
            print(f"{name}: {answer.status}, {len(answer.body)} bytes")


def _describe(path: str, body: dict[str, Any], answer: web.Response) -> str:
    """Return the request, the status and the headers as JSON text."""
    # A date would differ in each recording and tells a fake nothing.
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    request = {"path": path, "body": body}
    text = json.dumps({"status": answer.status, "headers": headers, "request": request}, indent=2)
    return f"{text}\n"


if __name__ == "__main__":
    record(PLAIN)
    record(WITH_METRICS, [PER_REQUEST_METRICS])
