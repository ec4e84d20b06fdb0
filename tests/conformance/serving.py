"""A real vLLM server with our plugin, and what it exports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.benchmarks.report import ROOT
from tests.fakes.otlp import Receiver, receiving
from tests.services import vllm, web


class Running:
    """A server and what it has exported."""

    def __init__(self, server: vllm.Vllm, receiver: Receiver) -> None:
        self.server = server
        self.receiver = receiver

    def asked(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Send one request; gives the attributes of its request span and its phase spans."""
        before = len(self.receiver.spans)
        reply = web.request(f"{self.server.url}{path}", body, headers=headers)
        return {"http": reply.status, **self._written(path, before)}

    def uploaded(self, path: str, file: bytes, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a file as a form does; gives the same, and the body of the reply."""
        before = len(self.receiver.spans)
        url, files = f"{self.server.url}{path}", {"file": ("it.wav", file)}
        reply = httpx.post(url, files=files, data=fields, timeout=60, trust_env=False)
        return {"http": reply.status_code, "body": reply.text, **self._written(path, before)}

    def _written(self, path: str, before: int) -> dict[str, Any]:
        """What was exported of the one request to *path* since *before*."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            fresh = self.receiver.spans[before:]
            if any(span.name == f"POST {path}" for span in fresh):
                return _summary(fresh)
            time.sleep(0.05)
        raise AssertionError(f"no span of {path}")


def _summary(spans: list[Any]) -> dict[str, Any]:
    (request,) = (s for s in spans if any(a.key == "otel_llm.outcome" for a in s.attributes))
    found = {each.key: _plain(each.value) for each in request.attributes}
    children = [s.name for s in spans if s.parent_span_id == request.span_id]
    return {**found, "children": children, "span": request}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind)


def running(
    factory: pytest.TempPathFactory,
    *args: str,
    also: Sequence[Path | str] = (),
    launcher: Sequence[str] = (),
    **environ: str,
) -> Iterator[Running]:
    """A vLLM server with our plugin and these arguments; `@` stands for the receiver's address.

    *also* are other distributions to install beside ours; *launcher* is one of their commands.
    """
    work = factory.mktemp("vllm")
    for each in also:
        vllm.overlay(each, work / "overlay")
    with (
        receiving() as receiver,
        vllm.Vllm.start(
            work,
            overlay=vllm.overlay(ROOT, work / "overlay"),
            args=[each.replace("@", receiver.url) for each in args],
            launcher=[work / "overlay/bin" / launcher[0], *launcher[1:]] if launcher else (),
            env=vllm.exporting(receiver.url, **environ),
        ) as server,
    ):
        yield Running(server, receiver)
