"""Objectives: how they are written, and which requests met them."""

from __future__ import annotations

from typing import Any

import pytest

from otel_llm import ConfigurationError
from otel_llm.emit.live import NOTHING_KNOWN
from otel_llm.emit.objectives import Objective, judged, parse_objectives
from otel_llm.timeline import GapSummary, Outcome, Phase, PhaseTime, Side, Source, Timeline

MS = 1_000_000


def timeline(outcome: Outcome = Outcome.OK, **known: Any) -> Timeline:
    """A request on a server of which only *known* is known."""
    return NOTHING_KNOWN._replace(side=Side.SERVER, outcome=outcome, **known)


def phase(which: Phase, duration_us: int) -> tuple[PhaseTime, ...]:
    """One phase of that length."""
    return (PhaseTime(which, 0, duration_us, Source.OBSERVED, None),)


def met(objective: str, of: Timeline, status: int | None = None) -> bool | None:
    """Whether *of* met the one objective; None if it does not count."""
    return dict(judged(parse_objectives(objective), of, status)).get(objective.partition("=")[0])


class TestWriting:
    """What a user may write, and what is said of the rest."""

    @pytest.mark.parametrize(
        ("limit", "limit_ns"),
        [
            ("7ns", 7),
            ("20us", 20_000),
            ("500ms", 500 * MS),
            ("0.5 s", 500 * MS),
            (" 30s ", 30_000 * MS),
        ],
    )
    def test_units(self, limit: str, limit_ns: int) -> None:
        """Nanoseconds to seconds, whole or not."""
        assert parse_objectives({"ttft": limit}) == (Objective("ttft", limit_ns),)

    def test_as_one_text(self) -> None:
        """As in the environment; `ok` stands alone, and empty entries are nothing."""
        expected = (Objective("ttft", 500 * MS), Objective("ok"), Objective("queue", 1000 * MS))
        assert expected == parse_objectives(" ttft=500ms, ok,queue = 1s,")

    def test_ok_in_a_mapping(self) -> None:
        """It has no limit to write."""
        assert parse_objectives({"ok": True}) == (Objective("ok"),)

    @pytest.mark.parametrize(
        "limit", ["500", "5m", "ms", "-1s", "0s", "1e3s", "0.1ns", "", "1s2ms", 0.5, None, True]
    )
    def test_a_wrong_limit(self, limit: Any) -> None:
        """The message names the setting, the key and the units."""
        with pytest.raises(ConfigurationError, match=r"OTEL_LLM_SLO: 'ttft' .*in ns, us, ms or s"):
            parse_objectives({"ttft": limit}, "OTEL_LLM_SLO")

    @pytest.mark.parametrize("name", ["p99", "TTFT", "unaccounted", ""])
    def test_an_unknown_name(self, name: str) -> None:
        """The message lists the known ones, every phase among them."""
        with pytest.raises(ConfigurationError, match=r"ok, ttft, tpot, .*queue, prefill, .*decode"):
            parse_objectives({name: "1s"})

    def test_a_limit_for_ok(self) -> None:
        """A request cannot be ok within a time; that is `e2e`."""
        with pytest.raises(ConfigurationError, match="'ok' has no limit"):
            parse_objectives("ok=1s")


class TestNumbers:
    """Requests that ended well are judged by their numbers."""

    @pytest.mark.parametrize(
        ("objective", "known"),
        [
            ("ttft", {"ttft_us": 1000}),
            ("tpot", {"tpot_us": 1000}),
            ("e2e", {"e2e_us": 1000}),
            ("itl_p99", {"gaps": GapSummary(9, p99_us=1000)}),
            *((each.value, {"phases": phase(each, 1000)}) for each in Phase),
        ],
    )
    def test_each_number_has_its_limit(self, objective: str, known: dict[str, Any]) -> None:
        """The limit itself is within it; a microsecond more is not; without a number nothing."""
        found = timeline(**known)
        assert met(f"{objective}=1ms", found) is True
        assert met(f"{objective}=999us", found) is False
        assert met(f"{objective}=1ms", timeline()) is None

    def test_a_client_sees_no_tokens(self) -> None:
        """The gaps it knows are those of chunks."""
        client = timeline(gaps=GapSummary(9, p99_us=1000))._replace(side=Side.CLIENT)
        assert met("itl_p99=1ms", client) is None

    def test_ok(self) -> None:
        """It ended well, that is all."""
        assert met("ok", timeline()) is True

    def test_several(self) -> None:
        """In the order given, without those that do not count."""
        objectives = parse_objectives("e2e=1s,ttft=1ms,queue=1s,ok")
        found = judged(objectives, timeline(ttft_us=2000, e2e_us=3000), None)
        assert found == [("e2e", True), ("ttft", False), ("ok", True)]


class TestServersFault:
    """An error misses whatever it has, had, or would have had next."""

    @pytest.mark.parametrize("objective", ["ok", "e2e=1s", "ttft=1s", "queue=1s"])
    def test_an_error(self, objective: str) -> None:
        """Also what was within its limit before the error."""
        known = {"ttft_us": 1, "e2e_us": 2, "phases": phase(Phase.QUEUE, 1)}
        assert met(objective, timeline(Outcome.ERROR, **known)) is False

    @pytest.mark.parametrize(("outcome", "status"), [(Outcome.ERROR, 500), (Outcome.REJECTED, 503)])
    def test_by_status(self, outcome: Outcome, status: int) -> None:
        """A server that refuses because it is overloaded is not available."""
        assert met("ok", timeline(outcome), status) is False

    def test_a_stream_that_failed_before_its_first_token(self) -> None:
        """It has none, and was to have one."""
        assert met("ttft=1s", timeline(Outcome.ERROR, incomplete=True)) is False

    def test_the_phase_it_failed_in(self) -> None:
        """That one was open; later ones are not known to be to come."""
        found = timeline(Outcome.ERROR, ended_in=Phase.PREFILL)
        assert (met("prefill=1s", found), met("decode=1s", found)) == (False, None)

    @pytest.mark.parametrize("objective", ["ttft=1s", "tpot=1s", "load=1s"])
    def test_what_such_a_request_never_has(self, objective: str) -> None:
        """A failed embedding misses no first token, else such an objective is only ever missed."""
        assert met(objective, timeline(Outcome.ERROR, e2e_us=5)) is None


class TestCallersFault:
    """What a caller did wrong is not the server's record."""

    @pytest.mark.parametrize("status", [None, 400, 401, 404, 422, 429])
    @pytest.mark.parametrize("objective", ["ok", "e2e=1ns"])
    def test_a_refusal(self, objective: str, status: int | None) -> None:
        """Neither met nor missed."""
        assert met(objective, timeline(Outcome.REJECTED, e2e_us=9), status) is None


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.ABANDONED])
class TestCallerLeft:
    """Whoever leaves hides neither what was slow by then nor what was fast."""

    def test_not_an_error(self, outcome: Outcome) -> None:
        """`ok` does not count it."""
        assert met("ok", timeline(outcome, e2e_us=1)) is None

    def test_what_was_complete(self, outcome: Outcome) -> None:
        """The first token had come, in time or not."""
        found = timeline(outcome, ttft_us=2000, phases=phase(Phase.QUEUE, 500))
        verdicts = [met(each, found) for each in ("ttft=2ms", "ttft=1ms", "queue=1ms")]
        assert verdicts == [True, False, True]

    def test_before_the_first_token(self, outcome: Outcome) -> None:
        """Missed if the wait was longer than the limit; otherwise nobody knows."""
        found = timeline(outcome, e2e_us=2000, incomplete=True)
        assert (met("ttft=1ms", found), met("ttft=3ms", found)) == (False, None)

    def test_the_whole(self, outcome: Outcome) -> None:
        """It is cut short, so it can be missed and not met."""
        found = timeline(outcome, e2e_us=2000)
        assert (met("e2e=1ms", found), met("e2e=3ms", found)) == (False, None)

    def test_the_phase_that_was_open(self, outcome: Outcome) -> None:
        """Likewise."""
        found = timeline(outcome, phases=phase(Phase.DECODE, 2000), ended_in=Phase.DECODE)
        assert (met("decode=1ms", found), met("decode=3ms", found)) == (False, None)
