"""Home-made clients: the same facts whichever library reads the body, and whichever way.

Real sockets, a server that answers as it is told, bytes of every wire format.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.clients.builders import attributes, request
from tests.clients.readers import AT_ONCE, JSON, RAW, STREAMED, Way
from tests.fakes import ollama_server, openai_server
from tests.fakes.openai_server import Answer, event, serving
from tests.replies.builders import DATA, case

STREAMS = {
    "openai": openai_server.stream(first=0.02),
    "ollama": ollama_server.chat(first=0.02),
}
FEW = {name: STREAMED[name] for name in ("httpx.iter_lines", "requests.iter_lines", "aiohttp")}


@pytest.fixture(name="captured")
def captured_fixture() -> CapturedTelemetry:
    """Telemetry in memory, with content; no library is patched."""
    captured = captured_telemetry(EmitSettings(capture_content=True))
    otel_llm.instrument(engines=[], **captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    return captured


def asked(way: Way, answer: Answer) -> bytes:
    """The body that was read this way, of a server that answers so."""
    with (
        serving(answer) as server,
        otel_llm.trace_request("chat", model="tiny", provider="mine", side="client") as traced,
    ):
        return way(traced, f"{server.url}/any")


def text_of(captured: CapturedTelemetry) -> str:
    """The answer that was captured."""
    messages = json.loads(attributes(captured)[semconv.OUTPUT_MESSAGES])
    parts = [part for each in messages for part in each["parts"]]
    return "".join(part["content"] for part in parts if part["type"] == "text")


def calls_of(captured: CapturedTelemetry) -> list[tuple[str, Any]]:
    """The calls that were captured."""
    messages = json.loads(attributes(captured)[semconv.OUTPUT_MESSAGES])
    parts = [part for each in messages for part in each["parts"]]
    return [(part["name"], part["arguments"]) for part in parts if part["type"] == "tool_call"]


def outcome(captured: CapturedTelemetry) -> tuple[Any, Any]:
    """Outcome and `error.type`."""
    found = attributes(captured)
    return found[semconv.OUTCOME], found.get(semconv.ERROR_TYPE)


def body_of(answer: Answer) -> bytes:
    """The bytes of an answer."""
    return b"".join(each for each in answer.pieces if isinstance(each, bytes))


def recut(answer: Answer, size: int) -> Answer:
    """The same bytes in pieces of this size."""
    body = body_of(answer)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return Answer(pieces, content_type=answer.content_type, headers=answer.headers)


def zipped(answer: Answer) -> Answer:
    """The same answer, compressed, in pieces of 50 bytes."""
    body = Answer([gzip.compress(body_of(answer))], content_type=answer.content_type)
    return recut(Answer(body.pieces, 200, answer.content_type, {"content-encoding": "gzip"}), 50)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("way", [*STREAMED, *RAW])
def test_streams(captured: CapturedTelemetry, way: str, name: str) -> None:
    """Tokens, finish reason, usage, end and first token, whichever way it is read."""
    body = asked({**STREAMED, **RAW}[way], STREAMS[name])
    assert body.split() == body_of(STREAMS[name]).split()
    found = attributes(captured)
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (7, 5)
    assert (found[semconv.FINISH_REASONS], outcome(captured)) == (("stop",), ("ok", None))
    assert 20_000 <= found[semconv.TTFT_US] <= found[semconv.E2E_US]
    assert text_of(captured) == " token" * 5
    assert semconv.INCOMPLETE not in found


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("way", AT_ONCE)
def test_streams_read_at_once(captured: CapturedTelemetry, way: str, name: str) -> None:
    """A stream handed over whole: its facts are known, the times of its tokens are not."""
    asked(AT_ONCE[way], STREAMS[name])
    found = attributes(captured)
    assert (found[semconv.OUTPUT_TOKENS], outcome(captured)) == (5, ("ok", None))
    assert not {semconv.TTFT_US, semconv.CHUNK_GAP_P50_US, semconv.BUFFERED_CHUNKS} & set(found)


@pytest.mark.parametrize("way", STREAMED)
def test_compressed(captured: CapturedTelemetry, way: str) -> None:
    """What the library has to unpack is looked at unpacked."""
    assert (
        asked(STREAMED[way], zipped(STREAMS["openai"])).split()
        == body_of(STREAMS["openai"]).split()
    )
    assert (attributes(captured)[semconv.OUTPUT_TOKENS], outcome(captured)) == (5, ("ok", None))


@pytest.mark.parametrize("way", STREAMED)
def test_compressed_and_cut(captured: CapturedTelemetry, way: str) -> None:
    """A compressed stream that lacks its end is no success."""
    asked(STREAMED[way], zipped(Answer(STREAMS["openai"].pieces[:-3])))
    assert outcome(captured) == ("error", "incomplete_stream")


@pytest.mark.parametrize("way", RAW)
def test_compressed_and_raw(captured: CapturedTelemetry, way: str) -> None:
    """Bytes that stay compressed say nothing, but they came to their end."""
    body = asked(RAW[way], zipped(STREAMS["openai"]))
    assert gzip.decompress(body) == body_of(STREAMS["openai"])
    assert outcome(captured) == ("ok", None)
    assert semconv.OUTPUT_TOKENS not in attributes(captured)


@pytest.mark.parametrize("way", JSON)
def test_whole_replies(captured: CapturedTelemetry, way: str) -> None:
    """A reply in one piece has its counts, and no time of a first token."""
    body = asked(JSON[way], openai_server.whole())
    assert json.loads(body)["choices"][0]["message"]["content"] == "a token or two"
    found = attributes(captured)
    assert (found[semconv.OUTPUT_TOKENS], found[semconv.FINISH_REASONS]) == (5, ("stop",))
    assert (outcome(captured), text_of(captured)) == (("ok", None), "a token or two")
    assert not {semconv.TTFT_US, semconv.BUFFERED_CHUNKS} & set(found)


@pytest.mark.parametrize("way", FEW)
def test_engine_timings(captured: CapturedTelemetry, way: str) -> None:
    """What the engine says of its phases is laid out."""
    asked(FEW[way], ollama_server.chat(first=0.1))
    found = attributes(captured)
    assert found[semconv.phase_us("load")] == 10_000
    assert found[semconv.phase_us("prefill")] == 30_000
    assert found[semconv.CACHE_READ_TOKENS] == 2
    assert found[semconv.ENGINE_NAME] == "ollama"
    assert found[semconv.PROVIDER] == "mine"


@pytest.mark.parametrize("way", [*STREAMED, *AT_ONCE])
def test_traceparent(captured: CapturedTelemetry, way: str) -> None:
    """`headers()` carries the trace into the request."""
    with serving(openai_server.stream()) as server:
        given = {"model": "tiny", "provider": "mine", "side": "client"}
        with otel_llm.trace_request("chat", **given) as traced:  # type: ignore[arg-type]
            ({**STREAMED, **AT_ONCE})[way](traced, server.url)
    ids = request(captured).get_span_context()
    expected = f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{int(ids.trace_flags):02x}"
    assert [expected] == server.last.headers["traceparent"]


def _tgi() -> Answer:
    return Answer([(DATA / "D-FRM-04.sse").read_bytes()])


def _anthropic() -> Answer:
    start = {"id": "m", "model": "claude", "usage": {"input_tokens": 7, "output_tokens": 1}}
    delta = {"type": "text_delta", "text": "Blue sky"}
    return Answer([
        event({"type": "message_start", "message": start}, "message_start"),
        event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta"),
        event({"type": "ping"}, "ping"),
        event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 3},
            },
            "message_delta",
        ),
        event({"type": "message_stop"}, "message_stop"),
    ])  # fmt: skip


def _llama_cpp() -> Answer:
    timings = {"prompt_n": 7, "prompt_ms": 1.0, "predicted_n": 3, "predicted_ms": 2.0}
    last = {"content": "", "stop": True, "stop_type": "eos", "timings": timings}
    return Answer([
        event({"index": 0, "content": "Blue", "tokens": [1], "stop": False}),
        event({"index": 0, "content": " sky", "tokens": [2], "stop": False}),
        event({"index": 0, **last, "tokens_predicted": 3, "tokens_evaluated": 7}),
    ])  # fmt: skip


def _sglang() -> Answer:
    meta = {"id": "r", "prompt_tokens": 7, "finish_reason": None}
    done = {**meta, "completion_tokens": 3, "finish_reason": {"type": "stop"}}
    return Answer([
        event({"text": "Blue", "output_ids": [1], "meta_info": {**meta, "completion_tokens": 1}}),
        event({"text": "Blue sky", "output_ids": [1, 2, 3], "meta_info": done}),
        openai_server.DONE,
    ])  # fmt: skip


@pytest.mark.parametrize("make", [_tgi, _anthropic, _llama_cpp, _sglang])
@pytest.mark.parametrize("way", FEW)
def test_every_format(captured: CapturedTelemetry, way: str, make: Any) -> None:
    """The native streams of other servers are understood, too."""
    asked(FEW[way], make())
    assert outcome(captured) == ("ok", None)
    assert attributes(captured)[semconv.OUTPUT_TOKENS] == 3
    assert text_of(captured) == "Blue sky"
    assert semconv.TTFT_US in attributes(captured)


REAL = {
    f"{folder.name}/{path.stem}": (folder, path.stem)
    for folder in sorted(ollama_server.RECORDINGS.parent.iterdir())
    for path in sorted(folder.glob("*stream*.body"))
    if "reads" in json.loads(path.with_suffix(".json").read_text())
}


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize("name", REAL)
def test_real_streams(captured: CapturedTelemetry, way: str, name: str) -> None:
    """What real servers have sent: complete, with a first token and the server's counts."""
    folder, stem = REAL[name]
    asked(FEW[way], ollama_server.recorded(stem, folder))
    found = attributes(captured)
    assert outcome(captured) == ("ok", None)
    assert semconv.TTFT_US in found
    assert found[semconv.OUTPUT_TOKENS] >= 1
    assert semconv.MALFORMED_RECORDS not in found


KINDS = {".sse": openai_server.SSE, ".ndjson": ollama_server.NDJSON, ".json": openai_server.JSON}


def answer_of(name: str) -> Answer:
    """A field case as a server would send it, each event or line by itself."""
    found = DATA / name
    if ".reads." in name:
        kind = KINDS[".ndjson"] if name == "D-FRM-03-a.reads.json" else KINDS[".sse"]
        return Answer([bytes.fromhex(each) for each in case(name)["reads_hex"]], content_type=kind)
    if ".timeline." not in name:
        lines = found.read_bytes().splitlines(keepends=True)
        return Answer(lines, content_type=KINDS[found.suffix])
    pieces: list[bytes | float] = []
    before = 0
    for read in case(name)["reads"]:
        pieces += [(read["at_ms"] - before) / 1000, read["text"].encode()]
        before = read["at_ms"]
    return Answer(pieces)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize(
    ("name", "text", "reason", "tokens"),
    [
        ("D-FRM-01.reads.json", "café 雪 🦊", "stop", None),
        ("D-FRM-02.sse", "One two", "stop", None),
        ("D-FRM-03-a.reads.json", "ab", "stop", 2),
        ("D-FRM-03-b.reads.json", "xy", "stop", None),
        ("D-FRM-04.sse", "Blue sky", "eos_token", 3),
        ("D-USE-01.sse", "Rain is wet and cold", "length", 3),
        ("D-USE-04.sse", None, "stop", None),
        ("D-USE-05.sse", None, "stop", 3),
        ("D-OLL-01-a.ndjson", None, "stop", 14),
    ],
)
def test_good_cases(
    captured: CapturedTelemetry,
    way: str,
    size: int,
    name: str,
    text: str | None,
    reason: str,
    tokens: int | None,
) -> None:
    """D-FRM, D-USE, D-OLL: as sent, and one byte at a time."""
    answer = answer_of(name)
    asked(FEW[way], recut(answer, size) if size else answer)
    found = attributes(captured)
    assert outcome(captured) == ("ok", None)
    assert (found[semconv.FINISH_REASONS], found.get(semconv.OUTPUT_TOKENS)) == ((reason,), tokens)
    assert text is None or text_of(captured) == text
    assert found.get(semconv.MALFORMED_RECORDS) == (2 if name == "D-FRM-02.sse" else None)


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize(
    ("name", "expected", "error_type", "first_token"),
    [
        ("D-END-02.ndjson", "error", "stream_error", True),
        ("D-END-03.sse", "error", "abort", True),
        ("D-END-04-a.sse", "rejected", "validation", False),
        ("D-END-04-b.sse", "error", "overloaded", True),
        ("D-END-05-a.sse", "error", "empty_stream", False),
        ("D-END-05-b.sse", "error", "empty_stream", False),
        ("D-OLL-04.ndjson", "error", "incomplete_stream", True),
    ],
)
def test_bad_ends(
    captured: CapturedTelemetry,
    way: str,
    name: str,
    expected: str,
    error_type: str,
    first_token: bool,
) -> None:
    """D-END: what fails inside HTTP 200 is no success."""
    asked(FEW[way], answer_of(name))
    found = attributes(captured)
    assert outcome(captured) == (expected, error_type)
    assert (semconv.TTFT_US in found, found[semconv.INCOMPLETE]) == (first_token, True)
    assert semconv.OUTPUT_TOKENS not in found
    assert "runner" not in json.dumps(dict(found))


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("D-USE-06-a.sse", ["lookup", "fetch"]),
        ("D-USE-06-b.sse", ["lookup"]),
        ("D-USE-06-c.sse", ["lookup"]),
    ],
)
def test_calls(captured: CapturedTelemetry, way: str, name: str, calls: list[str]) -> None:
    """D-USE-06: the calls that were asked for, one by one."""
    asked(FEW[way], answer_of(name))
    assert calls == [each for each, _ in calls_of(captured)]


@pytest.mark.parametrize("way", JSON)
def test_parts_of_tokens(captured: CapturedTelemetry, way: str) -> None:
    """D-USE-03: cached and reasoning tokens are parts."""
    asked(JSON[way], answer_of("D-USE-03.json"))
    found = attributes(captured)
    assert (found[semconv.INPUT_TOKENS], found[semconv.OUTPUT_TOKENS]) == (1000, 300)
    assert (found[semconv.CACHE_READ_TOKENS], found[semconv.REASONING_TOKENS]) == (960, 280)


@pytest.mark.parametrize("way", FEW)
def test_a_role_is_no_token(captured: CapturedTelemetry, way: str) -> None:
    """D-TIM-03: the role at 30 ms is the first chunk, the text at 480 ms the first token."""
    asked(FEW[way], answer_of("D-TIM-03.timeline.json"))
    found = attributes(captured)
    assert 480_000 <= found[semconv.TTFT_US] <= 700_000
    assert 30_000 <= found[semconv.TPOT_US] <= 60_000
    assert found[semconv.TIME_TO_FIRST_CHUNK] <= 0.25


@pytest.mark.parametrize("way", FEW)
def test_chunks_are_no_tokens(captured: CapturedTelemetry, way: str) -> None:
    """D-USE-02: six tokens in two chunks."""
    asked(FEW[way], answer_of("D-USE-02.timeline.json"))
    found = attributes(captured)
    assert found[semconv.OUTPUT_TOKENS] == 6
    assert 15_000 <= found[semconv.TPOT_US] <= 40_000


@pytest.mark.parametrize("way", [*STREAMED, *AT_ONCE])
@pytest.mark.parametrize(("status", "expected"), [(503, "rejected"), (500, "error")])
def test_http_errors(captured: CapturedTelemetry, way: str, status: int, expected: str) -> None:
    """D-OLL-02: the status says it, whatever is done with the body."""
    asked({**STREAMED, **AT_ONCE}[way], openai_server.failing(status))
    assert outcome(captured) == (expected, str(status))
    assert attributes(captured)[semconv.HTTP_STATUS] == status
