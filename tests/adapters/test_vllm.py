"""The vLLM adapter on a small engine: its stamps become phases, its outputs stay what they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.emit.live import LiveRequest
from otel_llm.emit.settings import EmitSettings
from otel_llm.testing import CapturedTelemetry, ManualClock, captured_telemetry
from tests.adapters.builders import DELTA, FINAL_ONLY, PHASES, generate, lengths, sources
from tests.emit.builders import NAME, attached, opened, written
from tests.fakes import vllm
from tests.fakes.vllm import AsyncLLM, Plan, RequestOutputKind, SamplingParams


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
        engine.plan = Plan(preempted={1: 0.0, 2: 0.0})
        lora = vllm.LoRARequest("legal")
        await generate(captured, engine, lora_request=lora, data_parallel_rank=0)
        found = written(captured)
        names = (semconv.REQUEST_ID, semconv.LORA, semconv.REPLICA, semconv.PREEMPTIONS)
        assert [found[name] for name in names] == [f"cmpl-{0:016x}", "legal", 0, 2]

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
        self, captured: CapturedTelemetry, bare_engine: AsyncLLM
    ) -> None:
        """A final output gives the times of one sequence only."""
        await generate(captured, bare_engine, SamplingParams(n=3, output_kind=FINAL_ONLY))
        assert sources(written(captured))["queue"] == "estimated"

    async def test_several_prompts(
        self, captured: CapturedTelemetry, engine_type: type[AsyncLLM]
    ) -> None:
        """Calls that run side by side are one request: tokens summed, the first one's wait."""
        live = opened(captured)
        with attached(live.context):
            streams = [
                engine_type(ManualClock()).generate("hi", SamplingParams(), f"cmpl-{number:016x}")
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
        ) == (14, 8, 50, f"cmpl-{0:016x}")

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
