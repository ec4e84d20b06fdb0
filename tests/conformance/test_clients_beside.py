"""The OpenAI client beside other instrumentations, and in other versions; the real packages."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from otel_llm import semconv
from tests.benchmarks.clients import environments
from tests.conformance.client_environments import interpreter

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
SPANS = {"genai": "genai", "openllmetry": "openllmetry", "openinference": "openinference"}
CHAINS = {"openinference-langchain": "langchain", "openllmetry-langchain": "langchain"}
ORDERS = ["first", "second"]
VERSIONS = ["openai-1.40", "openai-1.109", "openai-2.54"]
TTFT_AT_LEAST_US = 20_000
ANSWERED = ["whole", "streamed", "async_whole", "async_streamed"]
STREAMED = ["streamed", "async_streamed"]
OUTCOMES = {
    **dict.fromkeys(ANSWERED, "ok"),
    "left": "abandoned",
    "failed": "error",
    "raw": "ok",
    "streaming_bytes": "ok",
    "never_read": "abandoned",
    "retried": "ok",
    "embedded": "ok",
}
THEIRS = {"llm.token_count.prompt", semconv.INPUT_TOKENS}


@functools.cache
def calls(peer: str, order: str, beside: str = "join") -> dict[str, Any]:
    """What came of every call beside *peer*, by the call's name."""
    if peer in SPANS:
        python = environments.python(SPANS[peer])
    else:
        python = interpreter(CHAINS.get(peer, peer))
    return _run(python, peer, order, beside)


def _run(python: Path, peer: str, order: str, beside: str) -> dict[str, Any]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [python, "-m", "tests.conformance.beside_child", peer, order],
        cwd=ROOT,
        env={
            **kept,
            "PYTHONPATH": str(ROOT),
            "OTEL_LLM_STRICT": "1",
            "OTEL_LLM_BESIDE": beside,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "TRACELOOP_TRACE_CONTENT": "false",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def of_models(call: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans of one call that are of a language model."""
    marks = {semconv.OPERATION, semconv.OPENINFERENCE_KIND, semconv.SIDE}
    return [each for each in call["spans"] if marks & set(each["attributes"])]


def ours(call: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans that our summary is on."""
    return [each for each in call["spans"] if semconv.SIDE in each["attributes"]]


def phases(call: dict[str, Any]) -> list[dict[str, Any]]:
    """Our phase spans."""
    return [each for each in call["spans"] if each["name"].startswith("llm.")]


def check_joined(found: dict[str, Any]) -> None:
    """One span a call, theirs, with our summary and outcome; our phases are its children."""
    for name, call in found.items():
        (span,) = of_models(call)
        attributes = span["attributes"]
        assert span["scope"] != semconv.SCOPE, name
        assert attributes[semconv.OUTCOME] == OUTCOMES[name], name
        assert {each["parent"] for each in phases(call)} <= {span["id"]}, name
        assert call["logged"] == [], name
    for name in STREAMED:
        (span,) = of_models(found[name])
        assert int(span["attributes"][semconv.TTFT_US]) >= TTFT_AT_LEAST_US
        assert "llm.first_token" in [each["name"] for each in phases(found[name])]


def check_tokens(found: dict[str, Any]) -> None:
    """Token counts are written by one of the two only, on spans and in metrics."""
    for name in ANSWERED:
        (span,) = of_models(found[name])
        assert len(THEIRS & set(span["attributes"])) == 1, name
        assert found[name]["tokens"] in {0, 12}, name


def check_sent(found: dict[str, Any], span_of: Any = of_models) -> None:
    """One `traceparent`, of the span of the call."""
    for name, call in found.items():
        (span,) = span_of(call)
        assert [len(each) for each in call["traceparent"]] == [1], name
        assert span["id"] in call["traceparent"][0][0], name


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("peer", [*SPANS, *CHAINS])
class TestJoined:
    """Libraries that make a span around the call, whichever was switched on first."""

    def test_one_span(self, peer: str, order: str) -> None:
        """Theirs, with all that we know; whole and streamed, sync and async, however it ends."""
        check_joined(calls(peer, order))

    def test_tokens(self, peer: str, order: str) -> None:
        """Counted once."""
        check_tokens(calls(peer, order))

    def test_traceparent(self, peer: str, order: str) -> None:
        """Sent once."""
        check_sent(calls(peer, order))


@pytest.mark.parametrize("peer", [*SPANS, *CHAINS])
def test_own(peer: str) -> None:
    """A span of ours in any case; the trace goes on from it."""
    found = calls(peer, "first", "own")
    for name, call in found.items():
        (span,) = ours(call)
        assert (span["scope"], span["name"]) == (semconv.SCOPE, "chat tiny")
        assert span["attributes"][semconv.OUTCOME] == OUTCOMES[name]


@pytest.mark.parametrize("peer", [*SPANS, *CHAINS])
def test_off(peer: str) -> None:
    """Their calls are left alone."""
    for call in calls(peer, "first", "off").values():
        assert (ours(call), phases(call), len(of_models(call))) == ([], [], 1)


@pytest.mark.parametrize("order", ORDERS)
def test_http(order: str) -> None:
    """The instrumentations of HTTP write their span below ours, and its id is what is sent."""
    found = calls("http", order)
    for name, call in found.items():
        (span,) = ours(call)
        (below,) = [each for each in call["spans"] if each["parent"] == span["id"]
                    and each["scope"].startswith("opentelemetry")]  # fmt: skip
        assert span["attributes"][semconv.OUTCOME] == OUTCOMES[name]
        assert below["id"] in call["traceparent"][0][0]
        assert [len(each) for each in call["traceparent"]] == [1]
        assert call["logged"] == []


@pytest.mark.parametrize("order", ORDERS)
def test_litellm(order: str) -> None:
    """Its callback writes a span after the call, so ours is not written; once, either way."""
    found = calls("litellm", order)
    for name in ("whole", "streamed", "async_whole", "async_streamed", "failed"):
        spans = [each for each in of_models(found[name]) if each["name"] == "litellm_request"]
        assert (len(spans), ours(found[name])) == (1, []), name


def test_litellm_own() -> None:
    """With `own` both are written."""
    found = calls("litellm", "first", "own")
    for name in ANSWERED:
        (span,) = ours(found[name])
        assert span["attributes"][semconv.OUTCOME] == "ok"


@pytest.mark.parametrize("version", VERSIONS)
class TestVersions:
    """Older versions of the client, each in an environment of its own."""

    @pytest.fixture
    def found(self, version: str) -> dict[str, Any]:
        """What came of every call."""
        return _calls_of(version)

    def test_outcomes(self, found: dict[str, Any]) -> None:
        """Every way through the client, and every way to leave it."""
        assert set(found) == set(OUTCOMES)
        for name, call in found.items():
            (span,) = ours(call)
            assert span["attributes"][semconv.OUTCOME] == OUTCOMES[name], name
            assert call["logged"] == [], name

    def test_traceparent(self, found: dict[str, Any]) -> None:
        """Sent once with each attempt."""
        attempts = found["retried"]["traceparent"]
        assert [len(each) for each in attempts] == [1, 1]
        check_sent({name: call for name, call in found.items() if name != "retried"}, ours)

    def test_facts(self, found: dict[str, Any]) -> None:
        """Time to first token, tokens, attempts."""
        for name in (*STREAMED, "raw", "streaming_bytes"):
            (span,) = ours(found[name])
            assert int(span["attributes"][semconv.TTFT_US]) >= TTFT_AT_LEAST_US, name
            assert span["attributes"][semconv.OUTPUT_TOKENS] == "5", name
        (span,) = ours(found["retried"])
        assert span["attributes"][semconv.ATTEMPTS] == "2"


@functools.cache
def _calls_of(version: str) -> dict[str, Any]:
    return _run(interpreter(version), "nothing", "first", "join")
