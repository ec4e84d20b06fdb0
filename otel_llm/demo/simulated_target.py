"""The simulated engine in a process of its own, behind an instrumented server."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from otel_llm.demo.child import Child, ChildTarget
from otel_llm.demo.plan import DIALECTS, Plan
from otel_llm.demo.server import READY
from otel_llm.demo.variables import without_settings
from otel_llm.errors import MissingDependencyError

START_S = 30.0


class SimulatedTarget(ChildTarget):
    """`otel_llm.demo.server` under this interpreter.

    Args:
        plan: What it simulates.
        folder: Where the log is put.
        endpoint: Where the server exports to.
    """

    def __init__(self, plan: Plan, folder: Path, endpoint: str) -> None:
        self._plan = plan
        self._log = folder / "server.log"
        self._endpoint = endpoint
        self.name = f"the simulated {DIALECTS[plan.dialect]}"
        self.model = plan.model

    def start(self) -> str:
        """Start it and wait until it listens; returns its base URL.

        Raises:
            DemoError: It did not start.
            MissingDependencyError: uvicorn is not installed.
        """
        if find_spec("uvicorn") is None:
            raise MissingDependencyError("uvicorn", extra="demo")
        module = [sys.executable, "-m", "otel_llm.demo.server"]
        command = [*module, self._plan.to_json(), self._endpoint]
        env = without_settings(os.environ) | {"OTEL_BSP_SCHEDULE_DELAY": "500"}
        self._child = Child(self.name, command, log=self._log, env=env)
        port = self._child.wait_for(self._port, START_S)
        return f"http://127.0.0.1:{port}"

    def _port(self) -> int | None:
        lines = (line.split() for line in self._log.read_text(errors="replace").splitlines())
        found = (words[1] for words in lines if len(words) == 2 and words[0] == READY)
        return next((int(port) for port in found if port.isdigit()), None)
