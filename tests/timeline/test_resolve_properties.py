"""What holds of every timeline, whatever the evidence."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite

from hypothesis import given

from otel_llm.timeline import Evidence, Outcome, Phase, Source, Timeline, resolve
from tests.timeline.strategies import evidences

ORDER = list(Phase)


@given(evidences)
def test_any_evidence_gives_a_sound_timeline(evidence: Evidence) -> None:
    """Phases are ordered, inside the request, and add up with the rest to E2E as integers."""
    found = resolve(evidence)
    _ordered_and_inside(found)
    _adds_up(found)
    _numbers_are_sane(found)


@given(evidences)
def test_outcome_and_error_type_agree(evidence: Evidence) -> None:
    """A success or an abandoned stream has no error type; every other outcome has one."""
    found = resolve(evidence)
    assert (found.error_type is None) == (found.outcome in {Outcome.OK, Outcome.ABANDONED})
    assert found.outcome is not Outcome.OK or found.ended_in is None


@given(evidences)
def test_only_what_was_cut_keeps_a_raw_value(evidence: Evidence) -> None:
    """A raw duration is kept for phases that were cut, and those are called estimates."""
    for each in resolve(evidence).phases:
        if each.reported_us is not None:
            assert each.source is Source.ESTIMATED
            assert each.reported_us > each.duration_us


def _ordered_and_inside(found: Timeline) -> None:
    names = [ORDER.index(each.phase) for each in found.phases]
    assert names == sorted(set(names))
    assert all(before.end_us <= after.start_us for before, after in pairwise(found.phases))
    if found.phases:
        assert found.start_us is not None
        assert found.end_us is not None
        assert found.start_us <= found.phases[0].start_us
        assert found.phases[-1].end_us <= found.end_us


def _adds_up(found: Timeline) -> None:
    total = sum(each.duration_us for each in found.phases)
    if found.e2e_us is None:
        assert found.unaccounted_us is None
    else:
        assert found.unaccounted_us is not None
        assert found.unaccounted_us >= 0
        assert total + found.unaccounted_us == found.e2e_us


def _numbers_are_sane(found: Timeline) -> None:
    values = list(found._asdict().values())
    values += [*found.tokens, *(found.gaps or ())]
    values += [each.duration_us for each in found.phases] + list(found.parts.values())
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert value >= 0
            assert isfinite(value)
    assert all(type(each.duration_us) is int for each in found.phases)
