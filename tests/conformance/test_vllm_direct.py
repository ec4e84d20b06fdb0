"""A real vLLM engine used without a server: offline, asynchronous, and for embeddings."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.report import ROOT
from tests.conformance.requests import HOLDING
from tests.fakes.otlp import Receiver, receiving
from tests.services import vllm

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]
SCRIPT = Path(__file__).with_name("vllm_direct.py")


class Seen:
    """What one run of the script has written."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.engine: dict[str, Any] = document["engine"]
        self.spans: list[dict[str, Any]] = document["spans"]
        self.children: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for span in self.spans:
            self.children[span["parent"]].append(span)

    def roots(self) -> list[dict[str, Any]]:
        """Spans without a parent, as they ended."""
        return self.children[None]

    def phases(self, request: dict[str, Any]) -> list[str]:
        """The phase spans of a request, in order."""
        return [each["name"] for each in self.children[request["id"]]]


def seen(kind: str, *endpoint: str, version: str = vllm.VERSION) -> Seen:
    """Run the script with vLLM's Python, and with the plugin for requests that stand still."""
    with tempfile.TemporaryDirectory() as plugins:
        vllm.overlay(HOLDING, Path(plugins))
        environ = {**os.environ, **vllm.ENVIRONMENT, "OTEL_LLM_STRICT": "1"}
        environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{plugins}"
        environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
        done = subprocess.run(
            [vllm.python(version), "-P", SCRIPT, kind, vllm.model(version), *endpoint],
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (each for each in done.stdout.splitlines() if each.startswith('{"spans"'))
    return Seen(json.loads(line))


def tiles(request: dict[str, Any]) -> bool:
    """Whether phases and what is unaccounted add up to the whole."""
    found = request["attributes"]
    names = ("preprocess", "queue", "prefill", "decode", "delivery", "unaccounted")
    parts = [found.get(f"otel_llm.{name}_us", 0) for name in names]
    return bool(sum(parts) == found["otel_llm.e2e_us"])


@pytest.fixture(scope="module")
def native() -> Iterator[Receiver]:
    """Where vLLM's own spans of offline requests go."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def offline(native: Receiver) -> Seen:
    """One engine, four calls, traced by vLLM too."""
    return seen("offline", f"{native.url}/v1/traces")


@pytest.fixture(scope="module")
def pooling() -> Seen:
    """One engine, two calls."""
    return seen("pooling")


@pytest.fixture(scope="module")
def encoding() -> Seen:
    """An offline engine with three calls, and one for scripts with two."""
    return seen("encoding")


@pytest.fixture(scope="module")
def scripted() -> Seen:
    """One engine, three calls."""
    return seen("async")


class TestOffline:
    """`LLM.generate` and `chat`, whose statistics nobody has asked for."""

    def test_one_batch_span_for_each_call(self, offline: Seen) -> None:
        """With its requests counted; a call that fails has an error."""
        found = [
            (each["name"], each["attributes"]["otel_llm.batch.requests"], each["status"])
            for each in offline.roots()
        ]
        assert found == [
            ("batch text_completion tiny", 2, "UNSET"),
            ("batch text_completion tiny", 1, "UNSET"),
            ("batch chat tiny", 1, "UNSET"),
            ("batch text_completion tiny", 1, "ERROR"),
        ]

    def test_each_prompt_has_its_phases(self, offline: Seen) -> None:
        """From the engine's stamps, although `LLM` keeps none by itself."""
        for batch in offline.roots()[:3]:
            for request in offline.children[batch["id"]]:
                assert offline.phases(request) == [
                    "llm.preprocess",
                    "llm.queue",
                    "llm.prefill",
                    "llm.decode",
                    "llm.delivery",
                ]
                assert (request["kind"], request["attributes"]["otel_llm.outcome"]) == (
                    "INTERNAL",
                    "ok",
                )
                assert tiles(request)
                assert "estimated" not in request["attributes"]["otel_llm.sources"]

    def test_several_answers(self, offline: Seen) -> None:
        """One request span, all tokens."""
        (request,) = offline.children[offline.roots()[1]["id"]]
        found = request["attributes"]
        assert (found["gen_ai.usage.output_tokens"], found["gen_ai.request.choice.count"]) == (
            12,
            3,
        )

    def test_a_batch_that_fails(self, offline: Seen) -> None:
        """The prompt before the bad one was taken back, and not refused."""
        (request,) = offline.children[offline.roots()[3]["id"]]
        assert request["attributes"]["otel_llm.outcome"] == "cancelled"

    def test_native_spans_are_children(self, offline: Seen, native: Receiver) -> None:
        """One for each sequence that was finished, below the request span of its prompt."""
        theirs = [
            (int.from_bytes(each.trace_id), int.from_bytes(each.parent_span_id))
            for each in native.spans
            if each.name == "llm_request"
        ]
        wanted = [
            (request["trace"], request["id"])
            for batch in offline.roots()[:3]
            for request in offline.children[batch["id"]]
            for _ in range(request["attributes"].get("gen_ai.request.choice.count", 1))
        ]
        assert sorted(theirs) == sorted(wanted)
        assert len(theirs) == 6

    def test_the_engine_is_described(self, offline: Seen) -> None:
        """For the resource."""
        found = offline.engine
        assert found["otel_llm.engine.name"] == "vllm"
        assert found["otel_llm.engine.version"] == vllm.VERSION
        assert found["otel_llm.engine.max_num_seqs"] == 8
        assert found["otel_llm.engine.tensor_parallel_size"] == 1
        assert len(found["otel_llm.engine.config_hash"]) >= 8


class TestPooling:
    """`LLM.embed` and `score`."""

    def test_calls(self, pooling: Seen) -> None:
        """What calls `encode` inside is one batch."""
        names = [(each["name"], len(pooling.children[each["id"]])) for each in pooling.roots()]
        assert names == [("batch embeddings tiny", 2), ("batch score tiny", 4)]

    def test_queue_and_prefill_and_no_tokens(self, pooling: Seen) -> None:
        """There is no first token in an embedding."""
        for batch in pooling.roots():
            for request in pooling.children[batch["id"]]:
                assert pooling.phases(request) == [
                    "llm.preprocess",
                    "llm.queue",
                    "llm.prefill",
                    "llm.delivery",
                ]
                found = request["attributes"]
                assert not {"otel_llm.ttft_us", "otel_llm.tpot_us"} & set(found)
                assert found["gen_ai.usage.input_tokens"] > 0
                assert tiles(request)


class TestEncoding:
    """`LLM.classify`, `LLM.encode` and `AsyncLLM.encode`."""

    def test_calls(self, encoding: Seen) -> None:
        """A batch under the name of what was called; in a script the task says what it is."""
        found = [(each["name"], len(encoding.children[each["id"]])) for each in encoding.roots()]
        assert found[:3] == [
            ("batch classify tiny", 2),
            ("batch pooling tiny", 1),
            ("batch classify tiny", 0),
        ]
        assert [name for name, _ in found[3:]] == ["embeddings tiny"] * 2

    def test_queue_and_prefill_and_no_tokens(self, encoding: Seen) -> None:
        """Of every request that was answered."""
        roots = encoding.roots()
        requests = [each for batch in roots[:2] for each in encoding.children[batch["id"]]]
        assert len(requests) == 3
        for request in [*requests, roots[3]]:
            assert encoding.phases(request)[:3] == ["llm.preprocess", "llm.queue", "llm.prefill"]
            found = request["attributes"]
            assert found["otel_llm.outcome"] == "ok"
            assert found["gen_ai.usage.input_tokens"] > 0
            assert not {"otel_llm.ttft_us", "gen_ai.usage.output_tokens"} & set(found)
            assert tiles(request)

    def test_refused(self, encoding: Seen) -> None:
        """Offline the batch has failed, before any of its texts was handed over."""
        batch, request = encoding.roots()[2], encoding.roots()[4]
        assert batch["status"] == "ERROR"
        assert request["attributes"]["otel_llm.outcome"] == "rejected"


class TestRoles:
    """Prefill and decode on engines of their own."""

    def test_both(self) -> None:
        """Each says what it is for; the decoding one took the cache of three blocks over."""
        prefill, decode = (each["attributes"] for each in seen("roles").roots())
        assert [each["otel_llm.role"] for each in (prefill, decode)] == ["prefill", "decode"]
        assert [each["otel_llm.outcome"] for each in (prefill, decode)] == ["ok", "ok"]
        names = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens")
        assert [prefill[name] for name in names] == [0, 1]
        assert [decode[name] for name in names] == [3 * 128, 4]
        assert prefill["otel_llm.unaccounted_us"] == decode["otel_llm.unaccounted_us"] == 0


class TestAsync:
    """`AsyncLLM.generate` in a script."""

    def test_outcomes(self, scripted: Seen) -> None:
        """A request each, by how it ended."""
        found = {
            each["attributes"]["otel_llm.request.id"]: each["attributes"]["otel_llm.outcome"]
            for each in scripted.roots()
        }
        assert found == {"whole": "ok", "closed": "abandoned", "refused": "rejected"}

    def test_the_whole_one(self, scripted: Seen) -> None:
        """Phases, gaps, and the state of the replica at both ends."""
        request = scripted.roots()[0]
        found = request["attributes"]
        assert scripted.phases(request)[1:4] == ["llm.queue", "llm.prefill", "llm.decode"]
        assert tiles(request)
        assert found["otel_llm.itl_p50_us"] > 0
        assert found["otel_llm.finished.running"] == 0
        assert found["otel_llm.finished.kv_cache_percent"] >= 0
