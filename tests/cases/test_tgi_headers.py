"""D-TIM-05: TGI's timing headers, and bodies without details."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.replies.tgi import TgiTimes, read_headers

CASE = json.loads((Path(__file__).parent / "data/D-TIM-05.json").read_text())


def times(name: str) -> TgiTimes:
    """What the headers of one exchange of the case say."""
    (found,) = [each for each in CASE["exchanges"] if each["name"] == name]
    return read_headers(found["headers"])


def test_a_plain_reply() -> None:
    """Milliseconds and seconds are told apart, a known zero is kept, a bad value left out."""
    expected = TgiTimes(0.204, None, 0.0, 0.202, 0.204518, 9, 3)
    assert expected == pytest.approx(times("a"), nan_ok=True) or expected == times("a")


def test_counts_come_from_headers_alone() -> None:
    """A body without details says no counts; the headers do."""
    found = times("b")
    assert (found.input_tokens, found.output_tokens) == (9, 3)


def test_a_streamed_reply_has_no_times() -> None:
    """Its headers were sent before anything was known; nothing is set to zero."""
    assert TgiTimes() == times("c")


NAMES = ["x-total-time", "X-Queue-Time", "x-compute-time", "x-prompt-tokens", "x-other"]


@given(st.dictionaries(st.sampled_from(NAMES), st.text()))
def test_no_header_raises(headers: dict[str, Any]) -> None:
    """Whatever stands in a header, times are sane or absent."""
    for value in read_headers(headers):
        assert value is None or value >= 0
