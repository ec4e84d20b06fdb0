"""The integer summary on the request span."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import semconv
from otel_llm.emit.settings import EmitSettings
from otel_llm.emit.summary import summary_attributes
from otel_llm.semconv import GENAI_MAIN, V1_41, Vocabulary
from otel_llm.testing import captured_telemetry
from otel_llm.timeline import (
    GapSummary,
    Mark,
    Part,
    Phase,
    RequestRecorder,
    Side,
    Source,
    Timeline,
    Tokens,
    resolve,
)
from tests.emit.builders import complete, opened
from tests.timeline.builders import (
    COMPLETE,
    at,
    client,
    durations,
    engine,
    marks,
    ns,
    sequence,
    server,
)

WHOLE = marks(received=0, queued=5, scheduled=15, first_token=35, last_token=70, finished=71)


def summary(timeline: Timeline, **settings: Any) -> dict[str, Any]:
    return summary_attributes(timeline, EmitSettings(**settings))


@pytest.fixture
def whole() -> dict[str, Any]:
    """The summary of a streamed reply of five tokens with everything known."""
    return summary(resolve(server(WHOLE | {Mark.FIRST_DELIVERED: at(40)}, output=5)))


class TestNumbers:
    """What is known is written, as whole numbers."""

    def test_phases_and_windows(self, whole: dict[str, Any]) -> None:
        """Every phase and window in microseconds."""
        expected = {
            "otel_llm.preprocess_us": 5_000,
            "otel_llm.queue_us": 10_000,
            "otel_llm.prefill_us": 20_000,
            "otel_llm.first_token_us": 5_000,
            "otel_llm.decode_us": 30_000,
            "otel_llm.delivery_us": 1_000,
            "otel_llm.unaccounted_us": 0,
            "otel_llm.ttft_us": 35_000,
            "otel_llm.tpot_us": 8_750,
            "otel_llm.e2e_us": 71_000,
        }
        assert expected == {name: us for name, us in whole.items() if name.endswith("_us")}

    def test_integers_only(self, whole: dict[str, Any]) -> None:
        """A Collector's numeric policy reads integers and nothing else."""
        assert {int} == {type(us) for name, us in whole.items() if name.endswith("_us")}

    def test_phases_add_up(self, whole: dict[str, Any]) -> None:
        """Phases and what they leave are the whole request, to the microsecond."""
        parts = [whole.get(semconv.phase_us(phase), 0) for phase in Phase]
        assert whole[semconv.E2E_US] == sum(parts) + whole[semconv.UNACCOUNTED_US]

    def test_sources(self, whole: dict[str, Any]) -> None:
        """How each phase is known, in one text."""
        names = ("preprocess", "queue", "prefill", "first_token", "decode", "delivery")
        assert ";".join(f"{name}=observed" for name in names) == whole[semconv.SOURCES]

    def test_a_known_zero_is_written(self) -> None:
        """Nothing cached, no wait and no stall are facts."""
        given = server(
            marks(received=0, finished=9) | engine(queued=1, scheduled=1, first_token=2),
            tokens=Tokens(input=0, output=0, cached=0, reasoning=0),
            sequences=(sequence(queued=1, scheduled=1, first_token=2),),
            gaps=GapSummary(outputs=2, p50_us=0, p99_us=0, max_us=0, stalls=0, stall_us=0),
            parts={Part.PREFILL_CHUNKS: 0},
        )
        zeros = {name for name, value in summary(resolve(given)).items() if value == 0}
        assert zeros >= {
            "otel_llm.queue_us",
            "otel_llm.itl_p50_us",
            "otel_llm.stalls",
            "otel_llm.stall_us",
            "otel_llm.prefill.chunks",
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.reasoning.output_tokens",
        }

    def test_unknown_is_absent(self) -> None:
        """A request of which only arrival and end are known says no more than that."""
        bare = resolve(server(marks(received=0, finished=9), streaming=False))
        expected = {
            "otel_llm.outcome",
            "otel_llm.e2e_us",
            "otel_llm.unaccounted_us",
            "otel_llm.delivery_us",
            "otel_llm.sources",
        }
        assert set(summary(bare)) <= expected

    def test_what_did_not_fit_is_kept(self) -> None:
        """The raw value of a stated duration that is longer than the request."""
        given = server(
            marks(received=0, queued=0, scheduled=5, first_token=8, finished=9),
            reported=durations(queue=500),
        )
        assert summary(resolve(given))["otel_llm.reported.queue_us"] == 500_000

    def test_parts_and_preemptions(self) -> None:
        """What lies inside phases, under its own name."""
        events = sequence(queued=0, scheduled=1, first_token=5, last_token=9)
        given = server(
            marks(received=0, finished=9),
            sequences=(events,),
            parts={Part.DECODE_PREEMPTED_US: 3_000},
        )
        assert summary(resolve(given))["otel_llm.decode.preempted_us"] == 3_000


class TestGaps:
    """The name of a gap says who saw it."""

    GAPS = GapSummary(outputs=5, p50_us=1, p99_us=2, max_us=3, stalls=0, stall_us=0)

    @pytest.mark.parametrize(
        ("seen_from", "prefix", "other"),
        [(server, "otel_llm.itl", "chunk_gap"), (client, "otel_llm.chunk_gap", "itl")],
    )
    def test_names(self, seen_from: Any, prefix: str, other: str) -> None:
        """Outputs on servers, chunks on clients, never both."""
        found = summary(resolve(seen_from(WHOLE, gaps=self.GAPS)))
        expected = {f"{prefix}_p50_us": 1, f"{prefix}_p99_us": 2, f"{prefix}_max_us": 3}
        assert expected == {key: value for key, value in found.items() if prefix in key}
        assert not [key for key in found if other in key]

    def test_one_output_has_no_gap(self) -> None:
        """Neither percentiles nor stalls of nothing."""
        found = summary(resolve(server(WHOLE, gaps=GapSummary(outputs=1))))
        assert not [key for key in found if "itl" in key or "stall" in key]


class TestOutcome:
    """How it ended."""

    def test_of_a_success(self, whole: dict[str, Any]) -> None:
        """An outcome, and nothing that says otherwise."""
        assert whole[semconv.OUTCOME] == "ok"
        assert not {semconv.ERROR_TYPE, semconv.INCOMPLETE, semconv.ENDED_IN} & set(whole)

    def test_of_a_cut_stream(self) -> None:
        """Its type, where it ended, and the mark of incomplete streams."""
        recorder = RequestRecorder(Side.SERVER)
        recorder.streaming = True
        recorder.mark(Mark.QUEUED)
        recorder.mark(Mark.FINISHED)
        found = summary(resolve(recorder.evidence()))
        named = (semconv.OUTCOME, semconv.ERROR_TYPE, semconv.ENDED_IN, semconv.INCOMPLETE)
        assert [found[name] for name in named] == ["error", "incomplete_stream", "queue", True]

    def test_finish_reasons(self) -> None:
        """One for each sequence, in their order."""
        found = summary(resolve(server(WHOLE, finish_reasons=("stop", "length"), ending=COMPLETE)))
        assert found[semconv.FINISH_REASONS] == ("stop", "length")


class TestAliases:
    """The de-facto names of vLLM and SGLang, in seconds."""

    def test_off_by_default(self, whole: dict[str, Any]) -> None:
        """They say nothing new."""
        assert not [name for name in whole if name.startswith("gen_ai.latency.")]

    def test_switched_on(self) -> None:
        """The same numbers as floats of seconds; unknown ones are absent."""
        found = summary(
            resolve(server(marks(received=0, first_token=40, finished=71), streaming=True)),
            latency_aliases=True,
        )
        expected = {
            "gen_ai.latency.time_to_first_token": 0.040,
            "gen_ai.latency.e2e": 0.071,
        }
        assert expected == {
            name: seconds
            for name, seconds in found.items()
            if name.startswith("gen_ai.latency.") and "decode" not in name
        }


class TestVocabularies:
    """Two versions of the conventions behind one switch."""

    @pytest.mark.parametrize(
        ("vocabulary", "name"),
        [
            (V1_41, "gen_ai.usage.cache_creation.input_tokens"),
            (GENAI_MAIN, "gen_ai.usage.cache_write.input_tokens"),
        ],
    )
    def test_cache_writes(self, vocabulary: Vocabulary, name: str) -> None:
        """The name on which the two differ is written once."""
        timeline = resolve(server(WHOLE, tokens=Tokens(cache_written=9)))
        found = summary(timeline, vocabulary=vocabulary)
        assert [name] == [key for key in found if "cache_" in key]

    @pytest.mark.parametrize("vocabulary", [V1_41, GENAI_MAIN])
    def test_schema_url(self, vocabulary: Vocabulary) -> None:
        """Spans carry the schema of the names that they use."""
        captured = captured_telemetry(EmitSettings(vocabulary=vocabulary))
        complete(opened(captured))
        scope = captured.spans[0].instrumentation_scope
        assert ("otel_llm", vocabulary.schema_url) == (scope.name, scope.schema_url)


def test_consumer_stall_is_bounded_by_the_request() -> None:
    """A client's application cannot have stalled longer than the call took."""
    given = client(marks(received=0, first_token=5, finished=9), consumer_stall_ns=ns(50))
    assert summary(resolve(given))[semconv.CONSUMER_STALL_US] == 9_000


def test_sources_tell_estimates_apart() -> None:
    """A bound is not passed off as a measurement."""
    given = server(marks(received=0, finished=9) | marks(Source.ESTIMATED, scheduled=2, queued=1))
    assert "queue=estimated" in summary(resolve(given))[semconv.SOURCES]
