"""An engine's list of events: milestones, and time spent preempted."""

from __future__ import annotations

import pytest

from otel_llm.clock import Anchor
from otel_llm.timeline import EngineStamps, Mark, Part, Sequence, resolve
from otel_llm.timeline.align import aligned, from_events, milestones, preempted_parts
from tests.timeline.builders import BASE_NS, BOUNDS, ENGINE, MONOTONIC_NS, ns, server, us


class TestEvents:
    """An engine's list of events: milestones and time spent preempted."""

    RUN = (("queued", 1.0), ("scheduled", 1.5), ("first_token", 2.0), ("finished", 5.0))

    def test_the_first_of_each_kind_counts(self) -> None:
        """A second schedule does not move the end of the queue."""
        found, _ = from_events([*self.RUN[:2], ("scheduled", 1.8), *self.RUN[2:]])
        expected = (1.0, 1.5, 2.0)
        assert expected == (found.queued, found.scheduled, found.first_token)

    @pytest.mark.parametrize(
        ("events", "last"),
        [
            ((), 2.0),
            ((("token", 2.5), ("token", 3.0)), 3.0),
            ((("token", 2.5), ("finished", 3.5)), 3.5),
            ((("finished", 0.0), ("token", 3.0)), 3.0),
        ],
    )
    def test_the_last_token(self, events: tuple[tuple[str, float], ...], last: float) -> None:
        """It is the finish, else the latest token, else the first."""
        found, _ = from_events([*self.RUN[:3], *events])
        assert last == milestones(found)[Mark.LAST_TOKEN]

    def test_no_events(self) -> None:
        """An engine that tells nothing gives nothing."""
        found, parts = from_events([])
        assert not milestones(found)
        assert not parts

    @pytest.mark.parametrize("never", [0.0, -1.0, float("nan"), float("inf")])
    def test_events_that_never_were(self, never: float) -> None:
        """A time that is none makes no event, not even a preemption."""
        found, parts = from_events([*self.RUN, ("preempted", never), ("scheduled", 6.0)])
        assert ns(0) == found.preemptions
        assert not parts

    @pytest.mark.parametrize(
        ("out", "back", "part"),
        [(1.6, 1.9, Part.PREFILL_PREEMPTED_US), (2.1, 2.4, Part.DECODE_PREEMPTED_US)],
    )
    def test_preempted_time_belongs_to_the_open_phase(
        self, out: float, back: float, part: Part
    ) -> None:
        """Before the first token it lies in prefill, after it in decode."""
        events = sorted(
            [*self.RUN, ("preempted", out), ("scheduled", back)], key=lambda each: each[1]
        )
        found, parts = from_events(events)
        assert {part: us(300)} == parts
        assert len(parts) == found.preemptions

    def test_preempted_times_are_summed(self) -> None:
        """Each preemption counts, and the time from each to the next schedule."""
        more = [("preempted", 2.1), ("scheduled", 2.3), ("preempted", 3.0), ("scheduled", 3.5)]
        found, parts = from_events([*self.RUN[:3], *more, self.RUN[3]])
        assert {Part.DECODE_PREEMPTED_US: us(700)} == parts
        assert len(more) // 2 == found.preemptions

    def test_a_finish_ends_a_preemption(self) -> None:
        """A request that ends while it is preempted was so until its end."""
        _, parts = from_events([*self.RUN[:3], ("preempted", 4.0), ("finished", 5.0)])
        assert {Part.DECODE_PREEMPTED_US: us(1000)} == parts

    def test_a_token_does_not_end_a_preemption(self) -> None:
        """An output that was under way may still come; the request runs again when scheduled."""
        more = [("preempted", 2.5), ("token", 2.6), ("scheduled", 3.0)]
        _, parts = from_events([*self.RUN[:3], *more, self.RUN[3]])
        assert {Part.DECODE_PREEMPTED_US: us(500)} == parts

    def test_two_preemptions_without_a_schedule_are_one_wait(self) -> None:
        """The request was out since the first of them."""
        more = [("preempted", 2.5), ("preempted", 2.8), ("scheduled", 3.0)]
        found, parts = from_events([*self.RUN[:3], *more, self.RUN[3]])
        assert {Part.DECODE_PREEMPTED_US: us(500)} == parts
        assert len(more) - 1 == found.preemptions

    @pytest.mark.parametrize("upto", [0, 1, 2])
    def test_a_finish_without_a_token_is_no_token(self, upto: int) -> None:
        """A request aborted in the queue or in prefill has no last token."""
        found, _ = from_events([*self.RUN[:upto], ("token", 4.5), self.RUN[3]])
        assert Mark.LAST_TOKEN not in milestones(found)

    def test_a_preemption_that_goes_back_takes_no_time(self) -> None:
        """A schedule stamped before the preemption gives nothing negative."""
        _, parts = from_events([*self.RUN[:3], ("preempted", 4.0), ("scheduled", 3.0)])
        assert not parts

    def test_no_preemption_is_known(self) -> None:
        """An engine that tells events and no preemption had none."""
        found, _ = from_events(self.RUN)
        assert ns(0) == found.preemptions


class TestPreempted:
    """Pairs of from and until, in an engine's seconds, as parts of the phase that was open."""

    FIRST = 2.0

    @pytest.mark.parametrize(
        ("pairs", "parts"),
        [
            ((), {}),
            (((1.0, 1.5),), {Part.PREFILL_PREEMPTED_US: us(500)}),
            (((2.0, 2.5),), {Part.DECODE_PREEMPTED_US: us(500)}),
            (((1.9, 2.1),), {Part.PREFILL_PREEMPTED_US: us(200)}),
            (
                ((1.0, 1.5), (2.0, 2.1), (2.5, 2.7)),
                {Part.PREFILL_PREEMPTED_US: us(500), Part.DECODE_PREEMPTED_US: us(300)},
            ),
            (((2.0, 2.5), (2.2, 2.5)), {Part.DECODE_PREEMPTED_US: us(500)}),
            (((2.0, None),), {}),
            (((2.0, None), (2.5, 2.6)), {Part.DECODE_PREEMPTED_US: us(100)}),
            (((2.5, 2.5),), {}),
            (((2.5, 2.0),), {}),
            (((float("nan"), 2.5), (2.0, float("inf")), (0.0, 3.0)), {}),
        ],
        ids=str,
    )
    def test_parts(
        self, pairs: tuple[tuple[float, float | None], ...], parts: dict[Part, int]
    ) -> None:
        """Whole microseconds; what has no end, or no length, is not counted."""
        assert parts == preempted_parts(pairs, self.FIRST)

    @pytest.mark.parametrize("first", [None, 0.0])
    def test_without_a_first_token(self, first: float | None) -> None:
        """All of it lies in prefill."""
        assert preempted_parts([(2.0, 2.5)], first) == {Part.PREFILL_PREEMPTED_US: us(500)}

    @pytest.mark.parametrize("skew", [0, 5_000])
    def test_of_a_sequence(self, skew: float) -> None:
        """Its parts come with its stamps, whichever clock they are from."""
        start = MONOTONIC_NS / 1e9 + skew
        stamps = EngineStamps(
            scheduled=start + 0.1,
            first_token=start + 0.2,
            last_token=start + 0.9,
            preempted=((start + 0.3, start + 0.4),),
        )
        found = aligned(stamps, Anchor(BASE_NS, MONOTONIC_NS), MONOTONIC_NS + ns(1000))
        assert found.parts == {Part.DECODE_PREEMPTED_US: us(100)}

    def test_of_several_sequences(self) -> None:
        """The worst of them counts, part by part: they may have waited side by side."""
        found = resolve(
            server(
                BOUNDS,
                sequences=tuple(Sequence(ENGINE, parts=each) for each in self.several()),
                expected_sequences=2,
            )
        )
        assert found.parts == {
            Part.PREFILL_PREEMPTED_US: us(20),
            Part.DECODE_PREEMPTED_US: us(80),
        }

    def several(self) -> list[dict[Part, int]]:
        return [
            {Part.PREFILL_PREEMPTED_US: us(20), Part.DECODE_PREEMPTED_US: us(30)},
            {Part.DECODE_PREEMPTED_US: us(80)},
        ]

    def test_more_than_the_phase(self) -> None:
        """It is cut to the phase that it lies in."""
        parts = {Part.DECODE_PREEMPTED_US: us(5_000)}
        found = resolve(server(BOUNDS, sequences=(Sequence(ENGINE, parts=parts),)))
        assert found.parts == {Part.DECODE_PREEMPTED_US: us(490)}
