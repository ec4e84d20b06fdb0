"""Switching on: by variables and by arguments."""

from __future__ import annotations

import threading

import pytest

import otel_llm
from otel_llm import ConfigurationError
from otel_llm.config import RUNTIME, Settings
from otel_llm.host.settings import Hosts, HostSettings
from otel_llm.host.watch import Watcher
from otel_llm.testing import CapturedTelemetry, captured_telemetry
from tests.host.machines import CHAT


def watcher() -> Watcher | None:
    """What looks at the machine in this process."""
    around = RUNTIME.current().around
    assert around is None or isinstance(around, Watcher)
    return around


class TestEnvironment:
    """`OTEL_LLM_HOST` and `OTEL_LLM_GPU`."""

    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            ({}, HostSettings()),
            ({"OTEL_LLM_HOST": " "}, HostSettings()),
            ({"OTEL_LLM_HOST": "0"}, HostSettings()),
            ({"OTEL_LLM_HOST": "on"}, HostSettings(Hosts.SERVERS)),
            ({"OTEL_LLM_HOST": " ALL "}, HostSettings(Hosts.ALL)),
            ({"OTEL_LLM_GPU": "true"}, HostSettings(gpu=True)),
        ],
    )
    def test_values(self, variables: dict[str, str], expected: HostSettings) -> None:
        """Off, on, and on for clients, too."""
        assert expected == Settings.from_environment(variables).host

    @pytest.mark.parametrize("name", ["OTEL_LLM_HOST", "OTEL_LLM_GPU"])
    def test_a_wrong_value(self, name: str) -> None:
        """It is told with the variable's name."""
        with pytest.raises(ConfigurationError, match=f"{name} is 'maybe'.*true or false"):
            Settings.from_environment({name: "maybe"})

    def test_all_is_told_of(self) -> None:
        """The message lists everything that is accepted."""
        with pytest.raises(ConfigurationError, match="true or false, or all"):
            Settings.from_environment({"OTEL_LLM_HOST": "some"})


@pytest.mark.parametrize(
    ("argument", "expected"),
    [(None, Hosts.ALL), (True, Hosts.SERVERS), (False, Hosts.OFF), ("all", Hosts.ALL)],
)
def test_an_argument_wins(argument: bool | str | None, expected: Hosts) -> None:
    """Over what the environment says."""
    assert HostSettings(Hosts.ALL).given(argument, None).host is expected


def test_a_wrong_argument() -> None:
    """As a wrong variable."""
    with pytest.raises(ConfigurationError):
        HostSettings().given("some", None)


class TestProcess:
    """Where telemetry is made."""

    def test_off_by_default(self) -> None:
        """Nothing looks."""
        assert watcher() is None

    def test_on_the_global_providers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where nobody has set anything up."""
        monkeypatch.setenv("OTEL_LLM_HOST", "1")
        assert watcher() is not None

    def test_instrument(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On providers of the application's own, down to the span."""
        monkeypatch.setenv("OTEL_LLM_HOST", "1")
        captured: CapturedTelemetry = captured_telemetry()
        otel_llm.instrument(engines=[], **captured.providers)
        with otel_llm.trace_request("chat", model="tiny", provider="demo"):
            pass
        found = captured.span(CHAT.span_name).attributes
        assert found["otel_llm.host.minor_faults"] >= 0

    def test_configure(self) -> None:
        """The thread that samples GPUs ends with everything else."""
        otel_llm.configure(endpoint="http://127.0.0.1:9", metrics=False, engines=[], gpu=True)
        found = watcher()
        assert found is not None
        assert found._gpu is not None
        thread = found._gpu._thread
        assert isinstance(thread, threading.Thread)
        otel_llm.uninstrument()
        assert (found._gpu._stop.is_set(), thread.is_alive()) == (True, False)
