"""Engines' own spans in our words, by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_llm import semconv
from otel_llm.analysis import requests_of
from otel_llm.analysis.spans import SpanRecord
from otel_llm.servers.native import rewritten, summary_of
from otel_llm.servers.native.ottl import NAME, as_yaml, processor
from otel_llm.servers.native.rows import ROWS
from tests.architecture.source import ROOT
from tests.servers.native.spans import (
    BUILT,
    VLLM,
    dynamo,
    hostile,
    made,
    recorded,
    sglang,
    sglang_stages,
    sglang_trace,
    tensorrt_llm,
    tgi,
)


def ours(span: SpanRecord) -> dict[str, Any]:
    """The summary without its prefix, and without what every engine's has."""
    found = summary_of(span)
    assert found.pop(semconv.SIDE) == "engine"
    return {name.removeprefix("otel_llm."): value for name, value in found.items()}


def vllm(us: int = 1_000_000, **more: Any) -> SpanRecord:
    """A vLLM span of a second; the latencies are given without their prefix."""
    names = {f"gen_ai.latency.{name}": value for name, value in more.items()}
    return made("llm_request", us, {**VLLM, **names}, scope="vllm.llm_engine", kind="server")


def test_vllm() -> None:
    """Queue, prefill and decode as stated, the rest unaccounted, tokens under today's names."""
    assert ours(vllm()) == {
        "e2e_us": 1_000_000,
        "queue_us": 100_000,
        "prefill_us": 150_000,
        "decode_us": 550_000,
        "unaccounted_us": 200_000,
        "sources": "queue=reported;prefill=reported;decode=reported",
        "ttft_us": 300_000,
        "tpot_us": 50_000,
        "outcome": "ok",
        "gen_ai.provider.name": "vllm",
        "gen_ai.usage.input_tokens": 14,
        "gen_ai.usage.output_tokens": 12,
    }


@pytest.mark.parametrize("version", ["0.32.0", "0.12.0"])
def test_recorded_vllm(version: str) -> None:
    """Every span of a real vLLM is a sound request whose queue is what it states."""
    spans = recorded(version)
    found = requests_of(rewritten(spans))
    assert (len(spans), found.invalid, found.incomplete) == (12, 0, 0)
    for request in found.requests:
        assert request.engine == "vllm"
        assert {"queue", "prefill", "decode"} <= set(request.durations)
        stated = request.outermost.span.attributes["gen_ai.latency.time_in_queue"]
        assert request.durations["queue"].us == pytest.approx(stated * 1e6, abs=0.6)


def test_sglang() -> None:
    """Its prefill holds the queue, so it is kept as reported; the list of reasons is one again."""
    assert ours(sglang()) == {
        "e2e_us": 9_000_000,
        "preprocess_us": 200_000,
        "decode_us": 2_300_000,
        "unaccounted_us": 6_500_000,
        "sources": "preprocess=derived;decode=reported",
        "reported.prefill_us": 6_500_000,
        "ttft_us": 6_700_000,
        "tpot_us": 23_000,
        "outcome": "ok",
        "gen_ai.provider.name": "sglang",
        "gen_ai.usage.input_tokens": 512,
        "gen_ai.usage.output_tokens": 101,
        "gen_ai.usage.cache_read.input_tokens": 256,
        "gen_ai.response.finish_reasons": ("stop",),
    }


def test_sglang_that_gave_up() -> None:
    """A finish reason of `abort` is a failure."""
    found = ours(sglang('["abort"]'))
    assert (found["outcome"], found["error.type"]) == ("error", "abort")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sglang_that_shares_the_work_says_its_part(role: str) -> None:
    """The name of the span begins with it."""
    assert ours(replace(sglang(), name=f"{role} Req 1a2b3c4d"))["role"] == role


def test_stages_of_sglang_are_phases() -> None:
    """A stage says how long its phase took, and is no request; stages that are none stay."""
    found = {each.name: summary_of(each) for each in sglang_stages()}
    reported = {semconv.PHASE_SOURCE: "reported"}
    assert found["prefill_waiting"] == {"otel_llm.queue_us": 5_100_000, **reported}
    assert found["prefill_forward"] == {"otel_llm.prefill_us": 1_400_000, **reported}
    assert found["decode_forward"] == {"otel_llm.decode_us": 2_290_000, **reported}
    assert found["tokenize"] == {"otel_llm.preprocess_us": 150_000, **reported}
    assert found["decode_loop"] == found["request_process"] == {}


def test_stages_of_sglang_are_told_on_their_request() -> None:
    """Given the whole trace, queue and prefill come from the first worker's spans."""
    root, *others = rewritten(sglang_trace())
    found = {name.removeprefix("otel_llm."): told for name, told in root.attributes.items()}
    assert (found["queue_us"], found["prefill_us"]) == (5_100_000, 1_400_000)
    assert found["preprocess_us"] == 200_000  # what the request's own span says comes first
    assert found["unaccounted_us"] == 0
    assert found["sources"] == (
        "preprocess=derived;queue=reported;prefill=reported;decode=reported"
    )
    assert [each for each in others if semconv.SIDE in each.attributes] == []
    assert len(others) == len(sglang_trace()) - 1


def test_stages_of_another_request_are_not_taken() -> None:
    """The same ids in another trace, and stages without a request above them."""
    root, *others = sglang_trace()
    for rest in (
        [replace(each, trace_id="f" * 32) for each in others],
        [replace(each, parent_span_id=each.span_id) for each in others],
        [replace(each, parent_span_id=None) for each in others],
    ):
        found, *_ = rewritten([root, *rest])
        assert summary_of(root).items() <= found.attributes.items()
        assert "otel_llm.queue_us" not in found.attributes


def test_tensorrt_llm() -> None:
    """Prefill and decode are what its instants leave between them."""
    assert ours(tensorrt_llm()) == {
        "e2e_us": 1_010_000,
        "queue_us": 250_000,
        "prefill_us": 150_000,
        "decode_us": 600_000,
        "unaccounted_us": 10_000,
        "sources": "queue=reported;prefill=derived;decode=derived",
        "queue.kv_transfer_us": 50_000,
        "ttft_us": 400_000,
        "tpot_us": 10_000,
        "outcome": "ok",
        "gen_ai.provider.name": "tensorrt_llm",
        "gen_ai.usage.input_tokens": 33,
        "gen_ai.usage.output_tokens": 61,
    }


def test_several_sequences_have_no_common_time_per_token() -> None:
    """Nobody says how the tokens divide among them."""
    found = ours(tensorrt_llm(**{"gen_ai.request.n": 2}))
    assert found["gen_ai.request.choice.count"] == 2
    assert "tpot_us" not in found


@pytest.mark.parametrize(
    ("reason", "outcome"), [("cancelled", "cancelled"), ("timeout", "error"), ("end_id", "ok")]
)
def test_how_tensorrt_llm_ended(reason: str, outcome: str) -> None:
    """Its finish reasons tell, as a list or as JSON."""
    for reasons in ([reason], f'["{reason}"]'):
        found = ours(tensorrt_llm(**{"gen_ai.response.finish_reasons": reasons}))
        assert found["outcome"] == outcome
        assert found.get("error.type") == (None if outcome == "ok" else reason)


def test_tgi() -> None:
    """Times are read from Rust's texts; prefill and decode are not told apart."""
    assert ours(tgi()) == {
        "e2e_us": 2_000_500,
        "preprocess_us": 413,
        "queue_us": 612_346,
        "unaccounted_us": 1_387_741,
        "sources": "preprocess=reported;queue=reported",
        "reported.inference_us": 1_387_365,
        "outcome": "ok",
        "gen_ai.provider.name": "tgi",
        "gen_ai.operation.name": "text_completion",
    }
    assert ours(tgi("chat_completions"))["gen_ai.operation.name"] == "chat"


@pytest.mark.parametrize(
    ("text", "us"),
    [("999ns", 1), ("499ns", 0), ("1.5µs", 2), ("12.3ms", 12_300), ("1.0000005s", 1_000_001),
     ("1s", 1_000_000), ("0ns", 0)],
)  # fmt: skip
def test_rust_durations(text: str, us: int) -> None:
    """Every unit that Rust writes, rounded to the nearest microsecond."""
    assert ours(tgi(queue_time=text))["queue_us"] == us


@pytest.mark.parametrize(
    "text", ["", "12", "1.5us", "-1ms", "1e3ms", "1m", "1ms ", "1..5ms", "٣ms"]
)
def test_what_rust_does_not_write_is_no_duration(text: str) -> None:
    """Other texts leave the phase unknown."""
    assert "queue_us" not in ours(tgi(queue_time=text))


def test_dynamo() -> None:
    """Milliseconds as texts, the gaps of outputs, the role, and a reason in our words."""
    assert ours(dynamo()) == {
        "e2e_us": 1_500_000,
        "unaccounted_us": 1_500_000,
        "ttft_us": 120_570,
        "itl_p50_us": 13_510,
        "itl_p99_us": 20_020,
        "itl_max_us": 31_000,
        "outcome": "ok",
        "role": "decode",
        "gen_ai.provider.name": "dynamo",
        "gen_ai.request.model": "Qwen/Qwen3-0.6B",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 21,
        "gen_ai.usage.output_tokens": 100,
    }


@pytest.mark.parametrize(
    ("facts", "outcome", "error_type"),
    [
        ({"cancelled": True}, "cancelled", "cancelled"),
        ({"finish_reason": "Dropped"}, "cancelled", "cancelled"),
        ({"error_kind": "CannotConnect"}, "error", "CannotConnect"),
        ({"finish_reason": 'Error("the prompt")'}, "error", "error"),
    ],
)
def test_how_dynamo_ended(facts: dict[str, Any], outcome: str, error_type: str) -> None:
    """A failure wins over the finish reason beside it, and no message is taken over."""
    found = ours(dynamo(**facts))
    assert (found["outcome"], found["error.type"]) == (outcome, error_type)


def test_an_outcome_that_nobody_tells_is_absent() -> None:
    """SGLang without a finish reason."""
    assert "outcome" not in ours(sglang(""))


def test_a_span_that_failed_is_an_error() -> None:
    """The status of the span says so where no attribute does."""
    found = ours(replace(vllm(), status="error"))
    assert (found["outcome"], found["error.type"]) == ("error", "_OTHER")


def test_a_phase_longer_than_the_request_is_cut() -> None:
    """What was said is kept, the phase is an estimate, and no TPOT is made of it."""
    found = ours(vllm(time_in_model_decode=2.0))
    assert (found["decode_us"], found["reported.decode_us"]) == (750_000, 2_000_000)
    assert found["sources"] == "queue=reported;prefill=reported;decode=estimated"
    assert found["unaccounted_us"] == 0
    assert "tpot_us" not in found


@pytest.mark.parametrize("odd", [-0.5, float("nan"), float("inf"), "0.1", True, None, 4e7])
def test_times_that_cannot_be_are_absent(odd: object) -> None:
    """A negative, endless or misspelt time leaves its phase unknown, not zero."""
    found = ours(vllm(time_in_model_prefill=odd))
    assert "prefill_us" not in found
    assert found["sources"] == "queue=reported;decode=reported"


@pytest.mark.parametrize("odd", [0.0, 1.5])
def test_a_first_token_outside_the_request_is_absent(odd: float) -> None:
    """An engine writes 0 for what never happened."""
    assert "ttft_us" not in ours(vllm(time_to_first_token=odd))


def test_a_span_of_ours_is_not_touched() -> None:
    """Twice is once."""
    (once,) = rewritten([vllm()])
    assert summary_of(once) == {}


@pytest.mark.parametrize("each", BUILT, ids=lambda span: span.name)
def test_other_scopes_and_names_are_not_touched(each: SpanRecord) -> None:
    """A span is an engine's by its name, its attributes, and its scope if that says anything."""
    assert summary_of(replace(each, name=f"my {each.name}", scope="mine")) == {}


def test_what_the_span_says_itself_stays() -> None:
    """Names of the conventions are not written over."""
    span = vllm()
    said = replace(span, attributes={**span.attributes, semconv.OUTPUT_TOKENS: 23})
    found = ours(said)
    assert semconv.OUTPUT_TOKENS not in found
    assert found["tpot_us"] == 25_000


@given(st.integers(0, 2**32))
@settings(max_examples=500, deadline=None)
def test_hostile_spans_give_a_sound_summary(seed: int) -> None:
    """Whatever attributes hold: nothing raises, and what is told adds up."""
    span = hostile(seed)
    found = summary_of(span)
    if semconv.SIDE not in found:
        return
    phases = sum(us for name in PHASES if isinstance(us := found.get(name), int))
    assert found[semconv.E2E_US] == phases + found[semconv.UNACCOUNTED_US]
    numbers = [each for each in found.values() if type(each) is int]
    assert min(numbers) >= 0
    if not any(name.startswith(semconv.OURS) for name in span.attributes):
        assert requests_of(rewritten([span])).invalid == 0


PHASES = {semconv.phase_us(each) for row in ROWS for each, *_ in row.phases}
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9),
    st.binary(max_size=4),
    st.lists(st.one_of(st.text(max_size=4), st.none()), max_size=3), st.builds(object),
)  # fmt: skip


@given(
    st.sampled_from(BUILT),
    st.dictionaries(
        st.sampled_from(sorted({n for each in BUILT for n in each.attributes})), ANYTHING
    ),
    st.one_of(st.none(), st.text(max_size=4)),
    st.integers(),
)
@settings(max_examples=500, deadline=None)
def test_nothing_raises(
    base: SpanRecord, attributes: dict[str, Any], scope: str | None, end_ns: int
) -> None:
    """Values of any type, and times that are none."""
    found = replace(base, attributes={**base.attributes, **attributes})
    list(rewritten([found, replace(found, scope=scope), replace(found, end_ns=end_ns)]))


def test_the_file_for_the_collector_is_up_to_date() -> None:
    """The command that its head names writes it."""
    command = [sys.executable, "-m", "otel_llm.servers.native"]
    done = subprocess.run(command, capture_output=True, check=True)
    path = ROOT / "collector" / "transform-native-spans.yaml"
    assert path.read_bytes() == done.stdout
    assert " ".join(["python", *command[1:]]) in path.read_text("utf-8")


def test_the_file_says_what_the_processor_is() -> None:
    """YAML reads the quoted statements as they were written."""
    assert yaml.safe_load(as_yaml()) == {"processors": {NAME: processor()}}
