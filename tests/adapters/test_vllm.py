"""The vLLM adapter on a small engine: its stamps become phases, its outputs stay what they are."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

import otel_llm
from otel_llm import config, semconv
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from otel_llm.timeline import Phase
from tests.emit.builders import NAME, attached, opened, written
from tests.fakes import vllm
from tests.fakes.vllm import AsyncLLM, Plan, RequestOutput, RequestOutputKind, SamplingParams

DELTA, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY


@pytest.fixture
def engine_type(monkeypatch: pytest.MonkeyPatch, captured: CapturedTelemetry) -> type[AsyncLLM]:
    """The engine's class, patched."""
    fresh = vllm.installed(monkeypatch)
    otel_llm.instrument(**captured.providers)
    config.RUNTIME.telemetry = captured.telemetry
    return fresh


@pytest.fixture
def engine(engine_type: type[AsyncLLM], clock: ManualClock) -> AsyncLLM:
    """An engine with the plan of `Plan`."""
    return engine_type(clock)


async def generate(
    captured: CapturedTelemetry,
    engine: AsyncLLM,
    params: SamplingParams | None = None,
    *,
    calls: int = 1,
    **more: Any,
) -> list[Any]:
    """One request that calls the engine and takes every output; its last byte comes 1 ms later."""
    params = params or SamplingParams()
    live = opened(captured)
    live.recorder.streaming = params.output_kind is DELTA
    taken: list[Any] = []
    with attached(live.context):
        try:
            for number in range(calls):
                outputs = engine.generate("hi", params, f"r{number}", **more)
                taken.extend([output async for output in outputs])
        except BaseException as error:
            live.fail(error)
            raise
        finally:
            engine.clock.advance(0.001)
            live.finish()
    return taken


def lengths(found: Mapping[str, Any]) -> dict[str, float]:
    """The phases of a summary in milliseconds."""
    names = {each.value: found.get(semconv.phase_us(each)) for each in Phase}
    return {name: us / 1000 for name, us in names.items() if us is not None}


def sources(found: Mapping[str, Any]) -> dict[str, str]:
    """How each phase of a summary is known."""
    return dict(each.split("=") for each in found[semconv.SOURCES].split(";"))


PHASES = {"preprocess": 4, "queue": 50, "prefill": 200, "decode": 30, "delivery": 1}


class TestStreaming:
    """One sequence, an output for each token."""

    async def test_phases(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As the engine stamped them, marked as reported."""
        await generate(captured, engine)
        found = written(captured)
        assert lengths(found) == PHASES
        known = sources(found)
        assert [known[name] for name in ("queue", "prefill", "decode")] == ["reported"] * 3

    async def test_tokens(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Input, output and cached; nothing cached is a fact."""
        await generate(captured, engine)
        found = written(captured)
        assert (
            found[semconv.INPUT_TOKENS],
            found[semconv.OUTPUT_TOKENS],
            found[semconv.CACHE_READ_TOKENS],
        ) == (7, 4, 0)

    async def test_latencies(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Time to first token from arrival; the gaps between outputs as we saw them."""
        await generate(captured, engine)
        found = written(captured)
        assert (
            found[semconv.TTFT_US],
            found[semconv.TPOT_US],
            found[semconv.ITL_P50_US],
        ) == (254_000, 10_000, 10_000)

    async def test_outcome(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine's finish reason is the end record."""
        await generate(captured, engine)
        found = written(captured)
        assert (found[semconv.OUTCOME], found[semconv.FINISH_REASONS]) == ("ok", ("stop",))
        assert semconv.INCOMPLETE not in found

    async def test_what_the_call_says(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Request id, LoRA adapter and replica; preemptions from the engine."""
        engine.plan = Plan(preemptions=2)
        lora = vllm.LoRARequest("legal")
        await generate(captured, engine, lora_request=lora, data_parallel_rank=0)
        found = written(captured)
        names = (semconv.REQUEST_ID, semconv.LORA, semconv.REPLICA, semconv.PREEMPTIONS)
        assert [found[name] for name in names] == ["r0", "legal", 0, 2]

    async def test_what_it_does_not_say(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """No adapter and no rank leave no attribute."""
        await generate(captured, engine)
        assert not {semconv.LORA, semconv.REPLICA} & set(written(captured))

    async def test_an_unknown_prompt(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Without knowledge of cached tokens there is no count of them."""
        engine.plan = Plan(cached=None)
        await generate(captured, engine)
        assert semconv.CACHE_READ_TOKENS not in written(captured)

    @pytest.mark.parametrize("n", [1, 2])
    async def test_a_long_stream(
        self, captured: CapturedTelemetry, engine: AsyncLLM, n: int
    ) -> None:
        """Memory does not grow with it, and every output counts."""
        engine.plan = Plan(tokens=3_000, per_token=0.001)
        live = opened(captured)
        with attached(live.context):
            async for _ in engine.generate("hi", SamplingParams(n=n), "r"):
                assert len(live.recorder.lanes[0].stamps) <= 2048
        live.finish()
        assert written(captured)[semconv.OUTPUT_TOKENS] == 3_000 * n
        assert written(captured)[semconv.TOKENS_PER_OUTPUT] == 1.0

    async def test_an_engine_that_aborts(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """The finish reason `abort` is no success."""
        engine.plan = Plan(finish_reason="abort")
        await generate(captured, engine)
        found = written(captured)
        assert (found[semconv.OUTCOME], found[semconv.ERROR_TYPE]) == ("error", "abort")


class TestOtherShapes:
    """Plain replies, several sequences, several prompts."""

    async def test_plain(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """One output at the end tells the same phases."""
        await generate(captured, engine, SamplingParams(output_kind=FINAL_ONLY))
        found = written(captured)
        assert lengths(found) == PHASES
        assert (found[semconv.OUTPUT_TOKENS], found[semconv.OUTCOME]) == (4, "ok")
        assert semconv.ITL_P50_US not in found

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    async def test_three_sequences(
        self, captured: CapturedTelemetry, engine: AsyncLLM, kind: RequestOutputKind
    ) -> None:
        """One request: phases of the whole, tokens summed, a finish reason each."""
        await generate(captured, engine, SamplingParams(n=3, output_kind=kind))
        found = written(captured)
        assert lengths(found) == PHASES
        assert (
            found[semconv.INPUT_TOKENS],
            found[semconv.OUTPUT_TOKENS],
            found[semconv.FINISH_REASONS],
        ) == (7, 12, ("stop",) * 3)

    async def test_gaps_of_three_sequences(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """Inside each sequence: outputs of one step are no gap."""
        await generate(captured, engine, SamplingParams(n=3))
        found = written(captured)
        assert [
            found[name] for name in (semconv.ITL_P50_US, semconv.ITL_P99_US, semconv.ITL_MAX_US)
        ] == [10_000] * 3

    async def test_final_times_of_three_sequences_are_an_estimate(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """The engine gives the times of one sequence only."""
        await generate(captured, engine, SamplingParams(n=3, output_kind=FINAL_ONLY))
        assert sources(written(captured))["queue"] == "estimated"

    async def test_several_prompts(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM]
    ) -> None:
        """Calls that run side by side are one request: tokens summed, the first one's wait."""
        live = opened(captured)
        with attached(live.context):
            streams = [
                engine_type(ManualClock()).generate("hi", SamplingParams(), f"r{number}")
                for number in range(2)
            ]
            await asyncio.gather(*map(_taken, streams))
        live.finish(ManualClock().monotonic_ns() + 1_000_000_000)
        found = written(captured)
        assert [each for each in captured.tree() if "llm." not in each] == [NAME]
        assert (
            found[semconv.INPUT_TOKENS],
            found[semconv.OUTPUT_TOKENS],
            lengths(found)["queue"],
            found[semconv.REQUEST_ID],
        ) == (14, 8, 50, "r0")

    async def test_a_beam_search(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """It calls the engine in turns for every token: its prompt is not as many prompts."""
        engine.plan = Plan(tokens=1)
        await generate(captured, engine, calls=12)
        assert semconv.INPUT_TOKENS not in written(captured)

    async def test_outputs_that_were_merged(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM], clock: ManualClock
    ) -> None:
        """A consumer that is behind gets two steps' tokens in one output; none is lost."""

        class Merging(engine_type):  # type: ignore[misc, valid-type]
            """An engine whose outputs were taken late."""

            async def _outputs(self, params: Any, name: str) -> AsyncIterator[Any]:
                made = [each async for each in super()._outputs(params, name)]
                for first, second in zip(made[::2], made[1::2], strict=True):
                    first.outputs[0].token_ids.extend(second.outputs[0].token_ids)
                    first.outputs[0].finish_reason = second.outputs[0].finish_reason
                    yield first

        await generate(captured, Merging(clock))
        found = written(captured)
        assert (found[semconv.OUTPUT_TOKENS], found[semconv.TOKENS_PER_OUTPUT]) == (4, 2.0)


class TestWithoutStatistics:
    """An engine that was started with `--disable-log-stats`."""

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    async def test_tokens_are_counted(
        self, captured: CapturedTelemetry, engine: AsyncLLM, kind: RequestOutputKind
    ) -> None:
        """From the outputs, whether they hold new tokens or all of them."""
        engine.log_stats = False
        await generate(captured, engine, SamplingParams(output_kind=kind))
        assert written(captured)[semconv.OUTPUT_TOKENS] == 4

    async def test_phases_that_we_see_ourselves(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """Decode from the first output to the last; queue and prefill are unknown."""
        engine.log_stats = False
        await generate(captured, engine)
        found = written(captured)
        assert lengths(found) == {"preprocess": 0, "decode": 30, "delivery": 1}
        assert (found[semconv.TTFT_US], found[semconv.UNACCOUNTED_US]) == (254_000, 254_000)
        assert {"observed"} == set(sources(found).values())
        assert semconv.PREEMPTIONS not in found


class TestForeignClock:
    """An engine on another machine, whose monotonic clock is another one."""

    @pytest.mark.parametrize("skew", [5_000.0, -5_000.0, 1.5, -1.5])
    async def test_only_durations_are_used(
        self, captured: CapturedTelemetry, engine: AsyncLLM, skew: float
    ) -> None:
        """Its queue, prefill and decode are as long as it says; nothing is negative."""
        engine.plan = Plan(skew=skew)
        await generate(captured, engine)
        found = lengths(written(captured))
        assert (found["queue"], found["prefill"], found["decode"]) == (50, 200, 30)

    async def test_stamps_before_the_hand_over(
        self, captured: CapturedTelemetry, engine: AsyncLLM, clock: ManualClock
    ) -> None:
        """A clock that is behind may read a time at which the request was with us already."""
        engine.plan = Plan(skew=-3)
        live = opened(captured)
        clock.advance(5)
        with attached(live.context):
            async for _ in engine.generate("hi", SamplingParams(), "r"):
                pass
        live.finish()
        found = lengths(written(captured))
        assert tuple(found[name] for name in ("preprocess", "queue", "prefill", "decode")) == (
            5_000,
            50,
            200,
            30,
        )


class TestEndings:
    """Every way out of the engine."""

    async def test_cancelled_in_the_middle(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """The cancellation goes through, the engine is told, phases are kept."""
        engine.plan = Plan(wait_at=2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(generate(captured, engine), 0.02)
        found = written(captured)
        assert (found[semconv.OUTCOME], found[semconv.INCOMPLETE]) == ("cancelled", True)
        assert (engine.closed, lengths(found)["queue"]) == (["r0"], 50)

    @pytest.mark.parametrize(
        ("error", "at", "outcome", "code"),
        [
            (vllm.EngineGenerateError("secret"), 2, "error", StatusCode.ERROR),
            (vllm.EngineGenerateError("secret"), 0, "error", StatusCode.ERROR),
            (vllm.VLLMValidationError("secret"), 0, "rejected", StatusCode.UNSET),
            (vllm.GracefulHTTPError("secret"), 0, "rejected", StatusCode.UNSET),
            (ValueError("secret"), 0, "rejected", StatusCode.UNSET),
            (vllm.VLLMValidationError("secret"), 2, "error", StatusCode.ERROR),
        ],
    )
    async def test_errors(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        error: Exception,
        at: int,
        outcome: str,
        code: StatusCode,
    ) -> None:
        """The same object reaches the caller; its class is the type, its message nowhere."""
        engine.plan = Plan(fail_at=at, error=error)
        with pytest.raises(type(error)) as raised:
            await generate(captured, engine)
        assert error is raised.value
        span = captured.span(NAME)
        assert (outcome, code) == (span.attributes[semconv.OUTCOME], span.status.status_code)
        assert span.attributes[semconv.ERROR_TYPE].endswith(type(error).__name__)
        assert "secret" not in span.to_json()

    async def test_closed_early(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine's generator is closed, once, before `aclose` returns."""
        live = opened(captured)
        with attached(live.context):
            async with aclosing(engine.generate("hi", SamplingParams(), "r")) as outputs:
                await anext(outputs)
        assert engine.closed == ["r"]
        live.finish()
        assert written(captured)[semconv.OUTCOME] == "abandoned"

    async def test_never_started(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A generator that nobody asks starts nothing."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            assert engine.started == []
            await outputs.aclose()
        assert (engine.started, engine.closed) == ([], [])
        live.finish()

    async def test_dropped(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A generator that is let go in the middle is closed by the event loop."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            await anext(outputs)
            del outputs
        await asyncio.sleep(0.01)
        assert engine.closed == ["r"]
        live.finish()

    async def test_the_request_ends_first(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """A peer that leaves ends the span while the engine is still at work."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            await anext(outputs)
            live.recorder.ending(peer_gone=True)
            live.finish()
            assert len([each async for each in outputs]) == 3
        found = written(captured)
        assert (found[semconv.OUTCOME], lengths(found)["queue"]) == ("cancelled", 50)


class TestTransparency:
    """What the caller sees is the same with and without us."""

    @pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(n=2)])
    async def test_the_same_outputs(
        self, captured: CapturedTelemetry, engine: AsyncLLM, params: SamplingParams
    ) -> None:
        """The very objects, in order."""
        taken = await generate(captured, engine, params)
        assert [id(each) for each in engine.yielded] == [id(each) for each in taken]

    async def test_the_same_laziness(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine is never ahead of its caller."""
        live = opened(captured)
        with attached(live.context):
            outputs = engine.generate("hi", SamplingParams(), "r")
            for number in range(1, 4):
                await anext(outputs)
                assert number == len(engine.yielded)
            await outputs.aclose()
        live.finish()

    async def test_outside_a_request(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A call that belongs to no request is the engine's own generator."""
        outputs = engine.generate("hi", SamplingParams(), "r")
        assert outputs.ag_code.co_filename == vllm.__file__
        assert (len([each async for each in outputs]), captured.spans) == (4, [])

    def test_signature(self, engine: AsyncLLM) -> None:
        """Frameworks that look at it see the original's."""
        assert inspect.signature(AsyncLLM.generate) == inspect.signature(type(engine).generate)

    async def test_wrong_arguments(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The engine's own complaint."""
        live = opened(captured)
        with attached(live.context), pytest.raises(TypeError, match="sampling_params"):
            engine.generate("hi")
        live.finish()

    @pytest.mark.parametrize("positional", [True, False])
    async def test_positional_and_named_arguments(
        self, captured: CapturedTelemetry, engine: AsyncLLM, positional: bool
    ) -> None:
        """Both ways of calling are understood."""
        live = opened(captured)
        params = SamplingParams(n=2)
        with attached(live.context):
            outputs = (
                engine.generate("hi", params, "id-1")
                if positional
                else engine.generate(request_id="id-1", prompt="hi", sampling_params=params)
            )
            assert len([each async for each in outputs]) == 8
        live.finish()
        assert written(captured)[semconv.REQUEST_ID] == "id-1"

    async def test_nothing_is_kept_alive(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """After the request, outputs and statistics can be freed."""
        await generate(captured, engine)
        outputs = [weakref.ref(each) for each in engine.yielded]
        engine.yielded.clear()
        gc.collect()
        assert [each() for each in outputs] == [None] * 4

    async def test_many_at_once(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM]
    ) -> None:
        """Requests that overlap keep to their own spans."""
        engines = [engine_type(ManualClock()) for _ in range(10)]
        await asyncio.gather(*(generate(captured, each) for each in engines))
        counts = [each.attributes.get(semconv.OUTPUT_TOKENS) for each in captured.spans]
        assert [count for count in counts if count is not None] == [4] * 10

    @pytest.mark.parametrize("n", [1, 2])
    async def test_an_output_without_sequences(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        monkeypatch: pytest.MonkeyPatch,
        n: int,
    ) -> None:
        """Whatever the engine yields goes through, and the rest is still written."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        odd = RequestOutput("r", [1], [], False, metrics=vllm.RequestStateStats())
        engine._shown = lambda *_given: [odd]  # type: ignore[method-assign]
        live, taken = opened(captured), 0
        with attached(live.context), suppress(IndexError):
            async for _ in engine.generate("hi", SamplingParams(n=n), "r"):
                taken += 1
        live.finish()
        assert (taken, semconv.OUTCOME in written(captured)) == (4, True)


class TestSwitching:
    """On, on again, and off."""

    async def test_twice_is_once(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """One span, one sample."""
        otel_llm.instrument(**captured.providers)
        await generate(captured, engine)
        assert len(captured.spans) == 1 + len(PHASES)
        assert captured.points(semconv.SERVER_DURATION)[0].count == 1

    async def test_off(
        self,
        captured: CapturedTelemetry,
        engine_type: type[AsyncLLM],
        clock: ManualClock,
    ) -> None:
        """The original function itself is back."""
        otel_llm.uninstrument()
        assert vars(AsyncLLM)["generate"] is vars(engine_type)["generate"]

    async def test_off_with_a_function_that_was_kept(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """It goes on, as the engine's own."""
        kept = engine.generate
        otel_llm.uninstrument()
        live = opened(captured)
        with attached(live.context):
            assert kept("hi", SamplingParams(), "r").ag_code.co_filename == vllm.__file__
        live.finish()

    async def test_base_and_subclass(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM], clock: ManualClock
    ) -> None:
        """A subclass that calls its base is one call of the engine."""

        class Derived(engine_type):  # type: ignore[misc, valid-type]
            """An engine of somebody's own."""

            async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                async for output in super().generate(*args, **kwargs):
                    yield output

        await generate(captured, Derived(clock))
        assert written(captured)[semconv.OUTPUT_TOKENS] == 4


class TestContent:
    """Answers, only on request."""

    @pytest.mark.parametrize("kind", [DELTA, FINAL_ONLY])
    async def test_switched_on(
        self, engine: AsyncLLM, clock: ManualClock, kind: RequestOutputKind
    ) -> None:
        """One message per sequence, with its whole text."""
        captured = captured_telemetry(EmitSettings(capture_content=True), clock=clock)
        await generate(captured, engine, SamplingParams(n=2, output_kind=kind))
        assert written(captured)[semconv.OUTPUT_MESSAGES].count('"xxxx"') == 2

    async def test_off_by_default(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Nothing is gathered."""
        live: LiveRequest = opened(captured)
        with attached(live.context):
            async for _ in engine.generate("hi", SamplingParams(), "r"):
                assert live.recorder.calls[0].texts is None  # type: ignore[attr-defined]
        live.finish()
        assert semconv.OUTPUT_MESSAGES not in written(captured)


async def _taken(outputs: AsyncIterator[Any]) -> None:
    async for _ in outputs:
        pass
