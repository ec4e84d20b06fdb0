"""What the terminal shows."""

from __future__ import annotations

from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console

from otel_llm import semconv
from otel_llm.analysis import SpanRecord, analyse, requests_of
from otel_llm.analysis.render import _COLOURS, render
from otel_llm.analysis.segments import NAMES, Placed
from otel_llm.analysis.waterfall import Run, axis, runs
from otel_llm.analysis.words import LETTERS, percent, seconds
from tests.analysis.builders import pair, side


def page(*spans: SpanRecord, width: int = 80, **options: object) -> list[str]:
    """What is printed, by line, without blanks at the ends."""
    out = StringIO()
    render(analyse(requests_of(spans)), Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return [line.rstrip() for line in out.getvalue().splitlines()]


def many(**facts: object) -> list[SpanRecord]:
    """Twenty usual requests, and one three times as long."""
    scales = [1.0] * 20 + [3.0]
    return [x for n, scale in enumerate(scales) for x in pair(f"t{n}", scale=scale, **facts)]


WANTED_80 = """\
Outcomes
21 requests: 21 ok
In 21 requests the hosts' clocks disagree; no duration depends on them.

Where the time went, in 21 that ended ok
                   p50     p95     p99    mean share
  TTFT          400 ms  400 ms   1.2 s  438 ms
  E2E            1.0 s   1.0 s   3.0 s   1.1 s

N network        50 ms   50 ms  150 ms   55 ms   5 % N
T preprocess     20 ms   20 ms   60 ms   22 ms   2 %
Q queue         200 ms  200 ms  600 ms  219 ms  20 % QQQQ
P prefill       120 ms  120 ms  360 ms  131 ms  12 % PP
F first token    10 ms   10 ms   30 ms   11 ms   1 %
D decode        580 ms  580 ms   1.7 s  635 ms  58 % DDDDDDDDDDDD
S delivery       20 ms   20 ms   60 ms   22 ms   2 %
. unaccounted        0       0       0       0   0 %

The slowest request: 3.0 s
trace t20
                               |0              |1.0 s           |2.0 s
  client                       FFFFFFFFFFFFFFFFFFFFDDDDDDDDDDDDDDDDDDDDDDDDDDDDD
  server                        TQQQQQQQQQQPPPPPPDDDDDDDDDDDDDDDDDDDDDDDDDDDDD

N network         75 ms   2 %  N
T preprocess      60 ms   2 %   T
Q queue          600 ms  20 %    QQQQQQQQQQ
P prefill        360 ms  12 %              PPPPPP
F first token     30 ms   1 %                    F
D decode          1.7 s  58 %                    DDDDDDDDDDDDDDDDDDDDDDDDDDDDD
S delivery        30 ms   1 %                                                 S
N network         75 ms   2 %                                                 NN
S delivery        30 ms   1 %                                                  S

The slowest request (3.0 s, 3.0 times the median) spent 1.7 s, 58 % of it,
decoding; the queue took 600 ms."""


def test_the_page_at_80_columns() -> None:
    """All of it, without colours: letters tell the phases apart."""
    assert WANTED_80.splitlines() == page(*many())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_bars_use_the_width(width: int) -> None:
    """Nothing is wider than the terminal; a wider one has longer bars and names the source."""
    lines = page(*many(), width=width)
    assert max(map(len, lines)) <= width
    assert (width >= 100) == any(line.endswith("observed") for line in lines)
    client = next(line for line in lines if line.startswith("  client"))
    assert min(width, 140) - 20 < len(client) + (11 if width >= 100 else 0)


def test_a_pipe_gets_no_control_codes() -> None:
    """Text only, and only ASCII."""
    text = "\n".join(page(*many()))
    assert text.isascii()
    assert "\x1b" not in text


def test_no_color_leaves_the_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal without colours the bars are letters, and no colour is set."""
    monkeypatch.setenv("NO_COLOR", "1")
    lines = page(*many(), force_terminal=True)
    assert "  server                        TQQQQQQQQQQ" in "\n".join(lines)
    assert "[38;" not in "\n".join(lines)
    assert "[48;" not in "\n".join(lines)


def test_a_terminal_gets_colours() -> None:
    """A phase is a coloured run with its letter once."""
    text = "\n".join(page(*many(), force_terminal=True, color_system="truecolor"))
    assert "48;2;230;159;0mQ         \x1b" in text
    assert "QQ" not in text


def test_every_phase_has_a_letter_and_a_colour_of_its_own() -> None:
    """None is shared."""
    assert set(NAMES) == set(LETTERS) == set(_COLOURS)
    assert len(NAMES) == len(set(LETTERS.values())) == len(set(_COLOURS.values()))


def test_a_terminal_that_cannot_show_a_name_shows_question_marks() -> None:
    """A model's name may hold anything; Latin-1 holds little of it, and codes are not obeyed."""
    spans = pair(**{semconv.REQUEST_MODEL: "雪-\x1b[31mllama"})
    raw = TextIOWrapper(BytesIO(), encoding="latin-1")
    render(analyse(requests_of(spans)), Console(file=raw, width=80))
    raw.seek(0)
    assert "The slowest request: 1.0 s ?-?[31mllama" in raw.read()


def test_weights_show_what_is_estimated() -> None:
    """How many requests the kept ones stand for, and the limits of p99."""
    lines = page(*many(**{semconv.ADJUSTED_COUNT: 20.0}))
    assert "They stand for about 420 requests that were seen." in lines
    assert any("95 % limits" in line for line in lines)
    assert any(line.startswith("  E2E") and "1.0 s..?" in line for line in lines)


def test_weights_that_only_some_have_are_said_to_be_so() -> None:
    """The estimate is then too low, by nobody knows how much."""
    some = pair("x1", **{semconv.ADJUSTED_COUNT: 20.0})
    assert "Some have no sampling weight, and count once." in page(*many(), *some)


def test_what_is_left_out_is_said() -> None:
    """Counts of both kinds."""
    wrong = side("client", 10, trace="x1", attributes={semconv.E2E_US: -1})
    torn = [side("client", 10, trace=t, attributes={semconv.E2E_US: None}) for t in ("x2", "x3")]
    wanted = "Left out: 1 contradictory request and 2 incomplete requests."
    assert wanted in page(*many(), wrong, *torn)


def test_without_a_success_there_is_no_ledger() -> None:
    """Outcomes and the sentence."""
    lines = page(side("client", 10, outcome="error"))
    assert lines[:2] == ["Outcomes", "1 request: 1 error"]
    assert lines[-1] == "The one request did not end well: 1 error."
    assert not any("p99" in line for line in lines)


def test_runs_meet_at_rounded_ends() -> None:
    """Three thirds of ten cells leave no gap."""
    thirds = [Placed(name, n * 100, 100, None) for n, name in enumerate("abc")]
    assert [Run("a", 3), Run("b", 4), Run("c", 3)] == list(runs(thirds, 300, 10))


def test_a_run_is_seen_however_short() -> None:
    """If wanted, at least one cell, at the end, too."""
    last = [Placed("a", 999_999, 1, None)]
    assert [Run(None, 9), Run("a", 1)] == list(runs(last, 1_000_000, 10, least=1))
    assert list(runs(last, 1_000_000, 10)) == []


def test_the_ruler_has_round_times() -> None:
    """As many as there is room for."""
    assert axis(2_500_000, 30) == "|0          |1.0 s      |2.0 s"
    assert axis(0, 30) == "|0"


@pytest.mark.parametrize(
    ("us_", "wanted"),
    [
        (0, "0"), (0.2, "0"), (7, "7 us"), (300, "0.3 ms"), (9_900, "9.9 ms"), (9_960, "10 ms"),
        (120_000, "120 ms"), (999_400, "999 ms"), (999_600, "1.0 s"), (9_200_000, "9.2 s"),
        (99_940_000, "99.9 s"), (99_960_000, "100 s"), (3_600_000_000, "3,600 s"),
    ],
)  # fmt: skip
def test_durations_have_their_unit(us_: float, wanted: str) -> None:
    """Two or three digits that matter, and never a zero for what took time."""
    assert wanted == seconds(us_)


@pytest.mark.parametrize(
    ("share", "wanted"),
    [(0, "0 %"), (0.001, "<1 %"), (0.55, "55 %"), (0.999, ">99 %"), (1, "100 %")],
)
def test_a_share_is_never_rounded_away(share: float, wanted: str) -> None:
    """What is there is not 0 %, and what is not all is not 100 %."""
    assert wanted == percent(share)
