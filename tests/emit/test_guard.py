"""The guard: errors of telemetry end here, counted, logged once, without their message."""

from __future__ import annotations

import asyncio
import logging

import pytest

from otel_llm.guard import failures, guard, strict


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an application, where errors of ours are held back."""
    monkeypatch.delenv("OTEL_LLM_STRICT")


@pytest.mark.usefixtures("production")
class TestProduction:
    """Outside of our own tests."""

    def test_an_error_is_held_back(self) -> None:
        """The application goes on after the block."""
        with guard("here"):
            raise LookupError("secret")
        assert failures["here"] == 1

    def test_logged_once_per_place(self, caplog: pytest.LogCaptureFixture) -> None:
        """Counted every time."""
        for place in ("here", "here", "there"):
            with guard(place):
                raise LookupError("secret")
        assert dict(failures) == {"here": 2, "there": 1}
        assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2

    def test_without_its_message(self, caplog: pytest.LogCaptureFixture) -> None:
        """It may quote a prompt."""
        with guard("here"):
            raise LookupError("secret")
        assert "LookupError" in caplog.text
        assert "secret" not in caplog.text

    @pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
    def test_what_is_no_error_passes(self, kind: type[BaseException]) -> None:
        """Cancellation and the end of the process are not ours to stop."""
        with pytest.raises(kind), guard("here"):
            raise kind
        assert failures["here"] == 0

    def test_nothing_happened(self) -> None:
        """Nothing is counted."""
        with guard("here"):
            pass
        assert failures["here"] == 0


class TestStrict:
    """In our tests."""

    def test_an_error_is_raised(self) -> None:
        """So that somebody sees it."""
        with pytest.raises(LookupError), guard("here"):
            raise LookupError

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("1", True), (" TRUE", True), ("on", True), ("0", False), ("", False)],
    )
    def test_switch(self, monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
        """By the environment, at any time."""
        monkeypatch.setenv("OTEL_LLM_STRICT", value)
        assert expected is strict()
