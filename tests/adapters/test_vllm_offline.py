"""`LLM.generate` and its like: one batch span for each call, a request span for each prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

import otel_llm
from otel_llm import config, guard, semconv
from otel_llm.emit import batch as emit_batch
from otel_llm.testing import CapturedTelemetry, ManualClock
from otel_llm.timeline import Part
from tests.adapters.builders import lengths, sources
from tests.adapters.conftest import instrument
from tests.fakes import vllm, vllm_offline, vllm_state
from tests.fakes.vllm import Plan, PoolingParams, SamplingParams
from tests.fakes.vllm_offline import BAD, LLM

BATCH, REQUEST = "batch text_completion tiny", "text_completion tiny"
PARTS = ("queue", "prefill", "decode", "delivery")
Maker = Callable[..., LLM]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry, clock: ManualClock) -> Maker:
    """Makes an `LLM`; it is patched."""
    vllm_offline.installed(monkeypatch)
    instrument(captured)

    def made(plan: Plan | None = None, **kwargs: Any) -> LLM:
        return LLM("org/tiny", clock=clock, plan=plan, **kwargs)

    return made


def requests(captured: CapturedTelemetry, name: str = REQUEST) -> list[dict[str, Any]]:
    """The attributes of all request spans, in the order of their prompts."""
    return [dict(each.attributes or {}) for each in captured.spans if each.name == name]


class TestGenerate:
    """A list of prompts."""

    def test_spans(self, captured: CapturedTelemetry, make: Maker) -> None:
        """One batch span, and one request span for each prompt with its phases below."""
        make().generate(["a", "b", "c"])
        tree = [each for each in captured.tree() if "llm." not in each]
        assert tree == [BATCH, *[f"  {REQUEST}"] * 3]
        assert (captured.span(BATCH).kind, captured.span(BATCH).parent) == (SpanKind.INTERNAL, None)
        assert captured.span(BATCH).attributes[semconv.BATCH_REQUESTS] == 3

    def test_phases(self, captured: CapturedTelemetry, make: Maker) -> None:
        """Each from the call to its own result; the third waits until the first two are done."""
        make().generate(["a", "b", "c"])
        found = requests(captured)
        assert [lengths(each)["preprocess"] for each in found] == [4, 8, 12]
        assert [tuple(lengths(each)[name] for name in PARTS) for each in found] == [
            (58, 200, 30, 0),
            (54, 200, 30, 0),
            (330, 200, 30, 0),
        ]
        assert sources(found[0])["queue"] == "reported"
        assert [each[semconv.UNACCOUNTED_US] for each in found] == [0, 0, 0]

    def test_what_is_known(self, captured: CapturedTelemetry, make: Maker) -> None:
        """Tokens, times of tokens, the outcome; seen from the engine."""
        make().generate(["a"])
        (found,) = requests(captured)
        names = (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.TTFT_US, semconv.TPOT_US)
        assert [found[name] for name in names] == [7, 4, 254_000, 10_000]
        names = (semconv.OUTCOME, semconv.SIDE, semconv.REQUEST_ID, semconv.PROVIDER)
        assert [found[name] for name in names] == ["ok", "engine", "0", "vllm"]

    def test_parameters(self, captured: CapturedTelemetry, make: Maker) -> None:
        """As a server would write them."""
        make().generate(["a"], SamplingParams(temperature=0.5, max_tokens=9))
        (found,) = requests(captured)
        assert (found[semconv.TEMPERATURE], found[semconv.MAX_TOKENS]) == (0.5, 9)

    @pytest.mark.parametrize("external_ids", [True, False], ids=["0.14", "older"])
    def test_three_sequences(
        self, captured: CapturedTelemetry, make: Maker, external_ids: bool
    ) -> None:
        """One request, whatever the engine calls its parts: tokens summed, nothing estimated."""
        make(Plan(external_ids=external_ids)).generate(["a", "b"], SamplingParams(n=3))
        found = requests(captured)
        assert [each[semconv.OUTPUT_TOKENS] for each in found] == [12, 12]
        assert [each[semconv.CHOICE_COUNT] for each in found] == [3, 3]
        assert [each[semconv.FINISH_REASONS] for each in found] == [("stop",) * 3] * 2
        assert {sources(each)["queue"] for each in found} == {"reported"}

    def test_preemptions(self, captured: CapturedTelemetry, make: Maker) -> None:
        """Their parts, as on a server."""
        llm = make()
        step = llm.llm_engine.step

        def interrupted() -> Any:
            for each in (each for job in llm.llm_engine._running for each in job.sequences):
                each.note(vllm_state.EngineCoreEventType.PREEMPTED)
                llm.llm_engine.clock.advance(0.1)
                each.note(vllm_state.EngineCoreEventType.SCHEDULED)
            return step()

        llm.llm_engine.step = interrupted  # type: ignore[method-assign]
        llm.generate(["a"])
        assert requests(captured)[0][semconv.part(Part.DECODE_PREEMPTED_US)] == 300_000

    def test_metrics(self, captured: CapturedTelemetry, make: Maker) -> None:
        """One measurement for each prompt."""
        make().generate(["a", "b", "c"])
        assert [each.count for each in captured.points(semconv.SERVER_DURATION)] == [3]

    def test_many_prompts(
        self, captured: CapturedTelemetry, make: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thousand have spans; the others are counted, and measured like all."""
        monkeypatch.setattr(emit_batch, "MOST_SPANS", 5)
        make().generate(["a"] * 7)
        assert len(requests(captured)) == 5
        found = captured.span(BATCH).attributes or {}
        assert (found[semconv.BATCH_REQUESTS], found[semconv.BATCH_UNTRACED]) == (7, 2)
        assert [each.count for each in captured.points(semconv.SERVER_DURATION)] == [7]

    def test_results(self, make: Maker) -> None:
        """What the caller gets is what the engine gave."""
        llm = make()
        assert [each.request_id for each in llm.generate(["a", "b", "c"])] == ["0", "1", "2"]
        assert vars(LLM)["generate"].__wrapped__(llm, ["d"])[0].outputs[0].text == "xxxx"

    def test_no_prompts(self, captured: CapturedTelemetry, make: Maker) -> None:
        """A batch of none."""
        assert make().generate([]) == []
        assert captured.span(BATCH).attributes[semconv.BATCH_REQUESTS] == 0

    def test_configuration(self, make: Maker) -> None:
        """It is noted when the engine is made, before providers are."""
        config.RUNTIME.engine.clear()
        make()
        assert config.RUNTIME.engine[f"{semconv.ENGINE}.max_num_seqs"] == 128

    def test_below_a_span(self, captured: CapturedTelemetry, make: Maker) -> None:
        """The batch is a child of whatever is open."""
        with captured.telemetry.tracer.start_as_current_span("job"):
            make().generate(["a"])
        assert captured.tree()[:3] == ["job", f"  {BATCH}", f"    {REQUEST}"]

    def test_role(self, captured: CapturedTelemetry, make: Maker) -> None:
        """In disaggregated serving, the engine's part."""
        llm = make()
        transfer = SimpleNamespace(kv_role="kv_consumer")
        llm.llm_engine.vllm_config = vllm_state.configuration(kv_transfer_config=transfer)
        llm.generate(["a"])
        assert requests(captured)[0][semconv.ROLE] == "decode"


class TestStatistics:
    """`LLM` keeps none unless it is told to."""

    @pytest.mark.parametrize("variable", ["", "true"])
    def test_switched_on(self, make: Maker, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        """By us, where the user has said nothing."""
        monkeypatch.setenv("OTEL_LLM_VLLM_STATS", variable)
        assert make().llm_engine.log_stats

    @pytest.mark.parametrize("disabled", [True, False])
    def test_the_users_word(self, make: Maker, disabled: bool) -> None:
        """It is kept, either way."""
        assert make(disable_log_stats=disabled).llm_engine.log_stats is not disabled

    def test_switched_off_by_a_variable(self, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then vLLM's default holds."""
        monkeypatch.setenv("OTEL_LLM_VLLM_STATS", "false")
        config.RUNTIME.reset()
        assert not make().llm_engine.log_stats

    def test_switched_off_in_code(self, make: Maker, captured: CapturedTelemetry) -> None:
        """Also after the adapter was installed."""
        otel_llm.instrument(vllm_stats=False, **captured.providers)
        assert not make().llm_engine.log_stats

    def test_after_uninstrument(self, make: Maker) -> None:
        """Then too."""
        otel_llm.uninstrument()
        assert not make().llm_engine.log_stats

    def test_a_constructor_that_was_kept(self, make: Maker, clock: ManualClock) -> None:
        """It is inert after that."""
        kept, llm = LLM.__init__, object.__new__(LLM)
        otel_llm.uninstrument()
        kept(llm, "tiny", clock=clock)
        assert not llm.llm_engine.log_stats

    def test_without(self, captured: CapturedTelemetry, make: Maker) -> None:
        """Spans, tokens and ends are known; what the engine did meanwhile is not."""
        make(disable_log_stats=True).generate(["a", "b"])
        found = requests(captured)
        assert [lengths(each) for each in found] == [
            {"preprocess": 4, "delivery": 0},
            {"preprocess": 8, "delivery": 0},
        ]
        assert [each[semconv.E2E_US] for each in found] == [288_000] * 2
        assert [each[semconv.OUTPUT_TOKENS] for each in found] == [4, 4]

    def test_without_private_functions(
        self, captured: CapturedTelemetry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No request is seen; the batch is, and the results are what they are."""
        vllm_offline.installed(monkeypatch, private=False)
        instrument(captured)
        assert len(LLM("tiny", clock=clock).generate(["a"])) == 1
        assert captured.tree() == [BATCH]


class TestFailures:
    """Calls that do not come to their end."""

    def test_a_prompt_that_is_refused(self, captured: CapturedTelemetry, make: Maker) -> None:
        """The batch has failed; the requests before it were taken back, and not refused."""
        with pytest.raises(vllm.VLLMValidationError):
            make().generate(["a", "b", BAD, "c"])
        span = captured.span(BATCH)
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes[semconv.ERROR_TYPE].endswith("VLLMValidationError")
        found = [(each[semconv.OUTCOME], each[semconv.ERROR_TYPE]) for each in requests(captured)]
        assert found == [("cancelled", "cancelled")] * 2
        assert all("secret" not in each.to_json() for each in captured.spans)

    @pytest.mark.parametrize("error", [vllm.EngineGenerateError("secret"), KeyboardInterrupt()])
    def test_in_the_middle(
        self, captured: CapturedTelemetry, make: Maker, error: BaseException
    ) -> None:
        """The very object reaches the caller; what had ended is ok, the rest is not."""
        llm = make()
        llm.generate(["a", "b"])
        engine, step, count = llm.llm_engine, llm.llm_engine.step, 0

        def failing() -> Any:
            nonlocal count
            count += 1
            if count == 6:
                raise error
            return step()

        engine.step = failing  # type: ignore[method-assign]
        with pytest.raises(type(error)) as raised:
            llm.generate(["a", "b", "c"])
        assert raised.value is error
        assert [each[semconv.OUTCOME] for each in requests(captured)[2:]] == ["ok", "ok", "error"]
        assert requests(captured)[-1][semconv.ERROR_TYPE].endswith(type(error).__name__)

    def test_the_next_call(self, captured: CapturedTelemetry, make: Maker) -> None:
        """After a failure a new batch begins."""
        llm = make()
        with pytest.raises(vllm.VLLMValidationError):
            llm.generate([BAD])
        llm.generate(["a"])
        counts = [each.attributes[semconv.BATCH_REQUESTS] for each in _batches(captured)]
        assert counts == [0, 1]

    def test_telemetry_that_fails(
        self, captured: CapturedTelemetry, make: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The results still come, and the batch span ends."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        monkeypatch.setattr(captured.telemetry, "start", None)
        assert len(make().generate(["a"])) == 1
        assert (guard.failures["vllm.batch"], captured.tree()) == (1, [BATCH])


class TestOtherMethods:
    """What else takes a list."""

    def test_chat(self, captured: CapturedTelemetry, make: Maker) -> None:
        """A batch of conversations."""
        make().chat(["a", "b"])
        assert len(requests(captured, "chat tiny")) == 2

    @pytest.mark.parametrize(
        ("method", "operation"),
        [("encode", "pooling"), ("embed", "embeddings"), ("classify", "classify")],
    )
    def test_pooling(
        self, captured: CapturedTelemetry, make: Maker, method: str, operation: str
    ) -> None:
        """One batch, under the name of what was called, also where that calls `encode`."""
        getattr(make(), method)(["a", "b"])
        assert [each.name for each in _batches(captured)] == [f"batch {operation} tiny"]
        found = requests(captured, f"{operation} tiny")
        assert [tuple(lengths(each).values()) for each in found] == [
            (4, 54, 200, 0),
            (8, 50, 200, 0),
        ]
        assert {each[semconv.OUTCOME] for each in found} == {"ok"}
        assert not {semconv.TTFT_US, semconv.OUTPUT_TOKENS} & set(found[0])

    def test_score(self, captured: CapturedTelemetry, make: Maker) -> None:
        """A batch of pairs."""
        make().score("a", ["b", "c", "d"])
        assert len(requests(captured, "score tiny")) == 3

    def test_a_class_of_ones_own(self, captured: CapturedTelemetry, make: Maker) -> None:
        """A subclass that calls its base makes one batch."""

        class Mine(LLM):
            """Somebody's own."""

            def generate(self, *args: Any, **kwargs: Any) -> Any:
                return super().generate(*args, **kwargs)

        Mine("tiny", clock=ManualClock()).generate(["a"])
        assert len(_batches(captured)) == 1

    async def test_after_an_engine_was_used_directly(
        self, captured: CapturedTelemetry, make: Maker, clock: ManualClock
    ) -> None:
        """What an asynchronous engine left in the same context hides no batch."""
        engine = sys.modules["vllm.v1.engine.async_llm"].AsyncLLM(clock)
        async for _ in engine.encode("hi", PoolingParams(), "r"):
            pass
        make().generate(["a"])
        assert len(_batches(captured)) == 1


def _batches(captured: CapturedTelemetry) -> list[Any]:
    return [each for each in captured.spans if each.name.startswith("batch ")]
