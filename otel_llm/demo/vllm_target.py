"""A real vLLM with a tiny model made on the spot, instrumented by the library's plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_llm.demo.child import Child, ChildTarget, DemoError
from otel_llm.demo.http import free_port, healthy
from otel_llm.demo.tiny_model import MAX_MODEL_LEN, write_tiny_model
from otel_llm.demo.variables import exporting

MODEL = "tiny-llama"
START_S = 300.0
"""Importing torch and vLLM from a cold disk takes its time."""
PROBE_S = 60.0
_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # its processes talk to each other over this address
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
_PROBE = """
import json
from importlib.metadata import entry_points
from importlib.util import find_spec
found = [each for each in ("vllm", "otel_llm", "google.protobuf") if find_spec(each)]
if find_spec("opentelemetry") and find_spec("opentelemetry.sdk"):
    found.append("opentelemetry.sdk")
if [e for e in entry_points(group="vllm.general_plugins") if e.name == "otel_llm"]:
    found.append("plugin")
print(json.dumps(found))
"""


class VllmTarget(ChildTarget):
    """vLLM's own server in a process of its own.

    Args:
        folder: Where the model and the log are put.
        endpoint: Where the server exports to.
        python: The interpreter that has vLLM; this one by default.
    """

    name = "vLLM"

    def __init__(self, folder: Path, endpoint: str, python: Path | None = None) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._python = str(python or sys.executable)
        self.model = MODEL

    def start(self) -> str:
        """Start it and wait until it is healthy; returns its base URL.

        Raises:
            DemoError: vLLM or otel_llm is not installed there, or it did not start.
        """
        check(self._python)
        model = self._folder / MODEL
        model.mkdir()
        write_tiny_model(model)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        env: Mapping[str, str] = {**exporting(self._endpoint), **_SETTINGS}
        command = [self._python, *_arguments(model, port)]
        self._child = Child(self.name, command, log=self._folder / "vllm.log", env=env)
        self._child.wait_for(lambda: healthy(f"{url}/health"), START_S)
        return url


def _arguments(model: Path, port: int) -> list[str]:
    options = {
        "model": model,
        "served-model-name": MODEL,
        "load-format": "dummy",
        "host": "127.0.0.1",
        "port": port,
        "max-model-len": MAX_MODEL_LEN,
        "max-num-seqs": 16,
    }
    named = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    # -P: nothing that happens to lie in the current folder hides a package.
    return ["-P", "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *named]


def check(python: str) -> None:
    """Raises `DemoError` if that interpreter has no vLLM with our plugin."""
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user named
            [python, "-P", "-c", _PROBE], capture_output=True, timeout=PROBE_S, check=True
        )
        found = set(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        raise DemoError(f"{python} is not a Python that can be run; check --python") from None
    if "vllm" not in found:
        raise DemoError(
            f"{python} has no vLLM; name the interpreter that has it with --python PATH, "
            "or leave --engine vllm away to see the simulated engine"
        )
    if not {"otel_llm", "plugin", "opentelemetry.sdk", "google.protobuf"} <= found:
        raise DemoError(
            f"vLLM's environment has no otel_llm to instrument it; run: "
            f"{python} -m pip install 'otel-llm[vllm]'"
        )
