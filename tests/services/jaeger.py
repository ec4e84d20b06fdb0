"""Jaeger v2.13 with its memory storage, read back through its query API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.services import otlp_json, web
from tests.services.cache import cached
from tests.services.command import run
from tests.services.process import Service, free_ports, listening, poll

VERSION = "1.76.0"
"""The Go module's tag; as a product this is v2.13."""

_MODULE = f"github.com/jaegertracing/jaeger@v{VERSION}"


def binary() -> Path:
    """Return the program, and build it first when it is missing (about four minutes)."""
    return cached("jaeger", VERSION, _build) / "jaeger"


def _build(target: Path) -> None:
    """Build from the module cache, because `go install` refuses a module with replacements."""
    source = json.loads(run(["go", "mod", "download", "-json", _MODULE]))["Dir"]
    run(["go", "build", "-o", target / "jaeger", "./cmd/jaeger"], cwd=Path(source))


class Jaeger(Service):
    """A running Jaeger."""

    otlp_grpc: str
    otlp_http: str
    query_url: str

    @classmethod
    def start(cls, workdir: Path, *, max_traces: int = 100_000) -> Jaeger:
        """Start Jaeger on free ports and wait until it takes spans."""
        grpc, http, query, query_grpc = ports = free_ports(4)
        # JSON is YAML, and needs no library to write.
        config = workdir / "jaeger.yaml"
        config.write_text(json.dumps(_config(grpc, http, query, query_grpc, max_traces), indent=1))
        jaeger = cls([binary(), "--config", config], log=workdir / "jaeger.log")
        jaeger.otlp_grpc = f"http://127.0.0.1:{grpc}"
        jaeger.otlp_http = f"http://127.0.0.1:{http}"
        jaeger.query_url = f"http://127.0.0.1:{query}"
        return jaeger.wait_ready(listening(*ports), limit=60.0)

    def traces(self, trace_id: str) -> list[otlp_json.Span]:
        """Return the spans of one trace, none when Jaeger does not know it."""
        answer = web.request(f"{self.query_url}/api/v3/traces/{trace_id}?raw_traces=true")
        if answer.status == 404:
            return []
        return otlp_json.spans(self._checked(answer)["result"])

    def wait_for(
        self,
        trace_id: str,
        predicate: Callable[[list[otlp_json.Span]], bool] = bool,
        timeout: float = 10.0,
    ) -> list[otlp_json.Span]:
        """Return the spans of one trace as soon as they satisfy the predicate."""
        return poll(lambda: self.traces(trace_id), predicate, limit=timeout)

    def services(self) -> list[str]:
        """Return the names of the services that sent spans."""
        answer = web.request(f"{self.query_url}/api/v3/services")
        names: list[str] = self._checked(answer).get("services", [])
        return names

    def _checked(self, answer: web.Response) -> Any:
        """Return an answer's JSON value, or fail with what it said."""
        if answer.status != 200:
            raise RuntimeError(f"Jaeger answered {answer.status}: {answer.body.decode()}")
        return answer.json()


def _config(grpc: int, http: int, query: int, query_grpc: int, max_traces: int) -> dict[str, Any]:
    """Return a configuration that listens on loopback only."""
    storage = {"memory": {"max_traces": max_traces}}
    return {
        "extensions": {
            "jaeger_storage": {"backends": {"memory": storage}},
            "jaeger_query": {
                "storage": {"traces": "memory"},
                # Its own spans would go to port 4317 of whoever listens there.
                "enable_tracing": False,
                "http": {"endpoint": f"127.0.0.1:{query}"},
                "grpc": {"endpoint": f"127.0.0.1:{query_grpc}"},
            },
        },
        "receivers": {
            "otlp": {
                "protocols": {
                    "grpc": {"endpoint": f"127.0.0.1:{grpc}"},
                    "http": {"endpoint": f"127.0.0.1:{http}"},
                }
            }
        },
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query"],
            "pipelines": {
                "traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}
            },
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
