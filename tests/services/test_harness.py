"""Tests of the parts that start servers, without a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.services import otlp_json, record, web
from tests.services.cache import cached
from tests.services.process import Service, ServiceError, free_port, free_ports, listening, poll


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of the test's own."""
    monkeypatch.setenv("OTEL_LLM_TEST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_builds_once(cache_dir: Path) -> None:
    """A second call finds the first one's build."""
    builds: list[Path] = []
    for _ in range(2):
        assert cached("thing", "1", builds.append) == cache_dir / "thing-1"
    assert builds == [cache_dir / "thing-1"]


def test_cache_removes_a_failed_build(cache_dir: Path) -> None:
    """A failed build leaves nothing that a later call could take for whole."""

    def fail(target: Path) -> None:
        (target / "half").touch()
        raise ValueError("no compiler")

    with pytest.raises(ValueError, match="no compiler"):
        cached("thing", "1", fail)
    assert not (cache_dir / "thing-1").exists()


def test_cache_replaces_a_killed_build(cache_dir: Path) -> None:
    """What a killed process left is not taken for whole."""
    (cache_dir / "thing-1").mkdir(parents=True)
    (cache_dir / "thing-1" / "half").touch()
    path = cached("thing", "1", lambda target: (target / "whole").touch())
    assert sorted(item.name for item in path.iterdir()) == [".complete", "whole"]


def test_cache_builds_once_between_processes(cache_dir: Path, tmp_path: Path) -> None:
    """Processes that want the same thing at once share one build."""
    script = (
        "import os, time\n"
        "from pathlib import Path\n"
        "from tests.services.cache import cached\n"
        "cached('thing', '1', lambda t: ((t / str(os.getpid())).touch(), time.sleep(0.3)))\n"
    )
    command = [sys.executable, "-c", script]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    runs = [Service(command, log=tmp_path / f"{n}.log", env=env) for n in range(3)]
    for item in runs:
        assert item.wait(limit=20.0) == 0, item.tail()
    assert len([item for item in (cache_dir / "thing-1").iterdir() if item.name.isdigit()]) == 1


def test_service_answers_and_stops(tmp_path: Path) -> None:
    """A server is ready when it answers, and its port is free after stop."""
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with Service(command, log=tmp_path / "log", cwd=tmp_path) as server:
        server.wait_ready(f"http://127.0.0.1:{port}/", limit=20.0)
        assert web.request(f"http://127.0.0.1:{port}/none").status == 404
    assert not server.running
    assert not listening(port)()


def test_service_that_dies_shows_its_log(tmp_path: Path) -> None:
    """A server's last words are in the error."""
    service = Service(
        [sys.executable, "-c", "raise SystemExit('bad config')"], log=tmp_path / "log"
    )
    with pytest.raises(ServiceError, match=r"ended before .* \(exit status 1\)\nbad config"):
        service.wait_ready(lambda: False, limit=20.0)


FAILING = """
import sys
from tests.services.process import Service

def test_it(tmp_path):
    script = "print('last words', flush=True); import time; time.sleep(60)"
    with Service([sys.executable, "-c", script], log=tmp_path / "log") as server:
        server.wait_ready(lambda: server.tail() != "", limit=20.0)
        assert not server.running
"""


def test_a_failure_shows_what_the_servers_logged(tmp_path: Path) -> None:
    """The last lines of each server that runs are in the report of a test that fails."""
    file = tmp_path / "test_it.py"
    file.write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, file], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    assert "assert not server.running" in done.stdout
    assert f"log of {Path(sys.executable).name} ----" in done.stdout
    assert "last words" in done.stdout.rpartition("log of")[2]


def test_service_that_is_late_is_stopped(tmp_path: Path) -> None:
    """A server that is never ready does not stay behind."""
    service = Service([sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log")
    with pytest.raises(ServiceError, match=r"not ready after 0.2 s"):
        service.wait_ready(lambda: False, limit=0.2)
    assert not service.running


def test_stop_ends_deaf_servers_and_their_children(tmp_path: Path) -> None:
    """A leader that ignores SIGTERM is killed together with its children."""
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(60)\n"
    )
    service = Service([sys.executable, "-c", script], log=tmp_path / "log")
    child = int(poll(service.tail, bool, limit=20.0))
    began = time.monotonic()
    assert service.stop(grace=0.2) == -9
    assert service.stop() == -9
    assert time.monotonic() - began < 5.0
    poll(lambda: _alive(child), lambda alive: not alive, limit=5.0)


def _alive(pid: int) -> bool:
    """Whether a process exists and is not just waiting to be reaped."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_ports_are_distinct() -> None:
    """No port is given twice in one call."""
    assert len(set(free_ports(50))) == 50


def test_values_of_all_kinds_are_flattened() -> None:
    """Each kind of OTLP value becomes the Python value that stands for it."""
    kinds = {
        "text": ({"stringValue": ""}, ""),
        "whole": ({"intValue": "9007199254740993"}, 9007199254740993),
        "real": ({"doubleValue": 0}, 0.0),
        "infinite": ({"doubleValue": "Infinity"}, float("inf")),
        "flag": ({"boolValue": False}, False),
        "bytes": ({"bytesValue": "AQI="}, b"\x01\x02"),
        "list": ({"arrayValue": {"values": [{"stringValue": "a"}, {}]}}, ["a", None]),
        "map": ({"kvlistValue": {"values": [{"key": "a", "value": {"intValue": 1}}]}}, {"a": 1}),
        "nothing": ({}, None),
    }
    held = {"attributes": [{"key": key, "value": given} for key, (given, _) in kinds.items()]}
    assert otlp_json.attributes(held) == {key: wanted for key, (_, wanted) in kinds.items()}


def test_recordings_are_whole() -> None:
    """Each recorded request has an answer with the status and the end that fakes rely on."""
    answers = {name: record.load(name) for name in record.PLAIN | record.WITH_METRICS}
    refused = [name for name, answer in answers.items() if answer.status != 200]
    assert refused == ["chat_invalid"]
    assert answers["chat_stream"].events()[-1] == "[DONE]"
    assert answers["chat_metrics"].json()["metrics"]["queue_time_ms"] > 0
    assert len(answers["completions_n3"].json()["choices"]) == 3
