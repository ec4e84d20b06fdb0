"""Timelines that would mislead: what the design asks for, not what the code gives.

Each test is expected to fail and says why. When one passes, the code was mended: drop its mark
and move it to the file of its subject.
"""

from __future__ import annotations

import pytest

from otel_llm.timeline.align import happened


class Reading(float):
    """A float of another library, as numpy has one."""


def suspect(reason: str) -> pytest.MarkDecorator:
    """A test that fails for *reason*."""
    return pytest.mark.xfail(raises=AssertionError, reason=reason, strict=True)


@suspect("align.happened asks for exactly float or int, which numpy.float64 is not")
def test_a_time_in_a_kind_of_float() -> None:
    """A reading that numpy computed is a time like any other."""
    assert happened(Reading(81_234.5))
