"""What vLLM's undocumented functions add: live statistics, preemptions, state of the replica."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from otel_llm import guard, semconv
from otel_llm.adapters.vllm import state
from otel_llm.testing import CapturedTelemetry, ManualClock
from otel_llm.timeline import Part
from tests.adapters.builders import FINAL_ONLY, PHASES, encode, generate, lengths, sources
from tests.adapters.conftest import instrument
from tests.emit.builders import written
from tests.fakes import vllm, vllm_state
from tests.fakes.vllm import AsyncLLM, Plan, RequestOutputKind, SamplingParams
from tests.fakes.vllm_state import IterationStats, SchedulerStats

QUEUED, FINISHED = semconv.REPLICA_WHEN_QUEUED, semconv.REPLICA_WHEN_FINISHED
PREFILL_OUT = semconv.part(Part.PREFILL_PREEMPTED_US)
DECODE_OUT = semconv.part(Part.DECODE_PREEMPTED_US)


class TestLiveStatistics:
    """Of each sequence, from the moment that the engine has it."""

    @pytest.mark.parametrize("external_ids", [True, False], ids=["0.14", "older"])
    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    async def test_of_three_sequences(
        self,
        captured: CapturedTelemetry,
        engine: AsyncLLM,
        kind: RequestOutputKind,
        external_ids: bool,
    ) -> None:
        """All are known, whatever the outputs show of them, so that nothing is an estimate."""
        engine.plan = Plan(external_ids=external_ids)
        await generate(captured, engine, SamplingParams(n=3, output_kind=kind))
        found = written(captured)
        assert lengths(found) == PHASES
        assert sources(found)["queue"] == "reported"
        assert found[semconv.OUTPUT_TOKENS] == 12

    async def test_of_a_request_that_gave_no_output(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """A plain reply that is cancelled in decode was queued and prefilled."""
        engine.plan = Plan(wait_at=2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                generate(captured, engine, SamplingParams(output_kind=FINAL_ONLY)), 0.02
            )
        found = written(captured)
        assert (found[semconv.OUTCOME], found[semconv.ENDED_IN]) == ("cancelled", "decode")
        assert (lengths(found)["queue"], lengths(found)["prefill"]) == (50, 200)

    @pytest.mark.parametrize("external_ids", [True, False], ids=["0.14", "older"])
    async def test_of_the_right_request(
        self,
        captured: CapturedTelemetry,
        engine_type: type[AsyncLLM],
        clock: ManualClock,
        external_ids: bool,
    ) -> None:
        """A sequence of another name that arrives meanwhile is not ours."""

        class Busy(engine_type):  # type: ignore[misc, valid-type]
            """An engine that is given another request first."""

            def _admitted(self, params: Any, name: str) -> Any:
                others = SamplingParams()
                vllm_state.admit(self.output_processor, "x", others, external_ids=external_ids)
                return super()._admitted(params, name)

        engine = Busy(clock)
        engine.plan = Plan(external_ids=external_ids)
        await generate(captured, engine, SamplingParams(output_kind=FINAL_ONLY))
        assert lengths(written(captured)) == PHASES

    async def test_nothing_is_kept_alive(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """The engine alone keeps statistics after the request."""
        await generate(captured, engine, SamplingParams(n=2))
        kept = [weakref.ref(each.stats) for each in engine.output_processor.request_states.values()]
        engine.output_processor.request_states.clear()
        engine.yielded.clear()
        gc.collect()
        assert [each() for each in kept] == [None, None]


class TestPreemptions:
    """When a sequence was taken off and when it ran again."""

    async def test_in_decode(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A part of decode, beside the count; every time it happened."""
        engine.plan = Plan(preempted={1: 0.3, 3: 0.1})
        await generate(captured, engine)
        found = written(captured)
        assert (lengths(found)["decode"], found[semconv.PREEMPTIONS]) == (430, 2)
        assert found[DECODE_OUT] == 400_000
        assert PREFILL_OUT not in found

    async def test_in_prefill(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """A part of prefill."""
        engine.plan = Plan(preempted={0: 0.3})
        await generate(captured, engine)
        found = written(captured)
        assert (lengths(found)["prefill"], found[PREFILL_OUT]) == (500, 300_000)
        assert DECODE_OUT not in found

    async def test_of_a_plain_reply(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As of a streamed one."""
        engine.plan = Plan(preempted={2: 0.3})
        await generate(captured, engine, SamplingParams(output_kind=FINAL_ONLY))
        assert written(captured)[DECODE_OUT] == 300_000

    async def test_of_several_sequences(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """They wait side by side: times are not added up, counts are."""
        engine.plan = Plan(preempted={2: 0.3})
        await generate(captured, engine, SamplingParams(n=2))
        found = written(captured)
        assert (found[DECODE_OUT], found[semconv.PREEMPTIONS]) == (300_000, 2)

    async def test_none(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """No part, and a count of 0."""
        await generate(captured, engine)
        found = written(captured)
        assert found[semconv.PREEMPTIONS] == 0
        assert not {DECODE_OUT, PREFILL_OUT} & set(found)

    async def test_very_many(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """The first ones are kept with their times, and all are counted."""
        engine.plan = Plan(tokens=101, preempted=dict.fromkeys(range(1, 101), 0.01))
        await generate(captured, engine)
        found = written(captured)
        assert (found[DECODE_OUT], found[semconv.PREEMPTIONS]) == (640_000, 100)

    async def test_of_an_embedding(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """It can only be out in prefill."""
        engine.plan = Plan(preempted={0: 0.3})
        await encode(captured, engine)
        assert written(captured, "embeddings tiny")[PREFILL_OUT] == 300_000


class TestReplica:
    """What else the engine had to do when the request came, and when it was done."""

    LOAD = SchedulerStats(3, 4, 5, kv_cache_usage=0.126)

    async def test_when_queued(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As of the latest step, in whole numbers; those that wait for anything are waiting."""
        step = IterationStats()
        step.num_generation_tokens, step.prompt_token_stats.computed = 3, 100
        engine.logger_manager.record(self.LOAD, step)
        await generate(captured, engine)
        found = written(captured)
        assert [found[name] for name in _names(QUEUED)] == [3, 9, 13, 103]
        assert {int} == {type(found[name]) for name in _names(QUEUED)}

    async def test_when_finished(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As of its last step."""
        engine.plan = Plan(load=SchedulerStats(1, 0, 0, kv_cache_usage=0.0))
        await generate(captured, engine)
        found = written(captured)
        assert [found[name] for name in _names(FINISHED)] == [1, 0, 0, 1]

    async def test_when_queued_first(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Before its first step nothing is known of an engine."""
        await generate(captured, engine)
        assert not {*_names(QUEUED), *_names(FINISHED)} & set(written(captured))

    async def test_of_an_embedding(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """As of a generation."""
        engine.plan = Plan(load=self.LOAD)
        await encode(captured, engine)
        assert written(captured, "embeddings tiny")[FINISHED.running] == 3

    async def test_one_of_several_engines(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """Without a rank nobody knows which of them it is."""
        self.record_two(engine)
        await generate(captured, engine)
        assert not set(_names(QUEUED)) & set(written(captured))

    @pytest.mark.parametrize(("rank", "running"), [(0, 3), (1, 8), (2, None)])
    async def test_by_rank(
        self, captured: CapturedTelemetry, engine: AsyncLLM, rank: int, running: int | None
    ) -> None:
        """The one that the request was sent to."""
        self.record_two(engine)
        await generate(captured, engine, data_parallel_rank=rank)
        assert running == written(captured).get(QUEUED.running)

    def record_two(self, engine: AsyncLLM) -> None:
        engine.logger_manager.record(self.LOAD, IterationStats(), engine_idx=0)
        engine.logger_manager.record(SchedulerStats(8), IterationStats(), engine_idx=1)

    async def test_a_step_that_says_nothing(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """One of several API servers is told of some steps only; what was said before stands."""
        engine.logger_manager.record(self.LOAD, IterationStats())
        engine.logger_manager.record(None, IterationStats())
        await generate(captured, engine)
        assert written(captured)[QUEUED.running] == 3

    async def test_a_step_without_outputs(
        self, captured: CapturedTelemetry, engine: AsyncLLM
    ) -> None:
        """It has no tokens to count."""
        engine.logger_manager.record(self.LOAD, None)
        await generate(captured, engine)
        found = written(captured)
        assert QUEUED.running in found
        assert QUEUED.batch_tokens not in found

    async def test_an_older_step(self, captured: CapturedTelemetry, engine: AsyncLLM) -> None:
        """Older versions count prompt tokens as one number, and skip nobody."""
        scheduler: Any = SimpleNamespace(num_running_reqs=1, num_waiting_reqs=2, kv_cache_usage=0.5)
        step: Any = SimpleNamespace(num_generation_tokens=1, num_prompt_tokens=6)
        engine.logger_manager.record(scheduler, step)
        await generate(captured, engine)
        found = written(captured)
        assert [found[name] for name in _names(QUEUED)] == [1, 2, 50, 7]


class TestWithoutThem:
    """A vLLM that has none of these functions, or other ones."""

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    async def test_none(
        self, captured: CapturedTelemetry, bare_engine: AsyncLLM, kind: RequestOutputKind
    ) -> None:
        """`RequestOutput.metrics` still has the times of its phases."""
        bare_engine.plan = Plan(load=SchedulerStats(3), preempted={2: 0.0})
        await generate(captured, bare_engine, SamplingParams(output_kind=kind))
        found = written(captured)
        assert lengths(found) == PHASES
        assert (found[semconv.OUTPUT_TOKENS], found[semconv.PREEMPTIONS]) == (4, 1)
        assert not set(_names(FINISHED)) & set(found)

    @pytest.mark.parametrize(
        "contents",
        [
            {},
            {
                "OutputProcessor": type("OutputProcessor", (), {}),
                "IterationStats": type("IterationStats", (), {}),
                "StatLoggerManager": type("StatLoggerManager", (), {}),
            },
            {
                "OutputProcessor": type("OutputProcessor", (), {"add_request": lambda: None}),
                "IterationStats": type("IterationStats", (), {"update_from_events": lambda: None}),
                "StatLoggerManager": type("StatLoggerManager", (), {"record": lambda: None}),
            },
        ],
        ids=["no classes", "no functions", "no parameters"],
    )
    async def test_others(
        self,
        captured: CapturedTelemetry,
        monkeypatch: pytest.MonkeyPatch,
        clock: ManualClock,
        contents: Mapping[str, Any],
    ) -> None:
        """What is not as expected is left alone, and the rest works."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        fresh = vllm.installed(monkeypatch, private=False)
        for module in ("engine.output_processor", "metrics.stats", "metrics.loggers"):
            vllm.place(monkeypatch, f"vllm.v1.{module}", **contents)
        instrument(captured)
        await generate(captured, fresh(clock))
        assert lengths(written(captured)) == PHASES

    async def test_a_failure_in_them(
        self, captured: CapturedTelemetry, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is counted, and the engine's own functions run all the same."""
        monkeypatch.setenv("OTEL_LLM_STRICT", "0")
        monkeypatch.setattr(state, "_added", None)
        monkeypatch.setattr(state, "_keep_preemptions", None)
        monkeypatch.setattr(state, "_keep_latest", None)
        assert len(await generate(captured, engine)) == 4
        assert lengths(written(captured)) == PHASES
        names = ("vllm.add_request", "vllm.events", "vllm.record")
        assert all(guard.failures[name] for name in names)


def _names(when: semconv.ReplicaNames) -> list[str]:
    return [when.running, when.waiting, when.kv_cache_percent, when.batch_tokens]
