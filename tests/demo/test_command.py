"""The command, its processes, its sockets and its report."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_llm.demo.otlp import span_records
from otel_llm.demo.receiver import Receiver
from tests.demo.commands import SHORT, alive, below, command, environment, run, within
from tests.demo.reports import report


def test_json_is_the_report_and_nothing_else() -> None:
    """Every request is there with both sides, whatever the user's own telemetry is set to."""
    hostile = {
        "OTEL_SDK_DISABLED": "true",
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_LLM_DISABLED": "1",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }
    done = run(*SHORT, "--format", "json", **hostile)
    assert done.returncode == 0, done.stderr
    found = report(done.stdout)
    assert (found["requests"], found["incomplete"], found["invalid"]) == (20, 0, 0)
    assert set(found["groups"]["route"]) == {"/v1/chat/completions"}
    phases = found["phases"]
    assert phases["queue"]["p99"] is not None
    assert phases["network"]["p99"] is not None
    assert sum(each["share"] or 0 for each in phases.values()) == pytest.approx(1, abs=1e-6)
    assert "Traceback" not in done.stderr


def test_text_without_unicode_and_colours_fits_a_narrow_terminal() -> None:
    """In a pipe, in an ASCII locale; everything is also sent on."""
    with Receiver() as receiver:
        done = run(
            *SHORT,
            "--fault",
            "network_delay=0.1",
            "--otlp",
            receiver.endpoint,
            LC_ALL="C",
            PYTHONIOENCODING="ascii",
            PYTHONUTF8="0",
            NO_COLOR="1",
            COLUMNS="80",
        )
        sent_on = {each.resource["service.name"] for each in span_records(receiver.taken())}
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Fault network_delay: " in done.stdout
    assert "20 requests: 20 ok" in done.stdout
    assert "The slowest request (" in done.stdout
    assert {"demo-client", "simulated-vllm"} == sent_on
    assert f"Sent on to {receiver.endpoint}: " in done.stderr
    assert "failed" not in done.stderr


@pytest.mark.parametrize("dialect", ["vllm", "tgi", "ollama"])
def test_every_dialect_without_the_openai_library(dialect: str) -> None:
    """A home-made client asks."""
    words = ("--requests", "6", "--rate", "6", "--dialect", dialect, "--format", "json")
    done = run(*words, without=("openai",))
    assert done.returncode == 0, done.stderr
    found = report(done.stdout)
    assert found["outcomes"]["ok"] == 6
    assert set(found["groups"]["engine"]) == {dialect}
    assert found["phases"]["queue"]["p50"] is not None


@contextmanager
def handled(number: int, how: Any) -> Iterator[None]:
    """What is started meanwhile finds the signal at its default, or ignored, whoever runs us."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def running(
    folder: Path, *words: str, hang_up: Any = signal.SIG_DFL
) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A demo whose first requests have ended, and the processes that it has started."""
    with Receiver() as receiver:
        given = ("--rate", "10", "--requests", "300", "--otlp", receiver.endpoint, *words)
        with handled(signal.SIGINT, signal.SIG_DFL), handled(signal.SIGHUP, hang_up):
            started = subprocess.Popen(
                command(*given),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(TMPDIR=str(folder)),  # who is killed cannot tidy up
            )
        with started as demo:
            try:
                assert within(60, receiver.taken), "nothing was sent on"
                children = below(demo.pid)
                assert len(children) == 2, "keeper and server"
                yield demo, children
            finally:
                demo.kill()


def test_ctrl_c_reports_what_came_so_far(tmp_path: Path) -> None:
    """Exit status 130, a whole report, and nothing is left running."""
    with running(tmp_path, "--format", "json") as (demo, children):
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=90)
        assert demo.returncode == 130, err
        assert 0 < report(out)["requests"] < 300
        assert "Traceback" not in err
        assert list(tmp_path.iterdir()) == []
        assert not any(map(alive, children))


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_when_it_is_ended(tmp_path: Path, number: int, status: int) -> None:
    """Neither when it is asked to end nor when it is killed."""
    with running(tmp_path) as (demo, children):
        demo.send_signal(number)
        assert demo.wait(90) == status
        assert within(10, lambda: not any(map(alive, children)))


def test_a_hang_up_that_is_ignored(tmp_path: Path) -> None:
    """Under `nohup` the demo outlives its terminal."""
    with running(tmp_path, "--format", "json", hang_up=signal.SIG_IGN) as (demo, _):
        demo.send_signal(signal.SIGHUP)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=90)
        assert demo.returncode == 130, err
        assert report(out)["requests"] > 0


def test_a_server_that_dies_is_told(tmp_path: Path) -> None:
    """Exit status 1, what came so far, and the tail of the server's log."""
    with running(tmp_path, "--format", "json") as (demo, children):
        os.kill(max(children), signal.SIGKILL)
        out, err = demo.communicate(timeout=90)
        assert demo.returncode == 1, err
        assert report(out)["requests"] > 0
        assert "the simulated vLLM has ended. Its last words:" in err
        assert "the server ended with exit status -9" in err
        assert "Traceback" not in err
