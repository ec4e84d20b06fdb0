"""Record answers of real servers, for fakes: `python -m tests.services.record [SERVER ...]`."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.services import llama_cpp, ollama, recorded, vllm, web
from tests.services.llama_cpp import LlamaCpp
from tests.services.ollama import Ollama
from tests.services.recorded import Requests
from tests.services.vllm import Vllm

_RECORDINGS = Path(__file__).with_name("recordings")
FOLDER = _RECORDINGS / f"vllm-{vllm.VERSION}"
LLAMA_CPP = _RECORDINGS / f"llama-cpp-{llama_cpp.BUILD}"
OLLAMA = _RECORDINGS / f"ollama-{ollama.VERSION}"

PER_REQUEST_METRICS = "--enable-per-request-metrics"
PLAIN = recorded.VLLM
WITH_METRICS = recorded.VLLM_METRICS


def load(name: str, folder: Path = FOLDER) -> web.Response:
    """Return a recorded answer."""
    meta = json.loads((folder / f"{name}.json").read_text())
    return web.Response(meta["status"], meta["headers"], (folder / f"{name}.body").read_bytes())


def reads(name: str, folder: Path) -> list[bytes]:
    """Return a recorded answer's body in the pieces in which the server sent it."""
    body = (folder / f"{name}.body").read_bytes()
    ends = [0]
    for length in json.loads((folder / f"{name}.json").read_text())["reads"]:
        ends.append(ends[-1] + length)
    return [body[start:end] for start, end in itertools.pairwise(ends)]


def record(folder: Path, url: str, requests: Requests) -> None:
    """Send requests to a server, and save each answer's bytes beside a description."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (path, body) in requests.items():
        with _answer(url, path, body) as answer:
            pieces = list(iter(answer.read1, b""))
        (folder / f"{name}.body").write_bytes(b"".join(pieces))
        (folder / f"{name}.json").write_text(_describe(path, body, answer, pieces))
        print(f"{folder.name}/{name}: {answer.status}, {sum(map(len, pieces))} bytes")


@contextlib.contextmanager
def _answer(url: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
    """Send a GET, or a POST of a text or of a JSON value, and yield the answer unread.

    One read of it gives at most one piece of a chunked body.
    """
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60.0)
    with contextlib.closing(connection):
        if body is None:
            connection.request("GET", path)
        else:
            data = body if isinstance(body, str) else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, data.encode(), headers)
        # An answer has the socket for itself, and would keep it open.
        with connection.getresponse() as answer:
            yield answer


def _describe(
    path: str, body: Any, answer: http.client.HTTPResponse, pieces: Sequence[bytes]
) -> str:
    """Return the request, the status, the headers and the lengths of the reads as JSON text."""
    headers = {name.lower(): value for name, value in answer.getheaders()}
    # A date would differ in each recording and tells a fake nothing.
    headers.pop("date", None)
    lengths = [len(piece) for piece in pieces]
    meta = {"status": answer.status, "headers": headers, "reads": lengths}
    return f"{json.dumps(meta | {'request': {'path': path, 'body': body}}, indent=2)}\n"


def record_vllm(workdir: Path) -> None:
    """Record vLLM, with and without its metrics in each answer."""
    for requests, args in ((PLAIN, []), (WITH_METRICS, [PER_REQUEST_METRICS])):
        with Vllm.start(workdir, args=args) as server:
            record(FOLDER, server.url, requests)


def record_llama_cpp(workdir: Path) -> None:
    """Record llama.cpp with each of its models."""
    with LlamaCpp.start(workdir) as server:
        record(LLAMA_CPP, server.url, recorded.LLAMA_CPP)
    others: list[tuple[str, list[str], Requests]] = [
        (llama_cpp.TOOL_MODEL_NAME, [], recorded.LLAMA_CPP_TOOLS),
        # A budget that ends its thoughts, or it would think for ever.
        (
            llama_cpp.THINKING_MODEL_NAME,
            ["--reasoning-budget", "4"],
            recorded.LLAMA_CPP_THINKING,
        ),
        (llama_cpp.EMBEDDING_MODEL_NAME, ["--embeddings"], recorded.LLAMA_CPP_EMBEDDINGS),
    ]
    for name, args, requests in others:
        with LlamaCpp.start(workdir, model_name=name, args=args) as server:
            record(LLAMA_CPP, server.url, requests)


def record_ollama(workdir: Path) -> None:
    """Record Ollama, and once more with all its room taken."""
    with Ollama.start(workdir) as server:
        record(OLLAMA, server.url, recorded.OLLAMA)
    full = {"OLLAMA_MAX_LOADED_MODELS": "1", "OLLAMA_MAX_QUEUE": "1"}
    with Ollama.start(workdir, env=full) as server, _busy(server):
        record(OLLAMA, server.url, recorded.OLLAMA_OVERLOADED)


@contextlib.contextmanager
def _busy(server: Ollama) -> Iterator[None]:
    """Keep one model at work, and let requests for two others wait for its place."""
    path, body = recorded.OLLAMA["generate_stream"]
    waiting = [
        threading.Thread(target=web.request, args=(server.url + path, {"model": name}))
        for name in (ollama.TOOL_MODEL_NAME, ollama.THINKING_MODEL_NAME)
    ]
    with _answer(server.url, path, body | {"options": {"num_predict": -1}}) as answer:
        answer.read1()
        for thread in waiting:
            thread.start()
            # The scheduler takes the first one off its queue, which has room for one.
            time.sleep(1.0)
        yield
    for thread in waiting:
        thread.join()


SERVERS: Mapping[str, Any] = {
    "vllm": record_vllm,
    "llama_cpp": record_llama_cpp,
    "ollama": record_ollama,
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.services.record", description=__doc__)
    parser.add_argument("server", nargs="*", choices=[*SERVERS, []])
    for name in parser.parse_args().server or SERVERS:
        with tempfile.TemporaryDirectory() as workdir:
            SERVERS[name](Path(workdir))


if __name__ == "__main__":
    main()
