"""Servers of the demo end with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_llm.demo.child import Child, DemoError
from tests.demo.commands import alive, within

SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
IGNORES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
PARENT = """
import os, sys, time
from pathlib import Path
from otel_llm.demo.child import Child
child = Child("it", [sys.executable, "-c", sys.argv[2]], log=Path(sys.argv[1]), env=os.environ)
child.wait_for(lambda: child.said() or None, 10)
print("ready", flush=True)
time.sleep(60)
"""


def started(code: str, log: Path) -> tuple[Child, int]:
    """A child that runs *code*, and its process id once it has printed that."""
    child = Child("it", [sys.executable, "-c", code], log=log, env=os.environ)
    return child, child.wait_for(
        lambda: int(child.said().split(None, 1)[0]) if child.said() else None, 10
    )


@pytest.mark.parametrize("code", [SLEEPS, IGNORES], ids=["ends", "ignores SIGTERM"])
def test_stop_ends_it(tmp_path: Path, code: str) -> None:
    """Also one that does not want to end."""
    child, pid = started(code, tmp_path / "log")
    assert alive(pid)
    child.stop()
    assert not alive(pid)
    child.stop()


def test_what_it_has_started_ends_too(tmp_path: Path) -> None:
    """A server that dies leaves nothing running."""
    code = (
        "import subprocess as s, sys\n"
        f"grandchild = s.Popen([sys.executable, '-c', {SLEEPS!r}], stdout=s.PIPE)\n"
        "print(grandchild.stdout.readline().decode(), flush=True)\n"
    )
    child, pid = started(code, tmp_path / "log")
    assert within(5, lambda: not alive(pid))
    child.stop()


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """A killed parent can do nothing any more."""
    log = tmp_path / "log"
    command = [sys.executable, "-c", PARENT, str(log), SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        pid = int(log.read_text())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    assert within(5, lambda: not alive(pid))


def test_one_that_ends_before_it_is_ready_is_told_with_its_last_words(tmp_path: Path) -> None:
    """What it has printed stands in the message."""
    command = [sys.executable, "-c", "raise SystemExit('no memory')"]
    child = Child("it", command, log=tmp_path / "log", env=os.environ)
    with pytest.raises(DemoError, match=r"it ended before it was ready(?s:.*)no memory"):
        child.wait_for(lambda: None, 10)
    child.stop()


def test_one_that_is_late_is_told(tmp_path: Path) -> None:
    """With how long it was waited for."""
    child, _ = started(SLEEPS, tmp_path / "log")
    with pytest.raises(DemoError, match=r"was not ready after 0\.1 s"):
        child.wait_for(lambda: None, 0.1)
    child.stop()
